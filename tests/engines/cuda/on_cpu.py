"""Runs the kernels' own source on the CPU: slow and in any order that fibers take turns in, but what it computes."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from framework.engines.cuda.kernels import decoder, frame, program
from framework.engines.cuda.kernels.pack import DecoderWeights, packed
from framework.engines.cuda.kernels.shape import DecoderShape, padded
from tests.engines.cuda.on_gpu import Result
from tests.engines.cuda.reference import Array, Inputs

BLOCKS = 3
_RUN = """
extern "C" void emulate(const Arguments *a, unsigned x, unsigned y) {
    static const Arguments *given;
    given = a;
    run([] { KERNEL(*given); }, x, y, KERNEL_THREADS, KERNEL_SHARED);
}
"""
COMPILER = shutil.which("g++")


@functools.cache
def _library(name: str, defines: tuple[tuple[str, object], ...]) -> ctypes.CDLL:
    """The kernel's source behind the CPU's machine, compiled and loaded."""
    machine = Path(__file__).with_name("machine_on_cpu.h").read_text()
    folder = Path(tempfile.mkdtemp(prefix="kernels"))
    (folder / "kernel.cpp").write_text(program.source(name, machine) + _RUN)
    options = ["-O1", "-std=c++20", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE"]
    options += [f"-D{key}={value}" for key, value in defines]
    assert COMPILER is not None
    subprocess.run([COMPILER, *options, "kernel.cpp", "-o", "kernel.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "kernel.so"))
    shutil.rmtree(folder)
    return library


def _point(arguments: Any, names: tuple[str, ...], arrays: Mapping[str, Array]) -> None:
    for name in names:
        if name in arrays:
            assert arrays[name].flags.c_contiguous, name
            setattr(arguments, name, arrays[name].ctypes.data)


def decoded(shape: DecoderShape, weights: DecoderWeights, given: Inputs, keys: Array, values: Array) -> Result:
    """What the decoder's kernel computes; the caches are not changed."""
    rows, width = given.input.shape[0], padded(shape.width)
    arrays: dict[str, Array] = {**packed(shape, weights)}
    arrays |= {name: np.zeros(size, np.float32) for name, size in decoder.scratch_shapes(shape).items()}
    arrays["input"] = np.zeros((rows, shape.prompt, width), np.float32)
    arrays["input"][..., : shape.width] = given.input
    arrays |= {"codes": np.zeros((rows, shape.steps), np.int64), "next": np.zeros((rows, width), np.float32)}
    arrays |= {"hidden": np.zeros((rows, width), np.float32)}
    arrays |= {"barrier": np.zeros(1, np.uint32), "phases": np.zeros(BLOCKS, np.uint32)}
    caches = {name: [np.array(layer) for layer in cache] for name, cache in (("keys", keys), ("values", values))}
    arrays |= {name: np.array([layer.ctypes.data for layer in cache], np.uint64) for name, cache in caches.items()}
    names = ("past", "noise", "temperature", "top_p", "min_p", "top_k", "penalty", "bias", "history", "spoken", "never")
    arrays |= {name: np.array(value) for name in names if (value := getattr(given, name)) is not None}
    arguments = decoder.Arguments(
        rows=rows,
        noise_stride=shape.steps,
        codes_stride=shape.steps,
        next_stride=width,
        history_stride=shape.capacity,
        candidates=shape.vocab,
        stop=given.stop,
        least=given.least,
    )
    _point(arguments, decoder.POINTERS, arrays)
    kernel = {"KERNEL": "decode", "KERNEL_THREADS": "THREADS", "KERNEL_SHARED": "SHARED_BYTES"}
    _library("decoder", tuple((decoder.defines(shape) | kernel).items())).emulate(ctypes.byref(arguments), BLOCKS, 1)
    tokens = shape.prompt if shape.steps == 1 else 1
    return Result(
        codes=arrays["codes"],
        hidden=arrays["hidden"][:, : shape.width],
        scores=arrays["logits"][tokens - 1 : rows * tokens : tokens],
        keys=np.stack(caches["keys"]),
    )


def projected(arrays: Mapping[str, Array], *, silu: bool, dtype: str = "float16") -> Array:
    """What the linear kernel computes, float32 [rows, outputs]; `arrays` by the names of its arguments."""
    outputs, inputs = arrays["matrix"].shape
    rows = len(arrays["ids"] if "ids" in arrays else arrays["vectors"])
    to = np.full((rows, outputs), np.nan, np.float32)
    groups = arrays["codes"].shape[-1] if "codes" in arrays else 0
    arguments = frame.LinearArguments(
        inputs=inputs, outputs=outputs, rows=rows, to_stride=outputs, groups=groups, silu=int(silu)
    )
    _point(arguments, frame.LINEAR_POINTERS, {**arrays, "to": to})
    defines = {"BF16": int(dtype == "bfloat16"), "KERNEL": "linear", "KERNEL_THREADS": 256, "KERNEL_SHARED": 0}
    blocks = -(-outputs // frame.LINEAR_ROWS)
    _library("linear", tuple(defines.items())).emulate(ctypes.byref(arguments), blocks, rows)
    return to
