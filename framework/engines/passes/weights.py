"""How weights are stored: 4 and 8 bits in blocks (MatMulNBits, GatherBlockQuantized), or 16 bits.

Activations stay fp32 on the CPU. Blocks of 32 that a checkpoint brings quantised are carried over, not rounded again
(`carry_over`). What is rounded here goes in blocks of the size that the model's metadata names (`block_size`): larger
ones are quicker, for every block has a scale to read and to multiply by, and coarser.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np
import onnx_ir as ir

from framework.engines.passes.rewrite import (
    Graph,
    Node,
    Tensor,
    Value,
    constant,
    initializer,
    producer,
    remove_unused,
    take_over,
    transposed_weight,
)
from framework.engines.pieces import mapped

BLOCK = 32  # values of a row that share a scale: the smallest size, that of GGUF files, and the default
_STRIP = 1 << 16  # values that are rounded at a time: they stay in the cache
DOMAIN = "com.microsoft"
_TABLE_READERS = ("RotaryEmbedding", "GroupQueryAttention")  # what they read is computed, not a weight: it stays exact
Array = np.ndarray[Any, Any]


@attrs.frozen(kw_only=True, eq=False)
class Quantised:
    """A weight [n, k] in blocks of a row's neighbours: w = (quants - zeros) * scales + offsets.

    Attributes:
        quants: uint8 [n, k].
        scales: float32 [n, k / block].
        zeros: uint8 [n, k / block].
        offsets: float32 [n, k / block], what an integer zero point cannot hold of a block's minimum; None when nothing.
    """

    quants: Array
    scales: Array
    zeros: Array
    offsets: Array | None = None

    @property
    def block(self) -> int:
        return int(self.quants.shape[1] // self.scales.shape[1])


def store_weights(model: ir.Model) -> ir.Model:
    """Apply the precision named in the model's metadata to its linear layers and its embedding."""
    precision = model.metadata_props.get("precision", "fp32")
    if precision in ("int4", "int8"):
        _quantise(model.graph, bits=4 if precision == "int4" else 8, block=block_size(model))
        model.graph.opset_imports[DOMAIN] = 1
        remove_unused(model.graph)
    elif precision in ("fp16", "bf16"):
        _halve(model.graph, ir.DataType.FLOAT16 if precision == "fp16" else ir.DataType.BFLOAT16)
    return model


def block_size(model: ir.Model) -> int:
    """Values that share a scale where weights are rounded."""
    return int(model.metadata_props.get("block_size", BLOCK))


def _halve(graph: Graph, dtype: ir.DataType) -> None:
    """Every matrix is stored in 16 bits and widened when the engine loads: the CPU computes in fp32."""
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        if any(use.node.op_type in _TABLE_READERS for use in value.uses()):
            continue
        half = mapped(tensor, lambda array: array.astype(dtype.numpy()), dtype)
        stored = initializer(graph, f"{value.name}.half", half)
        cast = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT})
        value.replace_all_uses_with(cast.outputs[0])
        graph.insert_before(graph[0], cast)
        del graph.initializers[value.name]


def _quantise(graph: Graph, bits: int, block: int) -> None:
    tables: dict[Value, list[Node]] = defaultdict(list)
    for node in graph:
        if node.op_type == "Gather" and node.inputs[0].is_initializer() and len(node.inputs[0].shape) == 2:
            tables[node.inputs[0]].append(node)
    stored: dict[Value, list[Value]] = {}
    rounded: dict[Value, Quantised] = {}  # a weight may be used by many nodes
    for node in list(graph):
        weight = transposed_weight(node) if node.op_type == "MatMul" else None
        if weight is None or weight.shape[1] % BLOCK:
            continue
        # A table that is also the output layer keeps 8 bits: both read the same bytes.
        wide = 8 if weight in tables else bits
        x, n, k = node.inputs[0], int(weight.shape[0]), int(weight.shape[1])
        if weight not in rounded:
            rounded[weight] = quantise(weight.const_value, wide, block)
        quantised = rounded[weight]
        carried = quantised.offsets is not None
        if carried:
            k += quantised.scales.shape[1]
            x, quantised = _append_sums(graph, node, quantised, wide)
        values = stored.get(weight) or _initializers(graph, weight.name, quantised, wide)
        stored[weight] = values
        matmul = ir.node(
            "MatMulNBits",
            [x, *values],
            {
                **{"K": k, "N": n, "bits": wide, "block_size": quantised.block},
                "accuracy_level": _accuracy(node, wide, carried),
            },
            domain=DOMAIN,
            name=node.name,
        )
        graph.insert_before(node, matmul)
        take_over(node.outputs[0], matmul.outputs[0])
        graph.remove(node, safe=True)
    for weight, gathers in tables.items():
        if weight.shape[1] % BLOCK == 0:
            values = stored.get(weight) or _initializers(graph, weight.name, quantise(weight.const_value, 8, block), 8)
            for gather in gathers:
                _look_up(graph, gather, values, width=int(weight.shape[1]))


