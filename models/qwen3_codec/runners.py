"""The vocoder's stage: `qwen3_omni.code2wav`.

It makes sound of codec frames while the talker is still making frames. The engine keeps the past of every row as
states, so a chunk costs its own frames and no others, and the sound is the same however it is cut.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from framework.errors import Problem, StageError
from framework.execution.payloads import AudioChunk
from framework.execution.runner import OpenContext, Row, Runner
from framework.graph.model import InputDecl, RunnerDecl, Stage
from models.qwen3_codec.config import (
    ENTRIES,
    FRAME,
    QUANTIZERS,
    REFERENCE_CHUNK,
    REFERENCE_CONTEXT,
    SAMPLE_RATE,
    VOCODER_FILE,
    Code2WavConfig,
)

CALLS = 4  # bound calls that are kept
SMALL_CALL = 8  # frames: a call of more needs more memory and, where it is not captured, saves no time

Codes = np.ndarray[Any, np.dtype[np.int32]]
Sound = np.ndarray[Any, np.dtype[np.float32]]


class _Speech:
    """One row's frames, and how many of them have become sound: the first `context` of them, the recording that is
    cloned, for what follows alone.

    Attributes:
        said: frames that the engine had.
        start: the frame with which its states began; `cut` the one before which they begin anew, if they do.
        skip: samples to come that are not to be heard.
        samples: that were heard.
    """

    def __init__(self, row: Row, late: int) -> None:
        self.row = row
        self.codes: Codes = np.zeros((0, QUANTIZERS), np.int32)
        self.said = self.start = self.samples = 0
        self.cut = REFERENCE_CHUNK
        if "context" in row.inputs:
            self._take(row.inputs["context"].drain())
        self.context = len(self.codes)
        self.skip = self.context * FRAME + late

    def heard(self, sound: Sound) -> Sound:
        """`sound` without what is to be skipped."""
        skipped = min(self.skip, len(sound))
        self.skip -= skipped
        self.samples += len(sound) - skipped
        return sound[skipped:]

    def read(self) -> None:
        """Take the frames that are there. Raises StageError for what are none."""
        self._take(self.row.inputs["codes"].drain())

    def _take(self, chunks: Sequence[Any]) -> None:
        for chunk in chunks:
            self._check(chunk)
        if chunks:
            self.codes = np.concatenate([self.codes, *(np.asarray(chunk, np.int32) for chunk in chunks)])

    @property
    def complete(self) -> bool:
        return self.row.inputs["codes"].ended

    @property
    def waiting(self) -> int:
        return len(self.codes) - self.said

    def _check(self, chunk: Any) -> None:
        where = f"request {self.row.request.index}: codes"
        if np.ndim(chunk) != 2 or np.shape(chunk)[1] != QUANTIZERS:
            expected = f"[frames, {QUANTIZERS}]"
            raise StageError(Problem(where=where, got=f"shape {list(np.shape(chunk))}", expected=expected))
        if np.size(chunk) and not 0 <= np.min(chunk) <= np.max(chunk) < ENTRIES:
            got = f"{np.min(chunk)} to {np.max(chunk)}"
            raise StageError(Problem(where=where, got=got, expected=f"codes 0 to {ENTRIES - 1}"))


class Code2Wav(Runner):
    """Says the frames on input `codes` (integers [frames, 16]) as sound on port `audio`: mono, 24 kHz, 1,920 samples a
    frame, but for those that an engine is late, which the first frame lacks. The frames themselves stand in the
    details, as `rvq_codes` int32 [frames, 16].

    Frames on input `context` came before them: they are not heard, but what is heard goes on from them.
    """

    decl = RunnerDecl(
        kind="iterative",
        inputs={
            "codes": InputDecl(kinds=frozenset({"codec"}), streaming=True),
            "context": InputDecl(kinds=frozenset({"codec"})),
        },
        ports={"audio": "audio"},
        required=frozenset({"codes"}),
        config=Code2WavConfig,
    )

    def __init__(self, *, stage: Stage, config: Code2WavConfig | None = None) -> None:
        super().__init__(stage=stage, config=config or Code2WavConfig())
        self._speeches: dict[int, _Speech] = {}
        self._calls: OrderedDict[tuple[int, int, int], Any] = OrderedDict()

    def open(self, context: OpenContext) -> None:
        from framework.engines.backend import open_engine
        from framework.parsing import read_object

        record = context.artifact / VOCODER_FILE
        self._late = int(read_object(record)["late"]) if record.is_file() else 0  # samples
        self._engine = open_engine(context.artifact, context.backend)
        # Frames of one call. A captured one computes them all, filled or not, so it has those of a window.
        whole = self._engine.spec.caps["frames"] if self.config.whole_utterance else self.config.chunk_frames
        self._most = min(self._engine.spec.caps["frames"], whole if self._engine.captures else SMALL_CALL)
        self._states = self._engine.new_states(context.batch)

    def admit(self, row: Row) -> None:
        self._states.clear(slice(row.index, row.index + 1))
        row.outputs["audio"].limit(self.config.stream_depth)
        self._speeches[row.index] = _Speech(row, self._late)

    def ready(self, row: Row) -> bool:
        speech = self._speeches[row.index]
        speech.read()
        return speech.complete or speech.waiting >= self._window(speech)

    def step(self, rows: Sequence[Row]) -> None:
        speeches = [self._speeches[row.index] for row in rows]
        for group in _adjacent(speeches):
            counts = [min(self._window(speech), speech.waiting) for speech in group]
            for speech, sound in zip(group, self._sound(group, counts), strict=True):
                if len(sound):
                    speech.row.outputs["audio"].write(AudioChunk(samples=sound, sample_rate=SAMPLE_RATE))
                if speech.complete and not speech.waiting:
                    codes = speech.codes[speech.context :]
                    speech.row.finish(frames=len(codes), samples=speech.samples, rvq_codes=codes)

    def release(self, row: Row) -> None:
        self._speeches.pop(row.index, None)

    def close(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()

    def _window(self, speech: _Speech) -> int:
        """Frames of the next chunk of sound, when they are there."""
        if self.config.whole_utterance:
            return speech.waiting if speech.complete else speech.waiting + 1
        first = self.config.first_chunk_frames or self.config.chunk_frames
        return self.config.chunk_frames if speech.said else speech.context + first

    def _sound(self, group: Sequence[_Speech], counts: Sequence[int]) -> list[Sound]:
        """float32 [samples] of the next frames of each row; the rows are neighbours."""
        start = group[0].row.index
        parts: list[list[Sound]] = [[np.zeros(0, np.float32)] for _ in group]
        ends = [speech.said + count for speech, count in zip(group, counts, strict=True)]
        while any(speech.said < end for speech, end in zip(group, ends, strict=True)):
            now = [min(self._room(speech, end), self._most) for speech, end in zip(group, ends, strict=True)]
            call = self._call(start, start + len(group), self._most if self._engine.captures else max(now))
            codes = np.zeros(call.device("codes").shape, np.int64)
            for place, (speech, count) in enumerate(zip(group, now, strict=True)):
                codes[place, :count] = speech.codes[speech.said : speech.said + count]
            call.write("codes", codes)
            call.write("past_lengths", np.array([speech.said - speech.start for speech in group], np.int64))
            call.write("frame_counts", np.array(now, np.int64))
            call()
            audio = call.read("audio")  # [rows, frames, FRAME]
            for place, (speech, count) in enumerate(zip(group, now, strict=True)):
                parts[place].append(speech.heard(audio[place, :count].reshape(-1)).copy())
                speech.said += count
        return [np.concatenate(part) for part in parts]

    def _room(self, speech: _Speech, end: int) -> int:
        """Frames up to `end` that go on from where the states are; they begin anew where that is asked for."""
        if not self.config.reference_chunks:
            return end - speech.said
        if speech.said == speech.cut < end:
            self._states.clear(slice(speech.row.index, speech.row.index + 1))
            speech.start = speech.said = speech.cut - REFERENCE_CONTEXT
            speech.skip = REFERENCE_CONTEXT * FRAME + self._late
            speech.cut += REFERENCE_CHUNK
        return min(end, speech.cut) - speech.said

    def _call(self, start: int, stop: int, frames: int) -> Any:
        """A bound call for these rows; kept, for addresses do not change."""
        key = (start, stop, frames)
        if key not in self._calls:
            if len(self._calls) >= CALLS:
                self._calls.popitem(last=False)
            self._calls[key] = self._engine.bind({"frames": frames}, self._states, slice(start, stop))
            self._calls[key].capture()
        self._calls.move_to_end(key)
        return self._calls[key]


def _adjacent(speeches: Sequence[_Speech]) -> Iterator[list[_Speech]]:
    """Split rows into runs without a gap, which one call can take."""
    ordered = sorted(speeches, key=lambda speech: speech.row.index)
    gaps = [i for i, (a, b) in enumerate(pairwise(ordered), 1) if b.row.index != a.row.index + 1]
    for start, stop in pairwise([0, *gaps, len(ordered)]):
        yield ordered[start:stop]
