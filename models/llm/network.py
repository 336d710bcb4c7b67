"""A decoder-only language model with its sampler, as one graph for prefill and decode.

Upstream: transformers' LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM. Parameter names are theirs.

    ids, past_lengths, token_counts, sampling, caches -> token, candidates, caches, hidden.<layer>

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
import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import (
    Attention,
    Embedding,
    GatedMLP,
    Linear,
    MoE,
    Positions,
    RMSNorm,
    Sampler,
    SharedMoE,
    positions,
    rotary_tables,
    sampler_inputs,
    sampler_outputs,
)
from models.llm.config import LLMConfig


class DecoderLayer(nn.Module):
    def __init__(self, config: LLMConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.self_attn = Attention(
            config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            out_bias=config.attention_bias,
            qk_norm_eps=config.rms_eps if config.qk_norm else None,
        )
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_eps)
        moe = config.moe
        if moe is not None and index not in moe.dense_layers:
            sizes: dict[str, Any] = {"experts": moe.experts, "top_k": moe.top_k, "norm_topk": moe.norm_topk}
            if moe.shared:
                self.mlp: nn.Module = SharedMoE(config.hidden, moe.intermediate, shared=moe.shared, **sizes)
            else:
                self.mlp = MoE(config.hidden, moe.intermediate, **sizes)
        else:
            self.mlp = GatedMLP(config.hidden, config.intermediate, bias=config.mlp_bias)

    def forward(
        self, op: OpBuilder, x: ir.Value, at: Positions, keys: ir.Value | None, values: ir.Value | None
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        y, keys, values = self.self_attn(op, self.input_layernorm(op, x), at, keys, values)
        x = op.Add(x, y)
        return op.Add(x, self.mlp(op, self.post_attention_layernorm(op, x))), keys, values


class Decoder(nn.Module):
    """Embedding, layers and final norm; returns the residual stream after every layer, the normed one last."""

    def __init__(self, config: LLMConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList([DecoderLayer(config, index) for index in range(config.layers)])
        self.norm = RMSNorm(config.hidden, config.rms_eps)

    def forward(
        self, op: OpBuilder, ids: ir.Value, at: Positions, caches: Sequence[tuple[ir.Value, ir.Value]]
    ) -> tuple[list[ir.Value], list[tuple[ir.Value, ir.Value]]]:
        x = self.embed_tokens(op, ids)  # [batch, tokens, hidden]
        hidden, updated = [x], []
        for layer, (keys, values) in zip(self.layers, caches, strict=True):
            x, keys, values = layer(op, x, at, keys, values)
            hidden.append(x)
            updated.append((keys, values))
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
        cos, sin = rotary_tables(config.head_dim, capacity, config.rope)
        self.rotary_cos = _constant(cos, dtype)
        self.rotary_sin = _constant(sin, dtype)
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
            *sampler_inputs(self.config.vocab, candidates=self.candidates),
            *self._states(),
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        """Graph outputs, the updated states last."""
        hidden = ("batch", "tokens", self.config.hidden)
        return (
            *sampler_outputs(candidates=self.candidates),
            *(TensorSpec(name=f"hidden.{layer}", dtype=self.dtype, shape=hidden) for layer in self.hidden_layers),
            *(attrs.evolve(state, name=f"{state.name}.next") for state in self._states()),
        )

    def _states(self) -> tuple[TensorSpec, ...]:
        config = self.config
        cache = ("batch", config.kv_heads, self.capacity, config.head_dim)
        return (
            TensorSpec(name="history", dtype="int64", shape=("batch", self.capacity)),
            *(
                TensorSpec(name=f"{kind}_cache.{layer}", dtype=self.dtype, shape=cache)
                for layer in range(config.layers)
                for kind in ("key", "value")
            ),
        )

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        ids, past = given["ids"], given["past_lengths"]
        caches = [(given[f"key_cache.{i}"], given[f"value_cache.{i}"]) for i in range(self.config.layers)]
        at = positions(op, ids, past, capacity=self.capacity, cos=self.rotary_cos, sin=self.rotary_sin)
        hidden, caches = self.model(op, ids, at, caches)

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


def _constant(values: np.ndarray, dtype: str) -> nn.Parameter:
    data = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return nn.Parameter(data.shape, data=ir.tensor(data))
