"""The decoder kernel's shape, its weights' order, and on a GPU its results against numpy."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from framework.engines.cuda.kernels.pack import packed, packed_matrix
from framework.engines.cuda.kernels.shape import DecoderShape
from framework.errors import ConfigError
from tests.engines.cuda.on_cpu import COMPILER, decoded, projected
from tests.engines.cuda.on_gpu import SMALL, Run, gpu
from tests.engines.cuda.reference import Reference, chosen, random_cache, random_inputs, random_weights


def test_what_the_kernel_cannot_do_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        attrs.evolve(SMALL["chunks"], heads=5, head_dim=48, vocab=50_000)
    assert [problem.where for problem in error.value.problems] == ["vocab", "head_dim", "heads"]


def test_a_call_of_the_published_predictor_reads_its_layers_for_every_code() -> None:
    shape = DecoderShape(
        layers=5, width=1024, heads=16, kv_heads=8, head_dim=128, mlp=3072, vocab=2048, capacity=17, prompt=2, steps=15
    )
    assert shape.weight_bytes == 15 * 2 * (5 * 1024 * (4096 + 2048 + 3 * 3072) + 1024 * 2048)
    assert shape.blocks(132) == 128  # no block has more than 4, 1, 6 and 1 tiles of a layer's matrices
    assert shape.most_rows == 4


def test_a_tile_is_eight_rows_of_32_columns_after_each_other() -> None:
    matrix = np.arange(10 * 40, dtype=np.float32).reshape(1, 10, 40)
    tiles = packed_matrix(matrix, "float16").view(np.float16)
    assert tiles.shape == (1, 2, 512 // 32, 8, 32)
    np.testing.assert_array_equal(tiles[0, 1, 0, 1], matrix[0, 9, :32])
    np.testing.assert_array_equal(tiles[0, 0, 1, 7, :8], matrix[0, 7, 32:40])
    assert not tiles[0, 1, :, 2:].any() and not tiles[0, :, 2:].any()  # rows and columns that were added


def test_weights_of_another_shape_are_named() -> None:
    shape = SMALL["chunks"]
    weights = attrs.evolve(random_weights(shape, 0), up=np.zeros((1, 2, 3), np.float16), norm_key=None)
    with pytest.raises(ValueError, match=r"up: got \(1, 2, 3\).*norm_key: got None"):
        packed(shape, weights)


def test_the_reference_chooses_as_the_sampler_does() -> None:
    scores = np.array([0.0, 2.0, 1.0, 2.0], np.float32)
    assert chosen(scores, 0.99, 0.0, 0, 1.0, 0.0) == 1  # greedy: the first of equals
    assert chosen(scores, 0.99, 1.0, 2, 1.0, 0.0) == 3
    assert chosen(scores, 0.99, 1.0, 0, 0.3, 0.0) == 1
    assert chosen(scores, 0.999, 1.0, 0, 1.0, 0.5) == 3
    assert chosen(scores, 0.999, 1.0, 0, 1.0, 0.0) == 0


cpu = pytest.mark.skipif(COMPILER is None, reason="no g++ to compile the kernels for the CPU with")


@cpu
@pytest.mark.parametrize(
    ("name", "rows", "past", "greedy"),
    [("codes", 1, 0, True), ("codes", 4, 0, False), ("chunks", 2, 130, False), ("tokens", 3, 64, False)],
)
def test_the_source_computes_what_numpy_computes(name: str, rows: int, past: int, greedy: bool) -> None:
    shape = SMALL[name]
    weights = random_weights(shape, 1)
    given = random_inputs(shape, rows, past, 3, greedy=greedy)
    keys, values = random_cache(shape, rows, 2), random_cache(shape, rows, 3)
    got = decoded(shape, weights, given, keys, values)
    codes, hidden, scores = Reference(shape, weights)(given, keys, values)
    np.testing.assert_array_equal(got.codes, codes)
    tolerance = 2e-3 if shape.dtype == "bfloat16" else 2e-4
    np.testing.assert_allclose(got.hidden, hidden, atol=tolerance, rtol=0)
    np.testing.assert_allclose(got.scores, scores[:, -1], atol=4 * tolerance, rtol=0)


@cpu
def test_a_projection_reads_a_table_or_vectors_and_adds_the_codes_that_are_there() -> None:
    rng = np.random.default_rng(0)
    rows, inputs, outputs, groups = 3, 70, 21, 4
    matrix, bias = rng.standard_normal((outputs, inputs)), rng.standard_normal(outputs)
    table, extra = rng.standard_normal((11, inputs)), rng.standard_normal((40, outputs))
    ids, starts = rng.integers(0, 11, rows), np.arange(groups) * 10
    codes = rng.integers(-1, 10, (rows, groups))
    halves = {"matrix": matrix, "bias": bias, "table": table, "extra": extra}
    arrays = {name: value.astype(np.float16) for name, value in halves.items()}
    exact = {name: value.astype(np.float64) for name, value in arrays.items()}
    plain = {name: arrays[name] for name in ("matrix", "bias")}
    y = exact["table"][ids] @ exact["matrix"].T + exact["bias"]
    got = projected(plain | {"table": arrays["table"], "ids": ids}, silu=True)
    np.testing.assert_allclose(got, y / (1 + np.exp(-y)), atol=1e-4)

    vectors = rng.standard_normal((rows, inputs)).astype(np.float32)
    added = np.stack([exact["extra"][(starts + row)[row >= 0]].sum(0) for row in codes])
    more = {"vectors": vectors, "extra": arrays["extra"], "codes": codes, "starts": starts}
    got = projected(plain | more, silu=False)
    np.testing.assert_allclose(got, vectors @ exact["matrix"].T + exact["bias"] + added, atol=1e-4)


@gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("name", list(SMALL))
def test_the_kernel_says_what_numpy_says(name: str, rows: int) -> None:
    shape = SMALL[name]
    if rows > shape.most_rows:
        pytest.skip(f"{rows} rows of {shape.prompt} tokens are more columns than a product has")
    weights = random_weights(shape, 1)
    run, reference = Run(shape, weights), Reference(shape, weights)
    for seed, past in enumerate([0, 63, 64, 130]):
        past = min(past, shape.capacity - shape.prompt - shape.steps)
        given = random_inputs(shape, rows, past, seed, greedy=seed == 1)
        keys, values = random_cache(shape, rows, 2), random_cache(shape, rows, 3)
        got = run(given, keys, values)
        codes, hidden, scores = reference(given, keys, values)
        np.testing.assert_array_equal(got.codes, codes)
        tolerance = 2e-2 if shape.dtype == "bfloat16" else 2e-3  # rounding of a cache entry may fall the other way
        np.testing.assert_allclose(got.hidden, hidden, atol=tolerance, rtol=0)
        np.testing.assert_allclose(got.scores[:, : shape.vocab], scores[:, -1], atol=4 * tolerance, rtol=0)


@gpu
@pytest.mark.parametrize("name", list(SMALL))
def test_a_row_does_not_depend_on_its_neighbours_to_the_bit(name: str) -> None:
    shape = SMALL[name]
    run = Run(shape, random_weights(shape, 1))
    rows = shape.most_rows
    given = random_inputs(shape, rows, min(100, shape.capacity - shape.prompt - shape.steps), 5)
    keys, values = random_cache(shape, rows, 2), random_cache(shape, rows, 3)
    together = run(given, keys, values)
    for row in range(rows):
        alone = run(given.row(row), keys[:, row : row + 1], values[:, row : row + 1])
        np.testing.assert_array_equal(alone.codes[0], together.codes[row])
        np.testing.assert_array_equal(alone.hidden[0], together.hidden[row])
        np.testing.assert_array_equal(alone.keys[:, 0], together.keys[:, row])


@gpu
def test_a_captured_call_is_the_launched_one_to_the_bit() -> None:
    shape = SMALL["chunks"]
    run = Run(shape, random_weights(shape, 1))
    given = random_inputs(shape, 2, 100, 5)
    keys, values = random_cache(shape, 2, 2), random_cache(shape, 2, 3)
    launched, captured = run(given, keys, values), run(given, keys, values, captured=True)
    np.testing.assert_array_equal(captured.codes, launched.codes)
    np.testing.assert_array_equal(captured.hidden, launched.hidden)
    np.testing.assert_array_equal(captured.keys, launched.keys)
