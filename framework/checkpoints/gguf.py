"""GGUF files as a checkpoint in the official layout: names, config, tokenizer, row order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.checkpoints.bpe import AddedToken, bpe_tokenizer
from framework.checkpoints.gguf_header import PLAIN, Entry, dequantize_blocks, read_header
from framework.checkpoints.tensor import Array, Blocks, Tensor
from framework.errors import ConfigError, Problem, nearest

_BLOCK = 32


@attrs.frozen(kw_only=True)
class _Architecture:
    """What a GGUF architecture is called in the official layout.

    Attributes:
        permuted: llama.cpp stores the rows of q_proj and k_proj with the two halves of each head interleaved.
    """

    name: str
    model_type: str
    experts: bool = False
    permuted: bool = False


_ARCHITECTURES = {
    "llama": _Architecture(name="LlamaForCausalLM", model_type="llama", permuted=True),
    "qwen3": _Architecture(name="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen3moe": _Architecture(name="Qwen3MoeForCausalLM", model_type="qwen3_moe", experts=True),
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROUTER = {"ffn_gate_inp": "mlp.gate"}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_CONFIG = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_CONFIG_EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


_FIELDS = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}  # float16 numbers in front of a block: its scale, and its minimum


@attrs.frozen(kw_only=True, eq=False)
class GGUFTensor(Tensor):
    """A weight of a GGUF file.

    Attributes:
        format: ggml type: F32, F16, BF16, Q4_1, Q6_K ...
        heads: number of heads whose rows are to be put back in the official order; 0 leaves them.
    """

    format: str
    heads: int = 0

    def array(self) -> Array:
        """The weight, dequantised to float32 when it is quantised."""
        if self.format in PLAIN:
            return self._ordered(super().array())
        return self._ordered(dequantize_blocks(self.raw().reshape(*self.shape[:-1], -1), self.format))

    @property
    def in_file(self) -> bool:
        return self.format in PLAIN and not self.heads

    @property
    def block_format(self) -> str:
        return self.format if self.format in _FIELDS else ""

    def blocks(self) -> Blocks | None:
        """Blocks of Q4_0, Q4_1 and Q8_0, rows in the official order."""
        if not self.block_format:
            return None
        fields = _FIELDS[self.format]
        rows = self._ordered(self.raw().reshape(*self.shape[:-1], self.shape[-1] // _BLOCK, -1))
        halves = np.ascontiguousarray(rows[..., : 2 * fields]).view(np.float16)
        quants = rows[..., 2 * fields :]
        quants = quants.view(np.int8) if self.format == "Q8_0" else _nibbles(quants)
        return Blocks(
            format=self.format,
            quants=quants.reshape(self.shape),
            scales=halves[..., 0],
            mins=halves[..., 1] if fields == 2 else None,
        )

    def _ordered(self, rows: Array) -> Array:
        if not self.heads:
            return rows
        order = np.arange(len(rows)).reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return rows[order]


@attrs.frozen(kw_only=True, eq=False)
class GGUF:
    """What is read from a file: metadata as it stands, tensors and config as the official checkpoint has them."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]

    def tokenizer_files(self) -> dict[str, bytes]:
        """tokenizer.json, tokenizer_config.json and chat_template.jinja.

        Raises ConfigError for a tokenizer that is no byte-level BPE or cuts text in an unknown way.
        """
        try:
            return _tokenizer_files(self.path, self.metadata)
        except (LookupError, TypeError, ValueError) as error:  # no token list, an id outside it, lists of other lengths
            where, expected = f"{self.path}: tokenizer.ggml", "a token list, with types and ids that fit it"
            raise ConfigError(Problem(where=where, got=str(error), expected=expected)) from error


