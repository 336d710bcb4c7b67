"""The stage of a decoder-only language model: `llm.backbone`.

Prompts are read in chunks and replies written a token at a time by one engine over one cache. Rows of a call are
a contiguous part of the cache; a row in between that has nothing to do is fed its last token again, whose cache
entry its next call overwrites.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import validators as v

from framework.errors import ConfigError, Problem, StageError
from framework.execution.payloads import TextChunk
from framework.execution.runner import OpenContext, Row, Runner
from framework.execution.sampling import Sampling, uniform
from framework.graph.model import InputDecl, RunnerDecl, Stage

CANDIDATES = (1, 64, 256, 1024)  # numbers of best tokens a call may look at, before the whole vocabulary
CALLS = 32  # bound calls that are kept


@attrs.frozen(kw_only=True)
class BackboneConfig:
    """Settings of `llm.backbone`; the sampling ones are defaults that a run or request overrides.

    Attributes:
        multimodal_artifact: folder of the audio and visual encoders, relative to the artifact.
        accept_hidden_layer: decoder layer behind the `accept_hidden` port; -1 is after the final norm.
        system_prompt: system message of requests that bring none of their own; "" is none.
        bucket: decode at least this many rows in every call, so that kernels which round differently by batch size
            cannot make a request depend on its neighbours; 0 decodes the active rows alone.
        prefill_chunk: tokens read per step; 0 is what the build allows.
    """

    multimodal_artifact: str = ""
    accept_hidden_layer: int = attrs.field(default=-1, validator=v.ge(-1))
    system_prompt: str = ""
    max_generate_length: int = attrs.field(default=256, validator=v.ge(1))
    temperature: float = attrs.field(default=1.0, validator=v.ge(0.0))
    top_p: float = attrs.field(default=0.8, validator=[v.gt(0.0), v.le(1.0)])
    top_k: int = attrs.field(default=50, validator=v.ge(0))
    min_p: float = attrs.field(default=0.0, validator=[v.ge(0.0), v.le(1.0)])
    repetition_penalty: float = attrs.field(default=1.0, validator=v.gt(0.0))
    bucket: int = attrs.field(default=0, validator=v.ge(0))
    prefill_chunk: int = attrs.field(default=0, validator=v.ge(0))

    def sampling(self) -> dict[str, Any]:
        names = ("max_generate_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names}


class _Sequence:
    """One row's prompt, reply and place in the cache."""

    def __init__(self, row: Row, prompt: Sequence[int], sampling: Sampling, reply: Any) -> None:
        self.row = row
        self.prompt = prompt
        self.sampling = sampling
        self.reply = reply
        self.length = 0  # cache entries
        self.last = 0  # token fed last
        self.generated = 0

    @property
    def reading(self) -> bool:
        return self.length < len(self.prompt)


