"""The stage that speaks in codes: `qwen3_omni.talker`, here with `prefill_builder: tts`.

A prompt is read in chunks; the call that reads its end says the first frame, and every further call says one more frame
of 16 codes (`framework.decoding`). A prompter turns a request into a script: the prompt, and the text beside each
frame. Where that text comes from another stage, a row waits for the text of its next frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
from attrs import validators as v

from framework.decoding.limits import considered
from framework.decoding.loop import Loop, open_loop
from framework.decoding.rows import DecoderRow, Work
from framework.engines.base import Call
from framework.errors import Problem, StageError
from framework.execution.runner import OpenContext, Row, Runner
from framework.execution.sampling import Sampling
from framework.graph.model import InputDecl, RunnerDecl, Stage
from models.qwen3_talker.config import FRAME_RATE, NOTHING

# A text token is said in about 4 frames. Twice as many have to fit into the cache; after three times as many, and a
# pause, the talker has lost its way.
FITTING_FRAMES_PER_TOKEN = 8
LONGEST_FRAMES_PER_TOKEN = 12
PAUSE_FRAMES = 75  # 6 s
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


class _Speech(DecoderRow):
    """One request's script, and what it has said.

    Attributes:
        last: int64 [groups], the frame said last.
        most: frames at most, 0 while the prompt is not known; `reason` says why no more.
    """

    def __init__(self, row: Row, script: Any, talker: Sampling, predictor: Sampling, last: Any) -> None:
        super().__init__(row, talker, predictor)
        self.script = script
        self.last = last
        self.most = 0
        self.reason = ""

    @property
    def prompt(self) -> Any:
        return self.script.prompt

    @property
    def frames(self) -> int:
        """Said so far."""
        return self.step

    @property
    def waiting(self) -> bool:
        """Whether the text of the next frame has not come."""
        script = self.script
        return not script.ended and not self.reading and self.frames > len(script.trailing)

    def text(self, padding: int) -> int:
        """Text id beside the frame said last."""
        beside = self.script.trailing
        return beside[self.frames - 1] if 0 < self.frames <= len(beside) else padding

    def positions(self, count: int) -> Any:
        """Rotary positions of the `count` entries that come next, to be broadcast to [3, count]."""
        own = self.prompt.positions
        if own is None:
            return np.arange(self.length, self.length + count)
        if self.reading:
            return own[:, self.length : self.length + count]
        return self.length - own.shape[1] + 1 + own[:, -1].max()


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
        self._prompter = self._prompters()(self.config, context)
        self._tts = self._prompter.config
        config = self.config
        self._loop: Loop[_Speech] = open_loop(
            context,
            self.stage,
            self,
            chunk=config.prefill_chunk,
            bucket=config.bucket,
            samplers=("", "cp_"),
            held=("speaker",),
        )
        names = {tensor.name for tensor in self._loop.engine.spec.inputs}
        self._clones, self._media = "speaker" in names, "features" in names

    def admit(self, row: Row) -> None:
        talker, predictor = self._sampling(row, f"request {row.request.index}")
        script = self._prompter.script(row)
        last = np.full(self._tts.groups, NOTHING, np.int64)
        speech = _Speech(row, script, talker, predictor, last)
        row.details.update(batch_idx=row.index, **script.details)
        if script.prompt is not None:
            self._begin(speech)
        self._loop.add(speech)

    def ready(self, row: Row) -> bool:
        speech = self._loop.rows[row.index]
        if not speech.script.ended:
            self._prompter.listen(row, speech.script)
            if speech.prompt is not None and not speech.most:
                self._begin(speech)
        if speech.prompt is None:
            return bool(speech.script.ended)  # with nothing to say
        return not speech.waiting

    def step(self, rows: Sequence[Row]) -> None:
        speeches = [self._loop.rows[row.index] for row in rows]
        for speech in speeches:
            if speech.prompt is None:
                self._finish(speech, "no-text")
        self._loop.step([speech for speech in speeches if not speech.row.finished])

    def release(self, row: Row) -> None:
        self._loop.remove(row.index)

    def close(self) -> None:
        for name in ("_loop", "_prompter"):
            if hasattr(self, name):
                getattr(self, name).close()

    # Requests

    def _sampling(self, row: Row, where: str) -> tuple[Sampling, Sampling]:
        limits = self._loop.limits
        talker = row.request.sampling_for("talker", self.config.talker(), stage=self.stage.id)
        given = {"repetition_penalty": 1.0, **self._predictor(talker)}
        predictor = row.request.sampling_for("code_predictor", given)
        problems = []
        if predictor.repetition_penalty != 1.0 or predictor.logit_bias:
            expected = "only temperature, top_k, top_p and min_p"
            problems.append(Problem(where=f"{where}: code_predictor", got="other settings", expected=expected))
        problems += [
            Problem(where=f"{where}: logit_bias", got=str(code), expected=f"codes 0 to {limits.vocab - 1}")
            for code in talker.logit_bias
            if not 0 <= code < limits.vocab
        ]
        for role, sampling in (("talker", talker), ("code_predictor", predictor)):
            if limits.candidates and considered(sampling, limits.vocab) > limits.candidates:
                expected = f"1 to {limits.candidates}, the best codes that the engine looks at"
                hint = "0 means all; build with a larger build.candidates"
                got = str(sampling.top_k)
                problems.append(Problem(where=f"{where}: {role}.top_k", got=got, expected=expected, hint=hint))
        if problems:
            raise StageError(problems)
        # Nobody is told how likely codes are.
        return attrs.evolve(talker, num_logprobs=0), attrs.evolve(predictor, num_logprobs=0)

    def _predictor(self, talker: Sampling) -> dict[str, Any]:
        """Defaults of the code predictor, beside a talker that chooses as `talker` says."""
        return {name: getattr(self.config, f"cp_{name}") for name in SETTINGS}

    def _begin(self, speech: _Speech) -> None:
        """Take a prompt that is there. Raises StageError for one that is too long, and for a text known to its end that
        could not be said to its end."""
        prompt, where, limits = speech.prompt, f"request {speech.row.request.index}", self._loop.limits
        tokens, frames = len(prompt.text), speech.samplings[0].max_generate_length
        if tokens > limits.prompt:
            hint = "say it in parts, or build with a larger build.max_input_len"
            expected = f"at most {limits.prompt}, which the engine was built for"
            raise StageError(Problem(where=f"{where}: text", got=f"{tokens} tokens", expected=expected, hint=hint))
        room = limits.cache - tokens + 1  # the last frame needs no place in the cache
        fitting = min(frames, PAUSE_FRAMES + FITTING_FRAMES_PER_TOKEN * prompt.spoken) if prompt.spoken else 1
        if fitting > room:
            got = f"a prompt of {tokens} tokens and up to {fitting} frames of sound"
            expected = f"at most {limits.cache} together, the cache that the engine was built with"
            hint = "say it in parts, set talker_max_generate_length, or build with a larger build.max_kv_cache_capacity"
            raise StageError(Problem(where=f"{where}: text", got=got, expected=expected, hint=hint))
        most = [(frames, f"max_generate_length of {frames} frames"), (room, f"cache of {limits.cache} entries")]
        speech.most, speech.reason = min(most)
        speech.prompt_length = tokens
        self._loop.choose(
            speech, **({"speaker": 0 if prompt.vector is None else prompt.vector} if self._clones else {})
        )
        speech.row.details["prompt_tokens"] = tokens

    # What the loop asks

    def dims(self, work: Work[_Speech]) -> Mapping[str, int]:
        """Places for features: one for every token, or one where there are none."""
        return {"media": work.tokens if _seen(work) else 1} if self._media else {}

    def inputs(self, work: Work[_Speech]) -> Mapping[str, Any]:
        """Rows of the prompt, or the frame said last and the text beside it."""
        shape = (len(work.rows), work.tokens)
        text = np.full(shape, self._tts.text_pad, np.int64)
        codes = np.full((*shape, self._tts.groups), NOTHING, np.int64)
        for index, (speech, count) in enumerate(work.fed):
            part = slice(speech.length, speech.length + count)
            if speech.reading:
                text[index, :count], codes[index, :count] = speech.prompt.text[part], speech.prompt.codes[part]
            else:
                text[index], codes[index] = speech.text(self._tts.text_pad), speech.last
        frames = np.array([speech.frames if speech else 0 for speech in work.rows], np.int64)
        found = {"text": text, "codes": codes, "frames": frames}
        return {**found, **self._seen_and_heard(work)} if self._media else found

    def _seen_and_heard(self, work: Work[_Speech]) -> Mapping[str, Any]:
        """Where the rows stand in time, height and width; and features that are added to them, where there are some."""
        positions = np.zeros((3, len(work.rows), work.tokens), np.float32)
        for index, (speech, count) in enumerate(work.fed):
            positions[:, index, :count] = speech.positions(count)
        seen = _seen(work)
        if not seen and work.tokens > 1:
            return {"positions": positions}
        # A call of one token is the same with and without features: then they are zeros.
        features = np.zeros((len(work.rows), work.tokens, self._tts.talker.hidden), np.float32)
        for speech in seen:
            part = speech.prompt.features[speech.length : speech.length + work.tokens]
            features[work.index(speech), : len(part)] = part
        return {"positions": positions, "features": features}

    def publish(self, work: Work[_Speech], call: Call) -> None:
        frames = call.read("frame")
        for speech in work.active:
            if not speech.reading:
                self._accept(speech, frames[work.index(speech)])

    def _accept(self, speech: _Speech, frame: Any) -> None:
        """Take a frame into the speech; end the row where the speech ends."""
        if frame[0] == self._tts.codec.eos:
            self._finish(speech, "end-of-sequence")
            return
        speech.last = np.array(frame)
        speech.step += 1
        speech.row.outputs["codes"].write(speech.last[None].astype(np.int32))
        if speech.frames >= speech.most:
            self._finish(speech, "max-length", cut_by=speech.reason)
        elif self.config.stop_runaway and speech.script.ended:
            long, words = PAUSE_FRAMES + LONGEST_FRAMES_PER_TOKEN * speech.script.spoken, speech.script.spoken
            if speech.frames >= long:
                reason = f"no end after {long / FRAME_RATE:.0f} s for {words} text tokens"
                self._finish(speech, "max-length", cut_by=reason)

    def _finish(self, speech: _Speech, reason: str, **details: Any) -> None:
        if speech.prompt is not None:
            said = speech.length - speech.prompt_length + 1  # frames, and the end
            details["text_tokens"] = speech.script.read(said)
        speech.row.finish(finish_reason=reason, frames=speech.frames, **details)


def _seen(work: Work[_Speech]) -> list[_Speech]:
    """Those who are fed rows of a prompt with features."""
    return [speech for speech in work.active if speech.reading and speech.prompt.features is not None]
