"""Files at scale: what the executor itself costs, the memory of a long file, and what in-flight batching gains."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import attrs

from framework.execution.executor import Executor
from framework.execution.policies import Cohort, InFlight
from framework.execution.request import Request, Result
from framework.execution.runner import Row, Runner
from framework.graph.model import Graph, Input, InputDecl, Port, RunnerDecl, Source, Stage
from tests.bench import commands
from tests.bench.line import Line, paired
from tests.bench.ours import DEPLOYMENT, configured
from tests.bench.worker import Missing, Worker

ROWS = 8
FEW, MANY = 1_000, 10_000  # requests of the files whose memory is compared
LONG, REQUESTS = 256, 64  # most tokens of a reply; requests, of which every eighth has a long one
_LANDS = ("France", "Spain", "Italy", "Japan", "Egypt", "Peru", "Norway", "Kenya", "Greece", "Poland", "Chile")
Say = Callable[[str], None]


def measure(folder: Path, threads: int, rounds: int, say: Say) -> list[Line]:
    """Lines for the executor alone, and with int4 engines of `ROWS` rows, which are built in `folder`."""
    say("files: the executor")
    cost = Line(name=f"executor, a stage step of {ROWS} rows", unit="ms", at_most=0.1)
    memory = Line(name=f"memory, file of {MANY} requests", unit="MB", peer_name=f"{FEW} requests", at_most=1.1)
    gain = Line(
        name=f"file of {REQUESTS} unequal requests, in flight, int4",
        unit="requests/s",
        peer_name=f"cohorts of {ROWS}",
        at_least=1.5,
    )
    try:
        with Worker(Overhead) as worker:
            taken = [worker.call("step_s") for _ in range(rounds + 1)][1:]
        cost = attrs.evolve(cost, ours=median(taken) * 1e3)
    except Missing as missing:
        cost = attrs.evolve(cost, missing=str(missing))
    say("files: memory")
    try:
        peaks = {}
        for requests in (FEW, MANY):
            with Worker(LongFile) as worker:
                peaks[requests] = worker.call("peak_bytes", requests) / 1e6
        memory = paired(memory, [peaks[MANY]], [peaks[FEW]])
    except Missing as missing:
        memory = attrs.evolve(memory, missing=str(missing))
    say(f"building int4 engines of {ROWS} rows")
    build = (DEPLOYMENT, f"build.max_batch_size={ROWS}", f"engine_dir={folder}")
    commands.command(*build, module=commands.BUILD)
    try:
        ours, peer = [], []
        with Worker(Unequal, folder, threads) as worker:
            for number in range(min(rounds, 3) + 1):  # a round takes its time, and the ratio is far from its bound
                say("files: " + ("warming up" if number == 0 else f"round {number}"))
                peer.append(REQUESTS / worker.call("cohorts"))
                ours.append(REQUESTS / worker.call("in_flight"))
        gain = paired(gain, ours[1:], peer[1:])
    except Missing as missing:
        gain = attrs.evolve(gain, missing=str(missing))
    return [cost, memory, gain]


class Count(Runner):
    """Writes as many chunks as the request says, one a step."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="host", inputs={"n": InputDecl(kinds=frozenset({"text"}), from_request=True)}, ports={"out": "text"}
    )

    def admit(self, row: Row) -> None:
        pass

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            out = row.outputs["out"]
            out.write(None)
            if out.written == row.request.fields["n"]:
                row.finish()


