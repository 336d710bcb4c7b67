"""ONNX Runtime, on the CPU and on CUDA: one engine class over two memories."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.engines.backend import OnnxRuntimeCpu, OnnxRuntimeCuda
from framework.engines.bound import Bindings, BufferCall, BufferEngine
from framework.engines.manifest import Manifest
from framework.engines.memory import Buffer, HostMemory, Memory, give_back
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir

MODEL, WEIGHTS = "model.onnx", "model.onnx.data"


def save_model(
    model: ir.Model, folder: Path, backend: OnnxRuntimeCpu | OnnxRuntimeCuda, *, where: str
) -> Sequence[str]:
    """Write the network and its weights; on the CPU also see that ONNX Runtime has a kernel for every node.

    Returns:
        Names of the files written.
    """
    import onnx_ir as ir

    # Weights are mapped into memory from the file, so each starts at a page of its own.
    ir.save(model, folder / MODEL, external_data=WEIGHTS, alignment=4096, align_threshold=0)
    if isinstance(backend, OnnxRuntimeCpu):
        options = _ort(backend.name).SessionOptions()
        options.graph_optimization_level = _ort(backend.name).GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        _session(folder, options, ["CPUExecutionProvider"], where)
    return [name for name in (MODEL, WEIGHTS) if (folder / name).exists()]


class OnnxRuntimeEngine(BufferEngine):
    def __init__(self, folder: Path, backend: OnnxRuntimeCpu | OnnxRuntimeCuda, record: Manifest) -> None:
        self._graphs = 0
        memory, providers = _device(backend)
        super().__init__(record.spec, memory, record.in_place)
        self.captures = isinstance(backend, OnnxRuntimeCuda) and backend.cuda_graph
        self._session = _session(folder, _options(backend), providers, str(folder))
        give_back()
        if self._session.get_providers()[0] != providers[0][0]:
            raise ConfigError(
                Problem(
                    where=str(folder),
                    got=f"providers {self._session.get_providers()}",
                    expected=providers[0][0],
                    hint="the CUDA and cuDNN libraries that onnxruntime-gpu needs did not load",
                )
            )

    def close(self) -> None:
        super().close()
        self._session = None

    def _call(self, bindings: Bindings) -> BufferCall:
        if self._session is None:
            raise ValueError("the engine is closed")
        self._graphs += 1
        return _OnnxRuntimeCall(self, bindings, graph_id=self._graphs)


class _OnnxRuntimeCall(BufferCall):
    def __init__(self, engine: OnnxRuntimeEngine, bindings: Bindings, graph_id: int) -> None:
        super().__init__(engine.spec, bindings)
        memory = engine._memory
        self._memory = memory
        self._graph_id = graph_id
        self._captures = engine.captures
        self._fed_back = bindings.fed_back()
        self._binding = engine._session.io_binding()
        self._keep = bindings
        place = (memory.device_type, memory.device_id)
        for name, buffer in bindings.inputs.items():
            self._binding.bind_input(name, *place, _element_type(buffer), buffer.shape, buffer.pointer)
        for name, buffer in bindings.outputs.items():
            self._binding.bind_output(name, *place, _element_type(buffer), buffer.shape, buffer.pointer)
        self._options = _run_options(memory.device_type, graph_id=-1)
        self._run = engine._session.run_with_iobinding

    def _launch(self) -> None:
        self._run(self._binding, self._options)

    def close(self) -> None:
        self._run, self._binding = _closed, None

    def capture(self) -> None:
        if not self._captures:
            return
        # ONNX Runtime records a graph by running it: once to allocate, once to record, then it replays it.
        # What those runs did to states and fed-back inputs is undone.
        saved = [(buffer, buffer.read().copy()) for buffer in self._fed_back]
        self._options = _run_options(self._memory.device_type, graph_id=self._graph_id)
        self._launch()
        for buffer, value in saved:
            buffer.write(value)


def _closed(*_: Any) -> None:
    raise ValueError("the engine is closed")


def _ort(name: str) -> Any:
    # ONNX Runtime 1.32 reports its use to its makers from the moment it is loaded, unless it is told not to.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        module = importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        raise ConfigError(
            Problem(
                where=f"backend={name}",
                got="no package onnxruntime",
                expected=f"the extra {name!r}",
                hint=f"pip install 'multistage[{name}]'",
            )
        ) from None
    # Errors alone: with every session on CUDA it warns that the provider is built in and no plugin.
    module.set_default_logger_severity(3)
    return module


def _session(folder: Path, options: Any, providers: Sequence[Any], where: str) -> Any:
    try:
        return _ort("cpu").InferenceSession(folder / MODEL, options, providers=providers)
    except ConfigError:
        raise
    except Exception as error:  # its exception classes have no common base but this
        got = str(error).strip()
        raise ConfigError(Problem(where=where, got=got, expected="a model that ONNX Runtime loads")) from error


def _device(backend: OnnxRuntimeCpu | OnnxRuntimeCuda) -> tuple[Memory, list[tuple[str, dict[str, str]]]]:
    if isinstance(backend, OnnxRuntimeCpu):
        return HostMemory(), [("CPUExecutionProvider", {})]
    ort = _ort(backend.name)
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise ConfigError(
            Problem(
                where="backend=cuda",
                got=f"an ONNX Runtime with {', '.join(ort.get_available_providers())}",
                expected="one with CUDAExecutionProvider",
                hint="pip uninstall onnxruntime; pip install 'multistage[cuda]'",
            )
        )
    from framework.engines.cuda.memory import DeviceMemory

    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()  # the libraries of the nvidia-* packages, which are on no search path
    memory = DeviceMemory(backend.device)
    settings = {
        "device_id": str(backend.device),
        "user_compute_stream": str(memory.stream),
        "enable_cuda_graph": str(int(backend.cuda_graph)),
        "use_tf32": str(int(backend.tf32)),
        "arena_extend_strategy": "kSameAsRequested",
        **({"gpu_mem_limit": str(backend.memory_limit)} if backend.memory_limit else {}),
    }
    return memory, [("CUDAExecutionProvider", settings), ("CPUExecutionProvider", {})]


def _options(backend: OnnxRuntimeCpu | OnnxRuntimeCuda) -> Any:
    ort = _ort(backend.name)
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    if isinstance(backend, OnnxRuntimeCpu):
        options.intra_op_num_threads = backend.threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = backend.arena
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(backend.spin != "never")))
        # Attention far back in a prompt is a sum of denormal numbers, which are a hundred times slower than zeros.
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        options.add_session_config_entry("session.force_spinning_stop", str(int(backend.spin == "in_call")))
    return options


def _run_options(device_type: str, graph_id: int) -> Any:
    if device_type == "cpu":
        return None
    options = _ort("cuda").RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))  # -1 runs without recording
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # `read` waits for the stream
    return options


# TensorProto.DataType of ONNX; spelled out, for importing onnx costs a second that a command does not have.
_ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}


def _element_type(buffer: Buffer) -> int:
    return _ELEMENT_TYPES[buffer.dtype.name]
