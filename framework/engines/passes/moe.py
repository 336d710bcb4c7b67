"""Mixtures of experts -> ONNX Runtime's grouped kernels: each token costs its own experts alone.

`MoE` in fp32, which also routes; `QMoE` for experts of 4 and 8 bits. The standard form computes all experts for every
token; `framework.nn.MoE` notes on its last node what stands behind it (`Mixture`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import onnx_ir as ir

from framework.engines.passes.rewrite import Graph, Node, Tensor, Value, initializer, remove_unused, take_over
from framework.engines.passes.weights import (
    BLOCK,
    Array,
    Quantised,
    block_size,
    blocks_of,
    carry_over,
    common_block,
    pack,
    round_blocks,
)
from framework.engines.pieces import Piece, PiecedTensor, pieces_of

DOMAIN = "com.microsoft"
NOTE = "mixture"  # key of a node's `meta`
CUTLASS_WIDTH = 128


@attrs.frozen(kw_only=True, eq=False)
class Mixture:
    """A mixture of gated MLPs: sum of share * down(silu(gate(x)) * up(x)) over each token's experts.

    Attributes:
        x: [n, hidden].
        logits: [n, experts], the router's.
        share: float32 [n, experts], zero but for the `top_k` chosen.
        gate, up: initializers [experts, intermediate, hidden].
        down: initializer [experts, hidden, intermediate].
        norm_topk: whether the chosen experts' probabilities are scaled to sum to one.
    """

    x: Value
    logits: Value
    share: Value
    gate: Value
    up: Value
    down: Value
    top_k: int
    norm_topk: bool


def _fp32(node: Node) -> bool:
    return node.outputs[0].dtype in (None, ir.DataType.FLOAT)


def group_experts(model: ir.Model, takes: Callable[[Node], bool] = _fp32) -> ir.Model:
    """Rewrite every mixture the backend takes; comes before the passes that change what it is made of."""
    graph = model.graph
    bits = {"int4": 4, "int8": 8}.get(model.metadata_props.get("precision", ""), 0)
    found = [node for node in graph if NOTE in node.meta and takes(node)]
    for node in found:
        mixture: Mixture = node.meta[NOTE]
        block = math.gcd(block_size(model), *(int(width) for width in mixture.gate.shape[1:]))
        grouped = _quantised(graph, mixture, bits, block) if bits and block >= BLOCK else _plain(graph, mixture)
        graph.insert_before(node, grouped)
        take_over(node.outputs[0], grouped.outputs[0])
    if found:
        graph.opset_imports[DOMAIN] = 1
        remove_unused(graph)
    return model


def group_experts_cuda(model: ir.Model) -> ir.Model:
    """The same, and those of fp16 whose widths its kernel (CUTLASS) takes: others fail when they run."""

    def takes(node: Node) -> bool:
        wide = all(int(width) % CUTLASS_WIDTH == 0 for width in node.meta[NOTE].gate.shape[1:])
        return _fp32(node) or (wide and node.outputs[0].dtype == ir.DataType.FLOAT16)

    return group_experts(model, takes)


def _settings(mixture: Mixture) -> dict[str, Any]:
    # silu(gate) * up, the rows of both interleaved, without the clamps and the bias of other models' kind
    activation = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
    return {"k": mixture.top_k, **activation}


def _plain(graph: Graph, mixture: Mixture) -> Node:
    gate, up = mixture.gate.const_value, mixture.up.const_value
    pieces = [partial(_interleaved, *pair) for pair in zip(pieces_of(gate), pieces_of(up), strict=True)]
    both = PiecedTensor(pieces, gate.dtype, (gate.shape[0], 2 * gate.shape[1], gate.shape[2]))
    values = [initializer(graph, _packed_name(mixture), both), None, mixture.down]
    settings = {**_settings(mixture), "normalize_routing_weights": int(mixture.norm_topk)}
    return ir.node("MoE", [mixture.x, mixture.logits, *values], settings, domain=DOMAIN)


def _quantised(graph: Graph, mixture: Mixture, bits: int, block: int) -> Node:
    weights = [value.const_value for value in (mixture.gate, mixture.up, mixture.down)]
    carried = [_carried(weight, bits) for weight in weights]
    block = common_block(carried, block)
    gate, up, down = (_experts(*pair, bits, block) for pair in zip(weights, carried, strict=True))
    both = [partial(_interleaved_blocks, *pair) for pair in zip(gate, up, strict=True)]
    _, rows, width = mixture.gate.shape
    first = _stored(graph, _packed_name(mixture), both, (2 * rows, width), bits, block)
    second = _stored(graph, mixture.down.name, down, (width, rows), bits, block)
    inputs = [
        *(mixture.x, mixture.share),
        *(first[0], first[1], None),
        *(second[0], second[1], None),
        *(None, None, None),
        *(first[2], second[2], None),
        mixture.share,  # chosen by it and weighted by it: its zeros are never chosen, or add nothing
    ]
    settings = {
        **_settings(mixture),
        "normalize_routing_weights": 0,
        "expert_weight_bits": bits,
        "block_size": block,
        "accuracy_level": 4,
    }
    return ir.node("QMoE", inputs, settings, domain=DOMAIN)


def _packed_name(mixture: Mixture) -> str:
    return f"{mixture.gate.name}+{mixture.up.name.rsplit('.', 1)[-1]}"


def _interleaved(gate: Piece, up: Piece) -> Array:
    """[experts, n, k] twice -> [experts, 2n, k], a row of one and a row of the other."""
    rows = np.stack([gate(), up()], axis=2)
    return rows.reshape(len(rows), -1, rows.shape[-1])


Blocks = Callable[[], Quantised]  # those of one expert


def _interleaved_blocks(gate: Blocks, up: Blocks) -> Quantised:
    a, b = gate(), up()
    fields = ("quants", "scales", "zeros")
    pairs = {name: np.stack([getattr(a, name), getattr(b, name)], axis=1) for name in fields}
    return Quantised(**{name: pair.reshape(-1, pair.shape[-1]) for name, pair in pairs.items()})


def _carried(tensor: Tensor, bits: int) -> Quantised | None:
    """The checkpoint's blocks of all experts, [experts * n, k], where it has them and they fit."""
    blocks = blocks_of(tensor)
    carried = carry_over(blocks and _as_rows(blocks, int(tensor.shape[2])), bits)
    return None if carried is None or carried.offsets is not None else carried


