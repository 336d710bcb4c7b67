"""A decoder-only language model with its sampler, as one graph for prefill and decode.

Upstream: transformers' LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM. Parameter names are theirs.

    ids, past_lengths, token_counts, sampling, caches -> token, candidates, caches, hidden.<layer>

Models that see and hear also take `positions`, and `features`, `is_feature`, `deepstack` of what was seen or heard.
Upstream for these: Qwen3OmniMoeThinkerForConditionalGeneration.

| | SmolLM2-135M | Qwen3-0.6B | Qwen3-30B-A3B |
|---|---|---|---|
| layers, hidden | 30, 576 | 28, 1024 | 48, 2048 |
| heads / kv, head_dim | 9/3, 64 | 16/8, 128 | 32/4, 128 |
| feed-forward | 1536 | 3072 | 128 experts of 768, 8 a token |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import (
    Attention,
    DecoderLayer,
    Embedding,
    GatedMLP,
    Linear,
    MoE,
    Positions,
    RMSNorm,
    Sampler,
    SharedMoE,
    constant,
    decoder_states,
    mixed_axes,
    mixed_rotary,
    positions,
    rotary_frequencies,
    rotary_tables,
    sampler_inputs,
    sampler_outputs,
    updated,
)
from framework.nn.export import DTYPES
from models.language.config import LLMConfig


def decoder_layers(config: LLMConfig) -> nn.ModuleList:
    return nn.ModuleList([_layer(config, index) for index in range(config.layers)])


def _layer(config: LLMConfig, index: int) -> DecoderLayer:
    attention = Attention(
        config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        bias=config.attention_bias,
        out_bias=config.attention_bias,
        qk_norm_eps=config.rms_eps if config.qk_norm else None,
    )
    return DecoderLayer(config.hidden, config.rms_eps, attention, _mlp(config, index))


def _mlp(config: LLMConfig, index: int) -> nn.Module:
    moe = config.moe
    if moe is None or index in moe.dense_layers:
        return GatedMLP(config.hidden, config.intermediate, bias=config.mlp_bias)
    sizes: dict[str, Any] = {"experts": moe.experts, "top_k": moe.top_k, "norm_topk": moe.norm_topk}
    if moe.shared:
        return SharedMoE(config.hidden, moe.intermediate, shared=moe.shared, **sizes)
    return MoE(config.hidden, moe.intermediate, **sizes)


@attrs.frozen(kw_only=True, eq=False)
class Features:
    """What encoders found, in place of the embeddings of some tokens.

    Attributes:
        values: [batch, media, hidden]; `media` is `tokens`, or 1 in calls without features.
        mask: bool [batch, tokens, 1], the tokens whose embedding they replace.
        deepstack: [levels, batch, media, hidden], added to these tokens behind the first layers.
    """

    values: ir.Value
    mask: ir.Value
    deepstack: ir.Value | None


class Decoder(nn.Module):
    """Embedding, layers and final norm; returns the residual stream after every layer, the normed one last."""

    def __init__(self, config: LLMConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab, config.hidden)
        self.layers = decoder_layers(config)
        self.norm = RMSNorm(config.hidden, config.rms_eps)
        self.deepstack = config.deepstack

    def forward(
        self,
        op: OpBuilder,
        ids: ir.Value,
        at: Positions,
        caches: Sequence[tuple[ir.Value, ir.Value]],
        features: Features | None = None,
    ) -> tuple[list[ir.Value], list[tuple[ir.Value, ir.Value]]]:
        x = self.embed_tokens(op, ids)  # [batch, tokens, hidden]
        if features is not None:
            x = op.Where(features.mask, op.CastLike(features.values, x), x)
        hidden, updated = [x], []
        for index, (layer, (keys, values)) in enumerate(zip(self.layers, caches, strict=True)):
            x, keys, values = layer(op, x, at, keys, values)
            hidden.append(x)  # transformers lists it without what is added here
            updated.append((keys, values))
            if features is not None and features.deepstack is not None and index < self.deepstack:
                more = op.Add(x, op.CastLike(op.Gather(features.deepstack, index, axis=0), x))
                x = op.Where(features.mask, more, x)
        return [*hidden, self.norm(op, x)], updated


class CausalLM(nn.Module):
    """The whole model.

    Args:
        capacity: cache entries a row can have, and so rotary positions.
        dtype: of the activations and caches.
        hidden_layers: decoder layers whose output is returned as `hidden.<layer>` [batch, tokens, hidden];
            0 is the embedding, -1 the stream after the final norm (transformers' `hidden_states`).
        candidates: see `Sampler`.
    """

    def __init__(
        self,
        config: LLMConfig,
        *,
        capacity: int,
        dtype: str,
        hidden_layers: Sequence[int] = (),
        candidates: int = 0,
    ) -> None:
        super().__init__()
        self.capacity, self.candidates = capacity, candidates
        self.config, self.dtype, self.hidden_layers = config, dtype, tuple(hidden_layers)
        if config.mrope is None:
            cos, sin = rotary_tables(config.head_dim, capacity, config.rope)
            self.rotary_cos = constant(cos, dtype)
            self.rotary_sin = constant(sin, dtype)
        else:
            self.rotary_frequency = constant(rotary_frequencies(config.head_dim, config.rope), "float32")
            self.rotary_axes = constant(mixed_axes(config.mrope), "int64")
        self.model = Decoder(config)
        self.lm_head = Linear(config.hidden, config.vocab)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.sampler = Sampler(candidates)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Graph inputs, the states last."""
        return (
            TensorSpec(name="ids", dtype="int64", shape=("batch", "tokens")),
            TensorSpec(name="past_lengths", dtype="int64", shape=("batch",)),
            TensorSpec(name="token_counts", dtype="int64", shape=("batch",)),
            *self._media(),
            *sampler_inputs(self.config.vocab, candidates=self.candidates),
            *self._states(),
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        """Graph outputs, the updated states last."""
        hidden = ("batch", "tokens", self.config.hidden)
        return (
            *sampler_outputs(candidates=self.candidates),
            *(TensorSpec(name=f"hidden.{layer}", dtype=self.dtype, shape=hidden) for layer in self.hidden_layers),
            *updated(self._states()),
        )

    def _media(self) -> tuple[TensorSpec, ...]:
        config, specs = self.config, []
        if config.mrope is not None:
            specs.append(TensorSpec(name="positions", dtype="float32", shape=(3, "batch", "tokens")))
        if config.media:
            specs.append(TensorSpec(name="features", dtype="float32", shape=("batch", "media", config.hidden)))
            specs.append(TensorSpec(name="is_feature", dtype="bool", shape=("batch", "tokens")))
        if config.deepstack:
            levels = (config.deepstack, "batch", "media", config.hidden)
            specs.append(TensorSpec(name="deepstack", dtype="float32", shape=levels))
        return tuple(specs)

    def _states(self) -> tuple[TensorSpec, ...]:
        config = self.config
        return decoder_states(
            config.layers, kv_heads=config.kv_heads, head_dim=config.head_dim, capacity=self.capacity, dtype=self.dtype
        )

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        ids, past = given["ids"], given["past_lengths"]
        caches = [(given[f"key_cache.{i}"], given[f"value_cache.{i}"]) for i in range(self.config.layers)]
        at = self._positions(op, ids, past, given)
        hidden, caches = self.model(op, ids, at, caches, _features(op, given))

        # Only the last real token of each row needs logits.
        last = op.Unsqueeze(op.Sub(given["token_counts"], 1), [1])  # [batch, 1]
        x = op.GatherND(hidden[-1], last, batch_dims=1)  # [batch, tokens, hidden] -> [batch, hidden]
        logits = self.lm_head(op, x)
        history = op.ScatterElements(given["history"], at.ids, ids, axis=1)  # token ids, beside the caches
        lengths = op.Add(past, given["token_counts"])
        token, candidates, logprobs = self.sampler(op, logits, history, lengths, given)

        outputs = {"token": token, "candidate_ids": candidates, "candidate_logprobs": logprobs, "history.next": history}
        for layer, (keys, values) in enumerate(caches):
            outputs[f"key_cache.{layer}.next"], outputs[f"value_cache.{layer}.next"] = keys, values
        for layer in self.hidden_layers:
            outputs[f"hidden.{layer}"] = op.Identity(hidden[layer])
        return outputs

    def _positions(self, op: OpBuilder, ids: ir.Value, past: ir.Value, given: Mapping[str, ir.Value]) -> Positions:
        if "positions" not in given:
            return positions(op, ids, past, capacity=self.capacity, cos=self.rotary_cos, sin=self.rotary_sin)
        cos, sin = mixed_rotary(op, given["positions"], self.rotary_frequency, self.rotary_axes)
        cos, sin = (op.Cast(table, to=DTYPES[self.dtype]) for table in (cos, sin))
        return positions(op, ids, past, capacity=self.capacity, cos=cos, sin=sin, per_token=True)


def _features(op: OpBuilder, given: Mapping[str, ir.Value]) -> Features | None:
    if "features" not in given:
        return None
    mask = op.Unsqueeze(given["is_feature"], [2])
    return Features(values=given["features"], mask=mask, deepstack=given.get("deepstack"))
