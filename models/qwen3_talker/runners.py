"""The stage that speaks in codes: `qwen3_omni.talker`, here with `prefill_builder: tts`.

A prompt is read in chunks; the call that reads its end says the first frame, every further call a frame of 16 codes.
A prompter makes it of a request, and says which text goes beside each frame; where that comes from another stage, a row
waits for the text of its next frame.

Rows of a call are neighbours; one in between that has nothing to do writes a cache entry that its next call overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
from attrs import validators as v

from framework.errors import ConfigError, Problem, StageError
from framework.execution.runner import OpenContext, Row, Runner
from framework.execution.sampling import Sampling, uniform
from framework.graph.model import InputDecl, RunnerDecl, Stage
from models.language.rows import bounds, considered, contiguous, looked_at
from models.qwen3_talker.config import FRAME_RATE, NOTHING

# Frames that a text takes: about 4 a token. Twice as many must fit into the cache; after three times as many, and some
# for a pause, the talker has lost its way.
FITTING, MOST, PAUSE = 8, 12, 75
PREDICTOR = {"temperature": 0.9, "top_p": 1.0}  # what the code predictor does where nothing is said


@attrs.frozen(kw_only=True)
class TalkerConfig:
    """Settings of `qwen3_omni.talker`; the sampling ones are defaults that a run or request overrides.

    Attributes:
        prefill_builder: what the prompt is made of; `tts` is the text of the request.
        code_predictor_artifact: folder of the code predictor, relative to the artifact: it is in the same engine.
        speaker_encoder_artifact, speech_tokenizer_encoder_artifact: of the encoders that hear a voice to clone.
        tokenizer_dir: folder of tokenizer and config, relative to the artifact.
        speaker: voice of requests that name none.
        language: of requests that name none; auto lets the talker find out.
        text: whole reads all text before the first frame, streaming a token a frame, auto as the checkpoint's kind
            does by default: whole, but streaming when it clones.
        stop_runaway: end a speech that has become three times as long as its text.
        bucket: read each prompt alone and speak at least this many rows in every call, so that kernels which round
            differently by batch size cannot make a request depend on its neighbours; 0 takes the active rows alone.
        prefill_chunk: rows of a prompt read per step; 0 is what the build allows.
    """

    prefill_builder: Literal["tts"] = attrs.field(validator=v.in_(("tts",)))
    code_predictor_artifact: Literal["."] = attrs.field(default=".", validator=v.in_((".",)))
    speaker_encoder_artifact: str = ""
    speech_tokenizer_encoder_artifact: str = ""
    tokenizer_dir: str = "."
    speaker: str = ""
    language: str = "auto"
    text: Literal["auto", "whole", "streaming"] = attrs.field(
        default="auto", validator=v.in_(("auto", "whole", "streaming"))
    )
    stop_runaway: bool = True
    max_generate_length: int = attrs.field(default=4096, validator=v.ge(1))
    temperature: float = attrs.field(default=0.9, validator=v.ge(0.0))
    top_p: float = attrs.field(default=1.0, validator=[v.gt(0.0), v.le(1.0)])
    top_k: int = attrs.field(default=50, validator=v.ge(0))
    min_p: float = attrs.field(default=0.0, validator=[v.ge(0.0), v.le(1.0)])
    repetition_penalty: float = attrs.field(default=1.05, validator=v.gt(0.0))
    cp_temperature: float = attrs.field(default=PREDICTOR["temperature"], validator=v.ge(0.0))
    cp_top_p: float = attrs.field(default=PREDICTOR["top_p"], validator=[v.gt(0.0), v.le(1.0)])
    cp_top_k: int = attrs.field(default=50, validator=v.ge(0))
    cp_min_p: float = attrs.field(default=0.0, validator=[v.ge(0.0), v.le(1.0)])
    bucket: int = attrs.field(default=0, validator=v.ge(0))
    prefill_chunk: int = attrs.field(default=0, validator=v.ge(0))

    def talker(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*SETTINGS, "repetition_penalty", "max_generate_length")}


SETTINGS = ("temperature", "top_k", "top_p", "min_p")


@attrs.define(eq=False)
class _Speech:
    """One row's script, what it has said, and its place in the cache.

    Attributes:
        most: frames at most; `reason` says why.
        length: cache entries.
        last: int64 [groups], the frame said last.
    """

    row: Row
    script: Any
    talker: Sampling
    predictor: Sampling
    last: Any
    most: int = 0
    reason: str = ""
    length: int = 0
    frames: int = 0

    @property
    def prompt(self) -> Any:
        return self.script.prompt

    @property
    def reading(self) -> bool:
        return self.length < len(self.prompt.text)

    @property
    def waiting(self) -> bool:
        """Whether the text of the next frame has not come."""
        script = self.script
        return not script.ended and not self.reading and self.frames > len(script.trailing)

    def text(self, padding: int) -> int:
        """Text id beside the frame said last."""
        beside = self.script.trailing
        return beside[self.frames - 1] if 0 < self.frames <= len(beside) else padding

    def position(self) -> float:
        """Rotary position of the frame said last."""
        own = self.prompt.positions
        return self.length if own is None else self.length - own.shape[1] + 1 + own[:, -1].max()


class Talker(Runner):
    """Says a request's text on port `codes`, int32 [1, 16] a frame; on `context` the frames of a cloned recording."""

    decl = RunnerDecl(
        kind="autoregressive",
        inputs={
            "text": InputDecl(kinds=frozenset({"text"}), from_request=True),
            **dict.fromkeys(("voice", "language", "instruct", "ref_audio", "ref_text"), InputDecl(from_request=True)),
        },
        ports={"codes": "codec", "context": "codec"},
        required=frozenset({"text"}),
        config=TalkerConfig,
        samples=("talker", "code_predictor"),
        folders=dict.fromkeys(("tokenizer_dir", "speaker_encoder_artifact", "speech_tokenizer_encoder_artifact"), ""),
    )

    def __init__(self, *, stage: Stage, config: TalkerConfig | None = None) -> None:
        super().__init__(stage=stage, config=config or TalkerConfig(prefill_builder="tts"))
        self._speeches: dict[int, _Speech] = {}
        self._check: Callable[[Mapping[str, Any]], None] | None = None

    def choices(self, artifact: Path) -> Mapping[str, Sequence[str]]:
        found: Mapping[str, Sequence[str]] = self._prompters().choices(self.config, artifact)
        return found

    def check_choices(self, artifact: Path, given: Mapping[str, Any]) -> None:
        if self._check is None:
            self._check = self._prompters().check_of(self.config, artifact)
        self._check(given)

    def _prompters(self) -> Any:
        """The class of what makes scripts."""
        from models.qwen3_talker.prompter import TextPrompter

        return TextPrompter

    def open(self, context: OpenContext) -> None:
        from framework.engines import manifest
        from framework.engines.backend import open_engine
        from framework.engines.calls import RowCalls

        built = manifest.read(context.artifact)
        self._max_input = int(built.options["max_input_len"])
        self._capacity = int(built.options["max_kv_cache_capacity"])
        self._prompter = self._prompters()(self.config, context)
        self._tts = self._prompter.config
        self._engine = open_engine(context.artifact, context.backend)
        spec, rows = self._engine.spec, max(context.batch, self.config.bucket)
        if self.config.bucket > (most := spec.caps["batch"]):
            where, expected = f"stages.{self.stage.id}.config.bucket", f"at most {most}, as built"
            raise ConfigError(Problem(where=where, got=str(self.config.bucket), expected=expected))
        shapes = {tensor.name: tensor.shape for tensor in spec.inputs}
        self._chunk = min(self.config.prefill_chunk or spec.caps["tokens"], spec.caps["tokens"])
        self._vocab = self._tts.talker.vocab
        self._fixed = 0 if "candidates" in shapes else int(built.options["candidates"])  # codes every call looks at
        self._media = "features" in shapes
        self._rows = rows
        ones, zeros = np.ones(rows, np.float32), np.zeros(rows, np.float32)
        settings: dict[str, Any] = {"repetition_penalty": ones.copy()}
        settings["logit_bias"] = np.zeros((rows, self._vocab), np.float32)
        for prefix in ("", "cp_"):
            settings[f"{prefix}temperature"], settings[f"{prefix}min_p"] = zeros.copy(), zeros.copy()
            settings[f"{prefix}top_p"], settings[f"{prefix}top_k"] = ones.copy(), np.zeros(rows, np.int64)
        if "speaker" in shapes:
            settings["speaker"] = np.zeros((rows, self._tts.talker.hidden), np.float32)
        self._calls = RowCalls(self._engine, self._engine.new_states(rows), settings)

    def admit(self, row: Row) -> None:
        talker, predictor = self._sampling(row, f"request {row.request.index}")
        script = self._prompter.script(row)
        last = np.full(self._tts.groups, NOTHING, np.int64)
        speech = _Speech(row, script, talker, predictor, last)
        row.details.update(batch_idx=row.index, **script.details)
        if script.prompt is not None:
            self._begin(speech)
        self._speeches[row.index] = speech

    def ready(self, row: Row) -> bool:
        speech = self._speeches[row.index]
        if not speech.script.ended:
            self._prompter.listen(row, speech.script)
            if speech.prompt is not None and not speech.most:
                self._begin(speech)
        if speech.prompt is None:
            return bool(speech.script.ended)  # with nothing to say
        return not speech.waiting

    def step(self, rows: Sequence[Row]) -> None:
        speeches = [self._speeches[row.index] for row in rows]
        for speech in speeches:
            if speech.prompt is None:
                self._finish(speech, "no-text")
        speeches = [speech for speech in speeches if not speech.row.finished]
        reading = [speech for speech in speeches if speech.reading]
        speaking = [speech for speech in speeches if not speech.reading]
        for group in [[speech] for speech in reading] if self.config.bucket else contiguous(reading):
            self._read(group)
        if speaking:
            self._speak(speaking)

    def release(self, row: Row) -> None:
        self._speeches.pop(row.index, None)

    def close(self) -> None:
        if hasattr(self, "_calls"):
            self._calls.clear()
        for name in ("_engine", "_prompter"):
            if hasattr(self, name):
                getattr(self, name).close()

    # Requests

    def _sampling(self, row: Row, where: str) -> tuple[Sampling, Sampling]:
        talker = row.request.sampling_for("talker", self.config.talker(), stage=self.stage.id)
        given = {"repetition_penalty": 1.0, **self._predictor(talker)}
        predictor = row.request.sampling_for("code_predictor", given)
        problems = []
        if predictor.repetition_penalty != 1.0 or predictor.logit_bias:
            expected = "only temperature, top_k, top_p and min_p"
            problems.append(Problem(where=f"{where}: code_predictor", got="other settings", expected=expected))
        problems += [
            Problem(where=f"{where}: logit_bias", got=str(code), expected=f"codes 0 to {self._vocab - 1}")
            for code in talker.logit_bias
            if not 0 <= code < self._vocab
        ]
        for role, sampling in (("talker", talker), ("code_predictor", predictor)):
            if self._fixed and considered(sampling, self._vocab) > self._fixed:
                expected = f"1 to {self._fixed}, the best codes that the engine looks at"
                hint = "0 means all; build with a larger build.candidates"
                got = str(sampling.top_k)
                problems.append(Problem(where=f"{where}: {role}.top_k", got=got, expected=expected, hint=hint))
        if problems:
            raise StageError(problems)
        return talker, predictor

    def _predictor(self, talker: Sampling) -> dict[str, Any]:
        """Defaults of the code predictor, beside a talker that chooses as `talker` says."""
        return {name: getattr(self.config, f"cp_{name}") for name in SETTINGS}

    def _begin(self, speech: _Speech) -> None:
        """Take a prompt that is there. Raises StageError for one that is too long, and for a text known to its end that
        could not be said to its end."""
        prompt, where = speech.prompt, f"request {speech.row.request.index}"
        tokens, frames = len(prompt.text), speech.talker.max_generate_length
        if tokens > self._max_input:
            hint = "say it in parts, or build with a larger build.max_input_len"
            expected = f"at most {self._max_input}, which the engine was built for"
            raise StageError(Problem(where=f"{where}: text", got=f"{tokens} tokens", expected=expected, hint=hint))
        room = self._capacity - tokens + 1  # the last frame needs no place in the cache
        fitting = min(frames, PAUSE + FITTING * prompt.spoken) if prompt.spoken else 1
        if fitting > room:
            got = f"a prompt of {tokens} tokens and up to {fitting} frames of sound"
            expected = f"at most {self._capacity} together, the cache that the engine was built with"
            hint = "say it in parts, set talker_max_generate_length, or build with a larger build.max_kv_cache_capacity"
            raise StageError(Problem(where=f"{where}: text", got=got, expected=expected, hint=hint))
        limits = [(frames, f"max_generate_length of {frames} frames"), (room, f"cache of {self._capacity} entries")]
        speech.most, speech.reason = min(limits)
        self._set(speech.row.index, speech.talker, speech.predictor, prompt)
        speech.row.details["prompt_tokens"] = tokens

    def _set(self, row: int, talker: Sampling, predictor: Sampling, prompt: Any) -> None:
        values: dict[str, Any] = {"repetition_penalty": talker.repetition_penalty}
        for prefix, sampling in (("", talker), ("cp_", predictor)):
            values |= {prefix + name: getattr(sampling, name) for name in SETTINGS}
        bias = values["logit_bias"] = np.zeros(self._vocab, np.float32)
        for code, value in talker.logit_bias.items():
            bias[code] = value
        if "speaker" in self._calls.settings:
            values["speaker"] = 0 if prompt.vector is None else prompt.vector
        self._calls.set(row, values)

    # Steps

    def _read(self, group: Sequence[_Speech]) -> None:
        """One chunk of each prompt of neighbouring rows; the last chunk also says the first frame."""
        width = min(self._chunk, max(len(speech.prompt.text) - speech.length for speech in group))
        counts = [min(width, len(speech.prompt.text) - speech.length) for speech in group]
        text = np.full((len(group), width), self._tts.text_pad, np.int64)
        codes = np.full((len(group), width, self._tts.groups), NOTHING, np.int64)
        positions = np.zeros((3, len(group), width), np.float32)
        features = None
        for place, (speech, count) in enumerate(zip(group, counts, strict=True)):
            prompt, part = speech.prompt, slice(speech.length, speech.length + count)
            text[place, :count], codes[place, :count] = prompt.text[part], prompt.codes[part]
            own = prompt.positions
            positions[:, place, :count] = np.arange(part.start, part.stop) if own is None else own[:, part]
            if prompt.features is not None:
                if features is None:
                    features = np.zeros((len(group), width, prompt.features.shape[1]), np.float32)
                features[place, :count] = prompt.features[part]
        start = group[0].row.index
        frames = self._run(start, start + len(group), list(group), text, codes, counts, positions, features)
        for speech, count, frame in zip(group, counts, frames, strict=True):
            speech.length += count
            if not speech.reading:
                self._accept(speech, frame)

    def _speak(self, speaking: Sequence[_Speech]) -> None:
        """One frame of each."""
        start, stop = bounds(speaking, rows=self._rows, bucket=self.config.bucket, captures=self._engine.captures)
        # A row in between that has nothing to do gets anything, at a place of the cache that its next call overwrites.
        rows = [self._speeches.get(index) for index in range(start, stop)]
        pad, other = self._tts.text_pad, speaking[0]
        text = np.array([[speech.text(pad) if speech else pad] for speech in rows], np.int64)
        codes = np.stack([speech.last if speech else other.last for speech in rows])[:, None]
        positions = np.zeros((3, len(rows), 1), np.float32)
        for speech in speaking:
            positions[:, speech.row.index - start] = speech.position()
        frames = self._run(start, stop, rows, text, codes, [1] * len(rows), positions, active=speaking)
        for speech in speaking:
            speech.length += 1
            self._accept(speech, frames[speech.row.index - start])

    def _run(
        self,
        start: int,
        stop: int,
        rows: Sequence[_Speech | None],
        text: Any,
        codes: Any,
        counts: Sequence[int],
        positions: Any,
        features: Any = None,
        active: Sequence[_Speech] | None = None,
    ) -> Any:
        """One call; returns int64 [rows, groups]."""
        speeches = active if active is not None else [speech for speech in rows if speech is not None]
        wanted = max(considered(s, self._vocab) for speech in speeches for s in (speech.talker, speech.predictor))
        best = looked_at(wanted, self._vocab)
        dims = {"tokens": text.shape[1]}
        if self._media:
            dims["media"] = 1 if features is None else text.shape[1]
        call = self._calls.get(
            start, stop, dims, {} if self._fixed else {"candidates": best}, repeated=text.shape[1] == 1
        )
        call.write("text", text)
        call.write("codes", codes)
        if self._media:
            call.write("positions", positions)
        if features is not None:
            call.write("features", features)
        call.write("past_lengths", np.array([s.length if s else 0 for s in rows], np.int64))
        call.write("token_counts", np.array(counts, np.int64))
        call.write("frames", np.array([s.frames if s else 0 for s in rows], np.int64))
        sampled = [s for s in speeches if s.talker.temperature > 0 or s.predictor.temperature > 0]
        if sampled:
            noise = np.zeros((stop - start, self._tts.groups), np.float32)
            for speech in sampled:
                draw = uniform(speech.talker.seed, self.stage.id, speech.frames, self._tts.groups)
                noise[speech.row.index - start] = draw
            call.write("noise", noise)
        call()
        if features is not None and dims["media"] == 1:  # the same call speaks
            call.write("features", np.zeros_like(features))
        return call.read("frame")

    def _accept(self, speech: _Speech, frame: Any) -> None:
        """Take a frame into the speech; end the row where the speech ends."""
        if frame[0] == self._tts.codec.eos:
            self._finish(speech, "end-of-sequence")
            return
        speech.last = np.array(frame)
        speech.frames += 1
        speech.row.outputs["codes"].write(speech.last[None].astype(np.int32))
        if speech.frames >= speech.most:
            self._finish(speech, "max-length", cut_by=speech.reason)
        elif self.config.stop_runaway and speech.script.ended:
            long, words = PAUSE + MOST * speech.script.spoken, speech.script.spoken
            if speech.frames >= long:
                reason = f"no end after {long / FRAME_RATE:.0f} s for {words} text tokens"
                self._finish(speech, "max-length", cut_by=reason)

    def _finish(self, speech: _Speech, reason: str, **details: Any) -> None:
        if speech.prompt is not None:
            said = speech.length - len(speech.prompt.text) + 1  # frames, and the end
            details["text_tokens"] = speech.script.read(said)
        speech.row.finish(finish_reason=reason, frames=speech.frames, **details)
