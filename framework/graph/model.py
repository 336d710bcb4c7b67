"""The typed graph: which stages a deployment has, and which output feeds which input.

Declared values only; reading and writing files is `files.py`, checking is `validate.py`, choosing the
stages of one request is `routes.py`. Field metadata says how a field stands in a file, see `framework.schema`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import attrs

OnMissing = Literal["fail", "skip", "prune"]
FILE_NAME = "multistage_config.json"
ALWAYS = {"always": True}  # written to files also when it has its default


def _read_only(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


@attrs.frozen
class Source:
    """Where an input comes from: `request:<field>` or `<stage>:<port>`."""

    form: ClassVar[str] = "'request:<field>' or '<stage>:<port>'"

    owner: str
    name: str

    @property
    def from_request(self) -> bool:
        return self.owner == "request"

    @classmethod
    def parse(cls, text: str) -> Source:
        """Raises ValueError when `text` is not exactly two non-empty names joined by one colon."""
        owner, colon, name = text.partition(":")
        if not (owner and colon and name) or ":" in name:
            raise ValueError(f"{text!r} is not {cls.form}")
        return cls(owner, name)

    def __str__(self) -> str:
        return f"{self.owner}:{self.name}"


@attrs.frozen(kw_only=True)
class Input:
    """A named input of a stage.

    Attributes:
        on_missing: `skip` runs the stage without it; `fail` and `prune` leave the stage out, and the
            request fails only when a requested output needs that stage.
    """

    name: str
    source: Source = attrs.field(metadata={"key": "from"})
    on_missing: OnMissing = attrs.field(default="fail", metadata=ALWAYS)


@attrs.frozen(kw_only=True)
class Port:
    """An output of a stage, read elsewhere as `<stage>:<id>`.

    Attributes:
        kind: payload kind, e.g. text, hidden, codec, audio, image.
        terminal: whether a caller may ask for it.
        binding: name of the engine tensor behind it; "" when the runner decides.
    """

    id: str
    kind: str = attrs.field(default="text", metadata=ALWAYS)
    terminal: bool = False
    binding: str = ""


@attrs.frozen(kw_only=True)
class Stage:
    """A node of the graph.

    Attributes:
        runner: row of the runners table that implements it, e.g. `my_family.decoder`.
        artifact: engine folder, relative to the folder of the graph file; "" for a stage without one.
        kind: shape of the work: autoregressive, iterative or host; equal to the runner's.
        max_batch: rows the stage can run together.
        max_seq: sequence budget in units of the stage (tokens, frames); 0 when it has none.
        backend: name of the backend that executes its engines; "" is the run's.
        device: index of the GPU they run on; None is the backend's own.
        config: settings only the runner reads, checked by the runner's own attrs class.
    """

    id: str
    runner: str
    artifact: str = ""
    kind: str = attrs.field(default="host", metadata=ALWAYS)
    inputs: tuple[Input, ...] = attrs.field(default=(), metadata={"by": "name"})
    emits: tuple[Port, ...] = attrs.field(default=(), metadata={"by": "id"})
    max_batch: int = 1
    max_seq: int = 0
    backend: str = ""
    device: int | None = None
    config: Mapping[str, Any] = attrs.field(factory=dict, converter=_read_only)

    def port(self, port_id: str) -> Port | None:
        return next((port for port in self.emits if port.id == port_id), None)


@attrs.frozen(kw_only=True)
class Graph:
    """Stages and the outputs returned to the caller, in file order."""

    schema_version: int = attrs.field(default=1, metadata=ALWAYS)
    terminals: tuple[Source, ...] = attrs.field(default=(), metadata=ALWAYS)
    stages: tuple[Stage, ...] = attrs.field(default=(), metadata={"by": "id", **ALWAYS})

    def stage(self, stage_id: str) -> Stage | None:
        return next((stage for stage in self.stages if stage.id == stage_id), None)


@attrs.frozen(kw_only=True)
class InputDecl:
    """An input a runner understands.

    Attributes:
        kinds: payload kinds it can read from another stage.
        from_request: whether it may come from a request field.
        streaming: True when the runner reads chunks as they come; False when it starts after the last one.
    """

    kinds: frozenset[str] = frozenset()
    from_request: bool = False
    streaming: bool = False


@attrs.frozen(kw_only=True)
class RunnerDecl:
    """What a runner can do: the implementation's half of the contract that a `Stage` names.

    Attributes:
        kind: shape of the work; must equal `Stage.kind`.
        inputs: inputs it understands; a stage may bind a subset.
        ports: payload kind of each port it can produce; a stage may emit a subset.
        required: inputs without which it cannot run at all.
        alternatives: sets of inputs of which it needs one, the usual first.
        config: attrs class of `Stage.config`, or None when it takes no settings.
        samples: roles of the sampling settings it reads (`default`, `talker` ...); the settings given for its stage by
            id go over those of the first.
        style: attrs class of the style settings it reads, all optional; None when it reads none.
        folders: settings of `config` that name a folder to read from, each with where that starts: "" is the artifact,
            ".." what the artifact lies in.
        payloads: kinds of payload of its ports that a caller may ask for and the framework does not have
            (`framework.io.kinds.PayloadKind`).
    """

    kind: str
    inputs: Mapping[str, InputDecl]
    ports: Mapping[str, str]
    required: frozenset[str] = frozenset()
    alternatives: tuple[frozenset[str], ...] = ()
    config: type | None = None
    samples: tuple[str, ...] = ()
    style: type | None = None
    folders: Mapping[str, str] = attrs.field(factory=dict)
    payloads: tuple[Any, ...] = ()

    def needed(self, bound: Collection[str | None]) -> frozenset[str]:
        """Inputs that it cannot run without, of the alternatives those that are nearest to what is bound."""
        return self.required | max(self.alternatives, key=lambda names: len(names & {*bound}), default=frozenset())
