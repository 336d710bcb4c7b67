"""A request under way: its streams, and where each of its stages stands. Only the session uses these."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import attrs

from framework.errors import Problem, StageError
from framework.execution.policies import Candidate
from framework.execution.request import Request, Result, StageReport
from framework.execution.runner import Row, Runner
from framework.execution.streams import Reader, Stream, Writer, constant
from framework.graph.model import Graph, Source, Stage


class Task:
    """One stage of one request. It waits for its inputs, then holds a row, then is done."""

    def __init__(self, job: Job, stage: Stage, inputs: Mapping[str, Reader], outputs: Mapping[str, Writer]) -> None:
        self.job = job
        self.stage = stage
        self.inputs = inputs
        self.outputs = outputs
        self.row: Row | None = None
        self.blocked = False  # ready, but an output is full
        self._begin = self._first = self._end = 0.0
        self._busy = 0.0
        self._steps = 0

    @property
    def startable(self) -> bool:
        """Nothing but a free row is missing."""
        return self.row is None and all(
            reader.complete or (reader.streaming and reader.available) for reader in self.inputs.values()
        )

    @property
    def done(self) -> bool:
        return self.row is not None and self.row.finished

    @property
    def has_room(self) -> bool:
        for writer in self.outputs.values():  # noqa: SIM110 - asked before every step, where a generator costs
            if not writer.room:
                return False
        return True

    def admitted(self, row: Row) -> None:
        self.row = row
        self._begin = self._end = perf_counter()

    def stepped(self, seconds: float) -> None:
        self._busy += seconds
        self._steps += 1

    def touch(self, now: float) -> None:
        """Note when the first output was there, and when the stage last did anything."""
        self._end = now
        if not self._first and any(writer.written for writer in self.outputs.values()):
            self._first = now

    def error(self, cause: Exception) -> StageError:
        """A StageError as it is; anything else wrapped, with the cause and its traceback kept."""
        if isinstance(cause, StageError):
            return cause
        wrapped = self.problem(f"{type(cause).__name__}: {cause}", "the stage to serve the request")
        wrapped.__cause__ = cause
        return wrapped

    def problem(self, got: str, expected: str) -> StageError:
        where = f"request {self.job.request.index}, stage {self.stage.id}"
        return StageError(Problem(where=where, got=got, expected=expected))

    def report(self) -> StageReport | None:
        """None when the stage did not start."""
        if self.row is None:
            return None
        return StageReport(
            start_s=self._begin - self.job.begin,
            first_output_s=self._first - self.job.begin if self._first else None,
            end_s=self._end - self.job.begin,
            busy_s=self._busy,
            steps=self._steps,
            details=dict(self.row.details),
        )


class Job:
    """One request: its stages as tasks in topological order, joined by streams."""

    def __init__(self, candidate: Candidate, graph: Graph, runners: Mapping[str, Runner], capacity: int) -> None:
        self.candidate = candidate
        self.request = candidate.request
        self.begin = perf_counter()
        self.moved = True  # since the session last looked for requests that are stuck
        self._file_order = [stage.id for stage in graph.stages]
        stages = {stage.id: stage for stage in graph.stages}
        route = candidate.route
        streams = {
            Source(stage_id, port.id): Stream(capacity) for stage_id in route.stages for port in stages[stage_id].emits
        }
        self.tasks = {
            stage_id: Task(
                self,
                stages[stage_id],
                _inputs(stages[stage_id], runners[stage_id], self.request, streams),
                {port.id: streams[Source(stage_id, port.id)].writer for port in stages[stage_id].emits},
            )
            for stage_id in route.stages
        }
        self._outputs: dict[str, list[Any]] = {str(source): [] for source in route.terminals}
        self._sinks: dict[str, list[tuple[str, Reader]]] = {stage_id: [] for stage_id in route.stages}
        for source in route.terminals:
            self._sinks[source.owner].append((str(source), streams[source].reader(streaming=False)))

    def collect(self, stage_id: str) -> list[tuple[str, Any]]:
        """Take what is new at the terminals of one stage: (terminal, chunk) pairs, kept for the result too."""
        new: list[tuple[str, Any]] = []
        for terminal, reader in self._sinks[stage_id]:
            chunks = reader.drain()
            self._outputs[terminal] += chunks
            new += [(terminal, chunk) for chunk in chunks]
        return new

    def result(self, error: Exception | None = None, *, cancelled: bool = False) -> Result:
        reports = {stage_id: self.tasks[stage_id].report() for stage_id in self._file_order if stage_id in self.tasks}
        return ended(
            self.request,
            error,
            cancelled=cancelled,
            outputs={terminal: tuple(chunks) for terminal, chunks in self._outputs.items()},
            stages={stage_id: report for stage_id, report in reports.items() if report is not None},
            wall_s=perf_counter() - self.begin,
        )


def ended(
    request: Request,
    error: Exception | None = None,
    *,
    cancelled: bool = False,
    outputs: Mapping[str, tuple[Any, ...]] | None = None,
    stages: Mapping[str, StageReport] | None = None,
    wall_s: float = 0.0,
) -> Result:
    """The result of a request, also of one that never started."""
    if cancelled:
        error = StageError(Problem(where=f"request {request.index}", got="cancelled", expected="to run to its end"))
    return Result(
        request=request,
        ok=error is None,
        error=error,
        cancelled=cancelled,
        outputs=outputs or {},
        stages=stages or {},
        wall_s=wall_s,
    )


@attrs.define(eq=False)
class Lane:
    """One stage at work: its runner, the rows it has, and who waits for one."""

    stage: Stage
    runner: Runner
    slots: list[Task | None]
    waiting: list[Task] = attrs.field(factory=list)

    @property
    def tasks(self) -> list[Task]:
        return [task for task in self.slots if task is not None]

    @property
    def free_slot(self) -> int | None:
        """The lowest one, None when all are taken."""
        return self.slots.index(None) if None in self.slots else None


def _inputs(stage: Stage, runner: Runner, request: Request, streams: Mapping[Source, Stream]) -> dict[str, Reader]:
    """Readers by input name; an input that this request lacks is absent (its `on_missing` is skip)."""
    readers = {}
    for declared in stage.inputs:
        source = declared.source
        if source.from_request and source.name in request.fields:
            readers[declared.name] = constant(request.fields[source.name])
        elif str(source) in request.given:
            readers[declared.name] = constant(request.given[str(source)])
        elif source in streams:
            readers[declared.name] = streams[source].reader(streaming=runner.decl.inputs[declared.name].streaming)
    return readers
