"""Attention of a whole sequence to itself goes through ONNX Runtime's tiles; all other attention stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.engines.passes.flash import tile_attention
from framework.nn import export
from tests.engines.passes.running import run

HEADS, WIDTH = 4, 24
SHAPE = ("batch", "tokens", WIDTH)


class Network(nn.Module):
    def __init__(self, masked: bool, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.masked, self.settings = masked, settings

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        mask = (given["mask"],) if self.masked else ()
        return {"y": op.Attention(given["q"], given["k"], given["v"], *mask, **self.settings)}


def network(masked: bool = False, kv_heads: int = HEADS, **settings: Any) -> ir.Model:
    inputs = [
        TensorSpec(name=name, dtype="float32", shape=(*SHAPE[:2], WIDTH // HEADS * heads))
        for name, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads))
    ]
    inputs += [TensorSpec(name="mask", dtype="bool", shape=("tokens", "tokens"))] if masked else []
    heads = {"q_num_heads": HEADS, "kv_num_heads": kv_heads}
    outputs = [TensorSpec(name="y", dtype="float32", shape=SHAPE)]
    return export(Network(masked, {**heads, **settings}), inputs, outputs, {})


@pytest.mark.parametrize("settings", [{}, {"scale": 0.3}], ids=["scale of its own", "given scale"])
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_it_changes_no_result(tokens: int, settings: Mapping[str, Any]) -> None:
    rng = np.random.default_rng(tokens)
    feeds = {name: rng.standard_normal((2, tokens, WIDTH)).astype(np.float32) for name in "qkv"}
    tiled = tile_attention(network(**settings))
    assert [node.op_type for node in tiled.graph] == ["MultiHeadAttention"]
    np.testing.assert_allclose(run(tiled, **feeds)["y"], run(network(**settings), **feeds)["y"], atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [network(masked=True), network(is_causal=1), network(kv_heads=2), network(softcap=2.0)],
    ids=["a mask", "causal", "shared heads", "capped"],
)
def test_other_attention_is_left_alone(model: ir.Model) -> None:
    assert [node.op_type for node in tile_attention(model).graph] == ["Attention"]


def test_it_is_the_cpus() -> None:
    assert tile_attention in OnnxRuntimeCpu().passes()
