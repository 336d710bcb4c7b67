"""Runners without engines, and graphs of them. They keep the executor to its side of the contract by assertion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from framework.errors import Problem, StageError
from framework.execution.executor import Executor
from framework.execution.policies import InFlight, Policy
from framework.execution.request import Request, Result
from framework.execution.runner import OpenContext, Row, Runner
from framework.execution.sampling import uniform
from framework.graph.model import Graph, Input, InputDecl, Port, RunnerDecl, Source, Stage

Event = tuple[str, str, int]  # what, stage, request


class Fake(Runner):
    """Logs what is done to it. A request's option `fault=(stage, event, what)` lets that event of that stage go wrong:
    an exception is raised, "never" makes the row never ready, "fail" fails it; a `step` goes wrong the second time."""

    def __init__(self, *, stage: Stage, log: list[Event]) -> None:
        super().__init__(stage=stage)
        self.log = log
        self.held: dict[int, Row] = {}
        self.steps: dict[int, int] = {}
        self.places: dict[int, int] = {}  # row of each request it has had
        self.is_open = False

    def open(self, context: OpenContext) -> None:
        self.is_open = True
        self.log.append(("open", self.stage.id, context.batch))

    def close(self) -> None:
        assert self.is_open
        self.is_open = False

    def check(self, request: Request) -> None:
        self.fault("check", request)

    def admit(self, row: Row) -> None:
        self.fault("admit", row.request)
        assert row.index not in self.held and 0 <= row.index < self.stage.max_batch
        assert all(reader.complete or reader.streaming for reader in row.inputs.values())
        self.held[row.index] = row
        self.steps[row.index] = 0
        self.places[row.request.index] = row.index
        self.log.append(("admit", self.stage.id, row.request.index))

    def ready(self, row: Row) -> bool:
        assert self.held[row.index] is row
        return self.fault("ready", row.request) != "never" and self.has_input(row)

    def step(self, rows: Sequence[Row]) -> None:
        assert len({row.index for row in rows}) == len(rows) > 0
        for row in rows:
            assert self.held[row.index] is row and not row.finished
            assert all(writer.room for writer in row.outputs.values())
            self.log.append(("step", self.stage.id, row.request.index))
            self.steps[row.index] += 1
            if self.steps[row.index] == 2 and self.fault("step", row.request) == "fail":
                row.fail(StageError(Problem(where="here", got="bad luck", expected="good luck")))
            else:
                self.advance(row)

    def release(self, row: Row) -> None:
        assert self.held.pop(row.index) is row
        self.log.append(("release", self.stage.id, row.request.index))
        self.fault("release", row.request)

    def fault(self, event: str, request: Request) -> Any:
        stage, when, what = request.options.get("fault", ("", "", ""))
        if (stage, when) != (self.stage.id, event):
            return None
        if isinstance(what, BaseException):
            raise what
        return what

    def has_input(self, row: Row) -> bool:
        return True

    def advance(self, row: Row) -> None:
        raise NotImplementedError


def declare(*, streaming: bool = False, from_request: bool = False) -> RunnerDecl:
    reads = InputDecl(kinds=frozenset({"text", "codec"}), streaming=streaming, from_request=from_request)
    whole = InputDecl(kinds=frozenset({"text", "codec"}), from_request=True)
    return RunnerDecl(kind="host", inputs={"items": reads, "whole": whole}, ports={"out": "text"})


class Count(Fake):
    """Writes 0, 1 ... one a step, as many as its request field says."""

    decl = declare(from_request=True)

    def advance(self, row: Row) -> None:
        done = self.steps[row.index]
        row.outputs["out"].write(done - 1)
        if done == row.inputs["items"].value:
            row.finish(tokens=done)


class Sampled(Fake):
    """Writes noise of its stage and step for each chunk it reads, and stops by chance."""

    decl = declare(streaming=True, from_request=True)

    def has_input(self, row: Row) -> bool:
        items = row.inputs["items"]
        return items.available > 0 or items.complete

    def advance(self, row: Row) -> None:
        items, step = row.inputs["items"], self.steps[row.index]
        seed = row.request.sampling_for(self.stage.id).seed
        noise, stop = uniform(seed, self.stage.id, step, size=2).tolist()
        if items.available:
            row.outputs["out"].write((items.take(), noise))
        if stop < 0.05 or items.ended:
            row.finish(tokens=step)


class Relay(Fake):
    """Hands on one chunk a step, as it comes."""

    decl = declare(streaming=True)
    window = 1

    def has_input(self, row: Row) -> bool:
        items = row.inputs["items"]
        return items.available >= self.window or items.complete

    def advance(self, row: Row) -> None:
        items = row.inputs["items"]
        for _ in range(min(self.window, items.available)):
            row.outputs["out"].write(items.take())
        if items.ended:
            row.finish()


class WideRelay(Relay):
    """Hands on six chunks a step."""

    window = 6


class Whole(Fake):
    """Writes all it was given, as one tuple, in one step; None for an input that is missing."""

    decl = declare()

    def advance(self, row: Row) -> None:
        names = [declared.name for declared in self.stage.inputs]
        row.outputs["out"].write(tuple(tuple(row.inputs[n].drain()) if n in row.inputs else None for n in names))
        row.finish()


def stage(stage_id: str, *inputs: str, out: str = "text", terminal: bool = True, max_batch: int = 8) -> Stage:
    """`inputs` are `name<-source`, with a `?` at the end when the stage runs without; `out` is the kind of its port."""
    read = []
    for text in inputs:
        name, source = text.rstrip("?").split("<-")
        read.append(Input(name=name, source=Source.parse(source), on_missing="skip" if text.endswith("?") else "fail"))
    port = Port(id="out", kind=out, terminal=terminal)
    return Stage(id=stage_id, runner=stage_id, inputs=tuple(read), emits=(port,), max_batch=max_batch)


class Bench:
    """A graph of fake runners with its executor and event log."""

    def __init__(self, *stages: tuple[type[Fake], Stage], policy: Policy | None = None, capacity: int = 4) -> None:
        declared = tuple(stage for _, stage in stages)
        self.log: list[Event] = []
        self.graph = Graph(
            stages=declared,
            terminals=tuple(Source(s.id, port.id) for s in declared for port in s.emits if port.terminal),
        )
        self.runners = {stage.id: runner(stage=stage, log=self.log) for runner, stage in stages}
        self.executor = Executor(self.graph, self.runners, policy=policy or InFlight(4), stream_capacity=capacity)

    def run(self, requests: Iterable[Request], **options: Any) -> list[Result]:
        """Results as they ended; no runner may hold a row afterwards."""
        results = list(self.executor.run(requests, **options))
        self.assert_free()
        return results

    def steps(self) -> list[str]:
        """Stage ids in the order of their steps."""
        return [stage_id for _, stage_id, _ in self.events("step")]

    def assert_free(self) -> None:
        assert {stage_id: runner.held for stage_id, runner in self.runners.items() if runner.held} == {}

    def events(self, *which: str) -> list[Event]:
        return [event for event in self.log if event[0] in which]


def speech(**options: Any) -> Bench:
    """thinker (text) -> talker (codec) -> vocoder (audio), all streaming."""
    return Bench(
        (Count, stage("thinker", "items<-request:n")),
        (Relay, stage("talker", "items<-thinker:out", out="codec", terminal=False)),
        (Relay, stage("vocoder", "items<-talker:out", out="audio")),
        **options,
    )


def alone(max_batch: int = 8, **options: Any) -> Bench:
    """One stage that counts."""
    return Bench((Count, stage("count", "items<-request:n", max_batch=max_batch)), **options)


def ask(
    index: int, n: int, *, kinds: str = "text", fault: tuple[str, str, Any] | None = None, **fields: Any
) -> Request:
    """A request to count to `n`."""
    return Request(
        index=index,
        fields={"n": n, **fields},
        kinds=frozenset(kinds.split()),
        options={"fault": fault} if fault else {},
    )
