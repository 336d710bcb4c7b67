"""Hyper-parameters of a decoder-only language model, from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from framework.checkpoints.keys import Keys
from framework.io.fields import Kind, is_whole, one_of


@attrs.frozen(kw_only=True)
class MoEConfig:
    """Feed-forward blocks that are mixtures of experts; widths in elements.

    Attributes:
        experts: MLPs in a mixture.
        top_k: experts that compute each token.
        intermediate: width inside an expert.
        norm_topk: the weights of a token's experts are scaled to the sum 1.
        shared: width inside an MLP that computes every token; 0 where there is none.
        dense_layers: layers without a mixture.
    """

    experts: int
    top_k: int
    intermediate: int
    norm_topk: bool
    shared: int = 0
    dense_layers: frozenset[int] = frozenset()


@attrs.frozen(kw_only=True)
class LLMConfig:
    """A decoder with a vocabulary; widths in elements.

    Attributes:
        vocab: token ids.
        rope: `rope_theta`, `rope_type` and that type's numbers, in transformers' names.
        tied: the output layer is the embedding.
        qk_norm: queries and keys are normalised per head (Qwen3).
        moe: None where every layer has a plain feed-forward block of width `intermediate`.
        mrope: channel pairs of a head that turn with time, height and width, interleaved; None where positions are
            counted.
        media: the embeddings of some tokens come from encoders.
        deepstack: layers, from the first, behind which more of a picture's features are added.
    """

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope: Mapping[str, Any]
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    moe: MoEConfig | None = None
    mrope: tuple[int, int, int] | None = None
    media: bool = False
    deepstack: int = 0

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str = "config.json") -> LLMConfig:
        """Read Llama, Qwen3 and Qwen3-MoE configs as transformers 4 and 5 write them, and as a GGUF file gives them.

        Raises:
            ConfigError: every key missing or unsupported.
        """
        keys = Keys(config, f"{where}:")
        return keys.checked(cls.read(keys, keys.text("model_type", "")))

    @classmethod
    def read(cls, keys: Keys, kind: str) -> LLMConfig:
        """That of a `kind` of model, in an object of a larger config."""
        keys.only(hidden_act="silu", use_sliding_window=False, partial_rotary_factor=1.0)
        hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
        return cls(
            vocab=keys.size("vocab_size"),
            hidden=hidden,
            intermediate=keys.size("intermediate_size"),
            layers=keys.size("num_hidden_layers"),
            heads=heads,
            kv_heads=keys.size("num_key_value_heads", heads),
            head_dim=keys.size("head_dim", hidden // heads),
            rms_eps=keys.number("rms_norm_eps"),
            rope=_rope(keys),
            tied=keys.flag("tie_word_embeddings"),
            attention_bias=keys.flag("attention_bias"),
            mlp_bias=keys.flag("mlp_bias"),
            qk_norm=kind.startswith("qwen3"),
            moe=_moe(keys) if kind == "qwen3_moe" else None,
        )


# Rotary types, each with the numbers it needs beside `rope_theta`.
_ROPE: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_LAYERS = Kind("a list of layers", lambda value: isinstance(value, list | tuple) and all(map(is_whole, value)))


def rope_of(keys: Keys) -> Keys:
    """transformers 5 has one `rope_parameters`, 4 has `rope_theta` beside an optional `rope_scaling`."""
    return keys.part(keys.either("rope_parameters", "rope_scaling"), default={})


def _rope(keys: Keys) -> dict[str, Any]:
    rope = rope_of(keys)
    rope.only(partial_rotary_factor=1.0)
    kind = rope.get(rope.either("rope_type", "type"), one_of(*_ROPE), "default", "default")
    theta = rope.number("rope_theta", keys.number("rope_theta", 10000.0))
    return {"rope_type": kind, "rope_theta": theta, **{key: rope.number(key) for key in _ROPE[kind]}}


def _moe(keys: Keys) -> MoEConfig:
    step = keys.size("decoder_sparse_step", 1)
    dense = {layer for layer in range(keys.size("num_hidden_layers")) if (layer + 1) % step}
    return MoEConfig(
        experts=keys.size(keys.either("num_experts", "num_local_experts")),  # as transformers 4 and 5 write it
        top_k=keys.size("num_experts_per_tok"),
        intermediate=keys.size("moe_intermediate_size"),
        norm_topk=keys.flag("norm_topk_prob"),
        dense_layers=frozenset(dense | set(keys.get("mlp_only_layers", _LAYERS, [], []))),
    )
