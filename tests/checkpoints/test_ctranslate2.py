"""CTranslate2 files read as the official checkpoint they were made from."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.checkpoints.bpe import bpe_tokenizer
from framework.checkpoints.checkpoint import open_checkpoint
from framework.errors import ConfigError
from framework.io.tokens import _byte_alphabet

HIDDEN, INNER, HEADS, MELS, VOCAB, FRAMES, CONTEXT = 8, 12, 2, 5, 40, 6, 7
CODES = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}
Arrays = dict[str, np.ndarray[Any, Any]]


def official(layers: int = 2) -> Arrays:
    """Random weights under transformers' names."""
    rng = np.random.default_rng(1)
    linear = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN)}
    linear |= {"self_attn.v_proj": (HIDDEN, HIDDEN), "self_attn.out_proj": (HIDDEN, HIDDEN)}
    linear |= {"fc1": (INNER, HIDDEN), "fc2": (HIDDEN, INNER)}
    shapes: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (HIDDEN, MELS, 3),
        "model.encoder.conv1.bias": (HIDDEN,),
        "model.encoder.conv2.weight": (HIDDEN, HIDDEN, 3),
        "model.encoder.conv2.bias": (HIDDEN,),
        "model.encoder.embed_positions.weight": (FRAMES, HIDDEN),
        "model.decoder.embed_positions.weight": (CONTEXT, HIDDEN),
        "model.decoder.embed_tokens.weight": (VOCAB, HIDDEN),
    }
    for part in ("encoder", "decoder"):
        norms = ["self_attn_layer_norm", "final_layer_norm"]
        own = dict(linear)
        if part == "decoder":
            norms.append("encoder_attn_layer_norm")
            own |= {name.replace("self_attn", "encoder_attn"): s for name, s in linear.items() if "self_attn" in name}
        blocks = [f"model.{part}.layer_norm", *(f"model.{part}.layers.{i}.{n}" for i in range(layers) for n in norms)]
        for name in blocks:
            shapes |= {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}
        for layer in range(layers):
            for name, shape in own.items():
                shapes[f"model.{part}.layers.{layer}.{name}.weight"] = shape
                if not name.endswith("k_proj"):
                    shapes[f"model.{part}.layers.{layer}.{name}.bias"] = shape[:1]
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def converted(weights: Mapping[str, np.ndarray[Any, Any]], layers: int = 2) -> Arrays:
    """The same as CTranslate2's converter lays it out."""
    found: Arrays = {"encoder/num_heads": np.int8(HEADS), "decoder/num_heads": np.int8(HEADS)}  # type: ignore[dict-item]

    def take(target: str, *sources: str) -> None:
        for kind, other in (("weight", "weight"), ("bias", "bias")):
            parts = [
                weights.get(f"model.{source}.{kind}", np.zeros(HIDDEN, np.float32))  # keys get a bias of zeros
                for source in sources
            ]
            found[f"{target}/{other}"] = np.concatenate(parts)

    def norm(target: str, source: str) -> None:
        found[f"{target}/gamma"] = weights[f"model.{source}.weight"]
        found[f"{target}/beta"] = weights[f"model.{source}.bias"]

    take("encoder/conv1", "encoder.conv1")
    take("encoder/conv2", "encoder.conv2")
    found["decoder/embeddings/weight"] = weights["model.decoder.embed_tokens.weight"]
    for part in ("encoder", "decoder"):
        found[f"{part}/position_encodings/encodings"] = weights[f"model.{part}.embed_positions.weight"]
        norm(f"{part}/layer_norm", f"{part}.layer_norm")
        for layer in range(layers):
            ours, theirs = f"{part}.layers.{layer}", f"{part}/layer_{layer}"
            norm(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attn_layer_norm")
            packed = [f"{ours}.self_attn.{name}_proj" for name in "qkv"]
            take(f"{theirs}/self_attention/linear_0", *packed)
            take(f"{theirs}/self_attention/linear_1", f"{ours}.self_attn.out_proj")
            if part == "decoder":
                norm(f"{theirs}/attention/layer_norm", f"{ours}.encoder_attn_layer_norm")
                take(f"{theirs}/attention/linear_0", f"{ours}.encoder_attn.q_proj")
                take(f"{theirs}/attention/linear_1", *(f"{ours}.encoder_attn.{name}_proj" for name in "kv"))
                take(f"{theirs}/attention/linear_2", f"{ours}.encoder_attn.out_proj")
            norm(f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
            take(f"{theirs}/ffn/linear_0", f"{ours}.fc1")
            take(f"{theirs}/ffn/linear_1", f"{ours}.fc2")
    return found


def encode(arrays: Arrays, *, version: int = 6, model: str = "WhisperSpec") -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    data = struct.pack("<I", version) + text(model) + struct.pack("<II", 3, len(arrays))
    for name, value in arrays.items():
        array = np.asarray(value)
        data += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        data += struct.pack("<BI", CODES[array.dtype.name], array.nbytes) + array.tobytes()
    return data + struct.pack("<I", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(arrays: Arrays | None = None, **header: Any) -> Path:
        (tmp_path / "model.bin").write_bytes(encode(converted(official()) if arrays is None else arrays, **header))
        (tmp_path / "config.json").write_text(json.dumps({"suppress_ids": [1, 2], "suppress_ids_begin": [3]}))
        vocab = {token: id_ for id_, token in enumerate(_byte_alphabet())}
        tokenizer = bpe_tokenizer(vocab=vocab, merges=(), added=(), pre="qwen2", where="test")
        (tmp_path / "tokenizer.json").write_bytes(tokenizer)
        return tmp_path

    return write


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_have_official_names_and_packed_rows_are_apart(folder: Callable[..., Path], dtype: str) -> None:
    weights = {name: array.astype(dtype) for name, array in official().items()}
    arrays = {k: np.asarray(v).astype(dtype) if np.ndim(v) else v for k, v in converted(weights).items()}
    checkpoint = open_checkpoint(folder(arrays))
    assert checkpoint.tensors.keys() == weights.keys()
    for name, tensor in checkpoint.tensors.items():
        np.testing.assert_array_equal(tensor.array(), weights[name], err_msg=name)
        assert tensor.in_file


def test_the_config_is_read_off_the_shapes(folder: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(folder())
    assert checkpoint.config["architectures"] == ["WhisperForConditionalGeneration"]
    expected = {
        "vocab_size": VOCAB,
        "num_mel_bins": MELS,
        "d_model": HIDDEN,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER,
        "max_source_positions": FRAMES,
        "max_target_positions": CONTEXT,
    }
    assert {key: checkpoint.config[key] for key in expected} == expected
    assert checkpoint.generation_config["suppress_tokens"] == [1, 2]
    assert checkpoint.generation_config["begin_suppress_tokens"] == [3]
    assert set(checkpoint.tokenizer_files()) == {"tokenizer.json", "generation_config.json"}


def test_the_file_alone_is_the_same(folder: Callable[..., Path]) -> None:
    assert open_checkpoint(folder() / "model.bin").fingerprint == open_checkpoint(folder()).fingerprint


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"version": 4}, "got format version 4, expected version 5 or 6"),
        ({"model": "TransformerSpec"}, "got a TransformerSpec, expected a WhisperSpec"),
    ],
    ids=["version", "model"],
)
def test_other_formats_are_named(folder: Callable[..., Path], header: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(folder(**header))


@pytest.mark.parametrize("keep", [20, 300, -40])
def test_a_file_that_is_cut_short(folder: Callable[..., Path], keep: int) -> None:
    path = folder() / "model.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"broken at byte|cut short"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder/strange/weight": np.zeros((2, 2), np.float32)}, "decoder/strange/weight: got an unknown one"),
        ({"encoder/conv1/weight": np.zeros((2, 2), np.int8)}, "got weights in int8, expected weights in float32"),
        ({"decoder/num_heads": None}, "no 'decoder/num_heads'"),
    ],
    ids=["an unknown array", "weights of 8 bits", "no number of heads"],
)
def test_arrays_of_another_model(folder: Callable[..., Path], change: dict[str, Any], message: str) -> None:
    arrays = {k: v for k, v in (converted(official()) | change).items() if v is not None}
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(folder(arrays))
