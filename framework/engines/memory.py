"""Where tensors live: one buffer per tensor, at an address that does not change.

`HostMemory` is numpy; `cuda.DeviceMemory` is its counterpart on a GPU. Engines bind buffers by pointer and know
nothing more of the difference.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import mmap
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framework.engines.base import Array

_ALIGNMENT = 64  # a cache line, and the widest vector register
_LARGE = 1 << 20  # bytes from which on Linux may give huge pages


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy dtype of a dtype name; names numpy lacks (`bfloat16`, `float8_e4m3fn` ...) come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return kind


def give_back() -> None:
    """Return to the system what the C library keeps of freed memory, where it is glibc. An engine that has just been
    loaded has freed about a tenth of its size, in as many pieces as it has weights."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def free_host_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that the kernel can give without swapping, or less where a control group (a container) allows less."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    for limit, used, field in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = (cgroup / limit).read_text().strip(), int((cgroup / used).read_text())
            stat = dict(line.split() for line in (cgroup / limit).with_name("memory.stat").read_text().splitlines())
        except OSError:
            continue
        if most.isdigit():
            free = min(free, int(most) - now + int(stat.get(field, 0)))  # cached files are given up when needed
    return max(0, free)


def host_copy_rate(size: int = 1 << 28, repeats: int = 5) -> float:
    """Bytes a second of a copy of `size` bytes in the host's memory, read and written; median of `repeats`, by one
    thread."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        target[...] = source
        times.append(time.perf_counter() - start)
    return 2 * size / statistics.median(times)


class Buffer(abc.ABC):
    """A tensor of fixed shape at a fixed address."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pointer: int

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @abc.abstractmethod
    def rows(self, start: int, stop: int) -> Buffer:
        """A view of rows `start` to `stop` of dim 0, in the same memory."""

    @abc.abstractmethod
    def zero(self) -> None: ...

    @abc.abstractmethod
    def write(self, value: Any) -> None:
        """Copy in a value of the same shape and dtype: numpy, or what `device()` of such a buffer gives."""

    @abc.abstractmethod
    def read(self) -> Array:
        """The tensor on the host; valid until the next read or write."""

    @abc.abstractmethod
    def copy_from(self, other: Any) -> None:
        """Copy from another buffer of the same memory, shape and dtype."""

    @abc.abstractmethod
    def device(self) -> Any:
        """The tensor where it lies: numpy on the host, an object with `__cuda_array_interface__` on a GPU."""


class Memory(abc.ABC):
    """Allocates buffers on one device."""

    device_type: str  # as ONNX Runtime names it
    device_id: int

    @abc.abstractmethod
    def zeros(self, shape: Sequence[int], dtype: str) -> Buffer: ...


class HostBuffer(Buffer):
    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.pointer = array.ctypes.data

    def rows(self, start: int, stop: int) -> HostBuffer:
        return HostBuffer(self.array[start:stop])

    def zero(self) -> None:
        self.array.fill(0)

    def write(self, value: Any) -> None:
        self.array[...] = value

    def read(self) -> Array:
        return self.array

    def copy_from(self, other: Any) -> None:
        self.array[...] = other.array

    def device(self) -> Array:
        return self.array


class HostMemory(Memory):
    device_type = "cpu"
    device_id = 0

    def zeros(self, shape: Sequence[int], dtype: str) -> HostBuffer:
        kind = numpy_dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        raw = _untouched(size)
        start = -raw.ctypes.data % _ALIGNMENT  # numpy promises only 16 bytes
        return HostBuffer(raw[start : start + size].view(kind).reshape(shape))


def _untouched(size: int) -> Array:
    """Zeroed bytes, at least `size` and a cache line, whose pages take no memory until they are used.

    A cache has a place for every position of every head, of which a request uses the first few. Pages of 2 MiB, which
    Linux gives to large arrays, would make a whole cache resident with its first token.
    """
    if size < _LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(size + _ALIGNMENT, np.uint8)
    pages = mmap.mmap(-1, size + _ALIGNMENT)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint8)
