"""Whisper's encoder, and its decoder with rules for timestamps and a sampler, as two graphs.

Upstream: transformers' WhisperForConditionalGeneration. Parameter names are theirs below `model.`.

    encoder: log-mel spectrogram -> the keys and values that the decoder's cross-attention reads, as states
    decoder: one token a row, past_lengths, rules, sampling, caches -> token, candidates, no_speech, caches

| | tiny(.en) | base | small | large-v3-turbo |
|---|---|---|---|---|
| layers, hidden | 4 + 4, 384 | 6 + 6, 512 | 12 + 12, 768 | 32 + 4, 1280 |
| heads, feed-forward | 6, 1536 | 8, 2048 | 12, 3072 | 20, 5120 |
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import (
    Embedding,
    Linear,
    Sampler,
    constant,
    decoder_states,
    sampler_inputs,
    sampler_outputs,
    updated,
)
from framework.nn.conv import Conv1d
from framework.nn.export import DTYPES
from framework.nn.transformer import MLP, Cache, CrossAttention, KeysValues, LayerNorm, SelfAttention
from models.whisper.config import WhisperConfig

# Columns of `rules`: whether a row may write words next (0 or 1), which ids of the special tokens and of the timestamps
# (from, to; both included), and whether it writes its first token.
RULES = ("words", "special_from", "special_to", "timestamp_from", "timestamp_to", "beginning")
FORBIDDEN = -1e30


class EncoderLayer(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = LayerNorm(config.hidden)
        self.self_attn = SelfAttention(config.hidden, config.encoder_heads)
        self.final_layer_norm = LayerNorm(config.hidden)
        self.mlp = MLP(config.hidden, config.encoder_intermediate)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        y, _, _ = self.self_attn(op, self.self_attn_layer_norm(op, x))
        x = op.Add(x, y)
        return op.Add(x, self.mlp(op, self.final_layer_norm(op, x)))


class Encoder(nn.Module):
    """[batch, mels, 2 * frames] -> [batch, frames, hidden]."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = Conv1d(config.mels, config.hidden, 3, padding=1)
        self.conv2 = Conv1d(config.hidden, config.hidden, 3, stride=2, padding=1)
        self.embed_positions = Table(config.frames, config.hidden)
        self.layers = nn.ModuleList([EncoderLayer(config) for _ in range(config.encoder_layers)])
        self.layer_norm = LayerNorm(config.hidden)

    def forward(self, op: OpBuilder, mel: ir.Value) -> ir.Value:
        x = op.Gelu(self.conv1(op, mel), approximate="none")  # [batch, hidden, 2 * frames]
        x = op.Gelu(self.conv2(op, x), approximate="none")  # [batch, hidden, frames]
        x = self.embed_positions(op, op.Transpose(x, perm=[0, 2, 1]))
        for layer in self.layers:
            x = layer(op, x)
        return self.layer_norm(op, x)


class Table(nn.Module):
    """Position embeddings of a sequence that has always the same length."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter([entries, width])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.Add(x, self.weight)


class AudioEncoder(nn.Module):
    """The encoder, and the cross-attention's half that depends on the sound alone: a window pays it once."""

    def __init__(self, config: WhisperConfig, *, dtype: str) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.encoder = Encoder(config)
        self.cross = nn.ModuleList(
            [KeysValues(config.hidden, config.decoder_heads) for _ in range(config.decoder_layers)]
        )

    def inputs(self) -> tuple[TensorSpec, ...]:
        mel = TensorSpec(name="mel", dtype="float32", shape=("batch", self.config.mels, 2 * self.config.frames))
        return (mel, *cross_states(self.config, self.dtype))

    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = ("batch", self.config.frames, self.config.hidden)
        return (
            TensorSpec(name="hidden", dtype=self.dtype, shape=shape),
            *updated(cross_states(self.config, self.dtype)),
        )

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        mel = given["mel"] if self.dtype == "float32" else op.Cast(given["mel"], to=DTYPES[self.dtype])
        hidden = self.encoder(op, mel)
        outputs = {"hidden": hidden}
        for layer, projection in enumerate(self.cross):
            for kind, value in zip(("key", "value"), projection(op, hidden), strict=True):
                name = f"cross_{kind}.{layer}"
                # A whole new sequence over the old one, in the caches' own memory.
                outputs[f"{name}.next"] = op.TensorScatter(given[name], value, axis=-2)
        return outputs


