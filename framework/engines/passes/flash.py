"""Attention of a whole sequence to itself -> ONNX Runtime's MultiHeadAttention, which goes through it in tiles.

The scores of 2,304 patches in 16 heads are 340 MB; here they are never all there, and a picture takes a tenth less
time.
"""

from __future__ import annotations

import onnx_ir as ir

from framework.engines.passes.rewrite import take_over

DOMAIN = "com.microsoft"
_HEADS = ("q_num_heads", "kv_num_heads")


def tile_attention(model: ir.Model) -> ir.Model:
    """Rewrite every attention of [batch, tokens, heads * d] inputs that has no mask, no cache and a head for each."""
    graph = model.graph
    for node in [node for node in graph if node.op_type == "Attention" and not node.domain]:
        attributes = set(node.attributes)
        if len(node.inputs) > 3 or len(node.outputs) > 1 or not {*_HEADS} <= attributes <= {*_HEADS, "scale"}:
            continue
        queries, keys = (node.attributes[name].as_int() for name in _HEADS)
        if queries != keys:
            continue
        settings = {"num_heads": queries}
        scale = {"scale": node.attributes["scale"].as_float()} if "scale" in attributes else {}
        tiled = ir.node("MultiHeadAttention", node.inputs, {**settings, **scale}, domain=DOMAIN, name=node.name)
        graph.insert_before(node, tiled)
        take_over(node.outputs[0], tiled.outputs[0])
        graph.remove(node, safe=True)
        graph.opset_imports[DOMAIN] = 1
    return model
