"""How weights are stored: 4 and 8 bits in blocks (MatMulNBits, GatherBlockQuantized), or 16 bits.

Activations stay fp32 on the CPU. Blocks of 32 that a checkpoint brings quantised are carried over; where the operator's
integer zero point cannot hold a block's own minimum, the minimum is rounded to it (see `carry_over`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from framework.engines.passes.rewrite import constant, initializer, remove_unused, take_over, transposed_weight

BLOCK = 32
DOMAIN = "com.microsoft"
Array = np.ndarray[Any, Any]
Quantised = tuple[Array, Array, Array | None]  # quants uint8 [n, k], scales float32 [n, k/32], zero points uint8 or None


def store_weights(model: ir.Model) -> ir.Model:
    """Apply the precision named in the model's metadata to its linear layers and its embedding."""
    precision = model.metadata_props.get("precision", "fp32")
    if precision in ("int4", "int8"):
        _quantise(model.graph, bits=4 if precision == "int4" else 8)
        model.graph.opset_imports[DOMAIN] = 1
        remove_unused(model.graph)
    elif precision in ("fp16", "bf16"):
        _halve(model.graph, ir.DataType.FLOAT16 if precision == "fp16" else ir.DataType.BFLOAT16)
    return model


def _halve(graph: ir.Graph, dtype: ir.DataType) -> None:
    """Every matrix is stored in 16 bits and widened when the engine loads: the CPU computes in fp32."""
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        half = ir.LazyTensor(
            lambda tensor=tensor: ir.tensor(tensor.numpy().astype(dtype.numpy())), dtype=dtype, shape=tensor.shape
        )
        stored = initializer(graph, f"{value.name}.half", half)
        cast = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT})
        value.replace_all_uses_with(cast.outputs[0])
        graph.insert_before(graph[0], cast)
        del graph.initializers[value.name]


def _quantise(graph: ir.Graph, bits: int) -> None:
    tables = {
        node.inputs[0]: node
        for node in graph
        if node.op_type == "Gather" and node.inputs[0].is_initializer() and len(node.inputs[0].shape) == 2
    }
    stored: dict[ir.Value, list[ir.Value]] = {}
    for node in list(graph):
        weight = transposed_weight(node) if node.op_type == "MatMul" else None
        if weight is None or weight.shape[1] % BLOCK:
            continue
        # A table that is also the output layer keeps 8 bits: both read the same bytes.
        wide = 8 if weight in tables else bits
        if weight not in stored:
            stored[weight] = _initializers(graph, weight.name, quantise(weight.const_value, wide), wide)
        n, k = (int(dim) for dim in weight.shape)
        matmul = ir.node(
            "MatMulNBits",
            [node.inputs[0], *stored[weight]],
            {"K": k, "N": n, "bits": wide, "block_size": BLOCK, "accuracy_level": 4},
            domain=DOMAIN,
            name=node.name,
        )
        graph.insert_before(node, matmul)
        take_over(node.outputs[0], matmul.outputs[0])
        graph.remove(node, safe=True)
    for weight, gather in tables.items():
        if weight.shape[1] % BLOCK:
            continue
        if weight not in stored:
            stored[weight] = _initializers(graph, weight.name, quantise(weight.const_value, 8), 8)
        # The lookup reads the output layer's own blocks, [entries, blocks, 32]; only scales come in a second shape.
        width = int(weight.shape[1])
        scales = [_column(graph, value) for value in stored[weight][1:]]
        lookup = ir.node(
            "GatherBlockQuantized",
            [stored[weight][0], gather.inputs[1], *scales],
            {"gather_axis": 0, "quantize_axis": 2, "block_size": BLOCK, "bits": 8},
            domain=DOMAIN,
            name=gather.name,
        )
        shape = constant(graph, f"{weight.name}.row", np.array([0, 0, width], np.int64))
        rows = ir.node("Reshape", [lookup.outputs[0], shape])  # [batch, tokens, blocks, 32] -> [batch, tokens, width]
        graph.insert_before(gather, [lookup, rows])
        take_over(gather.outputs[0], rows.outputs[0])
        graph.remove(gather, safe=True)


def _column(graph: ir.Graph, value: ir.Value) -> ir.Value:
    return constant(graph, f"{value.name}.column", value.const_value.numpy()[..., None])


