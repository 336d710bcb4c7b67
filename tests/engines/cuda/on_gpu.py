"""Runs a `Decoder` over numpy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import numpy as np
import pytest

from framework.engines.cuda.kernels.decoder import Decoder
from framework.engines.cuda.kernels.pack import DecoderWeights
from framework.engines.cuda.kernels.shape import DecoderShape
from framework.engines.cuda.memory import DeviceMemory, call, runtime
from framework.errors import MultistageError
from tests.engines.cuda.reference import Array, Inputs

Test = TypeVar("Test", bound=Callable[..., Any])

# Odd sizes; together every way a stack can be.
SMALL = {
    "codes": DecoderShape(
        layers=2, width=96, heads=6, kv_heads=2, head_dim=32, mlp=200, vocab=70, capacity=9, prompt=2, steps=6
    ),
    "chunks": DecoderShape(
        layers=3, width=1096, heads=4, kv_heads=4, head_dim=64, mlp=1500, vocab=333, capacity=200, shaped=True
    ),
    "tokens": DecoderShape(
        layers=2,
        width=640,
        heads=12,
        kv_heads=3,
        head_dim=128,
        mlp=520,
        vocab=300,
        capacity=150,
        steps=3,
        one_head=True,
        qk_norm=False,
        eps=1e-5,
        dtype="bfloat16",
    ),
}


@functools.cache
def gpu_memory() -> DeviceMemory | None:
    """The first GPU, if it can run the kernels."""
    try:
        memory = DeviceMemory(0)
    except (MultistageError, RuntimeError):
        return None
    return memory if float(memory.compute_capability) >= 9 else None


def gpu(test: Test) -> Test:
    """Marks a test that needs a GPU; it is skipped where there is none."""
    skip = pytest.mark.skipif(gpu_memory() is None, reason="no NVIDIA GPU of compute capability 9.0 or later")
    return pytest.mark.gpu(skip(test))


@attrs.frozen(kw_only=True, eq=False)
class Result:
    """codes [rows, steps], hidden [rows, width], scores [columns, vocab] of the last step, keys as given."""

    codes: Array
    hidden: Array
    scores: Array
    keys: Array


class Run:
    """One compiled stack and its buffers of each batch."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights) -> None:
        memory = gpu_memory()
        assert memory is not None
        self.memory, self.shape = memory, shape
        self.decoder = Decoder(memory, shape, weights)

    def bound(self, given: Inputs, keys: Array, values: Array) -> tuple[dict[str, Any], Any]:
        """Buffers that hold these inputs, and the launch."""
        shape, rows = self.shape, given.input.shape[0]
        buffers = self.decoder.buffers(rows)
        for name, buffer in buffers.items():
            value = getattr(given, name, None)
            if name == "input":
                wide = np.zeros(buffer.shape, np.float32)
                wide[..., : shape.width] = given.input
                buffer.write(wide)
            elif name in ("keys", "values"):
                for layer, cache in zip(buffer, keys if name == "keys" else values, strict=True):
                    layer.write(cache)
            elif value is not None:
                buffer.write(value)
        return buffers, self.decoder.bind(buffers, stop=given.stop, least=given.least)

    def __call__(self, given: Inputs, keys: Array, values: Array, captured: bool = False) -> Result:
        buffers, launch = self.bound(given, keys, values)
        if captured:
            launch = self.memory.record(launch)
        launch()
        call(runtime().cudaStreamSynchronize, self.memory.stream)
        return Result(
            codes=buffers["codes"].read().copy(),
            hidden=buffers["hidden"].read()[:, : self.shape.width].copy(),
            scores=self.decoder.scores(given.input.shape[0]),
            keys=np.stack([layer.read() for layer in buffers["keys"]]),
        )
