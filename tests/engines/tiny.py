"""Tiny networks for the engine tests, in ONNX's textual form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from framework.engines.backend import Backend, compile_engine
from framework.engines.ort.backend import OnnxRuntimeCpu

CPU = OnnxRuntimeCpu(threads=1)
CAPS = {"batch": 4, "tokens": 8, "capacity": 8}

# Adds each input to a running sum; the mean is of the sum after it.
ACCUMULATOR = """(float[batch, 3] x, float[batch, 3] total) => (float[batch] mean, float[batch, 3] total_out)
<int64[1] axis = {1}> {
    total_out = Add(total, x)
    mean = ReduceMean<keepdims = 0>(total_out, axis)
}"""

# Writes `tokens` values at place `at` of a cache of `capacity` places a row, and sums what lies there.
CACHE = """(float[batch, 1, tokens, 2] values, int64[batch] at, float[batch, 1, capacity, 2] cache)
=> (float[batch] sum, float[batch, 1, capacity, 2] cache_out) <int64[3] axes = {1, 2, 3}> {
    cache_out = TensorScatter<axis = 2>(cache, values, at)
    sum = ReduceSum<keepdims = 0>(cache_out, axes)
}"""

# A state that the network reads again after the node that writes it may have run.
LATE_READER = """(int64[batch] x, int64[batch] count) => (int64[batch] before, int64[batch] count_out)
<int64[1] ten = {10}> {
    count_out = Add(count, x)
    scaled = Mul(count_out, ten)
    first = Sub(scaled, scaled)
    before = Add(first, count)
}"""

# The token that comes out is the next one that goes in.
DECODE = """(int64[batch, 1] token) => (int64[batch, 1] next) <int64[1] one = {1}> { next = Add(token, one) }"""

SCALE = """(float[batch, n] x) => (float[batch, n] y) <float[1] w = {2.0}> { y = Mul(x, w) }"""


def network(body: str, weights: Mapping[str, Any] | None = None) -> ir.Model:
    """A model from its body; inputs named in `weights` become initializers with that data (None: none)."""
    model = ir.from_onnx_text(f'<ir_version: 11, opset_import: ["": 24, "com.microsoft": 1]> tiny {body}')
    for name, data in (weights or {}).items():
        value = next(value for value in model.graph.inputs if value.name == name)
        model.graph.inputs.remove(value)
        value.const_value = None if data is None else ir.tensor(np.asarray(data), name=name)
        model.graph.initializers.add(value)
    return model


def built(folder: Path, body: str, backend: Backend = CPU, **options: Any) -> Path:
    """The folder of a compiled network."""
    folder.mkdir()
    states = options.pop("states", {})
    compile_engine(network(body, options.pop("weights", None)), folder, backend, states=states, caps=CAPS | {"n": 4})
    return folder