def _initializers(graph: ir.Graph, name: str, quantised: Quantised, bits: int) -> list[ir.Value]:
    quants, scales, zeros = quantised
    n, k = quants.shape
    packed = pack(quants, bits).reshape(n, k // BLOCK, BLOCK * bits // 8)
    values = [
        initializer(graph, f"{name}.q{bits}", ir.tensor(packed)),
        initializer(graph, f"{name}.scale", ir.tensor(scales)),
    ]
    if zeros is not None:
        values.append(initializer(graph, f"{name}.zero", ir.tensor(pack(zeros, bits))))
    return values


def pack(values: Array, bits: int) -> Array:
    """uint8 [n, m] -> [n, m * bits / 8]; two 4-bit values a byte, the first in the low half, an odd row padded."""
    if bits == 8:
        return values
    if values.shape[1] % 2:
        values = np.pad(values, ((0, 0), (0, 1)))
    return values[:, 0::2] | (values[:, 1::2] << 4)


def quantise(tensor: ir.TensorProtocol, bits: int) -> Quantised:
    """Blocks of a weight [n, k]: carried over where the checkpoint has them, else rounded here."""
    if parts := tensor.meta.get("parts"):
        done = [quantise(part, bits) for part in parts]
        if all(zeros is None for _, _, zeros in done):
            return np.concatenate([q for q, _, _ in done]), np.concatenate([s for _, s, _ in done]), None
        default = 1 << (bits - 1)
        zeros = [np.full(s.shape, default, np.uint8) if z is None else z for _, s, z in done]
        return np.concatenate([q for q, _, _ in done]), np.concatenate([s for _, s, _ in done]), np.concatenate(zeros)
    blocks = tensor.meta["blocks"]() if "blocks" in tensor.meta else None
    carried = carry_over(blocks, bits) if blocks is not None else None
    if carried is not None:
        return carried
    values = tensor.numpy().astype(np.float32)
    return round_blocks(values, bits)


def carry_over(blocks: Any, bits: int) -> Quantised | None:
    """Blocks of 32 of a checkpoint (Q4_0, Q4_1, Q8_0) as the operator wants them; None where they do not fit.

    Q4_0 and Q8_0 are carried exactly. Q4_1 is q * scale + min; the operator has (q - zero) * scale with an integer
    zero. In 8 bits the scale is divided by 16, so the minimum moves by at most a 32nd of the old step; in 4 bits by at
    most half of it.
    """
    scales = blocks.scales.astype(np.float32)
    if blocks.format == "Q8_0" and bits == 8:
        return (blocks.quants.astype(np.int16) + 128).astype(np.uint8), scales, None
    if blocks.format == "Q4_0":
        if bits == 4:
            return blocks.quants, scales, None
        return (blocks.quants.astype(np.int16) + 120).astype(np.uint8), scales, None
    if blocks.format == "Q4_1":
        factor = 16 if bits == 8 else 1
        top = 255 if bits == 8 else 15
        step = scales / factor
        with np.errstate(divide="ignore", invalid="ignore"):
            zeros = -blocks.mins.astype(np.float32) / step  # not finite for a block of one value
        inside = (step > 0) & (zeros >= 0) & (zeros <= top)
        if not inside.all():  # a block whose values all have one sign: round that block alone, from its values
            return _mixed(blocks, bits, step, zeros, inside, factor)
        return blocks.quants * np.uint8(factor), step, np.rint(zeros).astype(np.uint8)
    return None


def _mixed(blocks: Any, bits: int, step: Array, zeros: Array, inside: Array, factor: int) -> Quantised:
    n, k = blocks.quants.shape
    values = blocks.quants.reshape(n, -1, BLOCK) * blocks.scales.astype(np.float32)[..., None]
    values = (values + blocks.mins.astype(np.float32)[..., None]).reshape(n, k)
    quants, scales, own = round_blocks(values, bits)
    take = np.repeat(inside, BLOCK, axis=1)
    return (
        np.where(take, blocks.quants * np.uint8(factor), quants),
        np.where(inside, step, scales),
        np.where(inside, np.rint(np.where(inside, zeros, 0)), own).astype(np.uint8),
    )


def round_blocks(values: Array, bits: int) -> Quantised:
    """Nearest rounding of float32 [n, k] in blocks of 32, asymmetric: every block's range, zero included."""
    n, k = values.shape
    blocked = values.reshape(n, k // BLOCK, BLOCK)
    low = np.minimum(blocked.min(axis=2), 0.0)
    high = np.maximum(blocked.max(axis=2), 0.0)
    top = (1 << bits) - 1
    scale = (high - low) / top
    safe = np.where(scale > 0, scale, 1.0)
    zero = np.clip(np.rint(-low / safe), 0, top)
    quants = np.clip(np.rint(blocked / safe[..., None]) + zero[..., None], 0, top).astype(np.uint8)
    return quants.reshape(n, k), safe.astype(np.float32), zero.astype(np.uint8)
