"""ONNX Runtime on the CPU: states in place, rows, feedback, and what may not be written."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from framework.engines.backend import open_engine
from framework.engines.base import Engine, StateSpec, TensorSpec
from tests.engines import tiny
from tests.engines.tiny import CPU, built


@pytest.fixture
def accumulator(tmp_path: Path) -> Engine:
    return open_engine(built(tmp_path / "engine", tiny.ACCUMULATOR, states={"total": "total_out"}), CPU)


def test_spec_tells_states_from_inputs_and_outputs(accumulator: Engine) -> None:
    assert accumulator.spec.inputs == (TensorSpec(name="x", dtype="float32", shape=("batch", 3)),)
    assert accumulator.spec.outputs == (TensorSpec(name="mean", dtype="float32", shape=("batch",)),)
    total = TensorSpec(name="total", dtype="float32", shape=("batch", 3))
    assert accumulator.spec.states == (StateSpec(input=total, output="total_out"),)
    assert accumulator.spec.caps["batch"] == 4


def test_state_is_kept_from_call_to_call(accumulator: Engine) -> None:
    call = accumulator.bind({}, accumulator.new_states(2))
    call.write("x", np.array([[1, 2, 3], [0, 0, 3]], np.float32))
    for times in (1, 2, 3):
        call()
        np.testing.assert_allclose(call.read("mean"), [2 * times, times])


def test_state_is_updated_in_its_own_memory(accumulator: Engine) -> None:
    assert accumulator.in_place == {"total_out": ("x", "total")}
    states = accumulator.new_states(1)
    call = accumulator.bind({}, states)
    call.write("x", np.ones((1, 3), np.float32))
    call()
    np.testing.assert_array_equal(states.buffers["total"].read(), np.ones((1, 3)))


def test_rows_touch_no_other_row(accumulator: Engine) -> None:
    states = accumulator.new_states(4)
    call = accumulator.bind({}, states, rows=slice(1, 3))
    call.write("x", np.ones((2, 3), np.float32))
    call()
    everything = accumulator.bind({}, states)
    everything.write("x", np.zeros((4, 3), np.float32))
    everything()
    np.testing.assert_array_equal(everything.read("mean"), [0, 1, 1, 0])


def test_clear_zeroes_the_rows_it_is_given(accumulator: Engine) -> None:
    states = accumulator.new_states(3)
    call = accumulator.bind({}, states)
    call.write("x", np.ones((3, 3), np.float32))
    call()
    states.clear(slice(1, 2))
    call()
    np.testing.assert_array_equal(call.read("mean"), [2, 1, 2])


def test_clear_leaves_states_that_are_not_named(accumulator: Engine) -> None:
    states = accumulator.new_states(1)
    states.buffers["total"].write(np.ones((1, 3), np.float32))
    states.clear(slice(0, 1), names=())
    assert states.buffers["total"].read().any()
    states.clear(slice(0, 1), names=("total",))
    assert not states.buffers["total"].read().any()


def test_states_of_two_requests_are_apart(accumulator: Engine) -> None:
    first, second = (accumulator.bind({}, accumulator.new_states(1)) for _ in range(2))
    first.write("x", np.ones((1, 3), np.float32))
    first()
    second()
    assert (first.read("mean"), second.read("mean")) == (1, 0)


def test_prefill_and_decode_share_a_cache(tmp_path: Path) -> None:
    engine = open_engine(built(tmp_path / "engine", tiny.CACHE, states={"cache": "cache_out"}), CPU)
    states = engine.new_states(3)
    assert states.nbytes == 3 * 8 * 2 * 4
    prefill = engine.bind({"tokens": 4}, states, rows=slice(2, 3))
    prefill.write("values", np.ones((1, 1, 4, 2), np.float32))
    prefill.write("at", np.array([0]))
    prefill()
    decode = engine.bind({"tokens": 1}, states, rows=slice(1, 3))
    decode.write("values", np.full((2, 1, 1, 2), 10, np.float32))
    decode.write("at", np.array([7, 3]))
    decode()
    np.testing.assert_array_equal(decode.read("sum"), [20, 26])
    expected = np.zeros((3, 1, 8, 2))
    expected[1, 0, 7], expected[2, 0, :3], expected[2, 0, 3] = 10, 1, 10
    np.testing.assert_array_equal(states.buffers["cache"].read(), expected)


def test_smaller_caches_can_be_asked_for(tmp_path: Path) -> None:
    engine = open_engine(built(tmp_path / "engine", tiny.CACHE, states={"cache": "cache_out"}), CPU)
    assert engine.new_states(1, capacity=2).nbytes == 2 * 2 * 4


def test_a_state_read_after_it_was_written_keeps_its_old_value_until_the_call_ends(tmp_path: Path) -> None:
    engine = open_engine(built(tmp_path / "engine", tiny.LATE_READER, states={"count": "count_out"}), CPU)
    assert "count" not in engine.in_place["count_out"]
    call = engine.bind({}, engine.new_states(1))
    call.write("x", np.array([5]))
    seen = []
    for _ in range(3):
        call()
        seen.append(int(call.read("before")[0]))
    assert seen == [0, 5, 10]


def test_a_shared_output_is_the_next_input(tmp_path: Path) -> None:
    engine = open_engine(built(tmp_path / "engine", tiny.DECODE), CPU)
    call = engine.bind({"batch": 2}, shared={"next": "token"})
    call.write("token", np.array([[3], [7]]))
    for _ in range(4):
        call()
    np.testing.assert_array_equal(call.read("next"), [[7], [11]])


def test_captured_calls_go_on_as_before(accumulator: Engine) -> None:
    call = accumulator.bind({}, accumulator.new_states(1))
    call.write("x", np.ones((1, 3), np.float32))
    call()
    call.capture()
    call()
    assert call.read("mean") == 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"])
def test_every_dtype_crosses(tmp_path: Path, dtype: str) -> None:
    onnx_name = {"float32": "float"}.get(dtype, dtype)
    body = f"({onnx_name}[batch, n] x) => ({onnx_name}[n, batch] y) {{ y = Transpose(x) }}"
    engine = open_engine(built(tmp_path / "engine", body), CPU)
    value = np.array([[0, 1, 1], [1, 0, 1]]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    result = engine.run({"x": value})["y"]
    assert result.dtype == value.dtype
    np.testing.assert_array_equal(result, value.T)


def test_run_reads_its_dims_off_the_feeds(tmp_path: Path) -> None:
    engine = open_engine(built(tmp_path / "engine", tiny.SCALE), CPU)
    for shape in ((1, 4), (3, 2)):
        value = np.random.default_rng(0).random(shape, np.float32)
        np.testing.assert_array_equal(engine.run({"x": value})["y"], value * 2)


def test_weights_are_read_from_their_file(tmp_path: Path) -> None:
    body = "(float[batch, n] x, float[4, 300] w) => (float[batch, 300] y) { y = MatMul(x, w) }"
    weights = np.random.default_rng(1).random((4, 300), np.float32)
    folder = built(tmp_path / "engine", body, weights={"w": weights})
    assert (folder / "model.onnx.data").stat().st_size >= weights.nbytes
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(open_engine(folder, CPU).run({"x": x})["y"], weights)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", np.zeros((2, 3), np.float32), r"input 'x': got shape \(2, 3\), expected \(1, 3\)"),
        ("x", np.zeros(3, np.float32), r"input 'x': got shape \(3,\), expected \(1, 3\)"),
        ("x", np.zeros((1, 3)), "input 'x': got dtype float64, expected float32"),
        ("total", np.zeros((1, 3), np.float32), "no input 'total'; there are x"),
    ],
    ids=["more rows", "fewer dimensions", "wrong dtype", "a state"],
)
def test_wrong_writes_name_the_tensor(accumulator: Engine, name: str, value: np.ndarray, message: str) -> None:
    call = accumulator.bind({}, accumulator.new_states(1))
    with pytest.raises(ValueError, match=message):
        call.write(name, value)


def test_wrong_binds_say_what_is_wrong(accumulator: Engine, tmp_path: Path) -> None:
    states = accumulator.new_states(2)
    decode = open_engine(built(tmp_path / "decode", tiny.DECODE), CPU)
    cases = [
        (lambda: accumulator.bind({}), "needs the states"),
        (lambda: accumulator.bind({}, decode.new_states(1)), "needs the states"),
        (lambda: accumulator.bind({"batch": 3}, states), "'batch': got 3, but the states have 2"),
        (lambda: accumulator.bind({}, states, rows=slice(1, 3)), "expected a contiguous part of 0:2"),
        (lambda: accumulator.bind({}, states, rows=slice(0, 2, 2)), "expected a contiguous part of 0:2"),
        (lambda: accumulator.bind({}, states, rows=slice(1, 1)), "expected a contiguous part of 0:2"),
        (lambda: accumulator.new_states(5), "'batch': got 5, but the engine was built for at most 4"),
        (lambda: accumulator.new_states(1, length=5), "no state has dimension 'length'"),
        (lambda: accumulator.bind({}, states, shared={"mean": "x"}), r"float32\[2\] is fed back to float32\[2, 3\]"),
        (lambda: accumulator.bind({}, states, shared={"men": "x"}), "not an output and a free input"),
        (lambda: accumulator.bind({}, states, shared={"mean": "total"}), "not an output and a free input"),
        (lambda: decode.bind({}), "dimension 'batch' of 'token' is not given"),
    ]
    for attempt, message in cases:
        with pytest.raises(ValueError, match=message):
            attempt()


def test_a_closed_engine_says_so(accumulator: Engine) -> None:
    states = accumulator.new_states(1)
    with accumulator:
        call = accumulator.bind({}, states)
    with pytest.raises(ValueError, match="closed"):
        call()
    with pytest.raises(ValueError, match="closed"):
        accumulator.bind({}, states)
