"""Deployments without engines for the server, and a server of them in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np
import uvicorn

from framework.deployment.checks import request_problems
from framework.errors import Problem, StageError
from framework.execution.executor import Executor
from framework.execution.payloads import AudioChunk, Logprob, TextChunk
from framework.execution.policies import InFlight
from framework.execution.request import Request
from framework.execution.runner import Row, Runner
from framework.graph import loads
from framework.graph.model import InputDecl, RunnerDecl
from framework.io.audio import load_audio
from framework.io.requests import Defaults
from framework.serve.app import create_app
from framework.serve.metrics import Metrics
from framework.serve.served import House, Served
from framework.serve.settings import Keys, Limits

RATE = 24_000

_EAR = """
  asr:
    runner: ear
    max_batch: 4
    inputs: {audio: {from: request:audio}}
    emits: {text: {kind: text}}
"""
_THINKER = """
  thinker:
    runner: echo
    kind: autoregressive
    max_batch: 4
    inputs:
      prompt: {from: request:messages}
      %s
    emits: {text: {kind: text, terminal: true}}
"""
_VOICE = """
  tts:
    runner: beep
    kind: iterative
    max_batch: 4
    inputs:
      text: {from: %s}
      voice: {from: request:voice, on_missing: skip}
    emits: {audio: {kind: audio, terminal: true}}
"""
# The shape of a voice assistant: what is heard is answered, the answer is said.
ASSISTANT = (
    "terminals: [thinker:text, tts:audio]\nstages:"
    + _EAR
    + _THINKER % "transcript: {from: asr:text, on_missing: skip}"
    + _VOICE % "thinker:text"
)
TEXT = "terminals: [thinker:text]\nstages:" + _THINKER % ""
VOICE = "terminals: [tts:audio]\nstages:" + _VOICE % "request:messages"


@attrs.frozen(kw_only=True)
class BeepStyle:
    speed: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.gt(0)))


class Ear(Runner):
    """Hears how long a recording is: "2.0 seconds"."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="host", inputs={"audio": InputDecl(from_request=True)}, ports={"text": "text"}
    )

    def admit(self, row: Row) -> None: ...

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            seconds = sum(len(load_audio(Path(path), RATE)) for path in row.inputs["audio"].value) / RATE
            text = f"{seconds:.1f} seconds"
            row.outputs["text"].write(TextChunk(text=text))
            row.finish(transcript=text, audio_seconds=seconds)


