"""A new engine is run once at its smallest and its largest shapes: some kernels say only then what they do not take."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from framework.engines import manifest
from framework.engines.backend import Backend, open_engine, title
from framework.engines.base import Array, Engine, EngineSpec, TensorSpec
from framework.engines.footprint import footprint
from framework.engines.memory import numpy_dtype
from framework.errors import ConfigError, MultistageError, Problem

LONGEST = 10.0  # seconds that the larger call may take, judged by the smaller one


def run_once(
    folder: Path,
    backend: Backend,
    *,
    least: Mapping[str, int] | None = None,
    most: Mapping[str, int] | None = None,
) -> str | None:
    """Run an engine on values that mean nothing: with every dimension 1, then with each as large as it may be.

    The dimensions of the larger call are halved until it fits into the memory that is free and, by the time that the
    smaller one took for each element of its inputs, into `LONGEST`.

    Args:
        least: dimensions that are never less than so much.
        most: of the largest call, where those are less than the caps.

    Returns:
        Why the engine was not run, in words, where this machine cannot; else None.

    Raises:
        ConfigError: it does not run.
    """
    record = manifest.read(folder)
    reason = backend.unable(record) or _too_large(record, backend)
    if reason is not None:
        return reason
    spec = record.spec
    smallest = {dim: (least or {}).get(dim, 1) for dim in spec.caps}
    try:
        with open_engine(folder, backend) as engine:
            started = time.perf_counter()
            _run(engine, smallest)
            each = (time.perf_counter() - started) / _elements(spec, smallest)
            dims = {**spec.caps, **(most or {})}
            while dims != smallest and not _affordable(record, backend, dims, each):
                dims = {dim: max(smallest[dim], size // 2) for dim, size in dims.items()}
            _run(engine, dims)
    except MultistageError:
        raise
    except Exception as error:  # whatever a kernel raises
        got = " ".join(str(error).split())
        raise ConfigError(Problem(where=title(folder, backend), got=got, expected="an engine that runs")) from error
    return None


def _too_large(record: manifest.Manifest, backend: Backend) -> str | None:
    takes, free = footprint(record, 1).total, backend.free_memory()
    return f"it takes {takes:,} bytes, and {backend.place} has {free:,}" if takes > free else None


def _affordable(record: manifest.Manifest, backend: Backend, dims: Mapping[str, int], each: float) -> bool:
    share = _elements(record.spec, dims) / _elements(record.spec, record.spec.caps)
    takes = footprint(record, dims.get("batch", 1))
    fits = takes.states + takes.activations * share <= backend.free_memory()
    return fits and each * _elements(record.spec, dims) <= LONGEST


def _run(engine: Engine, dims: Mapping[str, int]) -> None:
    spec = engine.spec
    states = engine.new_states(dims.get("batch", 1)) if spec.states else None
    used = {dim for tensor in (*spec.inputs, *spec.outputs) for dim in tensor.shape if isinstance(dim, str)}
    call = engine.bind({dim: size for dim, size in dims.items() if dim in used}, states)
    for tensor in spec.inputs:
        call.write(tensor.name, _value(tensor, dims))
    call()
    for tensor in spec.outputs:
        call.read(tensor.name)


def _value(tensor: TensorSpec, dims: Mapping[str, int]) -> Array:
    """What any input may hold: integers of 0 (an id, an index, a length), numbers of a half (a sample, a probability).
    One integer for the whole call is a count: that of the dimension it is named after, else 1."""
    kind = numpy_dtype(tensor.dtype)
    count = dims.get(tensor.name, 1) if tensor.shape == (1,) else 0
    return np.full(tensor.resolve(dims), count if kind.kind in "iub" else 0.5, kind)


def _elements(spec: EngineSpec, dims: Mapping[str, int]) -> int:
    return sum(math.prod(tensor.resolve(dims)) for tensor in spec.inputs)
