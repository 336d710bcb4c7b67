"""Several linear layers of one input become one: queries, keys and values; gate and up."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from framework.engines.passes.rewrite import Graph, Node, Tensor, Value, constant, initializer, transposed_weight


def pack_siblings(model: ir.Model) -> ir.Model:
    """MatMul(x, Wᵢᵀ) for several i -> Split(MatMul(x, [W₁; W₂; ...]ᵀ)). Biases stay behind the split."""
    graph = model.graph
    by_input: dict[Value, list[Node]] = defaultdict(list)
    for node in graph:
        if node.op_type == "MatMul" and (weight := transposed_weight(node)) is not None and len(weight.uses()) == 1:
            by_input[node.inputs[0]].append(node)
    for x, nodes in by_input.items():
        if len(nodes) > 1:
            _pack(graph, x, nodes)
    return model


def _pack(graph: Graph, x: Value, nodes: list[Node]) -> None:
    weights = [transposed_weight(node) for node in nodes]
    first, last = weights[0], weights[-1]
    packed = initializer(
        graph, f"{first.name}+{last.name.rsplit('.', 2)[-2]}", stack_rows([w.const_value for w in weights])
    )
    transpose = ir.node("Transpose", [packed], {"perm": [1, 0]})
    matmul = ir.node("MatMul", [x, transpose.outputs[0]])
    rows = [w.shape[0] for w in weights]
    sizes = constant(graph, f"{packed.name}.rows", np.array(rows, np.int64))
    split = ir.node("Split", [matmul.outputs[0], sizes], {"axis": -1}, num_outputs=len(nodes))
    graph.insert_before(nodes[0], [transpose, matmul, split])
    for node, part in zip(nodes, split.outputs, strict=True):
        node.outputs[0].replace_all_uses_with(part)
        old = node.inputs[1].producer()
        graph.remove([node, old], safe=True)
    for weight in weights:
        del graph.initializers[weight.name]


def stack_rows(tensors: list[Tensor]) -> ir.LazyTensor:
    """[n₁, k], [n₂, k] ... -> [n₁ + n₂ + ..., k], read when saved; its parts stay known for the quantiser."""
    stacked = ir.LazyTensor(
        lambda: ir.tensor(np.concatenate([t.numpy() for t in tensors])),
        dtype=tensors[0].dtype,
        shape=ir.Shape((sum(t.shape[0] for t in tensors), *tensors[0].shape[1:])),
    )
    stacked.meta["parts"] = list(tensors)
    return stacked
