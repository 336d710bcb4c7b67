"""How weights are stored in fewer bits: blocks of a checkpoint carried over, and what is rounded by how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import onnx_ir as ir
import pytest
from gguf import GGMLQuantizationType as Type

from framework.checkpoints.tensor import Blocks
from framework.engines.passes.weights import BLOCK, Quantised, carry_over, pack, quantise, round_blocks, store_weights
from tests.engines.passes.running import decoder, decoder_feeds, run, tiny_model

WEIGHT = np.random.default_rng(2).standard_normal((6, 96)).astype(np.float32)
Array = np.ndarray[Any, Any]


def blocks_of(weight: Array, kind: Type) -> tuple[Blocks, Array]:
    """Blocks as a GGUF file has them, and the weight they stand for."""
    raw = gguf.quants.quantize(weight, kind)
    rows = raw.reshape(len(weight), weight.shape[1] // BLOCK, -1)
    fields = 2 if kind == Type.Q4_1 else 1
    halves = np.ascontiguousarray(rows[..., : 2 * fields]).view(np.float16)
    tail = rows[..., 2 * fields :]
    quants = tail.view(np.int8) if kind == Type.Q8_0 else np.concatenate([tail & 15, tail >> 4], axis=-1)
    mins = halves[..., 1] if fields == 2 else None
    blocks = Blocks(format=kind.name, quants=quants.reshape(weight.shape), scales=halves[..., 0], mins=mins)
    return blocks, gguf.quants.dequantize(raw, kind)


def value_of(weight: Quantised, bits: int) -> Array:
    """(q - zero) * scale + offset."""
    assert weight.quants.dtype == np.uint8 and weight.scales.dtype == np.float32 and weight.quants.max() < 1 << bits
    q = weight.quants.reshape(*weight.scales.shape, -1).astype(np.float32)
    blocks = (q - weight.zeros[..., None].astype(np.float32)) * weight.scales[..., None]
    if weight.offsets is not None:
        blocks = blocks + weight.offsets[..., None]
    return np.asarray(blocks.reshape(weight.quants.shape))


# Carried over


@pytest.mark.parametrize(
    ("kind", "bits"), [(Type.Q8_0, 8), (Type.Q4_0, 8), (Type.Q4_0, 4)], ids=["Q8_0 in 8", "Q4_0 in 8", "Q4_0 in 4"]
)
def test_symmetric_blocks_are_carried_over_exactly(kind: Type, bits: int) -> None:
    blocks, weight = blocks_of(WEIGHT, kind)
    carried = carry_over(blocks, bits)
    assert carried is not None and carried.offsets is None
    np.testing.assert_array_equal(value_of(carried, bits), weight)


def test_q4_1_in_8_bits_moves_by_a_32nd_of_its_step_as_one_block() -> None:
    blocks, weight = blocks_of(WEIGHT, Type.Q4_1)
    carried = carry_over(blocks, 8)
    assert carried is not None and carried.offsets is None
    moved = (value_of(carried, 8) - weight).reshape(6, -1, BLOCK)
    assert (np.abs(moved) <= blocks.scales.astype(np.float32)[..., None] * (1 / 32 + 1e-4)).all()
    assert np.ptp(moved, axis=-1).max() < 1e-5, "no second rounding"


def test_q4_1_in_4_bits_keeps_its_minimum_in_offsets() -> None:
    blocks, weight = blocks_of(WEIGHT, Type.Q4_1)
    carried = carry_over(blocks, 4)
    assert carried is not None and carried.offsets is not None
    np.testing.assert_array_equal(carried.quants, blocks.quants)
    np.testing.assert_allclose(value_of(carried, 4), weight, atol=1e-6)
    assert (np.abs(carried.offsets) <= blocks.scales.astype(np.float32) / 2 * 1.001).all()


def test_q8_0_is_not_carried_over_to_4_bits() -> None:
    assert carry_over(blocks_of(WEIGHT, Type.Q8_0)[0], 4) is None


def tensor(weight: Array, blocks: Blocks | None = None) -> ir.Tensor:
    made = ir.tensor(weight)
    made.meta["blocks"] = lambda: blocks
    return made


def test_packed_parts_are_quantised_one_by_one() -> None:
    """Blocks of a carried-over part stay exact beside a part that has none."""
    blocks, exact = blocks_of(WEIGHT, Type.Q4_0)
    packed = ir.tensor(np.concatenate([exact, WEIGHT]))
    packed.meta["parts"] = [tensor(exact, blocks), tensor(WEIGHT)]
    value = value_of(quantise(packed, 4), 4)
    np.testing.assert_array_equal(value[:6], exact)
    np.testing.assert_array_equal(value[6:], value_of(round_blocks(WEIGHT, 4), 4))


def test_packed_parts_have_blocks_of_one_size() -> None:
    """Those of the checkpoint's, where one part is carried over."""
    wide = np.tile(WEIGHT, (1, 4))
    packed = ir.tensor(np.concatenate([wide, wide]))
    packed.meta["parts"] = [tensor(wide), tensor(wide)]
    assert quantise(packed, 4, block=128).block == 128
    packed.meta["parts"] = [tensor(wide, blocks_of(wide, Type.Q4_0)[0]), tensor(wide)]
    assert quantise(packed, 4, block=128).block == 32


