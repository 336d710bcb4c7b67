"""Several linear layers of one input become one: queries, keys and values; gate and up."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from framework.engines.passes.rewrite import Graph, Node, Tensor, Value, constant, initializer, transposed_weight


def pack_siblings(model: ir.Model) -> ir.Model:
    """MatMul(x, Wᵢᵀ) for several i -> Split(MatMul(x, [W₁; W₂; ...]ᵀ)). Biases stay behind the split.

    Weights that several inputs go through, as in the steps of an unrolled loop, are packed when all of these inputs go
    through the same ones.
    """
    graph = model.graph
    by_input: dict[Value, list[Node]] = defaultdict(list)
    for node in graph:
        if node.op_type == "MatMul" and transposed_weight(node) is not None:
            by_input[node.inputs[0]].append(node)
    groups: dict[tuple[Value, ...], list[list[Node]]] = defaultdict(list)
    for nodes in by_input.values():
        groups[tuple(transposed_weight(node) for node in nodes)].append(nodes)
    for weights, uses in groups.items():
        if len(weights) > 1 and all(len(weight.uses()) == len(uses) for weight in weights):
            _pack(graph, weights, uses)
    return model


def _pack(graph: Graph, weights: tuple[Value, ...], uses: list[list[Node]]) -> None:
    first, last = weights[0], weights[-1]
    packed = initializer(
        graph, f"{first.name}+{last.name.rsplit('.', 2)[-2]}", stack_rows([w.const_value for w in weights])
    )
    sizes = constant(graph, f"{packed.name}.rows", np.array([w.shape[0] for w in weights], np.int64))
    for nodes in uses:
        transpose = ir.node("Transpose", [packed], {"perm": [1, 0]})
        matmul = ir.node("MatMul", [nodes[0].inputs[0], transpose.outputs[0]])
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