class DecoderLayer(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = LayerNorm(config.hidden)
        self.self_attn = SelfAttention(config.hidden, config.decoder_heads)
        self.encoder_attn_layer_norm = LayerNorm(config.hidden)
        self.encoder_attn = CrossAttention(config.hidden, config.decoder_heads)
        self.final_layer_norm = LayerNorm(config.hidden)
        self.mlp = MLP(config.hidden, config.decoder_intermediate)

    def forward(
        self, op: OpBuilder, x: ir.Value, cache: Cache, cross: tuple[ir.Value, ir.Value]
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        y, keys, values = self.self_attn(op, self.self_attn_layer_norm(op, x), cache)
        x = op.Add(x, y)
        x = op.Add(x, self.encoder_attn(op, self.encoder_attn_layer_norm(op, x), *cross))
        return op.Add(x, self.mlp(op, self.final_layer_norm(op, x))), keys, values


class Decoder(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab, config.hidden)
        self.embed_positions = Embedding(config.context, config.hidden)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.decoder_layers)])
        self.layer_norm = LayerNorm(config.hidden)

    def forward(
        self, op: OpBuilder, ids: ir.Value, given: Mapping[str, ir.Value], mask: ir.Value
    ) -> tuple[ir.Value, dict[str, ir.Value]]:
        """ids [batch, 1] -> [batch, 1, hidden], updated caches by output name."""
        past = given["past_lengths"]
        x = op.Add(self.embed_tokens(op, ids), self.embed_positions(op, op.Unsqueeze(past, [1])))
        outputs = {}
        for index, layer in enumerate(self.layers):
            cache = Cache(keys=given[f"key_cache.{index}"], values=given[f"value_cache.{index}"], past=past, mask=mask)
            cross = (_kept(op, given[f"cross_key.{index}"]), _kept(op, given[f"cross_value.{index}"]))
            x, outputs[f"key_cache.{index}.next"], outputs[f"value_cache.{index}.next"] = layer(op, x, cache, cross)
            outputs[f"cross_key.{index}.next"], outputs[f"cross_value.{index}.next"] = cross
        return self.layer_norm(op, x), outputs


