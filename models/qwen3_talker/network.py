"""A talker with its code predictor and both samplers: one call reads a chunk of the prompt or speaks a frame.

Families say what a talker reads (`Talker.embedded`). Upstream: the package qwen-tts,
Qwen3TTSTalkerForConditionalGeneration. Parameter names are its own, but for the tables of codes, which are one
parameter (`weights.py`).

    text, codes, past_lengths, token_counts, frames, sampling, caches -> frame, caches

| | 0.6B | 1.7B |
|---|---|---|
| talker: layers, hidden, feed-forward | 28, 1024, 3072 | 28, 2048, 6144 |
| code predictor | 5, 1024, 3072 | 5, 1024, 3072 behind a projection |
| heads / kv, head_dim | 16/8, 128 | 16/8, 128 |

The 15 steps of the predictor are unrolled. On the CPU that is faster than `Scan`, whose body ONNX Runtime does not
prepare weights for (4 bits, one thread: 90 ms against 240), and a GPU can capture no loop. The weights are in the file
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import (
    Linear,
    Positions,
    RMSNorm,
    Sampler,
    constant,
    decoder_states,
    positions,
    rotary_tables,
    sampler_inputs,
    updated,
)
from models.language.config import LLMConfig
from models.language.network import decoder_layers
from models.qwen3_talker.config import RESERVED, SpeechConfig

PREDICTOR = "cp_"  # what its inputs are called by
Cache = tuple[ir.Value | None, ir.Value | None]


class Layers(nn.Module):
    """Decoder layers and the final norm, over embeddings."""

    def __init__(self, config: LLMConfig) -> None:
        super().__init__()
        self.layers = decoder_layers(config)
        self.norm = RMSNorm(config.hidden, config.rms_eps)

    def forward(
        self, op: OpBuilder, x: ir.Value, at: Positions, caches: Sequence[Cache]
    ) -> tuple[ir.Value, list[Cache]]:
        updated: list[Cache] = []
        for layer, (keys, values) in zip(self.layers, caches, strict=True):
            x, keys, values = layer(op, x, at, keys, values)
            updated.append((keys, values))
        return self.norm(op, x), updated


class Projection(nn.Module):
    """fc2(silu(fc1(x))): what a text token says to the talker."""

    def __init__(self, text_hidden: int, inner: int, hidden: int) -> None:
        super().__init__()
        self.linear_fc1 = Linear(text_hidden, inner, bias=True)
        self.linear_fc2 = Linear(inner, hidden, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        x = self.linear_fc1(op, x)
        return self.linear_fc2(op, op.Mul(x, op.Sigmoid(x)))


class CodePredictor(nn.Module):
    """Codes 1 to 15 of a frame, each from the talker's hidden state and the codes before it."""

    def __init__(self, config: SpeechConfig, candidates: int, dtype: str) -> None:
        super().__init__()
        inner, self.groups = config.predictor, config.groups
        self.vocab, self.candidates = inner.vocab, candidates
        self.model = Layers(inner)
        self.lm_head = nn.ModuleList([Linear(inner.hidden, inner.vocab) for _ in range(config.groups - 1)])
        narrower = inner.hidden != config.talker.hidden
        self.small_to_mtp_projection = Linear(config.talker.hidden, inner.hidden, bias=True) if narrower else None
        self.sampler = Sampler(min(candidates, inner.vocab))
        cos, sin = rotary_tables(inner.head_dim, config.groups, inner.rope)
        self.rotary_cos, self.rotary_sin = constant(cos, dtype), constant(sin, dtype)

    def forward(
        self,
        op: OpBuilder,
        hidden: ir.Value,
        first: ir.Value,
        table: Codes,
        given: Mapping[str, ir.Value],
    ) -> ir.Value:
        """hidden [batch, 1, talker's], first code int64 [batch, 1] -> codes int64 [batch, groups].

        `given` has the names of `sampler_inputs`; `noise` is [batch, groups], column 0 the talker's own.
        """
        settings = dict(given)
        if not self.candidates:
            settings["candidates"] = op.Min(given["candidates"], [self.vocab])
        codes = [first]
        start = op.Mul(first, 0)  # [batch, 1] zeros
        x = op.Concat(hidden, table(op, first, group=0), axis=1)  # [batch, 2, talker's]
        caches: list[Cache] = [(None, None)] * len(self.model.layers)
        for group, head in enumerate(self.lm_head, start=1):
            if self.small_to_mtp_projection is not None:
                x = self.small_to_mtp_projection(op, x)
            ids = op.Concat(start, op.Add(start, 1), axis=1) if group == 1 else op.Add(start, group)
            at = Positions(past=None, ids=ids, mask=None, cos=self.rotary_cos, sin=self.rotary_sin)
            y, caches = self.model(op, x, at, caches)
            last = op.Slice(y, [-1], [2**31 - 1], [1]) if group == 1 else y  # [batch, 1, hidden]
            logits = op.Squeeze(head(op, last), [1])  # [batch, vocab]
            settings["noise"] = op.Slice(given["noise"], [group], [group + 1], [1])
            code, _, _ = self.sampler(op, logits, None, None, settings)
            codes.append(code)
            if group + 1 < self.groups:
                x = table(op, code, group=group)
        return op.Concat(*codes, axis=1)


