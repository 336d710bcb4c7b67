"""Hyper-parameters of a decoder-only language model, from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from framework.errors import ConfigError, Problem


@attrs.frozen(kw_only=True)
class MoEConfig:
    """Feed-forward blocks that are mixtures: `experts` MLPs of `intermediate` width, `top_k` of them a token; `shared`
    is the width of one that every token goes through, 0 where there is none."""

    experts: int
    top_k: int
    intermediate: int
    norm_topk: bool
    shared: int = 0
    dense_layers: frozenset[int] = frozenset()


@attrs.frozen(kw_only=True)
class LLMConfig:
    """One typed config for the family; widths in elements.

    Attributes:
        rope: `rope_theta`, `rope_type` and that type's numbers, in transformers' names.
        qk_norm: queries and keys are normalised per head (Qwen3).
        mrope: rotary frequencies that turn with time, height and width, interleaved; None where positions are counted.
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
        kind = str(config.get("model_type", ""))
        rope = _rope(config)
        if "num_local_experts" in config:  # as transformers 5 writes `num_experts`
            config = {"num_experts": config["num_local_experts"], **config}
        moe = kind == "qwen3_moe"
        problems = [*_missing(config, (*_REQUIRED, *(_REQUIRED_MOE if moe else ())), where)]
        problems += _unsupported(config, rope, where)
        if problems:
            raise ConfigError(problems)
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
            qk_norm=kind.startswith("qwen3"),
            moe=_moe(config) if moe else None,
        )


_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "rms_norm_eps",
)
_REQUIRED_MOE = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
# Rotary types, each with the numbers it needs beside `rope_theta`.
_ROPE: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _missing(config: Mapping[str, Any], keys: Iterable[str], where: str) -> Iterator[Problem]:
    for key in keys:
        value = config.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            got = "nothing" if value is None else repr(value)
            yield Problem(where=f"{where}: {key}", got=got, expected="a positive number")


def _unsupported(config: Mapping[str, Any], rope: Mapping[str, Any], where: str) -> Iterator[Problem]:
    only: Mapping[str, tuple[Any, Any]] = {
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "use_sliding_window": (config.get("use_sliding_window") or False, False),
        "partial_rotary_factor": (rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0, 1.0),
    }
    for key, (value, expected) in only.items():
        if value != expected:
            yield Problem(where=f"{where}: {key}", got=repr(value), expected=repr(expected))
    kind = rope["rope_type"]
    if kind in _ROPE:
        yield from _missing(rope, ("rope_theta", *_ROPE[kind]), f"{where}: rope_parameters")
    else:
        yield Problem(where=f"{where}: rope_type", got=repr(kind), expected=f"one of {', '.join(_ROPE)}")


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
