"""Engines of ONNX Runtime on a GPU: runs that do not wait, and runs that are recorded once and launched as one."""

from __future__ import annotations

from typing import Any

from framework.engines.bound import Bindings, BufferCall
from framework.engines.cuda.kernels.frame import FrameCall, FrameKernels
from framework.engines.cuda.memory import DeviceMemory
from framework.engines.manifest import Manifest
from framework.engines.ort.engine import OnnxRuntimeCall, OnnxRuntimeEngine, onnxruntime

_UNRECORDED = -1  # id of a graph for a run that is not to be recorded


class CudaEngine(OnnxRuntimeEngine):
    """A session whose buffers lie on a GPU.

    Args:
        frames: kernels that take over the calls that fit them.
    """

    def __init__(
        self,
        session: Any,
        record: Manifest,
        memory: DeviceMemory,
        *,
        captures: bool,
        frames: FrameKernels | None = None,
    ) -> None:
        super().__init__(session, record, memory)
        self.captures = captures
        self._device, self._frames = memory, frames
        self._graphs = 0  # recorded so far

    def _call(self, bindings: Bindings) -> BufferCall:
        session = self.open_session()
        if self._frames is not None and self._frames.fits(bindings):
            return FrameCall(self.spec, bindings, self._frames, self._device)
        self._graphs += 1
        return _CudaCall(session, self, bindings, graph_id=self._graphs)


class _CudaCall(OnnxRuntimeCall):
    def __init__(self, session: Any, engine: CudaEngine, bindings: Bindings, graph_id: int) -> None:
        super().__init__(session, engine, bindings)
        self.options = _run_options(_UNRECORDED)
        self._graph_id = graph_id
        self._captures = engine.captures
        self._fed_back = bindings.fed_back()

    def capture(self) -> None:
        if not self._captures:
            return
        # ONNX Runtime records a graph by running it: once to allocate, once to record, then it replays it.
        # What those runs did to states and fed-back inputs is undone.
        saved = [(buffer, buffer.read().copy()) for buffer in self._fed_back]
        self.options = _run_options(self._graph_id)
        self._launch()
        for buffer, value in saved:
            buffer.write(value)


def _run_options(graph_id: int) -> Any:
    options = onnxruntime("cuda").RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")  # `read` waits for the stream
    return options