class Codes(nn.Module):
    """Embeddings of the codes of all groups in the talker's width, one table: the talker's own `first` entries, then
    those of each further group."""

    def __init__(self, config: SpeechConfig) -> None:
        super().__init__()
        self.groups, self.width = config.groups, config.talker.hidden
        first, further = config.talker.vocab, config.predictor.vocab
        self.starts = np.array([0, *(first + further * group for group in range(config.groups - 1))], np.int64)
        self.weight = nn.Parameter([first + further * (config.groups - 1), config.talker.hidden])

    def forward(self, op: OpBuilder, codes: ir.Value, group: int | None = None) -> ir.Value:
        """Codes of one group int64 [batch, n] -> [batch, n, width]; without `group`, of all groups
        [batch, n, groups] -> [batch, n, width], the sum of those that are there (not negative)."""
        if group is not None:
            start = int(self.starts[group])
            return op.Gather(self.weight, op.Add(codes, start) if start else codes, axis=0)
        there = op.GreaterOrEqual(codes, 0)
        entries = op.Add(op.Max(codes, 0), ir.tensor(self.starts, name="codes.starts"))
        found = op.Gather(self.weight, op.Reshape(entries, [0, -1]), axis=0)  # [batch, n * groups, width]
        found = op.Mul(found, op.CastLike(op.Reshape(there, [0, -1, 1]), found))
        return op.ReduceSum(op.Reshape(found, [0, -1, self.groups, self.width]), [2], keepdims=0)


