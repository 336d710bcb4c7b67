"""The stage of a decoder-only language model: `llm.backbone`.

Prompts are read in chunks and replies written a token at a time by one engine over one cache. Rows of a call are
a contiguous part of the cache; a row in between that has nothing to do is fed its last token again, whose cache
entry its next call overwrites.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date as Date
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import validators as v

from framework.errors import ConfigError, Problem, StageError
from framework.execution.payloads import HiddenChunk, TextChunk
from framework.execution.runner import OpenContext, Row, Runner
from framework.execution.sampling import Sampling, uniform
from framework.graph.model import InputDecl, RunnerDecl, Stage
from models.language.admission import Limits, candidates, messages_of
from models.language.media import ENCODERS, Float32, MediaPrompt, MediaReader, media_parts
from models.language.rows import bounds, contiguous, looked_at

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # inputs that hold for a whole request


def _is_date(instance: Any, attribute: Any, value: str) -> None:
    if value and not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise ValueError(f"{attribute.name}: got {value!r}, expected a day as 2026-01-31")
    if value:
        Date.fromisoformat(value)


@attrs.frozen(kw_only=True)
class BackboneConfig:
    """Settings of `llm.backbone`; the sampling ones are defaults that a run or request overrides.

    Attributes:
        multimodal_artifact: folder that has the encoders, audio/ and visual/, in it or in its multimodal/; relative to
            the artifact.
        accept_hidden_layer: decoder layer behind the `accept_hidden` port; -1 is after the final norm. By default it is
            the one that the engine was built with.
        system_prompt: system message of requests that bring none of their own; "" is none.
        bucket: read each prompt alone and decode at least this many rows in every call, so that kernels which round
            differently by batch size cannot make a request depend on its neighbours; 0 takes the active rows alone.
        prefill_chunk: tokens read per step; 0 is what the build allows.
        date: the day that a chat template is told when it asks (`strftime_now`), as 2026-01-31; "" tells it none.
    """

    multimodal_artifact: str = ""
    accept_hidden_layer: int | None = attrs.field(default=None, validator=v.optional(v.ge(-1)))
    system_prompt: str = ""
    max_generate_length: int = attrs.field(default=256, validator=v.ge(1))
    temperature: float = attrs.field(default=1.0, validator=v.ge(0.0))
    top_p: float = attrs.field(default=0.8, validator=[v.gt(0.0), v.le(1.0)])
    top_k: int = attrs.field(default=50, validator=v.ge(0))
    min_p: float = attrs.field(default=0.0, validator=[v.ge(0.0), v.le(1.0)])
    repetition_penalty: float = attrs.field(default=1.0, validator=v.gt(0.0))
    bucket: int = attrs.field(default=0, validator=v.ge(0))
    prefill_chunk: int = attrs.field(default=0, validator=v.ge(0))
    date: str = attrs.field(default="", validator=_is_date)

    def sampling(self) -> dict[str, Any]:
        names = ("max_generate_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names}


class _Sequence:
    """One row's prompt, reply and place in the cache."""

    def __init__(self, row: Row, ids: Sequence[int], parts: list[Any], sampling: Sampling, reply: Any) -> None:
        self.row = row
        self.prompt = MediaPrompt.plain(ids)
        self.parts = parts  # of its messages that encoders have still to read
        self.found: list[Any] = []  # in those that they have read
        self.sampling = sampling
        self.reply = reply
        self.length = 0  # cache entries
        self.last = 0  # token fed last
        self.generated = 0

    @property
    def reading(self) -> bool:
        return self.length < len(self.prompt.ids)

    def position(self, entry: int) -> float:
        """Rotary position, in all three directions, of a token behind the prompt."""
        return self.prompt.following + entry - len(self.prompt.ids)

    def fed(self, count: int) -> tuple[Any, Float32 | None]:
        """Ids and rotary positions of the `count` tokens fed last, which are of the prompt, or one of the reply."""
        begin = self.length - count
        if begin < len(self.prompt.ids):
            return self.prompt.ids[begin : self.length], self.prompt.positions[:, begin : self.length]
        return np.array([self.last]), np.full((3, 1), self.position(begin), np.float32)