def _accuracy(node: Node, bits: int, carried: bool) -> int:
    """4 rounds activations to 8 bits in blocks, 1 leaves them fp32.

    Where weights were carried over as they were (`carried`), activations around attention stay fp32: that halves
    SmolLM2's KL divergence from fp32 and reads a prompt a tenth faster, and a step of one row costs the same. Weights
    rounded here lose more than activations could, and steps of several rows are a sixth faster. With 8-bit weights the
    kernel for it is slow.
    """
    behind = producer(node.inputs[0], "GroupQueryAttention") is not None
    before = any(_attends(use.node) for use in node.outputs[0].uses())
    return 1 if bits == 4 and carried and (behind or before) else 4


def _attends(node: Node) -> bool:
    """Whether a node is attention, or splits or normalises what goes there."""
    if node.op_type == "GroupQueryAttention":
        return True
    if node.op_type not in ("Split", "Reshape", "RMSNormalization", "Add"):
        return False
    return any(_attends(use.node) for output in node.outputs for use in output.uses())


def _append_sums(graph: Graph, node: Node, weight: Quantised, bits: int) -> tuple[Value, Quantised]:
    """Let the product itself add the offsets: x W' = [x, sums of x by block] [W, offsets]'.

    The offsets are at most half a step, and are rounded in blocks of their own: what is lost is a 30th of a step.
    """
    assert weight.offsets is not None
    k, blocks = weight.quants.shape[1], weight.scales.shape[1]
    name = f"blocks_of.{k}"
    if (members := graph.initializers.get(name)) is None:
        members = constant(graph, name, np.repeat(np.eye(blocks, dtype=np.float32), weight.block, axis=0))
    sums = ir.node("MatMul", [node.inputs[0], members])  # [..., k] -> [..., blocks]
    both = ir.node("Concat", [node.inputs[0], sums.outputs[0]], {"axis": -1})
    graph.insert_before(node, [sums, both])
    extra = round_blocks(np.pad(weight.offsets, ((0, 0), (0, -blocks % weight.block))), bits, weight.block)
    joined = Quantised(
        quants=np.concatenate([weight.quants, extra.quants], axis=1),
        scales=np.concatenate([weight.scales, extra.scales], axis=1),
        zeros=np.concatenate([weight.zeros, extra.zeros], axis=1),
    )
    return both.outputs[0], joined


def _look_up(graph: Graph, gather: Node, values: list[Value], width: int) -> None:
    """Rows of a table out of the output layer's own blocks, [entries, blocks, size]; only scales and zeros are stored
    in a second shape."""
    columns = [
        graph.initializers.get(f"{value.name}.column")
        or constant(graph, f"{value.name}.column", value.const_value.numpy()[..., None])
        for value in values[1:]
    ]
    lookup = ir.node(
        "GatherBlockQuantized",
        [values[0], gather.inputs[1], *columns],
        {"gather_axis": 0, "quantize_axis": 2, "block_size": int(values[0].shape[2]), "bits": 8},
        domain=DOMAIN,
        name=gather.name,
    )
    name = f"{values[0].name}.row"
    shape = graph.initializers.get(name) or constant(graph, name, np.array([0, 0, width], np.int64))
    rows = ir.node("Reshape", [lookup.outputs[0], shape])  # [batch, tokens, blocks, size] -> [batch, tokens, width]
    graph.insert_before(gather, [lookup, rows])
    take_over(gather.outputs[0], rows.outputs[0])
    graph.remove(gather, safe=True)


