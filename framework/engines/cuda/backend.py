"""ONNX Runtime on an NVIDIA GPU: its settings and its passes.

conf/backend/cuda.yaml ->  _target_: framework.engines.cuda.backend.OnnxRuntimeCuda
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import validators as v

from framework.engines.backend import Backend, Compiled, Pass
from framework.engines.base import Engine, EngineSpec
from framework.engines.manifest import Manifest
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir


@attrs.frozen(kw_only=True)
class OnnxRuntimeCuda(Backend):
    """ONNX Runtime on an NVIDIA GPU; states, inputs and outputs stay on it.

    Attributes:
        device: index of the GPU.
        cuda_graph: let calls be captured; needs every node of the network on the GPU.
        tf32: multiply fp32 with 10-bit mantissas; faster, but no longer the ids of fp32.
        memory_limit: bytes its arena may take; 0 is all.
        kernels: say frames of speech by own kernels in calls of few rows, where a network notes how (`frames`). Takes
            the weights of the talker a second time, and a GPU of compute capability 9.0 or later.
    """

    name: ClassVar[str] = "cuda"
    packages: ClassVar[Sequence[str]] = ("onnxruntime-gpu", "onnx", "onnx_ir")
    dtypes: ClassVar[Mapping[str, str]] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    candidates: ClassVar[int] = 1024

    device: int = attrs.field(default=0, validator=v.ge(0))
    cuda_graph: bool = True
    tf32: bool = False
    memory_limit: int = attrs.field(default=0, validator=v.ge(0))
    kernels: bool = False

    @property
    def place(self) -> str:
        return f"GPU {self.device}"

    def free_memory(self) -> int:
        from framework.engines.cuda.memory import DeviceMemory

        return DeviceMemory(self.device).free

    def copy_rate(self) -> float:
        from framework.engines.cuda.memory import DeviceMemory

        return DeviceMemory(self.device).copy_rate()

    def on_device(self, device: int) -> OnnxRuntimeCuda:
        return attrs.evolve(self, device=device)

    def passes(self) -> Sequence[Pass]:
        from framework.engines.passes.conv import widen_convolutions
        from framework.engines.passes.moe import group_experts_cuda

        # cuDNN 9.19 has no kernel for some dilated fp16 convolutions over [time, 1], but has them over [1, time].
        return (group_experts_cuda, widen_convolutions)

    def compile(
        self, model: ir.Model, folder: Path, *, spec: EngineSpec, opt: Mapping[str, int], where: str
    ) -> Compiled:
        from framework.engines.ort import engine

        return Compiled(files=engine.save(model, folder))

    def unable(self, record: Manifest) -> str | None:
        try:
            self._package()
            self.free_memory()
        except ConfigError as error:
            return f"{error.problems[0].got} where {error.problems[0].expected} is needed"
        return None

    def load(self, folder: Path, record: Manifest) -> Engine:
        from framework.engines.cuda.engine import CudaEngine
        from framework.engines.cuda.kernels import frame
        from framework.engines.cuda.memory import DeviceMemory
        from framework.engines.ort import engine

        ort = self._package()
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()  # the libraries of the nvidia-* packages, which are on no search path
        memory = DeviceMemory(self.device)
        settings = {
            "device_id": str(self.device),
            "user_compute_stream": str(memory.stream),
            "enable_cuda_graph": str(int(self.cuda_graph)),
            "use_tf32": str(int(self.tf32)),
            "arena_extend_strategy": "kSameAsRequested",
            **({"gpu_mem_limit": str(self.memory_limit)} if self.memory_limit else {}),
        }
        providers = [(PROVIDER, settings), ("CPUExecutionProvider", {})]
        session = engine.session(ort, folder, engine.session_options(ort), providers, str(folder))
        if session.get_providers()[0] != PROVIDER:
            got = f"providers {session.get_providers()}"
            hint = "the CUDA and cuDNN libraries that onnxruntime-gpu needs did not load"
            raise ConfigError(Problem(where=str(folder), got=got, expected=PROVIDER, hint=hint))
        found = frame.load(memory, folder, record) if self.kernels else None
        return CudaEngine(session, record, memory, captures=self.cuda_graph, frames=found)

    def _package(self) -> Any:
        """ONNX Runtime. Raises ConfigError for one that has no part for a GPU."""
        from framework.engines.ort import engine

        ort = engine.onnxruntime(self.name)
        if PROVIDER not in (present := ort.get_available_providers()):
            hint = "pip uninstall onnxruntime; pip install 'multistage[cuda]'"
            got = f"an ONNX Runtime with {', '.join(present)}"
            raise ConfigError(Problem(where="backend=cuda", got=got, expected=f"one with {PROVIDER}", hint=hint))
        return ort


PROVIDER = "CUDAExecutionProvider"