class Backbone(Runner):
    """Writes the reply to a request's messages on port `text`, and hidden states where the graph asks for them."""

    decl = RunnerDecl(
        kind="autoregressive",
        inputs={
            "prompt": InputDecl(kinds=frozenset({"text"}), from_request=True),
            "transcript": InputDecl(kinds=frozenset({"text"})),
            **dict.fromkeys(("audio", "image", "video"), InputDecl(from_request=True)),
        },
        ports={"text": "text", "accept_hidden": "hidden", "embeddings": "hidden"},
        required=frozenset({"prompt"}),
        config=BackboneConfig,
        samples=("default",),
        folders={"multimodal_artifact": ""},
    )

    def __init__(self, *, stage: Stage, config: BackboneConfig | None = None) -> None:
        super().__init__(stage=stage, config=config or BackboneConfig())
        self._sequences: dict[int, _Sequence] = {}
        self._hidden = {port.id: port.binding for port in stage.emits if port.kind == "hidden"}

    def open(self, context: OpenContext) -> None:
        from framework.engines import manifest
        from framework.engines.backend import open_engine
        from framework.engines.calls import RowCalls
        from models.language.media import encoder_folders, open_reader
        from models.language.processing import TextProcessor

        built = manifest.read(context.artifact)
        capacity = int(built.options["max_kv_cache_capacity"])
        self._check_budget(built.spec.caps["batch"], capacity)
        self._engine = open_engine(context.artifact, context.backend)
        caps, rows = self._engine.spec.caps, max(context.batch, self.config.bucket)
        self._chunk = min(self.config.prefill_chunk or caps["tokens"], caps["tokens"])
        shapes = self._shapes = {spec.name: spec.shape for spec in self._engine.spec.inputs}
        self._limits = Limits(
            prompt=int(built.options["max_input_len"]),
            cache=self.stage.max_seq or capacity,
            vocab=int(shapes["logit_bias"][1]),
            candidates=0 if "candidates" in shapes else caps["candidates"],
        )
        self._placed = "positions" in shapes  # tokens have rotary positions other than their cache entry
        self._rows = rows
        date = Date.fromisoformat(self.config.date) if self.config.date else None
        self._text = TextProcessor(context.artifact, date)
        names = {spec.name for spec in self._engine.spec.outputs}
        self._hidden = {
            port: self._binding(port, binding, names, context.artifact) for port, binding in self._hidden.items()
        }
        kinds: Any = {"top_k": np.int64}
        settings: dict[str, Any] = {name: np.zeros(rows, kinds.get(name, np.float32)) for name in SAMPLING}
        settings["top_p"][:] = settings["repetition_penalty"][:] = 1.0
        settings["logit_bias"] = np.zeros((rows, self._limits.vocab), np.float32)
        self._calls = RowCalls(self._engine, self._engine.new_states(rows), settings)
        folders = encoder_folders(context.artifact, self.config.multimodal_artifact)
        self._media: MediaReader | None = None
        if "features" in shapes:
            self._media = open_reader(context.artifact, folders, context.backend)
        self._readable = [kind for kind, encoder in ENCODERS.items() if self._media is not None and encoder in folders]

    def _check_budget(self, rows: int, capacity: int) -> None:
        """Raise ConfigError where the stage asks for more than its engine was built for."""
        found = [
            ("max_batch", self.stage.max_batch, rows),
            ("max_seq", self.stage.max_seq, capacity),
            ("config.bucket", self.config.bucket, rows),
        ]
        problems = [
            Problem(where=f"stages.{self.stage.id}.{key}", got=str(got), expected=f"at most {most}, as built")
            for key, got, most in found
            if got > most
        ]
        if problems:
            raise ConfigError(problems)

    def _binding(self, port: str, binding: str, outputs: set[str], artifact: Path) -> str:
        """Output of the engine behind a port."""
        layers = sorted(name for name in outputs if name.startswith("hidden."))
        others = [name for name in layers if name != "hidden.0"]
        layer = self.config.accept_hidden_layer
        if port == "embeddings":
            name = binding or "hidden.0"
        elif layer is None:
            name = binding or (others[0] if len(others) == 1 else "hidden.-1")
        else:
            name = binding or f"hidden.{layer}"
        if name not in outputs:
            where = f"stages.{self.stage.id}.emits.{port}"
            hint = f"build {artifact} with build.hidden_layers=[{name.removeprefix('hidden.')}]"
            expected = f"one of: {', '.join(layers) or 'no hidden states'}"
            raise StageError(Problem(where=where, got=f"binding {name!r}", expected=expected, hint=hint))
        return name

    def admit(self, row: Row) -> None:
        request = row.request
        where = f"request {request.index}"
        sampling = request.sampling_for("default", self.config.sampling(), stage=self.stage.id)
        messages = messages_of(row, self.config.system_prompt)
        prompt = self._text.prompt(messages, request.options, self._readable, buildable=self._media is not None)
        self._limits.check_sampling(sampling, where)
        sequence = _Sequence(row, prompt.ids, media_parts(messages), sampling, self._text.reply(sampling))
        if not sequence.parts:
            self._begin(sequence)
        self._sequences[row.index] = sequence
        values = {name: getattr(sampling, name) for name in SAMPLING}
        bias = np.zeros(self._limits.vocab, np.float32)
        for token, value in sampling.logit_bias.items():
            bias[token] = value
        self._calls.set(row.index, {**values, "logit_bias": bias})
        row.details.update(
            batch_idx=row.index,
            formatted_system_prompt=prompt.system,
            formatted_complete_request=prompt.text,
        )

    def ready(self, row: Row) -> bool:
        return row.index in self._sequences

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self._sequences[row.index].parts:
                self._perceive(self._sequences[row.index])
        sequences = [self._sequences[row.index] for row in rows if not row.finished]
        reading = [sequence for sequence in sequences if sequence.reading and not sequence.parts]
        writing = [sequence for sequence in sequences if not sequence.reading]
        for group in [[sequence] for sequence in reading] if self.config.bucket else contiguous(reading):
            self._read(group)
        if writing:
            self._write(writing)

    def release(self, row: Row) -> None:
        self._sequences.pop(row.index, None)

    def close(self) -> None:
        if hasattr(self, "_calls"):
            self._calls.clear()
        for name in ("_engine", "_media"):
            if getattr(self, name, None) is not None:
                getattr(self, name).close()

    def _perceive(self, sequence: _Sequence) -> None:
        """Read one sound or picture of a request; the last one completes its prompt."""
        assert self._media is not None
        try:
            sequence.found.append(self._media.perceive(sequence.parts[0]))
            del sequence.parts[0]
            if not sequence.parts:
                self._begin(sequence)
        except Exception as error:  # whatever a file does to a decoder is a matter of its own request
            sequence.row.fail(error)

    def _begin(self, sequence: _Sequence) -> None:
        """The prompt as the engine reads it. Raises StageError where it cannot be read."""
        if self._media is not None:
            sequence.prompt = self._media.arrange(sequence.prompt.ids.tolist(), sequence.found)
        count = len(sequence.prompt.ids)
        self._limits.check_prompt(count, f"request {sequence.row.request.index}: prompt")
        sequence.row.details["prompt_tokens"] = count

    def _read(self, group: Sequence[_Sequence]) -> None:
        """One chunk of each prompt of contiguous rows; the last chunk also gives the first token."""
        start, stop = group[0].row.index, group[-1].row.index + 1
        counts = [min(self._chunk, len(s.prompt.ids) - s.length) for s in group]
        width = max(counts)
        spans = [slice(s.length, s.length + count) for s, count in zip(group, counts, strict=True)]
        media = any(s.prompt.is_feature[span].any() for s, span in zip(group, spans, strict=True))
        call = self._call(start, stop, width, group, width if media else 1)
        ids = np.zeros((len(group), width), np.int64)
        positions = np.zeros((3, len(group), width), np.float32)
        for index, (sequence, span, count) in enumerate(zip(group, spans, counts, strict=True)):
            ids[index] = sequence.prompt.ids[span.stop - 1]  # what follows a short part is overwritten later
            ids[index, :count] = sequence.prompt.ids[span]
            positions[:, index, :count] = sequence.prompt.positions[:, span]
            sequence.last = int(ids[index, -1])
        if self._placed:
            call.write("positions", positions)
        if media:
            self._write_features(call, width, group, spans)
        self._run(call, ids, [s.length for s in group], counts, group, start, stop)
        if media and width == 1:  # the call that writes replies, too
            self._write_features(call, width, group, [slice(0)] * len(group))
        for sequence, count in zip(group, counts, strict=True):
            sequence.length += count
        self._publish(call, start, list(zip(group, counts, strict=True)))

    def _write_features(self, call: Any, width: int, group: Sequence[_Sequence], spans: Sequence[slice]) -> None:
        shapes = self._shapes
        mask = np.zeros((len(group), width), np.bool_)
        features = np.zeros((*mask.shape, int(shapes["features"][-1])), np.float32)
        levels = int(shapes["deepstack"][0]) if "deepstack" in shapes else 0
        deepstack = np.zeros((levels, *features.shape), np.float32)
        for index, (sequence, span) in enumerate(zip(group, spans, strict=True)):
            found, prompt = sequence.prompt.is_feature[span], sequence.prompt
            mask[index, : len(found)] = found
            first = int(prompt.is_feature[: span.start].sum()) if span.start else 0
            of = slice(first, first + int(found.sum()))
            features[index, mask[index]] = prompt.features[of] if found.any() else 0.0
            if prompt.deepstack is not None:
                deepstack[:, index, mask[index]] = prompt.deepstack[:, of]
        call.write("is_feature", mask)
        call.write("features", features)
        if levels:
            call.write("deepstack", deepstack)

    def _write(self, writing: Sequence[_Sequence]) -> None:
        """One token of each reply."""
        start, stop = bounds(writing, rows=self._rows, bucket=self.config.bucket, captures=self._engine.captures)
        rows = [self._sequences.get(index) for index in range(start, stop)]
        call = self._call(start, stop, 1, writing)
        ids = np.array([[s.last if s else 0] for s in rows], np.int64)
        if self._placed:
            call.write("positions", np.array([[[s.position(s.length) if s else 0.0] for s in rows]] * 3, np.float32))
        self._run(call, ids, [s.length if s else 0 for s in rows], [1] * len(rows), writing, start, stop)
        for sequence in writing:
            sequence.length += 1
        self._publish(call, start, [(sequence, 1) for sequence in writing])

    def _call(self, start: int, stop: int, tokens: int, sequences: Sequence[_Sequence], media: int = 1) -> Any:
        """A bound call for these rows, over `media` places for features."""
        limits, dims, fixed = self._limits, {"tokens": tokens}, {}
        if "features" in self._shapes:
            dims["media"] = media
        if not limits.candidates:
            wanted = max(candidates(sequence.sampling, limits.vocab) for sequence in sequences)
            dims["candidates"] = fixed["candidates"] = looked_at(wanted, limits.vocab)
        return self._calls.get(start, stop, dims, fixed, repeated=tokens == 1)

    def _run(
        self,
        call: Any,
        ids: np.ndarray[Any, np.dtype[np.int64]],
        past: Sequence[int],
        counts: Sequence[int],
        sequences: Sequence[_Sequence],
        start: int,
        stop: int,
    ) -> None:
        call.write("ids", ids)
        call.write("past_lengths", np.array(past, np.int64))
        call.write("token_counts", np.array(counts, np.int64))
        if any(sequence.sampling.temperature > 0 for sequence in sequences):
            noise = np.zeros((stop - start, 1), np.float32)
            for sequence in sequences:
                if sequence.sampling.temperature > 0:
                    draw = uniform(sequence.sampling.seed, self.stage.id, sequence.generated)
                    noise[sequence.row.index - start] = draw
            call.write("noise", noise)
        call()

    def _publish(self, call: Any, start: int, done: Sequence[tuple[_Sequence, int]]) -> None:
        """Hand out what a call made: hidden states of what it was fed, and a token where a prompt is read."""
        tokens = call.read("token")[:, 0]
        for port, name in self._hidden.items():
            wanted = [(s, count) for s, count in done if port in s.row.outputs and s.row.outputs[port].wanted]
            hidden = call.read(name) if wanted else None
            for sequence, count in wanted:
                ids, positions = sequence.fed(count)
                values = np.array(hidden[sequence.row.index - start, :count])  # type: ignore[index]
                positions = positions if self._placed else None
                sequence.row.outputs[port].write(HiddenChunk(ids=ids, values=values, positions=positions))
        ids = logprobs = None
        if any(sequence.sampling.num_logprobs for sequence, _ in done):
            ids, logprobs = call.read("candidate_ids"), call.read("candidate_logprobs")
        for sequence, _ in done:
            if sequence.reading:
                continue
            index, count = sequence.row.index - start, sequence.sampling.num_logprobs
            best: tuple[Any, ...] = ()
            if count and ids is not None and logprobs is not None:
                best = (self._text.logprobs(ids[index, :count], logprobs[index, :count]),)
            self._accept(sequence, int(tokens[index]), best)

    def _accept(self, sequence: _Sequence, token: int, logprobs: tuple[Any, ...]) -> None:
        """Take the token into the reply; end the row where the reply ends."""
        sequence.last = token
        sequence.generated += 1
        port = sequence.row.outputs.get("text")
        reason = None
        if token in self._text.tokenizer.eos_ids:
            text, reason = sequence.reply.flush(), "end-of-sequence"
        else:
            text = sequence.reply.push(token)
            if sequence.reply.stopped:
                reason = "stop-words"
            elif sequence.generated >= sequence.sampling.max_generate_length or sequence.length >= self._limits.cache:
                text, reason = text + sequence.reply.flush(), "max-length"
                reason = "stop-words" if sequence.reply.stopped else reason
        if port is not None:
            port.write(TextChunk(text=text, ids=(token,), logprobs=logprobs))
        if reason:
            sequence.row.finish(finish_reason=reason, generated_tokens=sequence.generated)