class Backbone(Runner):
    """Writes the reply to a request's messages on port `text`, and hidden states where the graph asks for them."""

    decl = RunnerDecl(
        kind="autoregressive",
        inputs={
            "prompt": InputDecl(kinds=frozenset({"text"}), from_request=True),
            "transcript": InputDecl(kinds=frozenset({"text"})),
            "audio": InputDecl(from_request=True),
            "image": InputDecl(from_request=True),
        },
        ports={"text": "text", "accept_hidden": "hidden", "embeddings": "hidden"},
        required=frozenset({"prompt"}),
        config=BackboneConfig,
    )

    def __init__(self, *, stage: Stage, config: BackboneConfig | None = None) -> None:
        super().__init__(stage=stage, config=config or BackboneConfig())
        self._sequences: dict[int, _Sequence] = {}
        self._calls: OrderedDict[tuple[int, int, int, int], Any] = OrderedDict()
        self._captured: set[tuple[int, int, int, int]] = set()
        self._hidden = {port.id: port.binding for port in stage.emits if port.kind == "hidden"}

    def open(self, context: OpenContext) -> None:
        from framework.engines import manifest
        from framework.engines.backend import open_engine
        from models.llm.processing import TextProcessor

        built = manifest.read(context.artifact)
        self._max_input = int(built.options["max_input_len"])
        self._capacity = int(built.options["max_kv_cache_capacity"])
        self._check_budget(built.spec.caps["batch"])
        self._capacity = self.stage.max_seq or self._capacity
        self._engine = open_engine(context.artifact, context.backend)
        caps = self._engine.spec.caps
        self._chunk = min(self.config.prefill_chunk or caps["tokens"], caps["tokens"])
        shapes = {spec.name: spec.shape for spec in self._engine.spec.inputs}
        self._vocab = int(shapes["logit_bias"][1])
        self._fixed = 0 if "candidates" in shapes else caps["candidates"]  # best tokens every call looks at
        self._rows = context.batch
        self._states = self._engine.new_states(context.batch)
        self._text = TextProcessor(context.artifact)
        names = {spec.name for spec in self._engine.spec.outputs}
        self._hidden = {
            port: self._binding(port, binding, names, context.artifact) for port, binding in self._hidden.items()
        }
        self._settings = _Settings(context.batch, self._vocab)

    def _check_budget(self, rows: int) -> None:
        """Raise ConfigError where the stage asks for more than its engine was built for."""
        found = {"max_batch": (self.stage.max_batch, rows), "max_seq": (self.stage.max_seq, self._capacity)}
        problems = [
            Problem(where=f"stages.{self.stage.id}.{key}", got=str(got), expected=f"at most {most}, as built")
            for key, (got, most) in found.items()
            if got > most
        ]
        if problems:
            raise ConfigError(problems)

    def _binding(self, port: str, binding: str, outputs: set[str], artifact: Path) -> str:
        name = binding or ("hidden.0" if port == "embeddings" else f"hidden.{self.config.accept_hidden_layer}")
        if name not in outputs:
            found = ", ".join(sorted(name for name in outputs if name.startswith("hidden."))) or "no hidden states"
            where = f"stages.{self.stage.id}.emits.{port}"
            hint = f"build {artifact} with build.hidden_layers=[{name.removeprefix('hidden.')}]"
            raise StageError(Problem(where=where, got=f"binding {name!r}", expected=f"one of: {found}", hint=hint))
        return name

    def admit(self, row: Row) -> None:
        request = row.request
        sampling = request.sampling_for("default", self.config.sampling())
        prompt = self._text.prompt(_messages(row, self.config.system_prompt), request.options)
        where = f"request {request.index}: prompt"
        if not prompt.ids:
            raise StageError(Problem(where=where, got="no tokens", expected="at least one"))
        if len(prompt.ids) > self._max_input:
            hint = "build with a larger build.max_input_len"
            expected = f"at most {self._max_input}, which the engine was built for"
            raise StageError(Problem(where=where, got=f"{len(prompt.ids)} tokens", expected=expected, hint=hint))
        if len(prompt.ids) >= self._capacity:
            hint = "build with a larger build.max_kv_cache_capacity"
            expected = f"fewer than the cache's {self._capacity}, to leave room for a reply"
            raise StageError(Problem(where=where, got=f"{len(prompt.ids)} tokens", expected=expected, hint=hint))
        beyond = [token for token in sampling.logit_bias if not 0 <= token < self._vocab]
        if beyond:
            expected = f"token ids 0 to {self._vocab - 1}"
            raise StageError(
                Problem(where=f"request {request.index}: logit_bias", got=str(beyond[0]), expected=expected)
            )
        if self._fixed and _candidates(sampling, self._vocab) > self._fixed:
            got = f"top_k={sampling.top_k}, num_logprobs={sampling.num_logprobs}"
            hint = "0 means all; build with a larger build.candidates"
            expected = f"at most the {self._fixed} best tokens that the engine looks at"
            raise StageError(Problem(where=f"request {request.index}: sampling", got=got, expected=expected, hint=hint))
        self._sequences[row.index] = _Sequence(row, prompt.ids, sampling, self._text.reply(sampling))
        self._settings.set(row.index, sampling)
        row.details.update(
            batch_idx=row.index,
            prompt_tokens=len(prompt.ids),
            formatted_system_prompt=prompt.system,
            formatted_complete_request=prompt.text,
        )

    def ready(self, row: Row) -> bool:
        return row.index in self._sequences

    def step(self, rows: Sequence[Row]) -> None:
        sequences = [self._sequences[row.index] for row in rows]
        reading = [sequence for sequence in sequences if sequence.reading]
        writing = [sequence for sequence in sequences if not sequence.reading]
        for group in _contiguous(reading):
            self._read(group)
        if writing:
            self._write(writing)

    def release(self, row: Row) -> None:
        self._sequences.pop(row.index, None)

    def close(self) -> None:
        self._calls.clear()
        if hasattr(self, "_engine"):
            self._engine.close()

    def _read(self, group: Sequence[_Sequence]) -> None:
        """One chunk of each prompt of contiguous rows; the last chunk also gives the first token."""
        start, stop = group[0].row.index, group[-1].row.index + 1
        parts = [sequence.prompt[sequence.length : sequence.length + self._chunk] for sequence in group]
        width = max(map(len, parts))
        ids = np.array([[*part, *[part[-1]] * (width - len(part))] for part in parts], np.int64)
        call = self._call(start, stop, width, group)
        self._run(call, ids, [s.length for s in group], [len(part) for part in parts], group, start, stop)
        for sequence, part in zip(group, parts, strict=True):
            sequence.length += len(part)
            sequence.last = part[-1]
        self._publish(call, start, [(s, len(p)) for s, p in zip(group, parts, strict=True)])

    def _write(self, writing: Sequence[_Sequence]) -> None:
        """One token of each reply."""
        indices = [sequence.row.index for sequence in writing]
        start, stop = min(indices), max(indices) + 1
        if self._engine.captures:
            start, stop = 0, self._rows
        elif self.config.bucket:
            start, stop = 0, min(max(stop, self.config.bucket), self._rows)
        rows = [self._sequences.get(index) for index in range(start, stop)]
        call = self._call(start, stop, 1, writing)
        ids = np.array([[s.last if s else 0] for s in rows], np.int64)
        self._run(call, ids, [s.length if s else 0 for s in rows], [1] * len(rows), writing, start, stop)
        for sequence in writing:
            sequence.length += 1
        self._publish(call, start, [(sequence, 1) for sequence in writing])

    def _call(self, start: int, stop: int, tokens: int, sequences: Sequence[_Sequence]) -> Any:
        """A bound call for these rows; kept, for addresses do not change."""
        wanted = max(_candidates(sequence.sampling, self._vocab) for sequence in sequences)
        candidates = self._fixed or next((n for n in CANDIDATES if wanted <= n < self._vocab), self._vocab)
        key = (start, stop, tokens, candidates)
        if key not in self._calls:
            if len(self._calls) >= CALLS:
                old, _ = self._calls.popitem(last=False)
                self._settings.known.discard(old)
                self._captured.discard(old)
            if self._fixed:
                call = self._engine.bind({"tokens": tokens}, self._states, slice(start, stop))
            else:
                dims = {"tokens": tokens, "candidates": candidates}
                call = self._engine.bind(dims, self._states, slice(start, stop))
                call.write("candidates", np.array([candidates], np.int64))
            self._calls[key] = call
            self._settings.known.add(key)
            self._settings.stale.add(key)
        self._calls.move_to_end(key)
        call = self._calls[key]
        if key in self._settings.stale:
            self._settings.write(call, start, stop)
            self._settings.stale.discard(key)
        if tokens == 1 and self._engine.captures and key not in self._captured:
            call.capture()
            self._captured.add(key)
        return call

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
        """Hand out what a call made: hidden states of its new positions, and a token where a prompt is read."""
        tokens = call.read("token")[:, 0]
        for port, name in self._hidden.items():
            hidden = call.read(name)
            for sequence, count in done:
                if port in sequence.row.outputs:
                    sequence.row.outputs[port].write(np.array(hidden[sequence.row.index - start, :count]))
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
            elif sequence.generated >= sequence.sampling.max_generate_length or sequence.length >= self._capacity:
                text, reason = text + sequence.reply.flush(), "max-length"
                reason = "stop-words" if sequence.reply.stopped else reason
        if port is not None:
            port.write(TextChunk(text=text, ids=(token,), logprobs=logprobs))
        if reason:
            sequence.row.finish(finish_reason=reason, generated_tokens=sequence.generated)


