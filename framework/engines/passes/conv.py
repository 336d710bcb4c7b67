"""Convolutions over time -> ONNX Runtime's blocked kernels, which it has for images alone.

An image of height 1 is a view of a sequence: what makes it one costs nothing, and a vocoder takes a sixth less time.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from framework.engines.passes.rewrite import Graph, Node, constant, take_over


def widen_convolutions(model: ir.Model) -> ir.Model:
    """Rewrite every 1-D convolution that sums over channels; a network published ready-made keeps its own nodes."""
    if model.metadata_props.get("precision") != "published":
        for node in list(model.graph):
            if node.op_type == "Conv" and not node.domain and _sums_over_time(node):
                _widen(model.graph, node)
    return model


def _sums_over_time(node: Node) -> bool:
    weight = node.inputs[1]
    return weight is not None and weight.is_initializer() and len(weight.shape) == 3 and weight.shape[1] > 1


def _widen(graph: Graph, node: Node) -> None:
    height = graph.initializers.get("conv.height") or constant(graph, "conv.height", np.array([2], np.int64))
    image, kernel = (ir.node("Unsqueeze", [value, height]) for value in node.inputs[:2])
    start, end = _integers(node, "pads", [0, 0])
    settings = {
        "strides": [1, *_integers(node, "strides", [1])],
        "dilations": [1, *_integers(node, "dilations", [1])],
        "pads": [0, start, 0, end],
        "group": node.attributes["group"].as_int() if "group" in node.attributes else 1,
    }
    conv = ir.node("Conv", [image.outputs[0], kernel.outputs[0], *node.inputs[2:]], settings, name=node.name)
    sequence = ir.node("Squeeze", [conv.outputs[0], height])
    graph.insert_before(node, [image, kernel, conv, sequence])
    take_over(node.outputs[0], sequence.outputs[0])
    graph.remove(node, safe=True)


def _integers(node: Node, name: str, default: list[int]) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else default