def _experts(tensor: Tensor, carried: Quantised | None, bits: int, block: int) -> Sequence[Blocks]:
    """The blocks of each expert."""
    experts, n, k = (int(dim) for dim in tensor.shape)
    if carried is not None:
        return [partial(_rows, carried, n * expert, n * (expert + 1)) for expert in range(experts)]
    pieces = pieces_of(tensor)
    if len(pieces) != experts:
        pieces = [partial(tensor.numpy().__getitem__, expert) for expert in range(experts)]
    return [partial(_rounded, piece, (n, k), bits, block) for piece in pieces]


def _rounded(piece: Piece, shape: tuple[int, int], bits: int, block: int) -> Quantised:
    return round_blocks(piece().reshape(shape).astype(np.float32), bits, block)


def _rows(weight: Quantised, start: int, stop: int) -> Quantised:
    rows = slice(start, stop)
    return Quantised(quants=weight.quants[rows], scales=weight.scales[rows], zeros=weight.zeros[rows])


def _as_rows(blocks: Any, k: int) -> Any:
    mins = None if blocks.mins is None else blocks.mins.reshape(-1, k // BLOCK)
    return attrs.evolve(
        blocks, quants=blocks.quants.reshape(-1, k), scales=blocks.scales.reshape(-1, k // BLOCK), mins=mins
    )


def _stored(
    graph: Graph, name: str, experts: Sequence[Blocks], shape: tuple[int, int], bits: int, block: int
) -> list[Value]:
    """Quants, scales and zero points of all experts as initializers; made together, while the first is written."""
    parts = [_Parts(blocks, bits) for blocks in experts]
    n, k = shape
    columns = k // block
    shapes = {
        f"q{bits}": (ir.DataType.UINT8, k * bits // 8, [part.quants for part in parts]),
        "scale": (ir.DataType.FLOAT, columns, [part.scales for part in parts]),
        "zero": (ir.DataType.UINT8, -(-columns * bits // 8), [part.zeros for part in parts]),
    }
    return [
        initializer(graph, f"{name}.{suffix}", PiecedTensor(pieces, dtype, (len(parts), n, width)))
        for suffix, (dtype, width, pieces) in shapes.items()
    ]


class _Parts:
    """The three tensors of one expert. Scales and zero points are kept from when the quants are made until they are
    taken themselves; who asks out of order has them made again."""

    def __init__(self, blocks: Blocks, bits: int) -> None:
        self._blocks, self._bits = blocks, bits
        self._kept: dict[str, Array] = {}

    def quants(self) -> Array:
        made = self._blocks()
        self._kept = {"scales": made.scales, "zeros": pack(made.zeros, self._bits)}
        return pack(made.quants, self._bits)[None]

    def scales(self) -> Array:
        return self._take("scales")[None]

    def zeros(self) -> Array:
        return self._take("zeros")[None]

    def _take(self, name: str) -> Array:
        if name not in self._kept:
            self.quants()
        return self._kept.pop(name)
