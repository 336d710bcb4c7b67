"""Try an engine backend on a real GPU: `python tests/engines/gpu_check.py [cuda | tensorrt | tensorrt_rtx]`.

Runs tiny networks with states uncaptured and captured, compares both with numpy, and prints the time of a call. A plain
script, so that a machine with a GPU needs no more than numpy, onnx, onnx_ir, attrs, cuda-python and the backend.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from framework.engines.backend import Backend, open_engine
from framework.engines.base import Call, Engine
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.tensorrt.backend import TensorRT
from tests.engines import tiny

HIDDEN, LAYERS = 1024, 24


def accumulator(engine: Engine, captured: bool) -> Call:
    """A state in place, on rows 1 and 2 of 4."""
    states = engine.new_states(4)
    call = engine.bind({}, states, rows=slice(1, 3))
    x = np.array([[1, 2, 3], [0, 0, 3]], np.float32)
    call.write("x", x)
    if captured:
        call.capture()
    for times in (1, 2, 3):
        call()
        np.testing.assert_allclose(call.read("mean"), x.mean(1) * times)
    states.clear(slice(2, 3))
    call.write("x", np.ones((2, 3), np.float32))
    call()
    np.testing.assert_allclose(call.read("mean"), [7, 1])
    everything = engine.bind({}, states)
    everything.write("x", np.zeros((4, 3), np.float32))
    everything()
    np.testing.assert_allclose(everything.read("mean"), [0, 7, 1, 0])
    return call


def cache(engine: Engine, captured: bool) -> Call:
    """A prefill that is never captured and a decode step over one cache."""
    states = engine.new_states(2)
    prefill = engine.bind({"tokens": 4}, states, rows=slice(1, 2))
    decode = engine.bind({"tokens": 1}, states)
    if captured:
        decode.capture()
    prefill.write("values", np.ones((1, 1, 4, 2), np.float32))
    prefill.write("at", np.array([0]))
    prefill()
    np.testing.assert_allclose(prefill.read("sum"), [8])
    for step in range(3):
        decode.write("values", np.full((2, 1, 1, 2), 10, np.float32))
        decode.write("at", np.array([step, 4 + step]))
        decode()
        np.testing.assert_allclose(decode.read("sum"), [20 * (step + 1), 8 + 20 * (step + 1)])
    return decode


def late_reader(engine: Engine, captured: bool) -> Call:
    """A state that may not be overwritten, and so is copied after the run."""
    call = engine.bind({}, engine.new_states(1))
    call.write("x", np.array([5]))
    if captured:
        call.capture()
    for expected in (0, 5, 10):
        call()
        assert call.read("before").tolist() == [expected], call.read("before")
    return call


def decode(engine: Engine, captured: bool) -> Call:
    """An output that is the next input; and a tensor handed to another call on the device."""
    call = engine.bind({"batch": 2}, shared={"next": "token"})
    call.write("token", np.array([[3], [7]]))
    if captured:
        call.capture()
    for _ in range(4):
        call()
    assert call.read("next").tolist() == [[7], [11]], call.read("next")
    other = engine.bind({"batch": 2})
    other.write("token", call.device("next"))
    other()
    assert other.read("next").tolist() == [[8], [12]], other.read("next")
    return call


def stack(engine: Engine, captured: bool) -> Call:
    """Many small kernels, where one launch a call pays."""
    call = engine.bind({"batch": 1})
    x = np.random.default_rng(1).standard_normal((1, HIDDEN), np.float32)
    call.write("x", x)
    if captured:
        call.capture()
    call()
    expected = x
    weight = stack_weight()
    for _ in range(LAYERS):
        expected = np.tanh(expected @ weight)
    np.testing.assert_allclose(call.read("y"), expected, atol=1e-4)
    return call


def stack_weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((HIDDEN, HIDDEN), np.float32) / np.float32(HIDDEN**0.5)


def stack_body() -> str:
    lines = [f"m{i} = MatMul({'x' if not i else f'h{i - 1}'}, w)\n h{i} = Tanh(m{i})" for i in range(LAYERS)]
    body = "\n".join(lines).replace(f"h{LAYERS - 1} =", "y =")
    return f"(float[batch, {HIDDEN}] x, float[{HIDDEN}, {HIDDEN}] w) => (float[batch, {HIDDEN}] y) {{ {body} }}"


def milliseconds(call: Call, output: str, calls: int = 200) -> float:
    call()
    call.read(output)
    start = time.perf_counter()
    for _ in range(calls):
        call()
        call.read(output)
    return (time.perf_counter() - start) / calls * 1e3


def main(name: str) -> None:
    backend: Backend = OnnxRuntimeCuda() if name == "cuda" else TensorRT(module=name)  # type: ignore[arg-type]
    tests: list[tuple[Callable[[Engine, bool], Call], str, str, dict[str, str]]] = [
        (accumulator, tiny.ACCUMULATOR, "mean", {"total": "total_out"}),
        (cache, tiny.CACHE, "sum", {"cache": "cache_out"}),
        (late_reader, tiny.LATE_READER, "before", {"count": "count_out"}),
        (decode, tiny.DECODE, "next", {}),
        (stack, stack_body(), "y", {}),
    ]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for test, body, output, states in tests:
            weights = {"w": stack_weight()} if test is stack else {}
            try:
                folder = tiny.built(Path(scratch) / test.__name__, body, backend, states=states, weights=weights)
                with open_engine(folder, backend) as engine:
                    for captured in (False, True):
                        ms = milliseconds(test(engine, captured), output)
                        print(f"{test.__name__:12} {'captured' if captured else 'uncaptured':10} right, {ms:.3f} ms")
            except Exception as error:
                failed += 1
                print(f"{test.__name__:12} FAILED: {type(error).__name__}: {error}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
