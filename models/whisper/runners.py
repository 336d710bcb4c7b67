"""The stage of a Whisper model: `whisper.transcriber`.

Sound is heard in windows of up to 30 s. A window is encoded once, into the row's part of the decoder's
cross-attention caches; then each step writes a token of every row (`framework.decoding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import validators as v

from framework.decoding.limits import Limits
from framework.decoding.loop import Loop
from framework.decoding.rows import DecoderRow, Work
from framework.engines.base import Call
from framework.errors import ConfigError, Problem, StageError
from framework.execution.payloads import AudioChunk, Logprob, TextChunk
from framework.execution.runner import OpenContext, Row, Runner
from framework.execution.sampling import Sampling
from framework.graph.model import InputDecl, RunnerDecl, Stage
from models.whisper import processing
from models.whisper.config import Tokens

_READ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "num_logprobs", "seed", "logit_bias")


@attrs.frozen(kw_only=True)
class TranscriberConfig:
    """Settings of `whisper.transcriber`.

    Attributes:
        encoder: engine folder of the encoder, beside the stage's own.
        timestamps: write when each segment was said, one a line.
        language: code such as `en`; None hears it in the first window of each recording.
        task: `transcribe`, or `translate` to English; multilingual models only.
        sampling: role of the request's sampling settings that are this stage's. Settings of a text model (`default`)
            are not, unless nothing else in the graph samples.
        temperature: 0 is greedy.
        fallback: temperatures of further tries while a window reads like a loop or was unlikely; () never tries again.
        max_compression: text that compresses better than this is a loop.
        min_logprob: mean log-probability of a token below which a window is tried again.
        no_speech: probability of "no speech" from which an unlikely window is taken for noise.
        silence_db: a window without louder moments (25 ms, dB of full scale) is not listened to.
        max_tokens: of one window.
        cut: seconds at the end of a full window among which the quietest place is taken for its end.
    """

    encoder: str = "audio"
    timestamps: bool = False
    language: str | None = None
    task: str = attrs.field(default="transcribe", validator=v.in_(("transcribe", "translate")))
    sampling: str = "asr"
    temperature: float = attrs.field(default=0.0, validator=v.ge(0.0))
    fallback: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    max_compression: float = attrs.field(default=2.4, validator=v.gt(0.0))
    min_logprob: float = attrs.field(default=-1.0, validator=v.le(0.0))
    no_speech: float = attrs.field(default=0.6, validator=[v.ge(0.0), v.le(1.0)])
    silence_db: float = attrs.field(default=-60.0, validator=v.le(0.0))
    max_tokens: int = attrs.field(default=224, validator=v.ge(1))
    cut: float = attrs.field(default=5.0, validator=[v.ge(0.0), v.le(20.0)])


class _Window:
    """One window's tokens, of the current try."""

    def __init__(self, start: int, length: int, temperature: float, *, timed: bool) -> None:
        self.start, self.length = start, length  # samples
        self.timed = timed
        self.attempt = 0
        self.no_speech = 0.0
        self.restart(temperature)

    def restart(self, temperature: float) -> None:
        self.temperature = temperature
        self.prompt: list[int] = []
        self.written: list[int] = []
        self.logprobs: list[tuple[Logprob, ...]] = []
        self.total = 0.0  # log-probability of what was written, end token included


class _Recording(DecoderRow):
    """One request: its sound, and how far it was heard. The prompt of a window is fed a token at a time."""

    def __init__(self, row: Row, sampling: Sampling, language: int | None) -> None:
        super().__init__(row, sampling)
        self.sampling, self.language = sampling, language
        self.samples: processing.Float32 | None = None
        self.seek = 0
        self.window: _Window | None = None
        self.windows = self.dropped = self.tokens = 0
        self.texts: list[str] = []  # published
        self.until = 0.0  # seconds at which the last of them ends

    @property
    def heard(self) -> _Window:
        """The window that is being written down."""
        assert self.window is not None
        return self.window

    @property
    def next(self) -> int:
        """The token to feed."""
        prompt, written = self.heard.prompt, self.heard.written
        return prompt[self.length] if self.length < len(prompt) else written[-1]


