"""Buffers, streams and graphs on an NVIDIA GPU, through cuda-python."""

from __future__ import annotations

import ctypes
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from framework.engines.base import Array
from framework.engines.memory import Buffer, Memory, numpy_dtype
from framework.errors import ConfigError, Problem


def runtime() -> Any:
    """The CUDA runtime interface; ConfigError when cuda-python is not installed."""
    try:
        from cuda.bindings import runtime as cudart
    except ImportError:
        raise ConfigError(
            Problem(
                where="backend",
                got="no package cuda-python",
                expected="it, for a backend on a GPU",
                hint="pip install 'multistage[cuda]'",
            )
        ) from None
    return cudart


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a CUDA runtime function; RuntimeError with CUDA's own words when it fails."""
    error, *results = function(*arguments)
    if int(error):
        raise RuntimeError(f"{function.__name__}: {runtime().cudaGetErrorString(error)[1].decode()}")
    return results[0] if len(results) == 1 else results


class DeviceArray:
    """A tensor on a GPU, lent to who reads `__cuda_array_interface__` (version 3): other engines, CuPy, PyTorch."""

    def __init__(self, buffer: DeviceBuffer) -> None:
        self._buffer = buffer  # keeps the memory
        self.shape = buffer.shape
        self.dtype = buffer.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._buffer.pointer, False),
            "stream": self._buffer.memory.stream,  # the reader orders itself after this stream
        }


class DeviceBuffer(Buffer):
    def __init__(self, memory: DeviceMemory, pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any):
        self.memory = memory
        self.pointer = pointer
        self.shape = shape
        self.dtype = dtype
        self._owner = owner
        self._staging: _Staging | None = None

    def rows(self, start: int, stop: int) -> DeviceBuffer:
        stride = self.nbytes // self.shape[0]
        shape = (stop - start, *self.shape[1:])
        return DeviceBuffer(self.memory, self.pointer + start * stride, shape, self.dtype, self._owner)

    def zero(self) -> None:
        call(runtime().cudaMemsetAsync, self.pointer, 0, self.nbytes, self.memory.stream)

    def write(self, value: Any) -> None:
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is not None:
            self.memory.wait_for(interface.get("stream"))
            self._copy(self.pointer, interface["data"][0], "cudaMemcpyDeviceToDevice")
            return
        staging = self._stage()
        staging.free()
        staging.array[...] = value
        self._copy(self.pointer, staging.pointer, "cudaMemcpyHostToDevice")
        staging.taken()

    def read(self) -> Array:
        staging = self._stage()
        self._copy(staging.pointer, self.pointer, "cudaMemcpyDeviceToHost")
        call(runtime().cudaStreamSynchronize, self.memory.stream)
        return staging.array

    def copy_from(self, other: Any) -> None:
        self._copy(self.pointer, other.pointer, "cudaMemcpyDeviceToDevice")

    def device(self) -> DeviceArray:
        return DeviceArray(self)

    def _copy(self, target: int, source: int, kind: str) -> None:
        cudart = runtime()
        kind = getattr(cudart.cudaMemcpyKind, kind)
        call(cudart.cudaMemcpyAsync, target, source, self.nbytes, kind, self.memory.stream)

    def _stage(self) -> _Staging:
        if self._staging is None:
            self._staging = _Staging(self)
        return self._staging


class _Staging:
    """Pinned host memory beside a device buffer, so that copies need no second hop and do not block."""

    def __init__(self, buffer: DeviceBuffer) -> None:
        cudart = runtime()
        self._stream = buffer.memory.stream
        self.pointer = int(call(cudart.cudaHostAlloc, max(buffer.nbytes, 1), 0))
        self._event = call(cudart.cudaEventCreateWithFlags, cudart.cudaEventDisableTiming)
        self._busy = False
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * buffer.nbytes).from_address(self.pointer))
        self.array = raw.view(buffer.dtype).reshape(buffer.shape)
        weakref.finalize(self, cudart.cudaFreeHost, self.pointer)
        weakref.finalize(self, cudart.cudaEventDestroy, self._event)

    def taken(self) -> None:
        call(runtime().cudaEventRecord, self._event, self._stream)
        self._busy = True

    def free(self) -> None:
        """Wait until the device has taken the last value written."""
        if self._busy:
            call(runtime().cudaEventSynchronize, self._event)
            self._busy = False


