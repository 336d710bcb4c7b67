"""GGUF files to answers: llama.cpp's row order undone, quantised blocks carried over into the engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import onnx_ir as ir
import pytest
from gguf import GGMLQuantizationType as Type

from framework.checkpoints.checkpoint import open_checkpoint
from framework.errors import ConfigError
from tests.checkpoints.test_gguf import write_gguf
from tests.models.llm.tiny import OPTIONS, answers, build_tiny, greedy, ids_of, opened, request

KINDS = {kind.name: kind for kind in (Type.F32, Type.Q8_0, Type.Q4_0, Type.Q4_1)}
TEXTS = ("x", "The quick brown fox", "lorem ipsum " * 12)


def reference(key: str, weights: dict[str, Any], kind: Type) -> Any:
    """transformers' model with the weights as they are after quantisation."""
    import torch
    import transformers

    settings: dict[str, Any] = {
        "vocab_size": 270,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": True,
    }
    if key == "qwen3moe":
        settings |= {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "norm_topk_prob": True}
    name = {"llama": "Llama", "qwen3": "Qwen3", "qwen3moe": "Qwen3Moe"}[key]
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**settings))
    state = {name: torch.tensor(quantised(weight, kind)) for name, weight in weights.items()}
    if key == "qwen3moe":
        experts = "model.layers.0.mlp.experts"
        parts = {
            p: torch.stack([state.pop(f"{experts}.{e}.{p}_proj.weight") for e in range(3)])
            for p in ("gate", "up", "down")
        }
        state[f"{experts}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
        state[f"{experts}.down_proj"] = parts["down"]
    missing = model.load_state_dict(state, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys
    return model.eval()


def quantised(weight: Any, kind: Type) -> Any:
    if kind == Type.F32 or weight.ndim == 1:
        return weight
    return gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("llama", "F32"), ("llama", "Q4_1"), ("qwen3", "Q8_0"), ("qwen3moe", "F32"), ("qwen3moe", "Q4_0")],
)
def test_ids_equal_transformers_on_the_dequantised_weights(tmp_path: Path, key: str, kind: str) -> None:
    weights = write_gguf(tmp_path / "m.gguf", key, KINDS[kind])
    build_tiny(tmp_path / "m.gguf", tmp_path / "engines")
    model = reference(key, weights, KINDS[kind])
    model.generation_config.eos_token_id = None
    prompts = [[open_checkpoint_token(byte) for byte in text.encode()] for text in TEXTS]
    with opened(tmp_path / "engines", prefill_chunk=50) as executor:
        results = answers(executor, [request(i, text) for i, text in enumerate(TEXTS)])
    assert [ids_of(result) for result in results] == [greedy(model, ids, 12) for ids in prompts]


def open_checkpoint_token(byte: int) -> int:
    from framework.io.tokens import _byte_alphabet

    return list(_byte_alphabet().values()).index(byte)


def stored_weights(engine: Path) -> list[Any]:
    """Weight [out, in] of every MatMulNBits of an engine, in float32; columns behind `in` hold what is added to all
    columns of a block each."""
    model = ir.load(engine / "model.onnx")
    found = []
    for node in model.graph:
        if node.op_type != "MatMulNBits":
            continue
        n, k, bits = (node.attributes[name].as_int() for name in ("N", "K", "bits"))
        blocks = -(-k // 32)  # the last one may be a part
        quants, scales, *zero = (value.const_value.numpy() for value in node.inputs[1:] if value is not None)
        q = unpacked(quants.reshape(n, -1), bits).reshape(n, blocks, 32).astype(np.float32)
        z = unpacked(zero[0].reshape(n, -1), bits)[:, :blocks] if zero else np.full((n, blocks), 1 << (bits - 1))
        found.append(((q - z[..., None]) * scales.reshape(n, -1)[..., None]).reshape(n, -1)[:, :k])
    return found


def folded(whole: Any, width: int) -> Any:
    extra = whole[:, width : width + width // 32]
    return whole[:, :width] + (np.repeat(extra, 32, axis=1) if extra.shape[1] else 0)


def unpacked(packed: Any, bits: int) -> Any:
    return packed if bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


@pytest.mark.parametrize(
    ("kind", "precision", "refused"),
    [
        ("Q4_1", "int4", "blocks of that size (Q4_1), which are carried over"),
        ("Q8_0", "int8", "blocks of that size (Q8_0), which are carried over"),
        ("F32", "fp32", "32 with build.precision=fp32"),
        ("Q8_0", "int4", ""),
        ("F32", "int8", ""),
    ],
)
def test_a_size_of_blocks_that_nothing_would_have_is_refused(
    tmp_path: Path, kind: str, precision: str, refused: str
) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", KINDS[kind])
    options = attrs.evolve(OPTIONS, precision=precision, block_size=64)
    if refused:
        with pytest.raises(ConfigError, match=rf"build\.block_size: got 64, expected .*{re.escape(refused)}"):
            build_tiny(tmp_path / "m.gguf", tmp_path / "engines", options)
        assert not (tmp_path / "engines").exists()
    else:
        build_tiny(tmp_path / "m.gguf", tmp_path / "engines", options)


@pytest.mark.parametrize(
    ("kind", "precision", "steps"),
    [
        pytest.param("Q8_0", "int8", 0, id="Q8_0 in 8 bits: exactly"),
        pytest.param("Q4_0", "int8", 0, id="Q4_0 in 8 bits: exactly"),
        pytest.param("Q4_0", "int4", 0, id="Q4_0 in 4 bits: exactly"),
        pytest.param("Q4_1", "int8", 1 / 32, id="Q4_1 in 8 bits: within a 32nd of its step"),
        pytest.param("Q4_1", "int4", 1 / 16, id="Q4_1 in 4 bits: within a 16th of its step"),
    ],
)
def test_the_engine_holds_the_blocks_of_the_file(tmp_path: Path, kind: str, precision: str, steps: float) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", KINDS[kind])
    build_tiny(tmp_path / "m.gguf", tmp_path / "engines", attrs.evolve(OPTIONS, precision=precision))
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors
    layer = "model.layers.0"
    expected = [
        [f"{layer}.self_attn.{p}_proj.weight" for p in "qkv"],
        [f"{layer}.self_attn.o_proj.weight"],
        [f"{layer}.mlp.{p}_proj.weight" for p in ("gate", "up")],
        [f"{layer}.mlp.down_proj.weight"],
        ["model.embed_tokens.weight"],  # tied to the output layer: 8 bits, whatever the others have
    ]
    found = sorted(stored_weights(tmp_path / "engines"), key=lambda w: w.shape)
    wanted = sorted(
        (np.concatenate([tensors[name].array() for name in names]) for names in expected), key=lambda w: w.shape
    )
    step = max(float(tensors[name].blocks().scales.max()) for names in expected for name in names)  # type: ignore[union-attr]
    for whole, theirs in zip(found, wanted, strict=True):
        ours = folded(whole, theirs.shape[1])
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=step * steps + 1e-7)