class Transcriber(Runner):
    """Writes what is said in `audio` on port `text`, a window at a time."""

    decl = RunnerDecl(
        kind="autoregressive",
        inputs={"audio": InputDecl(kinds=frozenset({"audio"}), from_request=True)},
        ports={"text": "text"},
        required=frozenset({"audio"}),
        config=TranscriberConfig,
        samples=("default",),
        folders={"encoder": ".."},
    )

    def __init__(self, *, stage: Stage, config: TranscriberConfig | None = None) -> None:
        super().__init__(stage=stage, config=config or TranscriberConfig())
        self._hearing: dict[int, Any] = {}

    def open(self, context: OpenContext) -> None:
        from framework.engines.backend import open_engine
        from framework.engines.bound import BufferStates
        from framework.io.tokens import Tokenizer
        from framework.parsing import read_object

        self._tokenizer = Tokenizer.load(context.artifact)
        generation = read_object(context.artifact / "generation_config.json")
        self._encoder = open_engine(context.artifact.parent / self.config.encoder, context.backend)
        decoder = open_engine(context.artifact, context.backend)
        spec = decoder.spec
        cache = int(next(state.input.shape[2] for state in spec.states if state.input.name == "key_cache.0"))
        limits = Limits.of(spec, prompt=cache, cache=cache, candidates=spec.caps["candidates"])
        self._loop: Loop[_Recording] = Loop(decoder, limits, self, stage=self.stage.id, count=context.batch)
        mel = next(tensor.shape for tensor in self._encoder.spec.inputs if tensor.name == "mel")
        self._mels, self._frames = int(mel[1]), int(mel[2])
        self._tokens = Tokens.of(generation, limits.vocab)
        self._multilingual = self._tokens.multilingual
        self._language = self._language_id(self.config.language)
        # The encoder writes the part of the decoder's states that its cross-attention reads.
        states = self._loop.states
        assert isinstance(states, BufferStates)
        cross = {state.input.name: states.buffers[state.input.name] for state in self._encoder.spec.states}
        self._cross = BufferStates(cross, context.batch, {})

    def _language_id(self, code: str | None) -> int | None:
        """Token of a language; raises StageError for one the model lacks."""
        where = f"stages.{self.stage.id}.config.language"
        first, last = self._tokens.languages
        if code is None:
            return None
        if not self._multilingual:
            if code == "en":
                return None
            raise StageError(Problem(where=where, got=repr(code), expected="'en': the model knows English alone"))
        token = self._tokenizer.id_of(f"<|{code}|>")
        if token is None or not first <= token <= last:
            names = [self._tokenizer.token_bytes(id_).decode().strip("<|>") for id_ in range(first, last + 1)]
            raise StageError(Problem(where=where, got=repr(code), expected=f"one of {', '.join(names)}"))
        return token

    def admit(self, row: Row) -> None:
        request = row.request
        given = {**request.sampling.get(self.config.sampling, {}), **request.sampling.get(self.stage.id, {})}
        own = {key: value for key, value in given.items() if key in _READ}
        seed = request.sampling.get("default", {}).get("seed", 0)
        defaults = {"temperature": self.config.temperature, "top_k": 1024, "top_p": 1.0, "seed": seed}
        sampling = Sampling(**{**defaults, **own})
        # A try that failed may be followed by one that is not greedy.
        self._loop.limits.check_sampling(attrs.evolve(sampling, temperature=1.0), f"request {request.index}")
        self._loop.add(_Recording(row, sampling, self._language))
        row.details.update(batch_idx=row.index)

    def ready(self, row: Row) -> bool:
        return row.index in self._loop.rows

    def step(self, rows: Sequence[Row]) -> None:
        recordings = [self._loop.rows[row.index] for row in rows]
        for recording in recordings:
            if recording.window is None:
                self._hear(recording)
        self._loop.step([recording for recording in recordings if recording.window is not None])

    def release(self, row: Row) -> None:
        self._loop.remove(row.index)

    def close(self) -> None:
        self._hearing.clear()
        for name in ("_loop", "_encoder"):
            if hasattr(self, name):
                getattr(self, name).close()

    def _hear(self, recording: _Recording) -> None:
        """Encode the next window that is not silent; end the row where the sound ends."""
        if recording.samples is None:
            try:
                recording.samples = _samples(recording.row)
            except ConfigError as error:
                recording.row.fail(StageError(error.problems))
                return
            recording.row.details["audio_seconds"] = len(recording.samples) / processing.RATE
        samples, full = recording.samples, self._frames * processing.HOP
        while recording.seek < len(samples):
            length = min(full, len(samples) - recording.seek)
            if recording.seek + length < len(samples):  # do not cut a word
                end = recording.seek + length
                place = processing.quietest(samples, end - round(self.config.cut * processing.RATE), end)
                length = place - recording.seek
            piece = samples[recording.seek : recording.seek + length]
            if processing.audible(piece, self.config.silence_db):
                break
            recording.seek += length
        else:
            self._finish(recording)
            return
        index = recording.row.index
        if index not in self._hearing:
            self._hearing[index] = self._encoder.bind({}, self._cross, slice(index, index + 1))
        call = self._hearing[index]
        call.write("mel", processing.log_mel(piece, self._mels, self._frames)[None])
        call()
        call.read("hidden")  # waits: the decoder may run on another stream of the device
        # A single window needs no timestamps to move on by.
        timed = self.config.timestamps or len(samples) > full
        recording.window = _Window(recording.seek, length, recording.sampling.temperature, timed=timed)
        recording.windows += 1
        self._begin(recording)

    def _begin(self, recording: _Recording) -> None:
        """The prompt of a try, and the row's sampling settings."""
        window, tokens = recording.heard, self._tokens
        task = tokens.translate if self.config.task == "translate" else tokens.transcribe
        window.prompt = [tokens.start]
        if self._multilingual and recording.language is not None:
            window.prompt += [recording.language, task]
        if not window.timed and (recording.language is not None or not self._multilingual):
            window.prompt.append(tokens.no_timestamps)
        recording.length = 0
        recording.samplings = (attrs.evolve(recording.sampling, temperature=window.temperature),)
        self._loop.choose(recording)

    # What the loop asks

    def dims(self, work: Work[_Recording]) -> Mapping[str, int]:
        return {}

    def inputs(self, work: Work[_Recording]) -> Mapping[str, Any]:
        fed = [recording for recording, _ in work.fed]
        return {
            "ids": np.array([[recording.next] for recording in fed], np.int64),
            "rules": np.array([self._rules(recording, recording.heard) for recording in fed], np.int64),
        }

    def publish(self, work: Work[_Recording], call: Call) -> None:
        tokens, best, logprobs = (call.read(name) for name in ("token", "candidate_ids", "candidate_logprobs"))
        no_speech = call.read("no_speech")
        for recording in work.active:
            index = work.index(recording)
            self._accept(recording, int(tokens[index, 0]), best[index], logprobs[index], float(no_speech[index, 0]))

    def _rules(self, recording: _Recording, window: _Window) -> tuple[int, ...]:
        """What may come next (see `network.RULES`)."""
        tokens, last = self._tokens, self._loop.limits.vocab - 1
        first, none = tokens.first_timestamp, (last + 1, last)
        special = (tokens.end, tokens.no_timestamps - 1)
        if self._multilingual and recording.language is None:
            return (0, *tokens.languages, *none, 0)
        if not window.timed:
            return (1, tokens.end, tokens.no_timestamps, *none, int(not window.written))
        written = window.written
        if not written:  # the first token is a timestamp within the first second
            return (0, *none, first, first + round(1.0 / processing.TICK_SECONDS), 1)
        stamps = [token for token in written if token >= first]
        if written[-1] >= first:
            if len(written) < 2 or written[-2] >= first:  # a segment begins
                return (1, *special, *none, 0)
            return (0, *special, stamps[-1], last, 0)  # one ended: the next begins, or the window is done
        return (1, *special, stamps[-1] + 1, last, 0)

    def _accept(
        self,
        recording: _Recording,
        token: int,
        best: np.ndarray[Any, Any],
        logprobs: np.ndarray[Any, Any],
        no_speech: float,
    ) -> None:
        """Take what a call made of a row."""
        window, tokens = recording.heard, self._tokens
        recording.step += recording.sampled
        if recording.length == 1:
            window.no_speech = no_speech
        if self._multilingual and recording.language is None:
            recording.language = token
            recording.row.details["language"] = self._tokenizer.token_bytes(token).decode().strip("<|>")
            self._begin(recording)
            return
        if recording.length < len(window.prompt):
            return
        window.total += float(logprobs[best == token][0])
        recording.tokens += 1
        if token == tokens.end:
            self._end(recording, window, limit=False)
            return
        window.written.append(token)
        count = recording.sampling.num_logprobs
        window.logprobs.append(
            tuple(self._logprob(int(i), float(p)) for i, p in zip(best[:count], logprobs[:count], strict=True))
        )
        if len(window.written) >= self.config.max_tokens or recording.length >= self._loop.limits.cache:
            self._end(recording, window, limit=True)

    def _end(self, recording: _Recording, window: _Window, *, limit: bool) -> None:
        """Judge a window's text: publish it, drop it, or try again."""
        first = self._tokens.first_timestamp
        words = [token for token in window.written if token < first]
        text = self._tokenizer.decode(words).strip()
        mean = window.total / (len(window.written) + 1)
        loop = processing.compression(text) > self.config.max_compression
        unlikely = mean < self.config.min_logprob
        noise = unlikely and window.no_speech > self.config.no_speech
        if (loop or unlikely) and not noise:
            later = [t for t in self.config.fallback if t > window.temperature]
            if later:
                window.restart(later[0])
                self._begin(recording)
                return
        elif limit and not window.timed:  # more words than fit: go on by timestamps
            window.timed = True
            window.restart(recording.sampling.temperature)
            self._begin(recording)
            return
        assert recording.samples is not None
        heard = recording.samples[window.start : window.start + window.length]
        done = window.length
        if noise or loop:
            recording.dropped += bool(text)
        else:
            found, unfinished = processing.segments(window.written, first, window.length / processing.RATE)
            back = processing.resume(heard, found[-1].end) if found else 0
            moves = back >= processing.LEAST_SECONDS * processing.RATE
            last = window.start + window.length == len(recording.samples) and not limit
            if unfinished is not None and (last or not moves):
                found.append(unfinished)
            elif moves and (unfinished is not None or processing.speaks(heard, back)):
                done = back  # what is behind the last timestamp is heard again
            self._publish(recording, window, found)
        recording.seek = window.start + done
        recording.window, recording.length = None, 0
        if recording.seek >= len(recording.samples):
            self._finish(recording)

    def _publish(self, recording: _Recording, window: _Window, found: Sequence[processing.Segment]) -> None:
        port = recording.row.outputs.get("text")
        offset = window.start / processing.RATE
        first = self._tokens.first_timestamp
        chances = [p for token, p in zip(window.written, window.logprobs, strict=True) if token < first]
        for segment in found:
            text = self._tokenizer.decode(segment.ids)
            own, chances = chances[: len(segment.ids)], chances[len(segment.ids) :]
            if not text.strip():
                continue
            if self.config.timestamps:
                start = max(offset + segment.start, recording.until)
                recording.until = max(offset + segment.end, start)
                text = f"[{processing.clock(start)} --> {processing.clock(recording.until)}] {text.strip()}"
                text = f"\n{text}" if recording.texts else text
            elif not recording.texts:
                text = text.lstrip()
            recording.texts.append(text)
            if port is not None:
                given = tuple(own) if recording.sampling.num_logprobs else ()
                port.write(TextChunk(text=text, ids=segment.ids, logprobs=given))

    def _finish(self, recording: _Recording) -> None:
        row = recording.row
        row.details.update(
            finish_reason="end-of-sequence" if recording.texts else "no-speech",
            transcript="".join(recording.texts),
            generated_tokens=recording.tokens,
            windows=recording.windows,
            dropped_windows=recording.dropped,
        )
        if recording.texts:
            row.finish()
        else:
            where = f"request {row.request.index}: audio"
            row.fail(StageError(Problem(where=where, got="no speech in it", expected="something said")))

    def _logprob(self, token: int, value: float) -> Logprob:
        data = self._tokenizer.token_bytes(token)
        return Logprob(token_id=token, token=data.decode(errors="replace"), bytes=tuple(data), logprob=value)


def _samples(row: Row) -> processing.Float32:
    """The sound of a row at 16 kHz: a file the request names, or samples. Raises ConfigError."""
    from framework.io.audio import load_audio, to_mono

    chunks = row.inputs["audio"].drain()
    where = f"request {row.request.index}: audio"
    if len(chunks) == 1 and isinstance(chunks[0], (tuple, list)):
        chunks = list(chunks[0])
    if chunks and all(isinstance(chunk, AudioChunk) for chunk in chunks):
        rate = chunks[0].sample_rate
        samples = np.concatenate([np.asarray(chunk.samples, np.float32) for chunk in chunks])
        return to_mono(AudioChunk(samples=samples, sample_rate=rate), processing.RATE)
    if len(chunks) != 1:
        raise ConfigError(Problem(where=where, got=f"{len(chunks)} sounds", expected="one"))
    if isinstance(chunks[0], (str, Path)):
        return load_audio(Path(chunks[0]), processing.RATE)
    raise ConfigError(Problem(where=where, got=type(chunks[0]).__name__, expected="a sound file, or samples"))
