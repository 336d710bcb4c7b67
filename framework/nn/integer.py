"""Linear layers in integers, for networks that read many tokens in a call.

Weights in blocks are made for one token at a time, where memory is the cost; with hundreds of rows arithmetic is, and
whole-number products of 8 bits are several times faster than fp32. Standard operators of ONNX.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

# Weights have 7 bits: pairs of 8-bit products would saturate the 16-bit sums of processors without VNNI.
TOP = 63


def integer_matmuls(model: ir.Model) -> ir.Model:
    """MatMul(x, Transpose(W)) -> x rounded to 8 bits by row, W to 7 bits by output channel, MatMulInteger, rescaled.

    Rows and channels are symmetric: x ≈ row scale * (q - 128), W ≈ channel scale * q.
    """
    graph = model.graph
    rounded: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    constants: dict[str, ir.Value] = {}

    def constant(name: str, array: Any) -> ir.Value:
        if name not in constants:
            array = np.asarray(array)
            tensor = ir.tensor(array, name=name)
            kind = ir.TensorType(tensor.dtype)
            value = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
            graph.register_initializer(value)
            constants[name] = value
        return constants[name]

    def round_rows(before: ir.Node, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        if x not in rounded:
            size = ir.node("Abs", [x])
            largest = ir.node("ReduceMax", [size.outputs[0], constant("integer.last", np.array([-1]))], {"keepdims": 1})
            some = ir.node("Max", [largest.outputs[0], constant("integer.least", np.float32(1e-30))])
            scale = ir.node("Div", [some.outputs[0], constant("integer.top", np.float32(127))])
            scaled = ir.node("Div", [x, scale.outputs[0]])
            one, zero = constant("integer.one", np.float32(1)), constant("integer.zero", np.uint8(128))
            quantise = ir.node("QuantizeLinear", [scaled.outputs[0], one, zero])
            graph.insert_before(before, [size, largest, some, scale, scaled, quantise])
            rounded[x] = quantise.outputs[0], scale.outputs[0]
        return rounded[x]

    for node in list(graph):
        transpose = node.inputs[1].producer() if node.op_type == "MatMul" and node.inputs[1] is not None else None
        weight = transpose.inputs[0] if transpose is not None and transpose.op_type == "Transpose" else None
        if weight is None or not weight.is_initializer() or len(weight.uses()) != 1 or weight.const_value is None:
            continue
        x = node.inputs[0]
        assert x is not None and weight.name is not None and transpose is not None
        q, scales = _round_channels(weight.const_value.numpy().astype(np.float32))
        rows, row_scale = round_rows(node, x)
        zero = constant("integer.zero", np.uint8(128))
        product = ir.node("MatMulInteger", [rows, constant(f"{weight.name}.q8", q), zero], name=node.name)
        cast = ir.node("Cast", [product.outputs[0]], {"to": ir.DataType.FLOAT})
        by_channel = ir.node("Mul", [cast.outputs[0], constant(f"{weight.name}.scale", scales)])
        by_row = ir.node("Mul", [by_channel.outputs[0], row_scale])
        graph.insert_before(node, [product, cast, by_channel, by_row])
        old, new = node.outputs[0], by_row.outputs[0]
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove([node, transpose], safe=True)
        del graph.initializers[weight.name]
    return model


def _round_channels(weight: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """float32 [out, in] -> int8 [in, out], float32 [out]."""
    scale = np.maximum(np.abs(weight).max(axis=1), 1e-30) / TOP
    q = np.clip(np.rint(weight / scale[:, None]), -TOP, TOP).astype(np.int8)
    return np.ascontiguousarray(q.T), scale.astype(np.float32)