class DeviceMemory(Memory):
    """One GPU and the stream on which everything of one engine happens, in order."""

    device_type = "cuda"

    def __init__(self, device_id: int) -> None:
        cudart = runtime()
        error, count = cudart.cudaGetDeviceCount()
        if int(error) or device_id >= count:
            found = f"{count} GPUs" if not int(error) else cudart.cudaGetErrorString(error)[1].decode()
            raise ConfigError(
                Problem(
                    where=f"backend.device={device_id}",
                    got=found,
                    expected="an NVIDIA GPU with that index and its driver",
                    hint="backend=cpu runs without one, on engines built for it",
                )
            )
        self.device_id = device_id
        self.use()
        idle = _idle_streams.setdefault(device_id, [])
        self.stream: int = (
            idle.pop() if idle else int(call(cudart.cudaStreamCreateWithFlags, cudart.cudaStreamNonBlocking))
        )
        weakref.finalize(self, idle.append, self.stream).atexit = False
        self._events: dict[int, Any] = {}

    def use(self) -> None:
        """Make it the calling thread's device."""
        call(runtime().cudaSetDevice, self.device_id)

    @property
    def free(self) -> int:
        """Bytes nobody has taken."""
        self.use()
        return int(call(runtime().cudaMemGetInfo)[0])

    def copy_rate(self, size: int = 1 << 30, repeats: int = 5) -> float:
        """Bytes a second of a copy of `size` bytes on the device, read and written; median of `repeats`."""
        source, target = self.zeros((size,), "uint8"), self.zeros((size,), "uint8")
        synchronize = runtime().cudaStreamSynchronize
        times = []
        for _ in range(repeats + 1):  # the first wakes the device
            call(synchronize, self.stream)
            start = time.perf_counter()
            target.copy_from(source)
            call(synchronize, self.stream)
            times.append(time.perf_counter() - start)
        return 2 * size / statistics.median(times[1:])

    @property
    def compute_capability(self) -> str:
        cudart = runtime()
        names = ("cudaDevAttrComputeCapabilityMajor", "cudaDevAttrComputeCapabilityMinor")
        attributes = (getattr(cudart.cudaDeviceAttr, name) for name in names)
        return ".".join(str(call(cudart.cudaDeviceGetAttribute, key, self.device_id)) for key in attributes)

    def zeros(self, shape: Sequence[int], dtype: str) -> DeviceBuffer:
        self.use()
        cudart = runtime()
        kind = numpy_dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        pointer = int(call(cudart.cudaMalloc, max(size, 1)))
        owner = _Owner()
        weakref.finalize(owner, cudart.cudaFree, pointer)
        buffer = DeviceBuffer(self, pointer, tuple(shape), kind, owner)
        buffer.zero()
        return buffer

    def wait_for(self, stream: int | None) -> None:
        """Order later work of this stream after the work another one has so far."""
        if stream is None or stream == self.stream:
            return
        cudart = runtime()
        if stream not in self._events:
            self._events[stream] = call(cudart.cudaEventCreateWithFlags, cudart.cudaEventDisableTiming)
        call(cudart.cudaEventRecord, self._events[stream], stream)
        call(cudart.cudaStreamWaitEvent, self.stream, self._events[stream], 0)

    def record(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Capture what `launch` puts on the stream; the result launches all of it at once.

        `launch` must have run once before, since what allocates cannot be captured.
        """
        cudart = runtime()
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        call(cudart.cudaStreamBeginCapture, self.stream, mode)
        try:
            launch()
        finally:
            error, graph = cudart.cudaStreamEndCapture(self.stream)
        if int(error):
            raise RuntimeError(f"cudaStreamEndCapture: {cudart.cudaGetErrorString(error)[1].decode()}")
        executable = call(cudart.cudaGraphInstantiate, graph, 0)
        call(cudart.cudaGraphDestroy, graph)

        def replay() -> None:
            call(cudart.cudaGraphLaunch, executable, self.stream)

        weakref.finalize(replay, cudart.cudaGraphExecDestroy, executable)
        return replay


# Streams are used again and never destroyed: an ONNX Runtime session may outlive the memory whose stream it runs on.
_idle_streams: dict[int, list[int]] = {}


class _Owner:
    """Frees device memory when the last buffer that views it is gone."""
