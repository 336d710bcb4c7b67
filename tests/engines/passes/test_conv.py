"""Convolutions over time as convolutions of images: other nodes, the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.engines.passes.conv import widen_convolutions
from framework.engines.passes.weights import store_weights
from framework.nn import export
from framework.nn.conv import Conv1d
from tests.engines.passes.running import run


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        return {"y": self.layer(op, given["x"])}


def network(layer: nn.Module) -> ir.Model:
    """x [batch, 6, time] -> y, with random weights."""
    rng = np.random.default_rng(1)
    net = Net(layer)
    weights = {
        name: ir.tensor(rng.standard_normal(parameter.shape.numpy()).astype(np.float32))
        for name, parameter in net.named_parameters()
        if parameter.shape is not None
    }
    inputs = [TensorSpec(name="x", dtype="float32", shape=("batch", 6, "time"))]
    outputs = [TensorSpec(name="y", dtype="float32", shape=("batch", "out", "new_time"))]
    return export(net, inputs, outputs, weights)


def kinds(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


X = np.random.default_rng(0).standard_normal((2, 6, 23)).astype(np.float32)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Conv1d(6, 4, 1),
        lambda: Conv1d(6, 4, 5, padding=2),
        lambda: Conv1d(6, 4, 4, stride=3, bias=False),
        lambda: Conv1d(6, 4, 3, dilation=5),
        lambda: Conv1d(6, 4, 3, groups=2),
    ],
    ids=["point", "padded", "strided", "dilated", "groups"],
)
def test_a_convolution_gives_what_it_gave(layer: Any) -> None:
    expected = run(network(layer()), x=X)["y"]
    changed = widen_convolutions(network(layer()))
    assert kinds(changed) == {"Unsqueeze": 2, "Conv": 1, "Squeeze": 1}
    np.testing.assert_allclose(run(changed, x=X)["y"], expected, atol=1e-5)


def test_a_depthwise_convolution_stays_as_it_is() -> None:
    assert kinds(widen_convolutions(network(Conv1d(6, 6, 7, groups=6)))) == {"Conv": 1}


def test_a_network_published_ready_made_keeps_its_nodes() -> None:
    model = network(Conv1d(6, 4, 5))
    model.metadata_props["precision"] = "published"
    assert kinds(widen_convolutions(model)) == {"Conv": 1}


def test_weights_may_be_stored_in_16_bits() -> None:
    expected = run(network(Conv1d(6, 4, 5)), x=X)["y"]
    model = network(Conv1d(6, 4, 5))
    model.metadata_props["precision"] = "fp16"
    changed = store_weights(widen_convolutions(model))
    halves = [value for value in changed.graph.initializers.values() if value.dtype == ir.DataType.FLOAT16]
    assert len(halves) == 1
    np.testing.assert_allclose(run(changed, x=X)["y"], expected, atol=0.05)
