"""Engines of ONNX Runtime: writing a network, opening a session on it, calls over bound buffers.

The CPU runs them as they are; `cuda.engine` adds what a GPU needs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.engines.bound import Bindings, BufferCall, BufferEngine
from framework.engines.manifest import Manifest
from framework.engines.memory import Buffer, Memory, give_back
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir

MODEL, WEIGHTS = "model.onnx", "model.onnx.data"


def save(model: ir.Model, folder: Path) -> Sequence[str]:
    """Write the network and its weights; returns the names of the files."""
    import onnx_ir as ir

    # Weights are mapped into memory from the file, so each starts at a page of its own.
    ir.save(model, folder / MODEL, external_data=WEIGHTS, alignment=4096, align_threshold=0)
    return [name for name in (MODEL, WEIGHTS) if (folder / name).exists()]


def check_kernels(folder: Path, where: str) -> None:
    """Raise ConfigError when ONNX Runtime has no kernel on the CPU for a node of the network in `folder`."""
    ort = onnxruntime("cpu")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    session(ort, folder, options, ["CPUExecutionProvider"], where)


def onnxruntime(extra: str) -> Any:
    """The package. Raises ConfigError when it is not installed; `extra` is what installs it."""
    # ONNX Runtime 1.32 reports its use to its makers from the moment it is loaded, unless it is told not to.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        module = importlib.import_module("onnxruntime")
    except ModuleNotFoundError:
        raise ConfigError(
            Problem(
                where=f"backend={extra}",
                got="no package onnxruntime",
                expected=f"the extra {extra!r}",
                hint=f"pip install 'multistage[{extra}]'",
            )
        ) from None
    # Errors alone: with every session on CUDA it warns that the provider is built in and no plugin.
    module.set_default_logger_severity(3)
    return module


def session_options(ort: Any) -> Any:
    """What holds for every engine that runs."""
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return options


def session(ort: Any, folder: Path, options: Any, providers: Sequence[Any], where: str) -> Any:
    """Open the network in `folder`. Raises ConfigError with ONNX Runtime's own words when it does not load."""
    try:
        found = ort.InferenceSession(folder / MODEL, options, providers=providers)
    except Exception as error:  # its exception classes have no common base but this
        got = str(error).strip()
        raise ConfigError(Problem(where=where, got=got, expected="a model that ONNX Runtime loads")) from error
    give_back()
    return found


class OnnxRuntimeEngine(BufferEngine):
    """An open session over buffers of `memory`."""

    def __init__(self, session: Any, record: Manifest, memory: Memory) -> None:
        super().__init__(record.spec, memory, record.in_place)
        self._session = session

    def close(self) -> None:
        super().close()
        self._session = None

    def _call(self, bindings: Bindings) -> BufferCall:
        return OnnxRuntimeCall(self.open_session(), self, bindings)

    def open_session(self) -> Any:
        if self._session is None:
            raise ValueError("the engine is closed")
        return self._session


class OnnxRuntimeCall(BufferCall):
    """A session bound to the buffers of one call."""

    def __init__(self, session: Any, engine: OnnxRuntimeEngine, bindings: Bindings) -> None:
        super().__init__(engine.spec, bindings)
        self.memory = engine.memory
        self.options: Any = None  # of a run
        self._binding = session.io_binding()
        self._keep = bindings
        place = (self.memory.device_type, self.memory.device_id)
        for name, buffer in bindings.inputs.items():
            self._binding.bind_input(name, *place, _element_type(buffer), buffer.shape, buffer.pointer)
        for name, buffer in bindings.outputs.items():
            self._binding.bind_output(name, *place, _element_type(buffer), buffer.shape, buffer.pointer)
        self._run = session.run_with_iobinding

    def _launch(self) -> None:
        self._run(self._binding, self.options)

    def close(self) -> None:
        self._run, self._binding = _closed, None


def _closed(*_: Any) -> None:
    raise ValueError("the engine is closed")


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
