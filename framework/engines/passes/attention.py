"""Cached attention -> ONNX Runtime's GroupQueryAttention, which rotates, updates the cache and attends in one kernel.

It looks only at entries a row has, not at the whole capacity, and needs no mask. Tokens with rotary positions of their
own are rotated before it. Heads of sizes that the kernel does not take keep the standard operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from framework.engines.passes.rewrite import Graph, Node, Value, constant, producer, remove_unused, take_over

DOMAIN = "com.microsoft"
# The kernel takes heads whose size is a multiple of these, and says so only when it runs.
ROTATED_MULTIPLE = 16  # elements of a head that it rotates itself
MULTIPLE = 8  # elements of a head that comes rotated


def fuse_attention(model: ir.Model) -> ir.Model:
    """Rewrite every attention of `framework.nn.Attention` over a cache."""
    graph = model.graph
    fused = [node for node in graph if node.op_type == "Attention" and _fuse(graph, node)]
    if fused:
        graph.opset_imports[DOMAIN] = 1
        remove_unused(graph)
    return model


def _fuse(graph: Graph, attention: Node) -> bool:
    rotary = producer(attention.inputs[0], "RotaryEmbedding")
    keys = producer(attention.inputs[1], "TensorScatter")
    values = producer(attention.inputs[2], "TensorScatter")
    key_rotary = producer(keys.inputs[1], "RotaryEmbedding") if keys else None
    back = next((use.node for use in attention.outputs[0].uses()), None)  # Transpose, then Reshape to 3-D
    if rotary is None or keys is None or values is None or key_rotary is None or back is None:
        return False
    causal = producer(attention.inputs[3], "LessOrEqual")  # another mask would be lost
    query = producer(causal.inputs[1], "Unsqueeze") if causal else None
    at = query.inputs[0] if query is not None else None
    counted = [at] if len(rotary.inputs) == 4 else []  # else the tables are of the tokens themselves
    if at is None or list(rotary.inputs[3:]) != counted or list(key_rotary.inputs[3:]) != counted:
        return False
    if "cache_positions" not in (at.name or "") or back.op_type != "Transpose":
        return False
    if int(keys.inputs[0].shape[3]) % (ROTATED_MULTIPLE if counted else MULTIPLE):
        return False
    flat = next(use.node for use in back.outputs[0].uses())

    q, k = _before_heads(rotary.inputs[0]), _before_heads(key_rotary.inputs[0])
    v = _before_heads(values.inputs[1])
    lengths, total, new = _lengths(graph, past=keys.inputs[2], positions=at)
    tables = rotary.inputs[1:3] if counted else ()
    split = producer(q, "Split")
    if not counted:
        q, k = (_rotated(graph, attention, value, node) for value, node in ((q, rotary), (k, key_rotary)))
    elif split is not None and [q, k, v] == list(split.outputs):  # packed projections go in as they are
        q, k, v = split.inputs[0], None, None
    node = ir.node(
        "GroupQueryAttention",
        [
            *(_flat(graph, attention, value) for value in (q, k, v)),
            *(keys.inputs[0], values.inputs[0], lengths, total, *tables),
        ],
        {
            "num_heads": _heads(rotary.inputs[0]),
            "kv_num_heads": int(keys.inputs[0].shape[1]),
            "scale": attention.attributes["scale"].as_float(),
            "do_rotary": int(bool(counted)),
        },
        domain=DOMAIN,
        num_outputs=3,
        name=f"{attention.name}/gqa",
    )
    graph.insert_before(attention, [*new, node])
    take_over(flat.outputs[0], node.outputs[0])
    take_over(keys.outputs[0], node.outputs[1])
    take_over(values.outputs[0], node.outputs[2])
    return True


def _before_heads(value: Value) -> Value:
    """The [batch, tokens, heads * d] or [batch, tokens, heads, d] value that was split into heads and transposed."""
    x = producer(value, "Transpose").inputs[0]
    reshape = producer(x, "Reshape")
    return reshape.inputs[0] if reshape is not None else x


def _heads(transposed: Value) -> int:
    reshape = producer(producer(transposed, "Transpose").inputs[0], "Reshape")
    norm = producer(producer(transposed, "Transpose").inputs[0], "RMSNormalization")
    if norm is not None:
        reshape = producer(norm.inputs[0], "Reshape")
    return int(reshape.inputs[1].const_value.numpy()[2])


def _rotated(graph: Graph, before: Node, value: Value, rotary: Node) -> Value:
    """[batch, tokens, heads * d], rotated as it is after the split into heads."""
    heads = {"num_heads": _heads(rotary.inputs[0])}
    node = ir.node("RotaryEmbedding", [_flat(graph, before, value), *rotary.inputs[1:3]], heads)
    graph.insert_before(before, node)
    return node.outputs[0]


def _flat(graph: Graph, before: Node, value: Value | None) -> Value | None:
    """[batch, tokens, heads, d] (behind a norm per head) -> [batch, tokens, heads * d]."""
    if value is None or producer(value, "RMSNormalization") is None:
        return value
    shape = _shared(graph, "gqa.flat", np.array([0, 0, -1], np.int64))
    reshape = ir.node("Reshape", [value, shape])
    graph.insert_before(before, reshape)
    return reshape.outputs[0]


def _lengths(graph: Graph, past: Value, positions: Value) -> tuple[Value, Value, list[Node]]:
    """`seqlens_k` int32 [batch] (last entry of each row) and `total_sequence_length` int32 scalar, made once
    for all layers of the same positions.

    All tokens of a call count as real: entries behind a row's last real token are overwritten by its next call.
    """
    made: dict[Value, tuple[Value, Value]] = graph.meta.setdefault("gqa.lengths", {})
    if positions in made:
        return (*made[positions], [])
    start = _shared(graph, "gqa.last", np.array([-1], np.int64))
    end = _shared(graph, "gqa.end", np.array([2**31 - 1], np.int64))
    axis = _shared(graph, "gqa.axis", np.array([1], np.int64))
    one = _shared(graph, "gqa.one", np.array(1, np.int32))
    last = ir.node("Slice", [positions, start, end, axis])  # [batch, 1]
    squeeze = ir.node("Squeeze", [last.outputs[0], axis])
    lengths = ir.node("Cast", [squeeze.outputs[0]], {"to": ir.DataType.INT32})
    longest = ir.node("ReduceMax", [lengths.outputs[0]], {"keepdims": 0})
    total = ir.node("Add", [longest.outputs[0], one])
    made[positions] = (lengths.outputs[0], total.outputs[0])
    return lengths.outputs[0], total.outputs[0], [last, squeeze, lengths, longest, total]


def _shared(graph: Graph, name: str, array: np.ndarray[Any, Any]) -> Value:
    return graph.initializers.get(name) or constant(graph, name, array)