FAR: dict[str, Callable[[Array], Any]] = {
    "no block": lambda w: None,
    "one block all positive": lambda w: w[0, :BLOCK].__iadd__(3.0),
    "one block all negative": lambda w: w[5, -BLOCK:].__isub__(3.0),
    "one block of one value": lambda w: w[2, BLOCK : 2 * BLOCK].fill(2.5),
    "one block of zeros": lambda w: w[2, BLOCK : 2 * BLOCK].fill(0.0),
    "all blocks": lambda w: w.__iadd__(4.0),
}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("change", FAR.values(), ids=FAR)
def test_what_an_engine_holds_of_q4_1(change: Callable[[Array], Any], bits: int) -> None:
    """Also of blocks that an integer zero cannot reach: no worse than rounding the same weight here, block by block,
    and the blocks beside them no worse than a 16th of their step."""
    weight = (WEIGHT * 0.3).copy()
    change(weight)
    blocks, exact = blocks_of(weight, Type.Q4_1)
    model, _ = tiny_model(width=96, inner=exact)
    inner = model.graph.initializers["inner.weight"].const_value
    assert inner is not None
    inner.meta["blocks"] = lambda: blocks
    model.metadata_props["precision"] = f"int{bits}"
    held = effective_weight(store_weights(model), "inner.weight", 96)
    error = np.abs(held - exact).reshape(6, -1, BLOCK).max(axis=-1)
    rounded = np.abs(value_of(round_blocks(exact, bits), bits) - exact).reshape(6, -1, BLOCK).max(axis=-1)
    sixteenth = blocks.scales.astype(np.float32) / 16
    far = (exact.reshape(6, -1, BLOCK).min(axis=-1) > 0) | (exact.reshape(6, -1, BLOCK).max(axis=-1) < 0)
    assert (error <= np.where(far, np.maximum(rounded, sixteenth), sixteenth) + 1e-6).all()