class Rules(nn.Module):
    """Which tokens a row may write next (the published decoder's `ApplyTimestampRules` and suppressed tokens).

    The host says by `rules` which ids are open; what needs the distribution is decided here: where timestamps
    together are likelier than the best text, text is closed. The vocabulary is words, then special tokens from the
    end token on, then timestamps: only the last two, which are few, are looked at id by id.
    """

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        tokens, ids = config.tokens, np.arange(config.vocab, dtype=np.int64)
        self.parts = (tokens.end, tokens.first_timestamp - tokens.end, config.vocab - tokens.first_timestamp)
        self.special_ids = constant(ids[tokens.end : tokens.first_timestamp])
        self.timestamp_ids = constant(ids[tokens.first_timestamp :])
        self.suppressed = constant(np.where(np.isin(ids, tokens.suppressed), FORBIDDEN, 0).astype(np.float32))
        self.at_begin = constant(np.where(np.isin(ids, tokens.at_begin), FORBIDDEN, 0).astype(np.float32))

    def forward(self, op: OpBuilder, logits: ir.Value, rules: ir.Value) -> ir.Value:
        """logits float32 [batch, vocab], rules int64 [batch, 6] -> logits, FORBIDDEN or less where closed."""
        words_open, special_from, special_to, time_from, time_to, beginning = op.Split(
            rules, axis=1, num_outputs=len(RULES), _outputs=len(RULES)
        )
        first = op.Mul(self.at_begin, op.CastLike(beginning, logits))  # [batch, vocab]
        words, special, times = op.Split(
            op.Add(op.Add(logits, self.suppressed), first), list(self.parts), axis=1, _outputs=3
        )
        words = op.Add(words, op.Mul(op.CastLike(op.Sub(1, words_open), logits), FORBIDDEN))
        special = self._between(op, special, self.special_ids, special_from, special_to)
        times = self._between(op, times, self.timestamp_ids, time_from, time_to)
        best = op.Max(op.ReduceMax(words, [1], keepdims=1), op.ReduceMax(special, [1], keepdims=1))
        likelier = op.Greater(op.ReduceLogSumExp(times, [1], keepdims=1), best)
        closed = op.Mul(op.CastLike(likelier, logits), FORBIDDEN)  # [batch, 1]
        return op.Concat(op.Add(words, closed), op.Add(special, closed), times, axis=1)

    def _between(self, op: OpBuilder, logits: ir.Value, ids: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
        inside = op.And(op.GreaterOrEqual(ids, low), op.LessOrEqual(ids, high))
        return op.Where(inside, logits, FORBIDDEN)


class TextDecoder(nn.Module):
    """One token a row.

    Args:
        capacity: cache entries a row can have.
        dtype: of the activations and caches.
        candidates: see `Sampler`.
    """

    def __init__(self, config: WhisperConfig, *, capacity: int, dtype: str, candidates: int = 0) -> None:
        super().__init__()
        self.config, self.capacity, self.dtype, self.candidates = config, capacity, dtype, candidates
        self.decoder = Decoder(config)
        self.proj_out = Linear(config.hidden, config.vocab)
        self.proj_out.weight = self.decoder.embed_tokens.weight
        self.rules = Rules(config)
        self.sampler = Sampler(candidates)
        self.entries = constant(np.arange(capacity, dtype=np.int64))

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Graph inputs, the states last."""
        return (
            TensorSpec(name="ids", dtype="int64", shape=("batch", 1)),
            TensorSpec(name="past_lengths", dtype="int64", shape=("batch",)),
            TensorSpec(name="rules", dtype="int64", shape=("batch", len(RULES))),
            *sampler_inputs(self.config.vocab, candidates=self.candidates),
            *self._states(),
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        """Graph outputs, the updated states last."""
        return (
            *sampler_outputs(candidates=self.candidates),
            TensorSpec(name="no_speech", dtype="float32", shape=("batch", 1)),
            *updated(self._states()),
        )

    def _states(self) -> tuple[TensorSpec, ...]:
        config = self.config
        heads, width = config.decoder_heads, config.hidden // config.decoder_heads
        own = decoder_states(
            config.decoder_layers, kv_heads=heads, head_dim=width, capacity=self.capacity, dtype=self.dtype
        )
        return (*own, *cross_states(config, self.dtype))

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        ids = given["ids"]
        mask = op.LessOrEqual(self.entries, op.Unsqueeze(given["past_lengths"], [1, 2, 3]))  # [batch, 1, 1, capacity]
        hidden, outputs = self.decoder(op, ids, given, mask)
        raw = op.Cast(self.proj_out(op, op.Squeeze(hidden, [1])), to=ir.DataType.FLOAT)  # [batch, vocab]
        logits = self.rules(op, raw, given["rules"])
        past = given["past_lengths"]
        history = op.ScatterElements(given["history"], op.Unsqueeze(past, [1]), ids, axis=1)
        token, candidates, logprobs = self.sampler(op, logits, history, op.Add(past, 1), given)
        no_speech = op.Gather(op.Softmax(raw, axis=-1), [self.config.tokens.no_speech], axis=1)
        outputs |= {"token": token, "candidate_ids": candidates, "candidate_logprobs": logprobs}
        return outputs | {"no_speech": no_speech, "history.next": history}


def cross_states(config: WhisperConfig, dtype: str) -> tuple[TensorSpec, ...]:
    """What the decoder's cross-attention reads, in the order of layers."""
    shape = ("batch", config.decoder_heads, config.frames, config.hidden // config.decoder_heads)
    return tuple(
        TensorSpec(name=f"cross_{kind}.{layer}", dtype=dtype, shape=shape)
        for layer in range(config.decoder_layers)
        for kind in ("key", "value")
    )


def _kept(op: OpBuilder, state: ir.Value) -> ir.Value:
    """A state that stays what it is. Its first entry is written over itself, in place: an output that is the input
    and no more would be copied whole."""
    return op.TensorScatter(state, op.Slice(state, [0], [1], [2]), axis=-2)
