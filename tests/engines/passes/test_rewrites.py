"""A backend's rewrites: fewer and larger kernels, the same numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np
import onnx_ir as ir
import pytest

from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.engines.passes.attention import fuse_attention
from framework.engines.passes.conv import widen_convolutions
from framework.engines.passes.moe import group_experts_cuda
from framework.engines.passes.norm import fuse_skip_norm
from framework.engines.passes.pack import pack_siblings
from framework.engines.tensorrt.backend import TensorRT
from models.language.config import LLMConfig, MoEConfig
from tests.engines.passes.running import CONFIG, decoder, decoder_feeds, rewritten, run

CONFIGS = {
    "llama": CONFIG,
    "llama, bias": attrs.evolve(CONFIG, attention_bias=True, mlp_bias=True),
    "llama, tied": attrs.evolve(CONFIG, tied=True),
    "qwen3": attrs.evolve(CONFIG, qk_norm=True, head_dim=32),
    "qwen3 moe": attrs.evolve(
        CONFIG,
        qk_norm=True,
        moe=MoEConfig(experts=4, top_k=2, intermediate=32, norm_topk=True, dense_layers=frozenset({1})),
    ),
    "one head": attrs.evolve(CONFIG, heads=4, kv_heads=4),
    "features and positions in three directions": attrs.evolve(
        CONFIG, qk_norm=True, mrope=(4, 2, 2), media=True, deepstack=1
    ),
}
# What one call may look like; caches past the real entries hold what an earlier request left.
CALLS: dict[str, dict[str, Any]] = {
    "first chunk": {"past": 0, "tokens": 7},
    "decode": {"past": [3, 9], "tokens": 1},
    "decode of an idle row": {"past": [0, 5], "tokens": 1},
}


def types(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def same(found: dict[str, Any], expected: dict[str, Any], past: Any, tokens: int) -> None:
    assert found.keys() == expected.keys()
    lengths = np.broadcast_to(np.asarray(past), 2) + tokens
    for name, wanted in expected.items():
        for row, length in enumerate(lengths):
            # Only entries a row has are promised.
            a, b = (x[row, :, :length] if "_cache." in name else x[row] for x in (found[name], wanted))
            np.testing.assert_allclose(a, b, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_cpus_passes_change_no_result(config: LLMConfig, call: dict[str, Any]) -> None:
    layers = (0, 1, 2, -1)
    before = decoder(config, hidden_layers=layers)
    feeds = decoder_feeds(before, **call)
    expected = run(before, **feeds)
    after = rewritten(decoder(config, hidden_layers=layers), OnnxRuntimeCpu())
    same(run(after, **feeds), expected, call["past"], call["tokens"])
    found = types(after)
    assert found["GroupQueryAttention"] == config.layers
    assert not found.keys() & {"Attention", "TensorScatter"}
    # Positions of their own are turned before the kernel, which only counts.
    assert found["RotaryEmbedding"] == (0 if config.mrope is None else 2 * config.layers)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("rewrite", [pack_siblings, fuse_attention, fuse_skip_norm], ids=lambda r: r.__name__)
def test_each_pass_alone_changes_no_result(rewrite: Any, call: dict[str, Any]) -> None:
    config = CONFIGS["qwen3"]
    before = decoder(config)
    feeds = decoder_feeds(before, **call)
    after = rewrite(decoder(config))
    assert types(after) != types(before)
    same(run(after, **feeds), run(before, **feeds), call["past"], call["tokens"])


def test_one_row_goes_on_from_its_cache_in_chunks() -> None:
    """What GroupQueryAttention takes for one row alone: several tokens behind a cache that is not empty."""
    before = decoder()
    feeds = {n: v if n == "candidates" else v[:1] for n, v in decoder_feeds(before, past=6, tokens=5).items()}
    after = rewritten(decoder(), OnnxRuntimeCpu())
    expected, found = run(before, **feeds), run(after, **feeds)
    for name, wanted in expected.items():
        a, b = (x[..., :11, :] if "_cache." in name else x for x in (found[name], wanted))
        np.testing.assert_allclose(a, b, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("head_dim", [8, 12, 24])
def test_heads_that_the_kernel_does_not_take_keep_the_standard_operators(head_dim: int, call: dict[str, Any]) -> None:
    config = attrs.evolve(CONFIG, head_dim=head_dim, qk_norm=True)
    before = decoder(config)
    feeds = decoder_feeds(before, **call)
    after = rewritten(decoder(config), OnnxRuntimeCpu())
    assert "GroupQueryAttention" not in types(after)
    same(run(after, **feeds), run(before, **feeds), call["past"], call["tokens"])


@pytest.mark.parametrize(("head_dim", "fused"), [(8, True), (24, True), (12, False)])
def test_heads_that_come_rotated_may_be_smaller(head_dim: int, fused: bool) -> None:
    config = attrs.evolve(CONFIG, head_dim=head_dim, mrope=(head_dim // 2 - 2, 1, 1), media=True)
    assert ("GroupQueryAttention" in types(rewritten(decoder(config), OnnxRuntimeCpu()))) == fused


def test_siblings_are_packed_and_others_left_alone() -> None:
    model = decoder()
    before = types(model)["MatMul"]
    packed = pack_siblings(model)
    # queries, keys, values are one; gate, up are one: three products fewer a layer
    assert types(packed)["MatMul"] == before - 3 * CONFIG.layers
    assert types(packed)["Split"] == 2 * CONFIG.layers
    names = packed.graph.initializers
    assert "model.layers.0.self_attn.q_proj.weight" not in names and "model.layers.0.mlp.down_proj.weight" in names


def test_attention_with_positions_of_its_own_is_left_alone() -> None:
    """Rotary positions that are not the cache's cannot be rotated by the fused kernel."""
    model = decoder()
    for node in model.graph:
        if node.op_type == "RotaryEmbedding":
            ids = node.inputs[3]
            break
    assert ids is not None
    ids.name = "positions_of_images"
    assert types(fuse_attention(model))["Attention"] == CONFIG.layers


def test_attention_under_another_mask_is_left_alone() -> None:
    model = decoder()
    window = ir.Value(name="window", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([24]))
    window.const_value = ir.tensor(np.arange(24) > 2, name="window")
    model.graph.register_initializer(window)
    first = next(node for node in model.graph if node.op_type == "Attention")
    both = ir.node("And", [first.inputs[3], window])
    model.graph.insert_before(first, both)
    for node in [node for node in model.graph if node.op_type == "Attention"]:
        node.replace_input_with(3, both.outputs[0])
    assert types(fuse_attention(model))["Attention"] == CONFIG.layers


def test_tensorrt_takes_the_standard_operators_as_they_are() -> None:
    assert TensorRT().passes() == TensorRT(module="tensorrt_rtx").passes() == ()
    assert OnnxRuntimeCuda().passes() == (group_experts_cuda, widen_convolutions)