def effective_weight(model: ir.Model, name: str, k: int) -> Array:
    """[n, k] that a product with MatMulNBits amounts to; columns beyond k add to all columns of a block each."""
    values = {key: value.const_value.numpy() for key, value in model.graph.initializers.items() if value.const_value}
    bits = next(bits for bits in (4, 8) if f"{name}.q{bits}" in values)
    packed = values[f"{name}.q{bits}"]
    n, count = packed.shape[:2]

    def unpack(array: Array) -> Array:
        flat = array.reshape(n, -1)
        return flat if bits == 8 else np.stack([flat & 15, flat >> 4], axis=-1).reshape(n, -1)

    zeros = (
        unpack(values[f"{name}.zero"])[:, :count] if f"{name}.zero" in values else np.full((n, count), 1 << (bits - 1))
    )
    scales = values[f"{name}.scale"]
    q = unpack(packed).reshape(n, count, BLOCK).astype(np.float32)
    whole = ((q - zeros[..., None]) * scales[..., None]).reshape(n, -1)
    extra = whole[:, k : k + k // BLOCK]
    return np.asarray(whole[:, :k] + (np.repeat(extra, BLOCK, axis=1) if extra.shape[1] else 0))


# Rounded here


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offset", [0.0, 5.0, -5.0], ids=["both signs", "positive", "negative"])
def test_rounding_is_to_the_nearest_of_the_levels(bits: int, offset: float, block: int) -> None:
    weight = np.random.default_rng(3).standard_normal((6, 384)).astype(np.float32) + np.float32(offset)
    rounded = round_blocks(weight, bits, block)
    assert rounded.scales.shape == (6, 384 // block) and rounded.block == block
    error = np.abs(value_of(rounded, bits) - weight).reshape(6, -1, block)
    # Half a step, and for the ends of the range another half where the zero point was rounded.
    assert (error <= rounded.scales[..., None] * 1.0001).all()
    assert (error <= rounded.scales[..., None] * 0.5001).mean() > 0.9


def test_zeros_stay_zeros() -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[0, 3] = 1.5
    for bits in (4, 8):
        value = value_of(round_blocks(weight, bits), bits)
        np.testing.assert_allclose(value, weight, rtol=1e-6)


def test_four_bit_values_lie_two_to_a_byte_low_half_first() -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)
    np.testing.assert_array_equal(pack(values, 4), [[0x21, 0x03], [0x54, 0x06]])
    np.testing.assert_array_equal(pack(values, 8), values)


# In a network: an embedding, a linear layer, an output layer (own, or the embedding again)


@pytest.mark.parametrize(
    ("width", "asked", "block"),
    [(64, 32, 32), (64, 64, 64), (256, 128, 128), (96, 128, 32)],
    ids=["32", "64", "128", "no 128 in a row"],
)
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_network_computes_with_the_rounded_weights(
    bits: int, tied: bool, width: int, asked: int, block: int
) -> None:
    model, w = tiny_model(tied=tied, width=width)
    model.metadata_props.update(precision=f"int{bits}", block_size=str(asked))
    ids = np.array([[3, 0, 7]])
    found = run(store_weights(model), ids=ids)
    table = value_of(round_blocks(w["embed"], 8, block), 8)
    inner = value_of(round_blocks(w["inner"], bits, block), bits)
    head = table if tied else value_of(round_blocks(w["head"], bits, block), bits)
    x = table[ids] @ inner.T
    np.testing.assert_allclose(found["x"], x, atol=0.02 * np.abs(x).max())  # activations are rounded to 8 bits
    y = found["x"] @ head.T
    np.testing.assert_allclose(found["y"], y, atol=0.02 * np.abs(y).max())
    types = [node.op_type for node in model.graph]
    assert types.count("MatMulNBits") == 2 and "MatMul" not in types and "Gather" not in types


def test_a_width_that_is_no_multiple_of_a_block_stays_as_it_is() -> None:
    model, w = tiny_model(width=48)
    model.metadata_props["precision"] = "int4"
    ids = np.array([[1, 2]])
    x = w["embed"][ids] @ w["inner"].T
    np.testing.assert_allclose(run(store_weights(model), ids=ids)["x"], x, rtol=1e-5)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "FLOAT16"), ("bf16", "BFLOAT16")])
def test_16_bit_matrices_are_widened_and_computed_in_fp32(precision: str, dtype: str) -> None:
    model, w = tiny_model()
    model.metadata_props["precision"] = precision
    ids = np.array([[3, 0, 7]])
    found = run(store_weights(model), ids=ids)
    half = {name: weight.astype(ir.DataType[dtype].numpy()).astype(np.float32) for name, weight in w.items()}
    np.testing.assert_allclose(found["x"], half["embed"][ids] @ half["inner"].T, atol=1e-5)
    stored = {value.const_value.dtype for value in model.graph.initializers.values() if len(value.shape) > 1}
    assert stored == {ir.DataType[dtype]}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_rotary_tables_stay_exact(precision: str) -> None:
    model = decoder()
    model.metadata_props["precision"] = precision
    tables = [value for value in store_weights(model).graph.initializers.values() if "rotary" in (value.name or "")]
    assert len(tables) == 2
    assert {value.const_value.dtype for value in tables} == {ir.DataType.FLOAT}
    assert run(model, **decoder_feeds(model, past=0, tokens=3))["token"].shape == (2, 1)


def test_fp32_changes_nothing() -> None:
    model, _ = tiny_model()
    before = [node.op_type for node in model.graph], {n: v.const_value for n, v in model.graph.initializers.items()}
    model.metadata_props["precision"] = "fp32"
    model = store_weights(model)
    assert (
        [node.op_type for node in model.graph],
        {n: v.const_value for n, v in model.graph.initializers.items()},
    ) == before
