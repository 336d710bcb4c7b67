"""A decoder stack on a GPU: its weights, its compiled kernel, and calls over buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from framework.engines.base import Array
from framework.engines.cuda.kernels import program
from framework.engines.cuda.kernels.pack import DecoderWeights, packed
from framework.engines.cuda.kernels.shape import MOST_COLUMNS, DecoderShape, padded
from framework.engines.cuda.memory import DeviceBuffer, DeviceMemory, call, runtime

CHUNK = 64  # cache entries that one block attends to
_THREADS = 544
_RING = 8  # slots of weights on their way, 16 KiB each
# fmt: off
POINTERS = (
    "qkv", "out", "gate_up", "down", "head", "table", "norm1", "norm2", "q_norm",
    "k_norm", "norm", "cosine", "sine", "input", "keys", "values", "x", "qkv_out",
    "mixed", "peaks", "mid", "logits", "past", "noise", "temperature", "top_p", "min_p",
    "top_k", "penalty", "bias", "history", "spoken", "never", "codes", "next", "hidden",
    "barrier", "phases",
)
# fmt: on
_NUMBERS = ["rows", "noise_stride", "codes_stride", "next_stride", "history_stride", "candidates", "stop", "least"]


class Arguments(ctypes.Structure):
    """As `struct Arguments` of the source, name by name."""

    _fields_ = [(name, ctypes.c_void_p) for name in POINTERS] + [(name, ctypes.c_int) for name in _NUMBERS]


def defines(shape: DecoderShape) -> dict[str, object]:
    """What the source is compiled with."""
    names = ("layers", "width", "heads", "kv_heads", "head_dim", "mlp", "vocab", "prompt", "steps", "capacity")
    sizes: dict[str, object] = {name.upper(): getattr(shape, name) for name in names}
    flags = {"QK_NORM": shape.qk_norm, "ONE_HEAD": shape.one_head, "SHAPED": shape.shaped}
    flags["BF16"] = shape.dtype == "bfloat16"
    sizes |= {name: int(flag) for name, flag in flags.items()}
    return sizes | {"CHUNK": CHUNK, "SLOTS": _RING, "EPS": f"{shape.eps!r}f"}


def scratch_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """float32 arrays in which blocks pass on what they computed, by the kernel's names."""
    columns, chunks = MOST_COLUMNS, -(-shape.capacity // CHUNK)
    return {
        "x": (columns, padded(shape.width)),
        "qkv_out": (columns, shape.qkv),
        "mixed": (chunks, columns, padded(shape.queries)),
        "peaks": (chunks, columns, shape.heads, 2),
        "mid": (columns, padded(shape.mlp)),
        "logits": (columns, shape.vocab),
    }


class Decoder:
    """The weights of a stack on a GPU, and its kernel, compiled for that GPU.

    Args:
        memory: GPU and stream of every call.
        code: machine code from `program.compile_source` of this shape; None compiles it now, which takes seconds.

    Raises:
        ConfigError: a GPU older than compute capability 9.0, or no NVRTC to compile with.
        ValueError: weights of another shape.
    """

    def __init__(
        self, memory: DeviceMemory, shape: DecoderShape, weights: DecoderWeights, code: bytes | None = None
    ) -> None:
        memory.use()
        self.memory, self.shape = memory, shape
        cu = program.driver()
        code = code or program.compile_source(program.source("decoder"), defines(shape), memory.compute_capability)
        self._module = program.call(cu.cuModuleLoadData, code)
        self._function = program.call(cu.cuModuleGetFunction, self._module, b"decode")
        address, _ = program.call(cu.cuModuleGetGlobal, self._module, b"shared_bytes")
        size = ctypes.c_int()
        program.call(cu.cuMemcpyDtoH, ctypes.addressof(size), address, 4)
        self._shared = size.value
        dynamic = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        program.call(cu.cuFuncSetAttribute, self._function, dynamic, self._shared)
        attribute = runtime().cudaDeviceAttr.cudaDevAttrMultiProcessorCount
        self._blocks = shape.blocks(int(call(runtime().cudaDeviceGetAttribute, attribute, memory.device_id)))
        self._weights = {name: uploaded(memory, value) for name, value in packed(shape, weights).items()}
        self._scratch = {name: memory.zeros(size, "float32") for name, size in scratch_shapes(shape).items()}
        # Arrivals and barriers passed, of all calls so far: they only grow, so no call has to begin with zeros.
        self._scratch["barrier"] = memory.zeros((1,), "uint32")
        self._scratch["phases"] = memory.zeros((self._blocks,), "uint32")

    def buffers(self, rows: int, *, caches: bool = True) -> dict[str, DeviceBuffer]:
        """New buffers of everything that a call of `rows` rows reads or writes, by the names `bind` knows.

        `keys` and `values` are lists, one buffer a layer; without `caches` they are left out.
        """
        shape, memory = self.shape, self.memory
        if not 1 <= rows <= shape.most_rows:
            raise ValueError(f"rows: got {rows}, expected 1 to {shape.most_rows}")
        cache = (rows, shape.kv_heads, shape.capacity, shape.head_dim)
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "input": ((rows, shape.prompt, padded(shape.width)), "float32"),
            "past": ((rows,), "int64"),
            "noise": ((rows, shape.steps), "float32"),
            **{name: ((rows,), "float32") for name in ("temperature", "top_p", "min_p")},
            "top_k": ((rows,), "int64"),
            "codes": ((rows, shape.steps), "int64"),
            "next": ((rows, padded(shape.width)), "float32"),
            "hidden": ((rows, padded(shape.width)), "float32"),
        }
        if shape.shaped:
            shapes |= {
                "penalty": ((rows,), "float32"),
                "bias": ((rows, shape.vocab), "float32"),
                "history": ((rows, shape.capacity), "int64"),
                "spoken": ((rows,), "int64"),
                "never": ((shape.vocab,), "uint8"),
            }
        made: dict[str, Any] = {name: memory.zeros(size, dtype) for name, (size, dtype) in shapes.items()}
        for name in ("keys", "values") if caches else ():
            made[name] = [memory.zeros(cache, shape.dtype) for _ in range(shape.layers)]
        return made

    def reads_after(self, given: DeviceBuffer) -> dict[str, DeviceBuffer]:
        """`hidden` and `next` of a call that comes before one of this decoder: its `input` [rows, 2, width] as their
        place. The first token is then the other's hidden state, the second what its code is fed back as."""
        rows, tokens, width = given.shape
        if tokens != 2:
            raise ValueError(f"input: got {tokens} tokens a row, expected 2")
        starts = {"hidden": given.pointer, "next": given.pointer + width * given.dtype.itemsize}
        size = (rows, 2 * width)  # from one row's place to the next
        return {name: DeviceBuffer(given.memory, at, size, given.dtype, given) for name, at in starts.items()}

    def scores(self, rows: int) -> Array:
        """What the last code of each row was chosen from by the last call, float32 [rows, vocab]; a copy."""
        tokens = self.shape.prompt if self.shape.steps == 1 else 1
        return np.array(self._scratch["logits"].read()[tokens - 1 : rows * tokens : tokens])

    def bind(
        self, buffers: Mapping[str, Any], *, candidates: int = 0, stop: int = -1, least: int = 0
    ) -> Callable[[], None]:
        """A launch over buffers as `buffers` makes them; it can be repeated, and captured into a graph.

        Args:
            buffers: may be any with these addresses: those of another engine, or of a call whose `hidden` or `next`
                this one reads.
            candidates: most codes a draw looks at; 0 is all.
            stop: code that ends a request, not chosen before `least` entries of the history; with `shaped`.
        """
        shape = self.shape
        rows = buffers["input"].shape[0]
        if shape.steps > 1 and _stride(buffers["next"]) != padded(shape.width):
            raise ValueError(f"next: got rows of {_stride(buffers['next'])}, expected {padded(shape.width)}")
        arguments = Arguments(
            rows=rows,
            noise_stride=_stride(buffers["noise"]),
            codes_stride=_stride(buffers["codes"]),
            next_stride=_stride(buffers["next"]),
            history_stride=_stride(buffers["history"]) if shape.shaped else 0,
            candidates=min(candidates or shape.vocab, shape.vocab),
            stop=stop,
            least=least,
        )
        tables = {
            name: uploaded(self.memory, np.array([buffer.pointer for buffer in buffers[name]], np.uint64))
            for name in ("keys", "values")
        }
        used = {**self._weights, **self._scratch, **buffers, **tables}
        for name in POINTERS:
            if name in used:
                setattr(arguments, name, used[name].pointer)
        cu = program.driver()
        parameters = np.array([ctypes.addressof(arguments)], np.uint64)
        keeps = (arguments, used)  # for as long as the launch may be repeated

        def launch(keeps: object = keeps) -> None:
            one = (1, 1)
            program.call(
                cu.cuLaunchCooperativeKernel,
                self._function,
                self._blocks,
                *one,
                _THREADS,
                *one,
                self._shared,
                self.memory.stream,
                parameters.ctypes.data,
            )

        return launch


def _stride(buffer: Any) -> int:
    """Elements from one row to the next."""
    return int(np.prod(buffer.shape[1:], dtype=np.int64))


def uploaded(memory: DeviceMemory, value: Array) -> DeviceBuffer:
    """A copy on the GPU, without pinned memory beside it."""
    cudart = runtime()
    buffer = memory.zeros(value.shape, value.dtype.name)
    kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
    call(cudart.cudaMemcpyAsync, buffer.pointer, value.ctypes.data, value.nbytes, kind, memory.stream)
    call(cudart.cudaStreamSynchronize, memory.stream)
    return buffer
