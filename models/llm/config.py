"""Hyper-parameters of a decoder-only language model, from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from framework.errors import ConfigError, Problem


@attrs.frozen(kw_only=True)
class MoEConfig:
    """Feed-forward blocks that are mixtures: `experts` MLPs of `intermediate` width, `top_k` of them a token."""

    experts: int
    top_k: int
    intermediate: int
    norm_topk: bool
    dense_layers: frozenset[int] = frozenset()


@attrs.frozen(kw_only=True)
class LLMConfig:
    """One typed config for the family; widths in elements.

    Attributes:
        rope: `rope_theta`, `rope_type` and that type's numbers, in transformers' names.
        qk_norm: queries and keys are normalised per head (Qwen3).
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

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str = "config.json") -> LLMConfig:
        """Read Llama, Qwen3 and Qwen3-MoE configs as transformers 4 and 5 write them.

        Raises:
            ConfigError: every key missing or unsupported.
        """
        required = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "rms_norm_eps",
        )
        problems = [
            Problem(where=f"{where}: {key}", got="nothing", expected="a number") for key in required if key not in config
        ]
        if config.get("hidden_act", "silu") != "silu":
            problems.append(Problem(where=f"{where}: hidden_act", got=repr(config["hidden_act"]), expected="'silu'"))
        if config.get("use_sliding_window"):
            problems.append(Problem(where=f"{where}: use_sliding_window", got="true", expected="false"))
        rope = _rope(config)
        supported = ("default", "linear", "llama3")
        if rope["rope_type"] not in supported:
            problems.append(
                Problem(where=f"{where}: rope_type", got=repr(rope["rope_type"]), expected=f"one of {', '.join(supported)}")
            )
        if problems:
            raise ConfigError(problems)
        qwen3 = str(config.get("model_type", "")).startswith("qwen3")
        heads = config["num_attention_heads"]
        return cls(
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            rms_eps=config["rms_norm_eps"],
            rope=rope,
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=qwen3,
            moe=_moe(config) if "num_experts" in config else None,
        )


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 has one `rope_parameters`, 4 has `rope_theta` beside an optional `rope_scaling`."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", "default")
    return rope


def _moe(config: Mapping[str, Any]) -> MoEConfig:
    step = config.get("decoder_sparse_step", 1)
    dense = {layer for layer in range(config["num_hidden_layers"]) if (layer + 1) % step}
    return MoEConfig(
        experts=config["num_experts"],
        top_k=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        norm_topk=bool(config.get("norm_topk_prob", False)),
        dense_layers=frozenset(dense | set(config.get("mlp_only_layers") or ())),
    )
