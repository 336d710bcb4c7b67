"""The stage of a decoder-only language model: `llm.backbone`.

Prompts are read in chunks and replies written a token at a time, by one engine over one cache (`framework.decoding`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date as Date
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import validators as v

from framework.decoding.loop import Loop, open_loop
from framework.decoding.rows import DecoderRow, Work
from framework.engines.base import Call
from framework.errors import Problem, StageError
from framework.execution.payloads import HiddenChunk, TextChunk
from framework.execution.runner import OpenContext, Row, Runner
from framework.execution.sampling import Sampling
from framework.graph.model import InputDecl, RunnerDecl, Stage
from models.language.media import ENCODERS, MediaPrompt, MediaReader, media_parts
from models.language.processing import TextProcessor, messages_of


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


class _Reply(DecoderRow):
    """One request's prompt and reply."""

    def __init__(self, row: Row, ids: Sequence[int], parts: list[Any], sampling: Sampling, text: Any) -> None:
        super().__init__(row, sampling)
        self.prompt = MediaPrompt.plain(ids)
        self.prompt_length = len(ids)
        self.parts = parts  # of its messages that encoders have still to read
        self.found: list[Any] = []  # in those that they have read
        self.sampling = sampling
        self.text = text
        self.last = 0  # the token written last

    def ids(self, start: int, count: int) -> Any:
        """Tokens of entries of the cache: int64 [count] of the prompt, or the one written last."""
        return self.prompt.ids[start : start + count] if start < self.prompt_length else [self.last]

    def positions(self, start: int, count: int) -> Any:
        """Rotary positions of these tokens: float32 [3, count], or the one that holds for all three directions."""
        if start < self.prompt_length:
            return self.prompt.positions[:, start : start + count]
        return self.prompt.following + start - self.prompt_length

    def features(self, count: int) -> Any:
        """Which of the `count` tokens that come next stand for features: bool [count], none behind the prompt."""
        return self.prompt.is_feature[self.length : self.length + count]


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
        self._hidden = {port.id: port.binding for port in stage.emits if port.kind == "hidden"}

    def open(self, context: OpenContext) -> None:
        from models.language.media import encoder_folders, open_reader

        config = self.config
        self._loop: Loop[_Reply] = open_loop(
            context, self.stage, self, chunk=config.prefill_chunk, bucket=config.bucket
        )
        spec = self._loop.engine.spec
        shapes = self._shapes = {tensor.name: tensor.shape for tensor in spec.inputs}
        date = Date.fromisoformat(config.date) if config.date else None
        self._text = TextProcessor(context.artifact, date)
        names = {tensor.name for tensor in spec.outputs}
        self._hidden = {
            port: self._binding(port, binding, names, context.artifact) for port, binding in self._hidden.items()
        }
        folders = encoder_folders(context.artifact, config.multimodal_artifact)
        self._media: MediaReader | None = None
        if "features" in shapes:
            self._media = open_reader(context.artifact, folders, context.backend)
        self._readable = [kind for kind, encoder in ENCODERS.items() if self._media is not None and encoder in folders]

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
        sampling = request.sampling_for("default", self.config.sampling(), stage=self.stage.id)
        messages = messages_of(row, self.config.system_prompt)
        prompt = self._text.prompt(messages, request.options, self._readable, buildable=self._media is not None)
        self._loop.limits.check_sampling(sampling, f"request {request.index}")
        reply = _Reply(row, prompt.ids, media_parts(messages), sampling, self._text.reply(sampling))
        if not reply.parts:
            self._begin(reply)
        self._loop.add(reply)
        self._loop.choose(reply)
        row.details.update(
            batch_idx=row.index,
            formatted_system_prompt=prompt.system,
            formatted_complete_request=prompt.text,
        )

    def ready(self, row: Row) -> bool:
        return row.index in self._loop.rows

    def step(self, rows: Sequence[Row]) -> None:
        replies = [self._loop.rows[row.index] for row in rows]
        for reply in replies:
            if reply.parts:
                self._perceive(reply)
        self._loop.step([reply for reply in replies if not reply.parts and not reply.row.finished])

    def release(self, row: Row) -> None:
        self._loop.remove(row.index)

    def close(self) -> None:
        for name in ("_loop", "_media"):
            if getattr(self, name, None) is not None:
                getattr(self, name).close()

    # Prompts

    def _perceive(self, reply: _Reply) -> None:
        """Read one sound or picture of a request; the last one completes its prompt."""
        assert self._media is not None
        try:
            reply.found.append(self._media.perceive(reply.parts[0]))
            del reply.parts[0]
            if not reply.parts:
                self._begin(reply)
        except Exception as error:  # whatever a file does to a decoder is a matter of its own request
            reply.row.fail(error)

    def _begin(self, reply: _Reply) -> None:
        """The prompt as the engine reads it. Raises StageError where it cannot be read."""
        if self._media is not None:
            reply.prompt = self._media.arrange(reply.prompt.ids.tolist(), reply.found)
        count = reply.prompt_length = len(reply.prompt.ids)
        self._loop.limits.check_prompt(count, f"request {reply.row.request.index}: prompt")
        reply.row.details["prompt_tokens"] = count

    # What the loop asks

    def dims(self, work: Work[_Reply]) -> Mapping[str, int]:
        """Places for features: one for every token, or one where there are none."""
        if "features" not in self._shapes:
            return {}
        return {"media": work.tokens if any(reply.features(count).any() for reply, count in work.fed) else 1}

    def inputs(self, work: Work[_Reply]) -> Mapping[str, Any]:
        ids = np.zeros((len(work.rows), work.tokens), np.int64)
        for index, (reply, count) in enumerate(work.fed):
            ids[index, :count] = reply.ids(reply.length, count)
            ids[index, count:] = ids[index, count - 1]
        found: dict[str, Any] = {"ids": ids}
        if "positions" in self._shapes:
            positions = found["positions"] = np.zeros((3, *ids.shape), np.float32)
            for index, (reply, count) in enumerate(work.fed):
                positions[:, index, :count] = reply.positions(reply.length, count)
        return found | self._features(work) if "features" in self._shapes else found

    def _features(self, work: Work[_Reply]) -> dict[str, Any]:
        """What was seen and heard, in place of the embeddings of some tokens; nothing where the call has none."""
        masks = [reply.features(count) for reply, count in work.fed]
        mask = np.zeros((len(work.rows), work.tokens), np.bool_)
        if not any(found.any() for found in masks):
            # A call of one token is the same with and without features.
            return {"is_feature": mask} if work.tokens == 1 else {}
        features = np.zeros((*mask.shape, int(self._shapes["features"][-1])), np.float32)
        levels = int(self._shapes["deepstack"][0]) if "deepstack" in self._shapes else 0
        deepstack = np.zeros((levels, *features.shape), np.float32)
        for index, ((reply, _), found) in enumerate(zip(work.fed, masks, strict=True)):
            mask[index, : len(found)] = found
            first = int(reply.prompt.is_feature[: reply.length].sum())
            part = slice(first, first + int(found.sum()))
            features[index, mask[index]] = reply.prompt.features[part] if found.any() else 0.0
            if reply.prompt.deepstack is not None:
                deepstack[:, index, mask[index]] = reply.prompt.deepstack[:, part]
        return {"is_feature": mask, "features": features, **({"deepstack": deepstack} if levels else {})}

    def publish(self, work: Work[_Reply], call: Call) -> None:
        """Hand out hidden states of what was fed, and a token where a prompt is read to its end."""
        self._publish_hidden(work, call)
        writing = [reply for reply in work.active if not reply.reading]
        if not writing:
            return
        tokens, best = call.read("token")[:, 0], None
        if any(reply.sampling.num_logprobs for reply in writing):
            best = [call.read("candidate_ids"), call.read("candidate_logprobs")]
        for reply in writing:
            index, count = work.index(reply), reply.sampling.num_logprobs
            logprobs: tuple[Any, ...] = ()
            if best is not None and count:
                ids, values = (found[index, :count].tolist() for found in best)
                logprobs = (self._text.logprobs(ids, values),)
            self._accept(reply, int(tokens[index]), logprobs)

    def _publish_hidden(self, work: Work[_Reply], call: Call) -> None:
        done = list(zip(work.active, work.counts, strict=True))
        for port, name in self._hidden.items():
            wanted = [(one, count) for one, count in done if port in one.row.outputs and one.row.outputs[port].wanted]
            hidden = call.read(name) if wanted else None
            for reply, count in wanted:
                start = reply.length - count
                values = np.array(hidden[work.index(reply), :count])  # type: ignore[index]
                places = None
                if "positions" in self._shapes:
                    places = np.broadcast_to(np.float32(reply.positions(start, count)), (3, count))
                ids = np.array(reply.ids(start, count), np.int64)
                reply.row.outputs[port].write(HiddenChunk(ids=ids, values=values, positions=places))

    def _accept(self, reply: _Reply, token: int, logprobs: tuple[Any, ...]) -> None:
        """Take the token into the reply; end the row where the reply ends."""
        reply.last = token
        reply.step += 1
        port, text = reply.row.outputs.get("text"), reply.text
        reason = None
        if token in self._text.tokenizer.eos_ids:
            written, reason = text.flush(), "end-of-sequence"
        else:
            written = text.push(token)
            if text.stopped:
                reason = "stop-words"
            elif reply.step >= reply.sampling.max_generate_length or reply.length >= self._loop.limits.cache:
                written, reason = written + text.flush(), "max-length"
                reason = "stop-words" if text.stopped else reason
        if port is not None:
            port.write(TextChunk(text=written, ids=(token,), logprobs=logprobs))
        if reason:
            reply.row.finish(finish_reason=reason, generated_tokens=reply.step)
