"""Small helpers that the passes share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

# onnx_ir types every operand, name, shape and constant as optional. A pass works on structures it has matched, where
# they are there, and would otherwise be half assertions; where a structure may not match, the answer is None.
Graph: TypeAlias = Any
Node: TypeAlias = Any
Tensor: TypeAlias = Any
Value: TypeAlias = Any


def transposed_weight(matmul: Node) -> Value:
    """W of MatMul(x, Transpose(W)) when W is an initializer [out, in], else None."""
    producer = matmul.inputs[1].producer() if matmul.inputs[1] is not None else None
    if producer is None or producer.op_type != "Transpose" or list(producer.attributes["perm"].as_ints()) != [1, 0]:
        return None
    weight = producer.inputs[0]
    return weight if weight is not None and weight.is_initializer() else None


def initializer(graph: Graph, name: str, tensor: Tensor) -> Value:
    """Register `tensor` under `name`."""
    value = ir.Value(name=name, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def constant(graph: Graph, name: str, array: np.ndarray[Any, Any]) -> Value:
    """Register a small array under `name`."""
    return initializer(graph, name, ir.tensor(array, name=name))


def producer(value: Value | None, op_type: str) -> Node:
    """The node that makes `value` if it is an `op_type`, else None."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def take_over(old: Value, new: Value) -> None:
    """Let `new` stand everywhere `old` stood, under its name."""
    new.shape, new.type = old.shape, old.type
    name, old.name = old.name, f"{old.name}.replaced"
    new.name = name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def remove_unused(graph: Graph) -> None:
    """Drop nodes and initializers that nothing reads."""
    for node in reversed(graph):
        if not any(out.uses() or out.is_graph_output() for out in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