class _Settings:
    """Sampling inputs of all rows, written to a call only after they changed."""

    def __init__(self, rows: int, vocab: int) -> None:
        self._arrays: Mapping[str, np.ndarray[Any, Any]] = {
            "temperature": np.zeros(rows, np.float32),
            "top_k": np.zeros(rows, np.int64),
            "top_p": np.ones(rows, np.float32),
            "min_p": np.zeros(rows, np.float32),
            "repetition_penalty": np.ones(rows, np.float32),
            "logit_bias": np.zeros((rows, vocab), np.float32),
        }
        self.known: set[tuple[int, int, int, int]] = set()
        self.stale: set[tuple[int, int, int, int]] = set()

    def set(self, row: int, sampling: Sampling) -> None:
        for name, array in self._arrays.items():
            if name != "logit_bias":
                array[row] = getattr(sampling, name)
        bias = self._arrays["logit_bias"]
        bias[row] = 0
        for token, value in sampling.logit_bias.items():
            bias[row, token] = value
        self.stale |= {key for key in self.known if key[0] <= row < key[1]}

    def write(self, call: Any, start: int, stop: int) -> None:
        for name, array in self._arrays.items():
            call.write(name, array[start:stop])


def _messages(row: Row, system: str) -> Sequence[Mapping[str, Any]]:
    """What is said to the model: the request's messages, sound in them replaced by what a stage heard in it.

    Text of another stage on `prompt` is what the user says. `system` goes before messages that have no system message.
    Raises StageError when nothing was heard: what the sound was meant to say cannot be known.
    """
    chunks = row.inputs["prompt"].drain()
    messages = [_said(chunks)] if chunks and isinstance(chunks[0], TextChunk) else list(chunks[0])
    if "transcript" in row.inputs:
        heard = _said(row.inputs["transcript"].drain())["content"]
        if not heard:
            where = f"request {row.request.index}: audio"
            raise StageError(Problem(where=where, got="no speech in it", expected="something said"))
        messages = [_heard(message, heard) for message in messages]
    if system and not any(message.get("role") == "system" for message in messages):
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _said(chunks: Sequence[TextChunk]) -> dict[str, str]:
    return {"role": "user", "content": "".join(chunk.text for chunk in chunks).strip()}


def _heard(message: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return message
    parts = [{"type": "text", "text": text} if part.get("type") == "audio" else part for part in content or ()]
    return {**message, "content": parts}


def _candidates(sampling: Sampling, vocab: int) -> int:
    """Best tokens a row needs to see."""
    considered = (sampling.top_k or vocab) if sampling.temperature > 0 else 1
    return max(considered, sampling.num_logprobs)


def _contiguous(sequences: Sequence[_Sequence]) -> list[list[_Sequence]]:
    """Split rows into runs without a gap. A prompt that goes on is read alone: GroupQueryAttention takes several rows
    of several tokens only while their caches are empty."""
    groups: list[list[_Sequence]] = []
    for sequence in sorted(sequences, key=lambda sequence: sequence.row.index):
        last = groups[-1][-1] if groups else None
        if last and last.row.index + 1 == sequence.row.index and not last.length and not sequence.length:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups
