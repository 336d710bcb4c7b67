"""Linear layers in integers, for networks that read many tokens in a call.

Weights in blocks are made for one token at a time, where memory is the cost; with hundreds of rows arithmetic is, and
whole-number products of 8 bits are several times faster than fp32. Standard operators of ONNX.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from framework.engines.pieces import Array, PiecedTensor

# Weights have 7 bits: pairs of 8-bit products would saturate the 16-bit sums of processors without VNNI.
TOP = 63


def integer_matmuls(model: ir.Model) -> ir.Model:
    """MatMul(x, Transpose(W)) -> x rounded to 8 bits by row, W to 7 bits by output channel, MatMulInteger, rescaled.

    Rows and channels are symmetric: x ≈ row scale * (q - 128), W ≈ channel scale * q. Weights are read and rounded when
    they are written.
    """
    graph = model.graph
    rounded: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    constants: dict[str, ir.Value] = {}

    def constant(name: str, array: Any) -> ir.Value:
        if name not in constants:
            constants[name] = initializer(ir.tensor(np.asarray(array), name=name))
        return constants[name]

    def initializer(tensor: ir.TensorProtocol) -> ir.Value:
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=tensor.name, shape=shape, type=kind, const_value=tensor)
        graph.register_initializer(value)
        return value

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
        q, scales = map(initializer, _round_channels(weight.const_value, weight.name))
        rows, row_scale = round_rows(node, x)
        zero = constant("integer.zero", np.uint8(128))
        product = ir.node("MatMulInteger", [rows, q, zero], name=node.name)
        cast = ir.node("Cast", [product.outputs[0]], {"to": ir.DataType.FLOAT})
        by_channel = ir.node("Mul", [cast.outputs[0], scales])
        by_row = ir.node("Mul", [by_channel.outputs[0], row_scale])
        graph.insert_before(node, [product, cast, by_channel, by_row])
        old, new = node.outputs[0], by_row.outputs[0]
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.remove([node, transpose], safe=True)
        del graph.initializers[weight.name]
    return model


def _round_channels(weight: ir.TensorProtocol, name: str) -> tuple[PiecedTensor, PiecedTensor]:
    """[out, in] -> int8 [in, out], float32 [out]."""

    def scales(exact: Array) -> Array:
        return np.maximum(np.abs(exact).max(axis=1), 1e-30) / np.float32(TOP)

    def rounded() -> Array:
        exact = weight.numpy().astype(np.float32)
        q = np.clip(np.rint(exact / scales(exact)[:, None]), -TOP, TOP).astype(np.int8)
        return np.ascontiguousarray(q.T)

    out, width = weight.shape.numpy()
    return (
        PiecedTensor([rounded], ir.DataType.INT8, (width, out), f"{name}.q8"),
        PiecedTensor([lambda: scales(weight.numpy().astype(np.float32))], ir.DataType.FLOAT, (out,), f"{name}.scale"),
    )
