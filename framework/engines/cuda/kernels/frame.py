"""A whole frame of speech by own kernels: what the talker reads, its step, and the predictor's steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from framework.engines import frames
from framework.engines.base import Array, EngineSpec
from framework.engines.bound import Bindings, BufferCall
from framework.engines.cuda.kernels import program
from framework.engines.cuda.kernels.decoder import Decoder, uploaded
from framework.engines.cuda.kernels.pack import DecoderWeights
from framework.engines.cuda.kernels.shape import DecoderShape
from framework.engines.cuda.memory import DeviceBuffer, DeviceMemory
from framework.engines.frames import FrameLoop, Stack
from framework.engines.manifest import Manifest
from framework.engines.ort.engine import MODEL
from framework.errors import ConfigError, Problem

LINEAR_POINTERS = ("matrix", "bias", "table", "ids", "vectors", "extra", "codes", "starts", "to")
LINEAR_NUMBERS = ("inputs", "outputs", "rows", "to_stride", "groups", "silu")
LINEAR_ROWS = 8  # of the matrix, in a block
OLDEST = 9.0  # compute capability: older GPUs have no copies from memory that a barrier counts
_WITHOUT = "backend.kernels=false leaves everything to ONNX Runtime"


class LinearArguments(ctypes.Structure):
    """As `struct Arguments` of linear.cu, name by name."""

    _fields_ = [(name, ctypes.c_void_p) for name in LINEAR_POINTERS] + [(name, ctypes.c_int) for name in LINEAR_NUMBERS]


class FrameKernels:
    """The kernels of a network's frame loop, with its weights on the GPU a second time.

    Args:
        tensors: every parameter that `loop` names, in the dtype of the network.
        capacity: cache entries of a row.

    Raises:
        ConfigError: the loop has a shape that the kernels cannot do, or there is no NVRTC.
    """

    def __init__(self, memory: DeviceMemory, loop: FrameLoop, tensors: Mapping[str, Array], capacity: int) -> None:
        self._memory, self.loop = memory, loop
        dtype = tensors[loop.codes].dtype.name
        talker = decoder_shape(loop.talker, dtype, capacity=capacity, shaped=True)
        steps = len(loop.heads)
        predictor = decoder_shape(loop.predictor, dtype, capacity=steps + 1, prompt=2, steps=steps)
        self.most_rows = min(talker.most_rows, predictor.most_rows)
        first = loop.talker.vocab
        codes = tensors[loop.codes]
        tables = codes[first:].reshape(steps, loop.predictor.vocab, -1)
        heads = np.stack([tensors[name] for name in loop.heads])
        talker_weights = decoder_weights(loop.talker, tensors, capacity, tensors[loop.head][None], codes[None, :first])
        self._talker = Decoder(memory, talker, talker_weights)
        self._predictor = Decoder(memory, predictor, decoder_weights(loop.predictor, tensors, steps + 1, heads, tables))

        ids = np.arange(first)
        self._never = uploaded(memory, ((ids >= first - loop.reserved) & (ids != loop.stop)).astype(np.uint8))
        starts = [0, *(first + loop.predictor.vocab * step for step in range(steps))]
        self._starts = uploaded(memory, np.array(starts, np.int64))
        names = [loop.text, loop.codes, *(f"{fc}.{part}" for fc in (loop.fc1, loop.fc2) for part in ("weight", "bias"))]
        self._tensors = {name: uploaded(memory, tensors[name].view(np.uint16)) for name in names}
        code = program.compile_source(
            program.source("linear"), {"BF16": int(dtype == "bfloat16")}, memory.compute_capability
        )
        cu = program.driver()
        self._module = program.call(cu.cuModuleLoadData, code)
        self._linear = program.call(cu.cuModuleGetFunction, self._module, b"linear")

    def fits(self, bindings: Bindings) -> bool:
        """Whether a call over these buffers is one frame of few enough rows."""
        rows, tokens = bindings.inputs["text"].shape
        return tokens == 1 and rows <= self.most_rows and not bindings.copies

    def bind(self, bindings: Bindings) -> Callable[[], None]:
        """A launch of the whole frame over the buffers of the engine's call."""
        given: dict[str, Any] = dict(bindings.inputs)
        frame = bindings.outputs["frame"]
        rows, loop = given["text"].shape[0], self.loop
        talker, predictor = self._talker.buffers(rows, caches=False), self._predictor.buffers(rows)
        shared = ("temperature", "top_p", "min_p", "top_k")
        talker |= {name: given[name] for name in (*shared, "noise", "history")} | {
            "past": given["past_lengths"],
            "spoken": given["frames"],
            "penalty": given["repetition_penalty"],
            "bias": given["logit_bias"],
            "never": self._never,
            "codes": frame,
            "keys": [given[f"key_cache.{layer}"] for layer in range(loop.talker.layers)],
            "values": [given[f"value_cache.{layer}"] for layer in range(loop.talker.layers)],
            **self._predictor.reads_after(predictor["input"]),
        }
        predictor |= {name: given[f"cp_{name}"] for name in shared} | {
            "noise": _from_second(given["noise"]),
            "codes": _from_second(frame),
        }
        inner = self._memory.zeros((rows, self._tensors[f"{loop.fc1}.weight"].shape[0]), "float32")
        launches = [
            self._product(loop.fc1, inner, silu=True, ids=given["text"]),
            self._product(loop.fc2, talker["input"], vectors=inner, codes=given["codes"]),
            self._talker.bind(talker, candidates=loop.candidates, stop=loop.stop, least=loop.least),
            self._predictor.bind(predictor, candidates=loop.candidates),
        ]

        def launch() -> None:
            for one in launches:
                one()

        return launch

    def _product(
        self,
        layer: str,
        to: DeviceBuffer,
        *,
        silu: bool = False,
        ids: DeviceBuffer | None = None,
        vectors: DeviceBuffer | None = None,
        codes: DeviceBuffer | None = None,
    ) -> Callable[[], None]:
        """A launch of one layer of the text's projection; with `codes`, their embeddings are added."""
        matrix, bias = self._tensors[f"{layer}.weight"], self._tensors[f"{layer}.bias"]
        outputs, inputs = matrix.shape
        used = {"matrix": matrix, "bias": bias, "to": to}
        if ids is not None:
            used |= {"table": self._tensors[self.loop.text], "ids": ids}
        if vectors is not None:
            used["vectors"] = vectors
        if codes is not None:
            used |= {"extra": self._tensors[self.loop.codes], "codes": codes, "starts": self._starts}
        rows = to.shape[0]
        arguments = LinearArguments(
            inputs=inputs,
            outputs=outputs,
            rows=rows,
            to_stride=to.shape[-1],
            groups=1 + len(self.loop.heads),
            silu=int(silu),
            **{name: buffer.pointer for name, buffer in used.items()},
        )
        parameters = np.array([ctypes.addressof(arguments)], np.uint64)
        cu, blocks = program.driver(), -(-outputs // LINEAR_ROWS)
        keeps = (arguments, used)

        def launch(keeps: object = keeps) -> None:
            grid, block = (blocks, rows, 1), (32 * LINEAR_ROWS, 1, 1)
            stream = self._memory.stream
            program.call(cu.cuLaunchKernel, self._linear, *grid, *block, 0, stream, parameters.ctypes.data, 0)

        return launch


def load(memory: DeviceMemory, folder: Path, record: Manifest) -> FrameKernels | None:
    """The kernels of the frame loop that the network of an engine's folder notes; None where it notes none.

    Raises:
        ConfigError: the kernels cannot do it: its shape, its precision, this GPU; or there is no NVRTC.
    """
    import onnx_ir as ir

    model = ir.load(folder / MODEL)
    loop = frames.noted(model)
    if loop is None:
        return None
    if float(memory.compute_capability) < OLDEST:
        got, expected = f"a GPU of compute capability {memory.compute_capability}", f"{OLDEST} or later"
        raise ConfigError(Problem(where="backend.kernels=true", got=got, expected=expected, hint=_WITHOUT))
    weights = model.graph.initializers
    tensors = {name: value.const_value.numpy() for name, value in weights.items() if value.const_value is not None}
    if (got := tensors[loop.codes].dtype.name) not in ("float16", "bfloat16"):
        problem = Problem(where=f"{folder}: backend.kernels=true", got=got, expected="fp16 or bf16", hint=_WITHOUT)
        raise ConfigError(problem)
    caches = next(state.input for state in record.spec.states if state.input.name == "key_cache.0")
    capacity = caches.resolve({**record.spec.caps, "batch": 1})[2]
    return FrameKernels(memory, loop, tensors, capacity)


class FrameCall(BufferCall):
    """One frame of an engine's call, by own kernels."""

    def __init__(self, spec: EngineSpec, bindings: Bindings, kernels: FrameKernels, memory: DeviceMemory) -> None:
        super().__init__(spec, bindings)
        self._memory = memory
        self._keep = bindings
        self._frame = kernels.bind(bindings)

    def capture(self) -> None:
        self._frame = self._memory.record(self._frame)

    def _launch(self) -> None:
        self._frame()

    def close(self) -> None:
        self._frame = _closed


def _closed() -> None:
    raise ValueError("the engine is closed")


def decoder_shape(stack: Stack, dtype: str, **more: Any) -> DecoderShape:
    """The shape of a stack's kernel."""
    names = ("layers", "width", "heads", "kv_heads", "head_dim", "mlp", "vocab", "qk_norm", "eps")
    return DecoderShape(**{name: getattr(stack, name) for name in names}, dtype=dtype, **more)  # type: ignore[arg-type]


def decoder_weights(
    stack: Stack, tensors: Mapping[str, Array], capacity: int, head: Array, table: Array
) -> DecoderWeights:
    def layers(*names: str) -> Array:
        """Those of every layer, one below the other."""
        each = [
            np.concatenate([tensors[f"{stack.prefix}.layers.{layer}.{name}.weight"] for name in names])
            for layer in range(stack.layers)
        ]
        return np.stack(each)

    def angles(name: str) -> Array:
        """[capacity, head_dim / 2]; a table that is shorter has no later position."""
        table = np.asarray(tensors[name], np.float32)[:capacity]
        return np.pad(table, [(0, capacity - len(table)), (0, 0)], mode="edge")

    return DecoderWeights(
        qkv=layers("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=layers("self_attn.o_proj"),
        gate=layers("mlp.gate_proj"),
        up=layers("mlp.up_proj"),
        down=layers("mlp.down_proj"),
        norm_attention=layers("input_layernorm"),
        norm_mlp=layers("post_attention_layernorm"),
        norm_query=layers("self_attn.q_norm") if stack.qk_norm else None,
        norm_key=layers("self_attn.k_norm") if stack.qk_norm else None,
        norm=tensors[f"{stack.prefix}.norm.weight"],
        head=head,
        table=table,
        cosine=angles(stack.cosine),
        sine=angles(stack.sine),
    )


def _from_second(buffer: Any) -> DeviceBuffer:
    """The same rows from their second entry on: same stride, another start."""
    start = buffer.pointer + buffer.dtype.itemsize
    return DeviceBuffer(buffer.memory, start, buffer.shape, buffer.dtype, buffer)
