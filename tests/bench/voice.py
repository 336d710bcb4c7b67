"""A voice assistant and its parts: hibari beside its package, Whisper beside faster-whisper, streaming beside waiting.

Seconds of one process beside another, less is better; in every round each contender gets one turn.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import numpy as np

from tests.bench import commands
from tests.bench.line import Line, paired
from tests.bench.ours import configured
from tests.bench.worker import Missing, Worker

Say = Callable[[str], None]
PRESET, EAR, VOICE = "deployment=voice_assistant", "deployment=whisper_tiny_en", "deployment=hibari"
STORY = Path(__file__).parents[1] / "data" / "story.ogg"
CLIP = 30  # seconds of it
TEXT = (
    "The old lighthouse stood at the end of a long stone pier. Every evening, the keeper climbed two hundred steps to "
    "light the lamp. Sailors far out at sea looked for its warm glow."
)
# Of these the first that is answered in SENTENCES; which one it is depends on the last bits of the language model.
QUESTIONS = ("How do bees make honey?", "Why do we have seasons?", "Why do leaves turn yellow?", "What is a river?")
SENTENCES = 3


class Ours:
    """An executor over the engines of a deployment in `folder`."""

    def __init__(self, deployment: str, folder: Path, threads: int, *overrides: str) -> None:
        from framework.deployment.system import deployed, make_executor

        settings = (f"engine_dir={folder}", f"backend.threads={threads}", "sampling=greedy", *overrides)
        config = configured(*settings, deployment=deployment)
        self._executor = make_executor(config, deployed(config), 1)

    def asked(self, prompt: str) -> tuple[float, int]:
        """Seconds to the first sound of a spoken answer, and its number of sentences."""
        result = self._run({"messages": [{"role": "user", "content": prompt}]}, "text", "audio")
        report = result.stages["tts"]
        return float(report.first_output_s), int(report.details["sentences"])

    def speak(self, text: str) -> float:
        return float(self._run({"messages": text}, "audio").wall_s)

    def hear(self, path: str) -> float:
        return float(self._run({"audio": path}, "text").wall_s)

    def load(self, *stages: str) -> float:
        """Seconds to open these stages, all at once."""
        begin = perf_counter()
        broken = self._executor.open(stages)
        if broken:
            raise next(iter(broken.values()))
        return perf_counter() - begin

    def load_in_turn(self, *stages: str) -> float:
        return sum(self.load(stage) for stage in stages)

    def _run(self, fields: dict[str, Any], *kinds: str) -> Any:
        from framework.execution.request import Request

        sampling = {"default": {"temperature": 0.0}}
        request = Request(index=0, fields=fields, sampling=sampling, kinds=frozenset(kinds))
        (result,) = self._executor.run([request])
        if result.error is not None:
            raise result.error
        return result


class Package:
    """hibari as its package is called."""

    def __init__(self) -> None:
        import hibari

        self._voice = hibari.Hibari()

    def speak(self, text: str) -> float:
        begin = perf_counter()
        self._voice(text, seed=0)
        return perf_counter() - begin


class FasterWhisper:
    """The same checkpoint by faster-whisper, in int8; greedy and without timestamps, as ours."""

    def __init__(self, weights: Path, threads: int) -> None:
        import faster_whisper

        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "tokenizer.json", "model.bin"):
                Path(folder, name).symlink_to(weights / name)
            # The package of the weights leaves out the list that CTranslate2 asks for.
            tokenizer = json.loads((weights / "tokenizer.json").read_text(encoding="utf-8"))
            ids = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
            Path(folder, "vocabulary.json").write_text(json.dumps(sorted(ids, key=ids.__getitem__)), encoding="utf-8")
            self._model = faster_whisper.WhisperModel(
                folder, device="cpu", compute_type="int8", cpu_threads=threads, local_files_only=True
            )

    def hear(self, path: str) -> float:
        begin = perf_counter()
        segments, _ = self._model.transcribe(path, language="en", beam_size=1, without_timestamps=True)
        list(segments)
        return perf_counter() - begin


def measure(folder: Path, threads: int, rounds: int, say: Say) -> list[Line]:
    """Lines for the assistant, whose engines are built in `folder`."""
    from framework.deployment.building import fetch_weights

    say("building the voice assistant")
    commands.command(PRESET, f"engine_dir={folder}", module=commands.BUILD)
    config = configured(deployment=PRESET)
    weights = fetch_weights(config.deployment.parts["asr"], config.paths)
    with tempfile.TemporaryDirectory() as sounds:
        clip = _clip(Path(sounds))
        heard = _compare(
            Line(name=f"Whisper tiny.en on {CLIP} s", unit="s", peer_name="faster-whisper int8", at_most=1.0),
            ((Ours, EAR, folder / "asr", threads), "hear", (clip,)),
            ((FasterWhisper, weights, threads), "hear", (clip,)),
            rounds,
            say,
        )
    said = _compare(
        Line(name="hibari on three sentences", unit="s", peer_name="its package", at_most=1.2),
        ((Ours, VOICE, folder / "tts", threads), "speak", (TEXT,)),
        ((Package,), "speak", (TEXT,)),
        rounds,
        say,
    )
    return [heard, said, _first_sound(folder, threads, rounds, say), _loading(folder, threads, rounds, say)]


Contender = tuple[tuple[Any, ...], str, tuple[Any, ...]]  # what to make, and the method that is timed


def _compare(line: Line, ours: Contender, peer: Contender, rounds: int, say: Say) -> Line:
    try:
        with ExitStack() as stack:
            turns = [(stack.enter_context(Worker(*make)), method, given) for make, method, given in (ours, peer)]
            seconds: list[list[float]] = [[], []]
            for number in range(rounds + 1):
                say(f"{line.name}: " + ("warming up" if number == 0 else f"round {number} of {rounds}"))
                for (worker, method, given), samples in zip(turns, seconds, strict=True):
                    samples.append(float(worker.call(method, *given)))
    except Missing as reason:
        return attrs.evolve(line, missing=str(reason))
    return paired(line, *(samples[1:] for samples in seconds))


def _first_sound(folder: Path, threads: int, rounds: int, say: Say) -> Line:
    """How much sooner one hears something than when the whole answer is written, then said, then heard."""
    line = Line(name="first sound, sooner by", unit="s", peer_name="streamed", at_least=1.8)
    waited, streamed = list[float](), list[float]()
    try:
        with (
            Worker(Ours, PRESET, folder, threads, "batching=cohort", "whole_utterance=true") as whole,
            Worker(Ours, PRESET, folder, threads) as streaming,
        ):
            say(f"{line.name}: warming up")
            answered = (question for question in QUESTIONS if streaming.call("asked", question)[1] == SENTENCES)
            question = next(answered, None)
            if question is None:
                return attrs.evolve(line, missing=f"no question is answered in {SENTENCES} sentences")
            whole.call("asked", question)
            for number in range(rounds):
                say(f"{line.name}: round {number + 1} of {rounds}")
                for worker, samples in ((whole, waited), (streaming, streamed)):
                    samples.append(worker.call("asked", question)[0])
    except Missing as reason:
        return attrs.evolve(line, missing=str(reason))
    return paired(line, waited, streamed)


def _loading(folder: Path, threads: int, rounds: int, say: Say) -> Line:
    """The three stages opened at once, as a run opens them, beside one after the other; each in a new process.

    Told only: ONNX Runtime holds Python's global lock while it makes a session, so that little can overlap.
    """
    line = Line(name="loading three stages", unit="s", peer_name="one after the other")
    stages, together, in_turn = ("asr", "thinker", "tts"), list[float](), list[float]()
    try:
        for number in range(rounds):
            say(f"{line.name}: round {number + 1} of {rounds}")
            for method, samples in (("load", together), ("load_in_turn", in_turn)):
                with Worker(Ours, PRESET, folder, threads) as worker:
                    samples.append(worker.call(method, *stages))
    except Missing as reason:
        return attrs.evolve(line, missing=str(reason))
    return paired(line, together, in_turn)


def _clip(folder: Path) -> str:
    import soundfile

    samples, rate = soundfile.read(STORY, dtype="float32")
    path = folder / "clip.wav"
    soundfile.write(path, np.ascontiguousarray(samples[: CLIP * rate]), rate)
    return os.fspath(path)
