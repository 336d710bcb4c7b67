"""A residual addition and the norm behind it become ONNX Runtime's SkipSimplifiedLayerNormalization: one pass over
the stream instead of two."""

from __future__ import annotations

import onnx_ir as ir

from framework.engines.passes.rewrite import producer, take_over

DOMAIN = "com.microsoft"


def fuse_skip_norm(model: ir.Model) -> ir.Model:
    """RMSNormalization(x + y) -> its norm and, for whoever else reads it, the sum."""
    graph = model.graph
    for norm in [node for node in graph if node.op_type == "RMSNormalization"]:
        add = producer(norm.inputs[0], "Add")
        if add is None or add.outputs[0].is_graph_output() or any(value.is_initializer() for value in add.inputs):
            continue
        eps = norm.attributes["epsilon"].as_float()
        fused = ir.node(
            "SkipSimplifiedLayerNormalization",
            [*add.inputs, norm.inputs[1]],
            {"epsilon": eps},
            domain=DOMAIN,
            num_outputs=4,  # norm, two that training needs, sum
            name=norm.name,
        )
        graph.insert_after(add, fused)
        take_over(norm.outputs[0], fused.outputs[0])
        take_over(add.outputs[0], fused.outputs[3])
        graph.remove([norm, add], safe=True)
        graph.opset_imports[DOMAIN] = 1
    return model
