"""The stage that speaks: `hibari.speaker`.

One step is one sentence, or one part of a sentence that is too long for the network. A sentence is spoken as soon as
the text shows that it has ended, while the rest is still being written; since each is a call of its own, the sound is
the same, sample for sample, however the text came in and whatever else runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from framework.errors import Problem, StageError
from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Request, message_text
from framework.execution.runner import OpenContext, Row, Runner
from framework.graph.model import InputDecl, RunnerDecl, Stage
from models.hibari.config import ENCODER, FASTEST, MAX_STEPS, SAMPLE_RATE, SLOWEST, SpeakerConfig, Style
from models.hibari.network import ENCODINGS, FRAMES_PER_STEP, PITCH, SPECTRUM, alignment
from models.hibari.processing import FrontEnd, Part, joined
from models.hibari.sentences import Sentences


class _Speech:
    """What one row has read and not yet said."""

    def __init__(self, row: Row, speed: float, seed: int) -> None:
        self.row = row
        self.speed = speed
        self.noise = np.random.default_rng(seed)  # as the package draws it: one stream through all sentences
        self.text = Sentences()
        self.sentences: deque[str] = deque()
        self.parts: deque[Part] = deque()
        self.held: list[np.ndarray[Any, np.dtype[np.float32]]] = []  # sound of a whole utterance in the making
        self.said = 0  # sentences
        self.characters = 0

    def read(self) -> bool:
        """Take all text that is there; returns whether it was the last."""
        source = self.row.inputs["text"]
        text = "".join(map(_text, source.drain()))
        self.characters += len(text)
        self.sentences += self.text.push(text)
        if source.ended:
            self.sentences += self.text.close()
        return source.ended

    def next_part(self, front_end: FrontEnd) -> Part | None:
        """What to say now; sentences without a word in them are passed over."""
        while not self.parts and self.sentences:
            self.parts += front_end.parts(self.sentences.popleft())
            self.said += bool(self.parts)
        return self.parts.popleft() if self.parts else None


class Speaker(Runner):
    """Says the text on input `text`, as sound on port `audio`: float32 [samples], mono, 24 kHz."""

    decl = RunnerDecl(
        kind="iterative",
        inputs={"text": InputDecl(kinds=frozenset({"text"}), from_request=True, streaming=True)},
        ports={"audio": "audio"},
        required=frozenset({"text"}),
        config=SpeakerConfig,
        style=Style,
    )

    def __init__(self, *, stage: Stage, config: SpeakerConfig | None = None) -> None:
        super().__init__(stage=stage, config=config or SpeakerConfig())
        self._speeches: dict[int, _Speech] = {}

    def open(self, context: OpenContext) -> None:
        from framework.engines.backend import open_engine

        self._front_end = FrontEnd()
        backend = context.backend
        if self.config.threads:
            backend = backend.with_threads(self.config.threads)
        self._encoder = open_engine(context.artifact / ENCODER, backend)
        self._decoder = open_engine(context.artifact, backend)

    def check(self, request: Request) -> None:
        self._speed(request)

    def admit(self, row: Row) -> None:
        seed = row.request.sampling_for("default").seed
        self._speeches[row.index] = _Speech(row, self._speed(row.request), seed)

    def ready(self, row: Row) -> bool:
        source = row.inputs["text"]
        speech = self._speeches[row.index]
        if self.config.whole_utterance:
            return source.complete
        return bool(speech.parts or speech.sentences or source.available or source.complete)

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            try:
                self._advance(self._speeches[row.index])
            except StageError as error:  # the text of one request; the others go on
                row.fail(error)

    def release(self, row: Row) -> None:
        self._speeches.pop(row.index, None)

    def close(self) -> None:
        for name in ("_encoder", "_decoder"):
            if hasattr(self, name):
                getattr(self, name).close()

    def _speed(self, request: Request) -> float:
        speed = request.options.get("style", {}).get("speed")
        if speed is None:
            return float(self.config.speed)
        if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not SLOWEST <= speed <= FASTEST:
            where = f"request {request.index}: style.speed"
            raise StageError(Problem(where=where, got=repr(speed), expected=f"a number from {SLOWEST} to {FASTEST}"))
        return float(speed)

    def _advance(self, speech: _Speech) -> None:
        last = speech.read()
        row = speech.row
        part = speech.next_part(self._front_end)
        if part is not None:
            samples = joined(self._say(part.ids, speech), part)
            speech.held.append(samples)
        done = last and not speech.parts and not speech.sentences
        if speech.held and (done or not self.config.whole_utterance):
            samples = np.concatenate(speech.held)
            speech.held.clear()
            row.outputs["audio"].write(AudioChunk(samples=samples, sample_rate=SAMPLE_RATE))
        if done:
            if not speech.said:
                where = f"request {row.request.index}: text"
                got = f"{speech.characters} characters without a word" if speech.characters else "no text"
                raise StageError(Problem(where=where, got=got, expected="something to say, in English"))
            row.finish(sentences=speech.said, characters=speech.characters)

    def _say(self, ids: np.ndarray[Any, np.dtype[np.int64]], speech: _Speech) -> np.ndarray[Any, np.dtype[np.float32]]:
        """ids int64 [1, tokens] -> float32 [samples]. Raises StageError for one that would take minutes."""
        tokens = ids.shape[1]
        encode = self._encoder.bind({"tokens": tokens})
        encode.write("ids", ids)
        encode.write("speed", np.array([speech.speed], np.float32))
        encode()
        steps = alignment(encode.read("durations"))
        if len(steps) > MAX_STEPS:
            where, got = f"request {speech.row.request.index}: text", f"a sentence of {len(steps)} steps of sound"
            raise StageError(Problem(where=where, got=got, expected=f"at most {MAX_STEPS}"))
        dims = {"tokens": tokens, "steps": len(steps), "frames": FRAMES_PER_STEP * len(steps)}
        decode = self._decoder.bind(dims)
        for name in ENCODINGS:
            decode.write(name, encode.read(name))
        decode.write("alignment", steps)
        decode()
        spectrum = [decode.read(name)[0] for name in (*SPECTRUM, PITCH)]
        return self._front_end.waveform(spectrum, speech.noise)


def _text(chunk: Any) -> str:
    """Text of another stage, of a request field, or what the user says in a request's messages."""
    if isinstance(chunk, TextChunk):
        return chunk.text
    if isinstance(chunk, str):
        return chunk
    return "\n\n".join(message_text(message, "\n\n") for message in chunk if message.get("role") == "user")
