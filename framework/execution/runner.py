"""The runner contract: what implements a stage.

A runner declares itself (`decl`), is built from its stage and typed config, opened once, and then only:

    admit(row)     take a request into `row.index`, or raise `StageError` saying why not; costs nothing
    ready(row)     is there input for one more unit of work?
    step(rows)     advance every given row by one unit (a token, a codec frame, a vocoder window, a denoising step)
    release(row)   free the row at once, also in the middle

The executor calls `step` only with rows that are ready *and* whose outputs have room, so a runner knows neither
back-pressure nor which batching policy is on. Nothing on the step path allocates device memory.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from framework.engines.backend import Backend
from framework.execution.request import Request
from framework.execution.streams import Reader, Writer
from framework.graph.model import RunnerDecl, Stage


@attrs.frozen(kw_only=True)
class OpenContext:
    """What the deployment gives a runner when it is opened.

    Attributes:
        engine_dir: folder of the graph file; `artifact` below is inside it.
        artifact: the stage's own engine folder.
        backend: the typed backend settings that `framework.engines.open_engine` takes.
        batch: rows to allocate: the smaller of the stage's `max_batch` and what the run asks for.
    """

    engine_dir: Path
    artifact: Path
    backend: Backend
    batch: int


class Row:
    """One request's place in one stage.

    Attributes:
        index: slot in the runner's batch, 0 to max_batch - 1; the lowest free one is taken.
        inputs: by input name; an input that is missing for this request is absent. A request field is a
            closed stream of one chunk.
        outputs: by port id, only the ports the stage emits.
        details: what the stage wants in the result's `stages` (finish_reason, token counts ...).
    """

    def __init__(
        self, *, index: int, request: Request, inputs: Mapping[str, Reader], outputs: Mapping[str, Writer]
    ) -> None:
        self.index = index
        self.request = request
        self.inputs = inputs
        self.outputs = outputs
        self.details: dict[str, Any] = {}
        self.finished = False
        self.error: Exception | None = None

    def finish(self, **details: Any) -> None:
        """Close every output: the stage is done with this request."""
        self.details.update(details)
        for writer in self.outputs.values():
            writer.close()
        self.finished = True

    def fail(self, error: Exception) -> None:
        """This request cannot go on in this stage; other rows are not touched."""
        self.error = error
        self.finished = True


class Runner(abc.ABC):
    """Base of every stage implementation. `__init__` takes declared values only; `open` loads."""

    decl: ClassVar[RunnerDecl]

    def __init__(self, *, stage: Stage, config: Any = None) -> None:
        self.stage = stage
        self.config = config

    def choices(self, artifact: Path) -> Mapping[str, Sequence[str]]:
        """Names that a request may give, by field (voice, language); read from the artifact without an engine."""
        return {}

    def check_choices(self, artifact: Path, given: Mapping[str, Any]) -> None:  # noqa: B027
        """Raise `StageError` for a name that is none of `choices`, also where the stage will not run; no engine is
        needed. `given` is what a request has, by input."""

    def open(self, context: OpenContext) -> None:  # noqa: B027 - a host stage has nothing to open
        """Load engines and claim all memory the stage will need."""

    def check(self, request: Request) -> None:  # noqa: B027
        """Raise `StageError` for a request that can never be served (unknown voice, too long); before admission,
        may be called before `open` has run only for checks that need no engine."""

    @abc.abstractmethod
    def admit(self, row: Row) -> None: ...

    @abc.abstractmethod
    def ready(self, row: Row) -> bool: ...

    @abc.abstractmethod
    def step(self, rows: Sequence[Row]) -> None: ...

    def release(self, row: Row) -> None:  # noqa: B027
        """Free the row's place; called exactly once per admitted row, after finish, fail, cancel or a raise."""

    def close(self) -> None:  # noqa: B027
        """Free engines."""
