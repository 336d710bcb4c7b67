"""Dims of every value of a network, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from framework.engines.shapes import tensors_of
from tests.engines.test_footprint import value

CAPS = {"frames": 4, "tokens": 1024, "k": 5}


def node(op: str, given: Sequence[ir.Value | None], name: str, domain: str = "", **attributes: Any) -> ir.Node:
    made = [ir.AttrInt64(key, number) for key, number in attributes.items()]
    return ir.Node(domain, op, given, outputs=[value(name)], attributes=made)


def shapes(inputs: list[ir.Value], nodes: list[ir.Node], *weights: ir.Value) -> dict[str, tuple[int, ...]]:
    opsets = {"": 24, "com.microsoft": 1}
    graph = ir.Graph(inputs, [], nodes=nodes, initializers=weights, opset_imports=opsets, name="g")
    return {name: found.resolve({}) for name, found in tensors_of(ir.Model(graph, ir_version=11), CAPS).items()}


def test_a_dimension_that_has_no_name_is_counted() -> None:
    """Patches of a picture: their number is a product of two dimensions, which the network calls -1."""
    pixels, joined = value("pixels", "frames", "tokens", 4, 6), value("joined", data=np.array([0, -1, 6], np.int64))
    weight = value("weight", data=np.zeros((6, 2), np.float32))
    flat = node("Reshape", [pixels, joined], "flat")
    product = node("MatMul", [flat.outputs[0], weight], "patches")
    assert shapes([pixels], [flat, product], joined, weight)["patches"] == (4, 4096, 2)


def test_a_shape_that_is_put_together_by_nodes_is_computed() -> None:
    x, one = value("x", "frames", 3), value("one", data=np.array([7], np.int64))
    first = node("Shape", [x], "first", start=0, end=1)
    both = node("Concat", [first.outputs[0], one], "both", axis=0)
    column = value("column", data=np.zeros((1, 1), np.float32))
    wide = node("Expand", [column, both.outputs[0]], "wide")
    assert shapes([x], [first, both, wide], one, column)["wide"] == (4, 7)


def test_an_input_of_a_dimensions_name_says_how_many() -> None:
    x, k = value("x", "frames", 9), ir.Value(name="k", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
    other = ir.Value(name="other", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
    best = ir.Node("", "TopK", [x, k], outputs=[value("best"), value("places")])
    all_ = ir.Node("", "TopK", [x, other], outputs=[value("all"), value("where")])
    found = shapes([x, k, other], [best, all_])
    assert (found["best"], found["all"]) == ((4, 5), (4, 9)), "all where nothing says how many"


@pytest.mark.parametrize(
    ("make", "dims"),
    [
        pytest.param(
            lambda x: [x, value("q", data=np.zeros((8, 1, 16), np.uint8)), value("s", data=np.zeros(8, np.float32))],
            (4, 1024, 8),
            id="MatMulNBits",
        ),
        pytest.param(
            lambda x: [x, None, None, value("past", "frames", 2, 64, 5), value("past2", "frames", 2, 64, 5)],
            (4, 1024, 10),
            id="GroupQueryAttention",
        ),
        pytest.param(lambda x: [x], (4, 1024, 32), id="FastGelu"),
    ],
)
def test_operators_of_onnx_runtime(
    make: Callable[[ir.Value], list[ir.Value | None]], dims: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    x = value("x", "frames", "tokens", 32)
    given, op = make(x), request.node.callspec.id
    weights = [item for item in given if item is not None and item.const_value is not None]
    inputs = [item for item in given if item is not None and item.const_value is None]
    made = node(op, given, "made", "com.microsoft", N=8, num_heads=2)
    found = shapes(inputs, [made, node("Relu", made.outputs, "after")], *weights)
    assert found["made"] == found["after"] == dims


def test_quantized_rows_are_as_wide_as_their_numbers() -> None:
    rows, ids = value("rows", data=np.zeros((50, 3, 16), np.uint8)), ir.Value(name="ids", shape=ir.Shape(["frames"]))
    ids.dtype = ir.DataType.INT64
    scales = value("scales", data=np.zeros((50, 3, 1), np.float32))
    gathered = node("GatherBlockQuantized", [rows, ids, scales], "gathered", "com.microsoft", bits=4)
    assert shapes([ids], [gathered], rows, scales)["gathered"] == (4, 3, 32)