def read_gguf(path: Path) -> GGUF:
    """Opens a file of architecture llama, qwen3 or qwen3moe.

    The stacked experts of a layer, [experts, out, in], become one tensor each, `mlp.experts.<n>.gate_proj.weight` and
    so on, as in the official checkpoint. Raises ConfigError with every fault.
    """
    metadata, entries = read_header(path)
    key = metadata.get("general.architecture", "")
    if key not in _ARCHITECTURES:
        expected = f"a supported architecture: {', '.join(_ARCHITECTURES)}"
        where = f"{path}: general.architecture"
        raise ConfigError(Problem(where=where, got=repr(key), expected=expected, hint=nearest(key, _ARCHITECTURES)))
    if metadata.get("split.count", 0) > 1:
        got = f"one of {metadata['split.count']} parts"
        hint = "merge it with `llama-gguf-split --merge`"
        raise ConfigError(Problem(where=str(path), got=got, expected="a GGUF file in one piece", hint=hint))
    problems: list[Problem] = []
    config = _config(path, key, metadata, {entry.name for entry in entries}, problems)
    if problems:
        raise ConfigError(problems)
    tensors = {tensor.name: tensor for entry in entries for tensor in _tensors(path, key, entry, config, problems)}
    if problems:
        raise ConfigError(problems)
    ends = {metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")} - {None}
    generation: dict[str, Any] = {name: config[name] for name in ("bos_token_id", "pad_token_id") if name in config}
    if ends:
        generation["eos_token_id"] = sorted(ends)
    return GGUF(path=path, metadata=metadata, tensors=tensors, config=config, generation_config=generation)


def _nibbles(packed: Array) -> Array:
    """Values of the 4-bit formats: a byte holds values i and i + 16 of its block."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


# Names and config


def _tensors(
    path: Path, key: str, entry: Entry, config: Mapping[str, Any], problems: list[Problem]
) -> Iterator[GGUFTensor]:
    """The tensor of an entry under its official name; several for stacked experts, none (and a problem) if unknown."""
    architecture = _ARCHITECTURES[key]
    layer_names = _LAYER | (_ROUTER if architecture.experts else {})
    stem, _, suffix = entry.name.rpartition(".")  # `blk.3.attn_q`, `weight`
    block, _, part = stem.removeprefix("blk.").partition(".")
    dtype = PLAIN.get(entry.format, "float32")
    common: dict[str, Any] = {"dtype": dtype, "file": path, "format": entry.format}
    if stem in _TOP:
        name = f"{_TOP[stem]}.{suffix}"
        yield GGUFTensor(name=name, shape=entry.shape, offset=entry.offset, nbytes=entry.nbytes, **common)
    elif part in layer_names:
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(part, 0)
        name = f"model.layers.{block}.{layer_names[part]}.{suffix}"
        common["heads"] = heads if architecture.permuted else 0
        yield GGUFTensor(name=name, shape=entry.shape, offset=entry.offset, nbytes=entry.nbytes, **common)
    elif architecture.experts and part in _EXPERTS:
        count, size = entry.shape[0], entry.nbytes // entry.shape[0]
        for expert in range(count):
            name = f"model.layers.{block}.mlp.experts.{expert}.{_EXPERTS[part]}.{suffix}"
            offset = entry.offset + expert * size
            yield GGUFTensor(name=name, shape=entry.shape[1:], offset=offset, nbytes=size, **common)
    else:
        expected = f"a tensor of architecture {key}"
        hint = "rotary scaling by factors is not supported" if stem == "rope_freqs" else ""
        problems.append(Problem(where=str(path), got=entry.name, expected=expected, hint=hint))


def _config(
    path: Path, key: str, metadata: Mapping[str, Any], names: set[str], problems: list[Problem]
) -> dict[str, Any]:
    """config.json as the official checkpoint would have it."""
    architecture = _ARCHITECTURES[key]

    def read(name: str, default: Any = None) -> Any:
        value = metadata.get(f"{key}.{name}", default)
        if isinstance(value, list) and len(set(value)) == 1:  # one number a layer, all equal
            value = value[0]
        if not isinstance(value, int | float) or value <= 0:
            got = "nothing" if value is None else repr(value)
            expected = "one positive number for all layers"
            problems.append(Problem(where=f"{path}: {key}.{name}", got=got, expected=expected))
            return 1
        # float32 in the file: the shortest decimal that reads back as it is what was written
        return float(str(np.float32(value))) if isinstance(value, float) else value

    config: dict[str, Any] = {"architectures": [architecture.name], "model_type": architecture.model_type}
    config |= {name: read(source) for name, source in _CONFIG.items()}
    heads = config["num_attention_heads"]
    head_dim = read("attention.key_length", config["hidden_size"] // heads)
    config |= {
        "num_key_value_heads": read("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rope_theta": read("rope.freq_base", 10000.0),
        "vocab_size": read("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ())) or None),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in names,
        "tie_word_embeddings": "output.weight" not in names,
    }
    if architecture.experts:
        config |= {name: read(source) for name, source in _CONFIG_EXPERTS.items()}
        config |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    else:
        config["mlp_bias"] = "blk.0.ffn_up.bias" in names
    if (rotated := read("rope.dimension_count", head_dim)) != head_dim:
        where = f"{path}: {key}.rope.dimension_count"
        problems.append(Problem(where=where, got=str(rotated), expected=f"the whole head, {head_dim}"))
    config["rope_scaling"] = _rope_scaling(path, key, metadata, problems)
    tokens = {"bos": "bos", "eos": "eos", "padding": "pad"}
    ids = {f"{to}_token_id": metadata.get(f"tokenizer.ggml.{name}_token_id") for name, to in tokens.items()}
    return config | {name: value for name, value in ids.items() if value is not None}


def _rope_scaling(path: Path, key: str, metadata: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any] | None:
    kind = metadata.get(f"{key}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        where = f"{path}: {key}.rope.scaling.type"
        problems.append(Problem(where=where, got=repr(kind), expected="none, linear or yarn"))
    scaling = {"rope_type": kind, "factor": metadata.get(f"{key}.rope.scaling.factor", 1.0)}
    if original := metadata.get(f"{key}.rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = original
    return scaling


# Tokenizer

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # token types; 1 is an ordinary token


def _tokenizer_files(path: Path, metadata: Mapping[str, Any]) -> dict[str, bytes]:
    ggml = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    if ggml.get("model") != "gpt2":
        where = f"{path}: tokenizer.ggml.model"
        raise ConfigError(Problem(where=where, got=repr(ggml.get("model")), expected="'gpt2', a byte-level BPE"))
    tokens: list[str] = ggml["tokens"]
    kinds = ggml.get("token_type", [1] * len(tokens))
    typed = list(zip(range(len(tokens)), tokens, kinds, strict=True))
    added = [
        AddedToken(id=id_, content=token, special=kind == _CONTROL)
        for id_, token, kind in typed
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    named = {
        f"{to}_token": tokens[ggml[f"{name}_token_id"]]
        for name, to in {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}.items()
        if f"{name}_token_id" in ggml
    }
    bos = named.get("bos_token") if ggml.get("add_bos_token") else None
    files = {
        "tokenizer.json": bpe_tokenizer(
            vocab={token: id_ for id_, token, kind in typed if kind != _UNUSED},
            merges=[merge.split(" ") for merge in ggml.get("merges", ())],
            added=added,
            pre=ggml.get("pre", "default"),
            where=f"{path}: tokenizer.ggml.pre",
            bos=next((token for token in added if token.content == bos), None),
        ),
        "tokenizer_config.json": json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}).encode(),
    }
    if template := metadata.get("tokenizer.chat_template"):
        files["chat_template.jinja"] = template.encode()
    return files