class Echo(Runner):
    """Says the words of the last message, one a step, each of which takes `pause` seconds. `seed` says the seed,
    `fail` fails, `break` raises what is no error of ours, `third` is the third best of the tokens there were."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="autoregressive",
        inputs={"prompt": InputDecl(from_request=True), "transcript": InputDecl(kinds=frozenset({"text"}))},
        ports={"text": "text"},
        samples=("default",),
    )
    pause = 0.0

    def __init__(self, *, stage: Any, config: Any = None) -> None:
        super().__init__(stage=stage, config=config)
        self.left: dict[int, list[str]] = {}
        self.sampling: dict[int, Any] = {}
        self.steps = 0

    def admit(self, row: Row) -> None:
        heard = "".join(chunk.text for chunk in row.inputs["transcript"].drain()) if "transcript" in row.inputs else ""
        messages = row.inputs["prompt"].value
        self.sampling[row.index] = row.request.sampling_for("default", {"max_generate_length": 100_000})
        self.left[row.index] = f"{heard} {_text(messages[-1:])}".split()
        row.details["prompt_tokens"] = len(_text(messages).split())

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        self.steps += 1
        if self.pause:
            time.sleep(self.pause)
        for row in rows:
            self.say(row, self.left[row.index], self.sampling[row.index])

    def say(self, row: Row, words: list[str], sampling: Any) -> None:
        word = words.pop(0)
        if word == "fail":
            where = f"request {row.request.index}: prompt"
            row.fail(StageError(Problem(where=where, got="'fail'", expected="luck")))
            return
        if word == "break":
            row.fail(ZeroDivisionError("a secret of the machine"))
            return
        if word == "seed":
            word = str(sampling.seed)
        count = row.details["generated_tokens"] = row.details.get("generated_tokens", 0) + 1
        reason = None if words else "end-of-sequence"
        if word in sampling.stop:
            word, reason = "", "stop-words"
        elif count >= sampling.max_generate_length and words:
            reason = "max-length"
        text = word + ("" if reason else " ")
        best = tuple(
            Logprob(token_id=n, token=text if n == 0 else f"<{n}>", bytes=tuple(text.encode()), logprob=-0.5 - n)
            for n in range(sampling.num_logprobs)
        )
        row.outputs["text"].write(
            TextChunk(text=text, ids=(2 if word == "third" else 0,), logprobs=(best,) if best else ())
        )
        if reason:
            row.finish(finish_reason=reason)

    def release(self, row: Row) -> None:
        self.left.pop(row.index, None)


class Beep(Runner):
    """A tenth of a second for each word, of which `mute` makes no sound. Its voices are Ann and Bob."""

    decl: ClassVar[RunnerDecl] = RunnerDecl(
        kind="iterative",
        inputs={
            "text": InputDecl(kinds=frozenset({"text"}), from_request=True, streaming=True),
            "voice": InputDecl(from_request=True),
        },
        ports={"audio": "audio"},
        style=BeepStyle,
    )
    pause = 0.0

    def choices(self, artifact: Path) -> Mapping[str, Sequence[str]]:
        return {"voice": ("Ann", "Bob")}

    def check_choices(self, artifact: Path, given: Mapping[str, Any]) -> None:
        if (voice := given.get("voice", "Ann")) not in ("Ann", "Bob"):
            raise StageError(Problem(where="voice", got=repr(voice), expected="one of Ann, Bob"))

    def admit(self, row: Row) -> None:
        row.details["words"] = []

    def ready(self, row: Row) -> bool:
        text = row.inputs["text"]
        return bool(row.details["words"] or text.available) or text.complete

    def step(self, rows: Sequence[Row]) -> None:
        if self.pause:
            time.sleep(self.pause)
        for row in rows:
            words = row.details["words"]
            if row.inputs["text"].available:
                chunk = row.inputs["text"].take()
                words += (chunk.text if isinstance(chunk, TextChunk) else _text(chunk)).split()
            if words and words.pop(0) != "mute":
                speed = row.request.options.get("style", {}).get("speed") or 1.0
                wave = 0.5 * np.sin(np.arange(int(RATE / 10 / speed)) * 2 * np.pi * 440 / RATE)
                row.outputs["audio"].write(AudioChunk(samples=wave.astype(np.float32), sample_rate=RATE))
            if not words and row.inputs["text"].ended:
                row.finish()


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return " ".join(part["text"] for m in messages for part in m["content"] if part["type"] == "text")


RUNNERS: dict[str, type[Runner]] = {"ear": Ear, "echo": Echo, "beep": Beep}


class Fake:
    """A deployment of the runners above.

    Args:
        pause: seconds that each step of a stage takes.
        fault: what opening its engines raises.
    """

    def __init__(
        self, graph: str = ASSISTANT, *, rows: int = 4, pause: float = 0.0, fault: Exception | None = None
    ) -> None:
        self.graph = loads(graph, suffix=".yaml")
        self.defaults = Defaults()
        self.rows = rows
        self.runners = {stage.id: RUNNERS[stage.runner](stage=stage) for stage in self.graph.stages}
        for runner in self.runners.values():
            runner.pause = pause  # type: ignore[attr-defined]
        self.fault = fault
        self.opened = self.closed = 0

    def problems(self, request: Request) -> list[Problem]:
        decls = {name: runner.decl for name, runner in RUNNERS.items()}
        found = request_problems(self.graph, decls, request)
        for runner in self.runners.values():
            try:
                runner.check_choices(Path(), request.fields)
            except StageError as error:
                found += error.problems
        return found

    def choices(self) -> Mapping[str, Sequence[str]]:
        return {key: names for runner in self.runners.values() for key, names in runner.choices(Path()).items()}

    def executor(self) -> Executor:
        self.opened += 1
        if self.fault is not None:
            raise self.fault
        made = Executor(self.graph, self.runners, policy=InFlight(self.rows))
        made._closing.callback(self.close)
        return made

    def close(self) -> None:
        self.closed += 1

    @property
    def held(self) -> int:
        """Rows of the thinker that are taken."""
        thinker = self.runners["thinker"]
        assert isinstance(thinker, Echo)
        return len(thinker.left)


@attrs.define
class Running:
    """A server in a thread of this process."""

    url: str
    port: int
    house: House
    app: Any


@contextlib.contextmanager
def running(
    deployments: Mapping[str, Any], *, keys: Sequence[str] = (), limits: Limits | None = None
) -> Iterator[Running]:
    """A server over loopback; leaving it closes everything."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    begun, made = threading.Event(), dict[str, Any]()
    limits = limits or Limits()

    async def main() -> None:
        measured = Metrics()
        house = House({n: Served(n, d, limits=limits, metrics=measured) for n, d in deployments.items()})
        app = create_app(house, keys=Keys(tuple(keys)), limits=limits, measured=measured, log=False)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        made.update(server=server, house=house, app=app)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started:
            await asyncio.sleep(0.01)
        begun.set()
        await task
        await house.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    begun.wait(30)
    try:
        yield Running(f"http://127.0.0.1:{port}", port, made["house"], made["app"])
    finally:
        made["server"].should_exit = True
        thread.join()


def wait_until(condition: Any, seconds: float = 10.0) -> None:
    """Until it holds; fails after so many seconds."""
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end, "it did not happen in time"
        time.sleep(0.01)