def _initializers(graph: Graph, name: str, weight: Quantised, bits: int) -> list[Value]:
    n = len(weight.quants)
    packed = pack(weight.quants, bits).reshape(n, -1, weight.block * bits // 8)
    values = [
        initializer(graph, f"{name}.q{bits}", ir.tensor(packed)),
        initializer(graph, f"{name}.scale", ir.tensor(weight.scales)),
    ]
    if (weight.zeros != 1 << (bits - 1)).any():  # the operator's own zero point
        values.append(initializer(graph, f"{name}.zero", ir.tensor(pack(weight.zeros, bits))))
    return values


def pack(values: Array, bits: int) -> Array:
    """uint8 [n, m] -> [n, m * bits / 8]; two 4-bit values a byte, the first in the low half, an odd row padded."""
    if bits == 8:
        return values
    if values.shape[1] % 2:
        values = np.pad(values, ((0, 0), (0, 1)))
    packed: Array = values[:, 0::2] | (values[:, 1::2] << 4)
    return packed


def quantise(tensor: Tensor, bits: int, block: int = BLOCK) -> Quantised:
    """Blocks of a weight [n, k]: carried over where the checkpoint has them, else rounded here, in blocks of `block` or
    of the largest power of two that divides both it and k."""
    parts = tensor.meta.get("parts", [tensor])
    carried = [carry_over(blocks_of(part), bits) for part in parts]
    block = math.gcd(common_block(carried, block), int(tensor.shape[1]))
    done = [
        blocks or round_blocks(part.numpy().astype(np.float32), bits, block)
        for part, blocks in zip(parts, carried, strict=True)
    ]
    if len(done) == 1:
        return done[0]
    offsets = None
    if any(part.offsets is not None for part in done):
        offsets = np.concatenate([np.zeros_like(p.scales) if p.offsets is None else p.offsets for p in done])
    return Quantised(
        quants=np.concatenate([part.quants for part in done]),
        scales=np.concatenate([part.scales for part in done]),
        zeros=np.concatenate([part.zeros for part in done]),
        offsets=offsets,
    )


def blocks_of(tensor: Tensor) -> Any:
    """The checkpoint's own blocks of a weight, or None."""
    return tensor.meta["blocks"]() if "blocks" in tensor.meta else None


def common_block(carried: Iterable[Quantised | None], block: int) -> int:
    """Size of the blocks of weights that are stored as one: the checkpoint's, where any of them is carried over."""
    return BLOCK if any(weight is not None for weight in carried) else block


CARRIED = {8: ("Q4_0", "Q4_1", "Q8_0"), 4: ("Q4_0", "Q4_1")}  # bits of the operator -> formats that `carry_over` takes


def carry_over(blocks: Any, bits: int) -> Quantised | None:
    """Blocks of 32 of a checkpoint (Q4_0, Q4_1, Q8_0) as the operator wants them; None where there are none that fit.

    Q4_0 and Q8_0 have a zero point of their own kind and are exact. Q4_1 is q * scale + min, where the operator has
    (q - zero) * scale with an integer zero: in 4 bits what is over goes to `offsets`; in 8 bits the scale is divided by
    16, so that rounding the zero moves a block by at most a 32nd of its old step.
    """
    if blocks is None:
        return None
    scales = blocks.scales.astype(np.float32)
    if blocks.format == "Q8_0" and bits == 8:
        return _exact(blocks.quants.astype(np.int16) + 128, scales, zero=128)
    if blocks.format == "Q4_0":
        return _exact(blocks.quants.astype(np.int16) + (1 << (bits - 1)) - 8, scales, zero=1 << (bits - 1))
    if blocks.format != "Q4_1":
        return None
    factor, top = (16, 255) if bits == 8 else (1, 15)
    mins, step = blocks.mins.astype(np.float32), scales / factor
    zeros = np.rint(np.clip(-mins / np.where(step > 0, step, 1), 0, top))
    offsets = mins + zeros * step
    far = np.abs(offsets) > step * 0.501  # blocks whose range does not reach zero
    if bits == 8 and far.any():
        return None
    carried = Quantised(
        quants=blocks.quants * np.uint8(factor),
        scales=step,
        zeros=zeros.astype(np.uint8),
        offsets=offsets if bits == 4 else None,
    )
    return _with_rounded(carried, far) if far.any() else carried


def _with_rounded(weight: Quantised, far: Array) -> Quantised:
    """The weight with some of its blocks rounded anew: their large offsets would coarsen those of their neighbours."""
    assert weight.offsets is not None
    n, k = weight.quants.shape
    blocked = weight.quants.reshape(n, -1, BLOCK).astype(np.float32) - weight.zeros[..., None]
    values = blocked * weight.scales[..., None] + weight.offsets[..., None]
    rounded = round_blocks(values.reshape(n, k), 4)
    return Quantised(
        quants=np.where(np.repeat(far, BLOCK, axis=1), rounded.quants, weight.quants),
        scales=np.where(far, rounded.scales, weight.scales),
        zeros=np.where(far, rounded.zeros, weight.zeros),
        offsets=np.where(far, 0, weight.offsets),
    )


def _exact(quants: Array, scales: Array, *, zero: int) -> Quantised:
    return Quantised(quants=quants.astype(np.uint8), scales=scales, zeros=np.full(scales.shape, zero, np.uint8))


def round_blocks(values: Array, bits: int, block: int = BLOCK) -> Quantised:
    """Nearest rounding of float32 [n, k] in blocks, asymmetric: every block's range, zero included."""
    n, k = values.shape
    top = np.float32((1 << bits) - 1)
    blocked = values.reshape(-1, block)
    quants = np.empty(blocked.shape, np.uint8)
    scales, zeros = np.empty(len(blocked), np.float32), np.empty(len(blocked), np.uint8)
    for start in range(0, len(blocked), _STRIP // block):
        strip = slice(start, start + _STRIP // block)
        x = np.ascontiguousarray(blocked[strip].T)  # a block a column: long rows to compute with
        low, high = np.minimum(x.min(axis=0), 0), np.maximum(x.max(axis=0), 0)
        scale = (high - low) / top
        scale[scale == 0] = 1
        zero = np.clip(np.rint(-low / scale), 0, top)
        np.rint(np.divide(x, scale, out=x), out=x)
        quants[strip] = np.clip(np.add(x, zero, out=x), 0, top, out=x).astype(np.uint8).T
        scales[strip], zeros[strip] = scale, zero
    shape = (n, k // block)
    return Quantised(quants=quants.reshape(n, k), scales=scales.reshape(shape), zeros=zeros.reshape(shape))
