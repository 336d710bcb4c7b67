"""Runners without engines for the commands: a graph names them through rows given on the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np

from framework.cli import app, inference
from framework.deployment.instances import PREFIXES
from framework.errors import Problem, StageError
from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Request, message_text
from framework.execution.runner import OpenContext, Row, Runner
from framework.graph.model import InputDecl, RunnerDecl
from framework.io.kinds import PayloadKind
from framework.writing import write_text

ALLOWED = (*PREFIXES, "tests.")
ROWS = [
    "+runners.test.echo._target_=tests.cli.fakes.Echo",
    "+runners.test.beep._target_=tests.cli.fakes.Beep",
    "+runners.test.counter._target_=tests.cli.fakes.Counter",
]


@attrs.frozen(kw_only=True)
class EchoConfig:
    """`shout` writes capitals."""

    shout: bool = False


@attrs.frozen(kw_only=True)
class EchoStyle:
    """`speed` is read and changes nothing."""

    speed: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.gt(0)))


class Echo(Runner):
    """Says the words of the last message, one a step. The words `fail`, `interrupt` and `kill` do what they say."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="autoregressive",
        inputs={"prompt": InputDecl(from_request=True), "audio": InputDecl(from_request=True)},
        ports={"text": "text"},
        config=EchoConfig,
        samples=("default",),
        style=EchoStyle,
    )

    def open(self, context: OpenContext) -> None:
        if folder := os.environ.get("FAKES_OPENED"):  # which process opened how often, for the tests of launchers
            with (Path(folder) / str(os.getpid())).open("a") as file:
                file.write("opened\n")

    def check(self, request: Request) -> None:
        if "kill" in words_of(request):
            os.kill(os.getpid(), signal.SIGKILL)
        if "refuse" in words_of(request):
            raise StageError(Problem(where="prompt", got="'refuse'", expected="another word"))

    def admit(self, row: Row) -> None:
        row.details["left"] = words_of(row.request)

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            word, *left = row.details["left"]
            if word == "interrupt":
                raise KeyboardInterrupt
            if word == "fail":
                row.fail(StageError(Problem(where="prompt", got="'fail'", expected="a word that works")))
                continue
            row.details["left"] = left
            row.outputs["text"].write(TextChunk(text=(word.upper() if self.config.shout else word) + " " * bool(left)))
            if not left:
                del row.details["left"]
                sampling = row.request.sampling_for("default", stage=self.stage.id)
                row.finish(
                    finish_reason="end-of-sequence",
                    batch_idx=row.index,
                    formatted_system_prompt="",
                    formatted_complete_request=f"<user>{' '.join(words_of(row.request))}",
                    temperature=sampling.temperature,
                )


class Beep(Runner):
    """A hundred samples for each chunk of text; nothing for `mute`, `hoarse` is not admitted. Its voice is ann."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="iterative",
        inputs={"text": InputDecl(kinds=frozenset({"text"}), streaming=True), "voice": InputDecl(from_request=True)},
        ports={"audio": "audio"},
    )

    def check_choices(self, artifact: Path, given: Mapping[str, Any]) -> None:
        if (voice := given.get("voice", "ann")) != "ann":
            raise StageError(Problem(where="voice", got=repr(voice), expected="ann"))

    def admit(self, row: Row) -> None:
        if "hoarse" in words_of(row.request):
            raise StageError(Problem(where="text", got="'hoarse'", expected="another word"))

    def ready(self, row: Row) -> bool:
        return bool(row.inputs["text"].available) or row.inputs["text"].ended

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.inputs["text"].ended:
                row.finish()
                continue
            if row.inputs["text"].take().text.strip() == "mute":
                continue
            samples = np.full(100, 0.5, dtype=np.float32)
            row.outputs["audio"].write(AudioChunk(samples=samples, sample_rate=8000))


@attrs.frozen(kw_only=True, eq=False)
class CountChunk:
    """How many words a piece of text has."""

    kind: ClassVar[str] = "count"

    words: int


def write_counts(path: Path, chunks: Sequence[CountChunk]) -> dict[str, Any]:
    counts = [chunk.words for chunk in chunks]
    write_text(path, [json.dumps(counts)])
    return {"count_words": sum(counts)}


class Counter(Runner):
    """Counts the words of each chunk of text: a kind of payload that the framework does not have."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="host",
        inputs={"text": InputDecl(kinds=frozenset({"text"}), streaming=True)},
        ports={"count": "count"},
        payloads=(
            PayloadKind(
                chunk=CountChunk,
                entry=lambda chunks: {"counted": len(chunks)},
                write=write_counts,
                suffix=".json",
                told=lambda written: f"{written['count_words']} words",
            ),
        ),
    )

    def admit(self, row: Row) -> None:
        pass

    def ready(self, row: Row) -> bool:
        return bool(row.inputs["text"].available) or row.inputs["text"].ended

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.inputs["text"].ended:
                row.finish()
            else:
                row.outputs["count"].write(CountChunk(words=len(row.inputs["text"].take().text.split())))


def words_of(request: Request) -> list[str]:
    return message_text(request.fields["messages"][-1], " ").split()


ECHO: dict[str, Any] = {
    "id": "echo",
    "runner": "test.echo",
    "kind": "autoregressive",
    "max_batch": 4,
    "inputs": [{"name": "prompt", "from": "request:messages"}],
    "emits": [{"id": "text", "kind": "text", "terminal": True}],
}
BEEP: dict[str, Any] = {
    "id": "beep",
    "runner": "test.beep",
    "kind": "iterative",
    "max_batch": 4,
    "inputs": [
        {"name": "text", "from": "echo:text"},
        {"name": "voice", "from": "request:voice", "on_missing": "skip"},
    ],
    "emits": [{"id": "audio", "kind": "audio", "terminal": True}],
}


COUNTER: dict[str, Any] = {
    "id": "counter",
    "runner": "test.counter",
    "kind": "host",
    "inputs": [{"name": "text", "from": "echo:text"}],
    "emits": [{"id": "count", "kind": "count", "terminal": True}],
}


def engines(folder: Path, *stages: dict[str, Any]) -> Path:
    """An engine folder with the graph of these stages."""
    terminals = [f"{stage['id']}:{port['id']}" for stage in stages for port in stage["emits"] if port.get("terminal")]
    folder.mkdir(parents=True, exist_ok=True)
    graph = {"schema_version": 1, "terminals": terminals, "stages": list(stages)}
    (folder / "multistage_config.json").write_text(json.dumps(graph))
    return folder


def infer(*arguments: str, rows: Sequence[str] = ROWS) -> int:
    """`multistage-inference` in this process, with the fakes allowed; the exit status."""
    task = partial(inference.task, prefixes=ALLOWED)
    return app.call("inference", task, [*rows, *arguments], inference.HOOKS)


if __name__ == "__main__":
    sys.exit(infer(*sys.argv[1:]))