class Relay(Runner):
    """Hands on a chunk a step."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="host", inputs={"n": InputDecl(kinds=frozenset({"text"}), streaming=True)}, ports={"out": "text"}
    )

    def admit(self, row: Row) -> None:
        pass

    def ready(self, row: Row) -> bool:
        reader = row.inputs["n"]
        return reader.available > 0 or reader.complete

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            reader = row.inputs["n"]
            if reader.available:
                row.outputs["out"].write(reader.take())
            if reader.ended:
                row.finish()


class Overhead:
    """Three stages that do next to nothing."""

    def step_s(self, requests: int = 200, tokens: int = 50) -> float:
        """Seconds of all but the runners' steps, for each step of a stage with all its rows."""
        stages = [_stage("a", "request:n"), _stage("b", "a:out"), _stage("c", "b:out", terminal=True)]
        graph = Graph(stages=tuple(stages), terminals=(Source("c", "out"),))
        runners = {stage.id: (Count if stage.id == "a" else Relay)(stage=stage) for stage in stages}
        executor = Executor(graph, runners, policy=InFlight(ROWS))
        asked = (Request(index=i, fields={"n": tokens}, kinds=frozenset({"text"})) for i in range(requests))
        begin = perf_counter()
        results = list(executor.run(asked))
        wall = perf_counter() - begin
        busy = [report for result in results for report in result.stages.values()]
        steps = sum(report.steps for report in busy) / ROWS
        return (wall - sum(report.busy_s for report in busy) / ROWS) / steps


class LongFile:
    """A request file through the command, in a process of its own."""

    def peak_bytes(self, requests: int) -> int:
        """Most bytes held at once."""
        from framework.cli.profile import peak_memory
        from tests.cli.fakes import ECHO, engines, infer

        with tempfile.TemporaryDirectory(prefix="multistage-bench-") as folder:
            os.chdir(folder)
            engine_dir = engines(Path("echo"), ECHO)
            with open("requests.json", "w") as file:
                said = "x" * 4000
                asked = (json.dumps({"prompt": f"{index}{said}"}) for index in range(requests))
                file.writelines(("," if number else '{"requests": [') + text for number, text in enumerate(asked))
                file.write("]}")
            files = ("input_file=requests.json", "output_file=predictions.json")
            if infer(f"engine_dir={engine_dir}", *files, "batching=inflight", f"batching.size={ROWS}"):
                raise RuntimeError("a request failed")
            os.chdir("/")
        return peak_memory()


class Unequal:
    """Real engines, and requests of very unequal lengths."""

    def __init__(self, folder: Path, threads: int) -> None:
        from framework.deployment.system import deployed, make_executor

        settings = (f"engine_dir={folder}", f"backend.threads={threads}", "batching=inflight", f"batching.size={ROWS}")
        config = configured(*settings)
        self._executor = make_executor(config, deployed(config), None)

    def in_flight(self) -> float:
        """Seconds for the file."""
        return self._run(InFlight(ROWS))

    def cohorts(self) -> float:
        return self._run(Cohort(ROWS))

    def _run(self, policy: Any) -> float:
        self._executor.policy = policy
        begin = perf_counter()
        results = list(self._executor.run(_asked(index) for index in range(REQUESTS)))
        wall = perf_counter() - begin
        _check(results)
        return wall


def _asked(index: int) -> Request:
    """A question whose answer is a sentence; every eighth, one whose answer goes on up to the limit."""
    land = _LANDS[index % len(_LANDS)]
    text = f"Write a long story about a sailor from {land}." if _is_long(index) else f"What is the capital of {land}?"
    sampling = {"temperature": 0.0, "max_generate_length": LONG}
    messages = [{"role": "user", "content": text}]
    return Request(index=index, fields={"messages": messages}, sampling={"default": sampling})


def _is_long(index: int) -> bool:
    return index % 8 == 3


def _check(results: Sequence[Result]) -> None:
    """The comparison says something only while lengths are very unequal."""
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for result in results:
        if result.error is not None:
            raise result.error
        lengths[_is_long(result.request.index)].append(result.stages["thinker"].details["generated_tokens"])
    if median(lengths[True]) < 5 * median(lengths[False]):
        raise ValueError(f"not very unequal: {lengths}")


def _stage(name: str, source: str, *, terminal: bool = False) -> Stage:
    port = Port(id="out", kind="text", terminal=terminal)
    read = Input(name="n", source=Source.parse(source), on_missing="fail")
    return Stage(id=name, runner=name, inputs=(read,), emits=(port,), max_batch=ROWS)