class Talker(nn.Module):
    """Frames of sound, as codes, from rows of text and codes.

    Args:
        model: the talker's layers.
        capacity: cache entries a row can have, and so rotary positions.
        dtype: of the activations and caches.
        candidates: see `Sampler`.
    """

    def __init__(self, config: SpeechConfig, model: Layers, *, capacity: int, dtype: str, candidates: int = 0) -> None:
        super().__init__()
        self.config, self.capacity, self.dtype, self.candidates = config, capacity, dtype, candidates
        self.model = model
        self.codes = Codes(config)
        self.codec_head = Linear(config.talker.hidden, config.talker.vocab)
        self.code_predictor = CodePredictor(config, candidates, dtype)
        self.sampler = Sampler(min(candidates, config.talker.vocab))
        cos, sin = rotary_tables(config.talker.head_dim, capacity, config.talker.rope)
        self.rotary_cos, self.rotary_sin = constant(cos, dtype), constant(sin, dtype)

    def embedded(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> ir.Value:
        """Embeddings of what the call is fed: [batch, tokens, hidden]."""
        raise NotImplementedError

    def positions(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> Positions:
        """Where in the cache, and at which rotary positions."""
        past = given["past_lengths"]
        return positions(op, given["text"], past, capacity=self.capacity, cos=self.rotary_cos, sin=self.rotary_sin)

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        config, frames = self.config, given["frames"]
        x, at = self.embedded(op, given), self.positions(op, given)
        caches = [(given[f"key_cache.{i}"], given[f"value_cache.{i}"]) for i in range(config.talker.layers)]
        y, caches = self.model(op, x, at, caches)
        last = op.Unsqueeze(op.Sub(given["token_counts"], 1), [1])  # [batch, 1]
        hidden = op.GatherND(y, last, batch_dims=1)  # [batch, hidden], of each row's last real token

        first = self._first_code(op, hidden, given)
        at_frame = op.Unsqueeze(frames, [1])
        history = op.ScatterElements(given["history"], at_frame, first, axis=1)
        settings = {name: given[PREDICTOR + name] for name in SETTINGS}
        shared = {name: given[name] for name in ("noise", "candidates") if name in given}
        hidden = op.Unsqueeze(hidden, [1])
        codes = self.code_predictor(op, hidden, first, self.codes, settings | shared)

        outputs = {"frame": codes, "history.next": history}
        for layer, (keys, values) in enumerate(caches):
            outputs[f"key_cache.{layer}.next"], outputs[f"value_cache.{layer}.next"] = keys, values
        return outputs

    def _first_code(self, op: OpBuilder, hidden: ir.Value, given: Mapping[str, ir.Value]) -> ir.Value:
        """Code 0 of the frame, int64 [batch, 1]: the end where the talker has said everything."""
        vocab, frames = self.config.talker.vocab, given["frames"]
        ids = np.arange(vocab)
        end = ids == self.config.codec.eos
        never = op.initializer(ir.tensor((ids >= vocab - RESERVED) & ~end), name="codes.never")
        end_value = op.initializer(ir.tensor(end), name="codes.end")
        early = op.And(op.Unsqueeze(op.Less(frames, self.config.min_frames), [1]), end_value)  # [batch, vocab]
        logits = op.Cast(self.codec_head(op, hidden), to=ir.DataType.FLOAT)
        logits = op.Where(op.Or(early, never), op.Constant(value_float=FORBIDDEN), logits)
        # Before the first frame there is nothing to be repeated, and the history's entry is another request's.
        penalty = given["repetition_penalty"]
        penalty = op.Where(op.Equal(frames, 0), op.CastLike(1.0, penalty), penalty)
        settings = {name: given[name] for name in (*SETTINGS, "logit_bias", "candidates") if name in given}
        settings |= {"repetition_penalty": penalty, "noise": op.Slice(given["noise"], [0], [1], [1])}
        code, _, _ = self.sampler(op, logits, given["history"], op.Max(frames, 1), settings)
        return code


class Speech(nn.Module):
    """The whole network; `talker` is the prefix of its weights in the checkpoint."""

    def __init__(self, talker: Talker) -> None:
        super().__init__()
        self.config, self.capacity, self.dtype = talker.config, talker.capacity, talker.dtype
        self.candidates = talker.candidates
        self.talker = talker

    def extras(self) -> tuple[TensorSpec, ...]:
        """Inputs beside those that every talker has."""
        return ()

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Graph inputs, the states last.

        A token is a text id and 16 codes, of which `NOTHING` is none: prompts have a mark of the talker's vocabulary in
        place 0, or the codes of a recording; a frame is spoken after the codes of the last one.
        """
        config = self.config
        sampling = sampler_inputs(config.talker.vocab, candidates=self.candidates, draws=config.groups)
        predictor = [attrs.evolve(spec, name=PREDICTOR + spec.name) for spec in sampling if spec.name in SETTINGS]
        return (
            TensorSpec(name="text", dtype="int64", shape=("batch", "tokens")),
            TensorSpec(name="codes", dtype="int64", shape=("batch", "tokens", config.groups)),
            *self.extras(),
            TensorSpec(name="past_lengths", dtype="int64", shape=("batch",)),
            TensorSpec(name="token_counts", dtype="int64", shape=("batch",)),
            TensorSpec(name="frames", dtype="int64", shape=("batch",)),
            *sampling,
            *predictor,
            *self.states(),
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        """`frame` int64 [batch, groups], then the updated states."""
        return (
            TensorSpec(name="frame", dtype="int64", shape=("batch", self.config.groups)),
            *updated(self.states()),
        )

    def states(self) -> tuple[TensorSpec, ...]:
        """Codes 0 spoken so far, and the talker's caches; the predictor's live as long as a frame."""
        config = self.config.talker
        return decoder_states(
            config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, capacity=self.capacity, dtype=self.dtype
        )

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        return self.talker(op, given)


SETTINGS = ("temperature", "top_k", "top_p", "min_p")  # of both samplers
FORBIDDEN = -1e30  # a logit that is never chosen; log-probabilities stay numbers
