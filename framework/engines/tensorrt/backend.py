"""TensorRT and TensorRT-RTX: their settings, which differ only in the package that is used.

conf/backend/tensorrt.yaml ->  _target_: framework.engines.tensorrt.backend.TensorRT
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from attrs import validators as v

from framework.engines import manifest
from framework.engines.backend import Backend, Compiled, Pass
from framework.engines.base import Engine, EngineSpec
from framework.engines.footprint import MemoryRules
from framework.engines.manifest import Manifest
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir

    from framework.engines.cuda.memory import DeviceMemory

_DISTRIBUTION = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
_CAPABILITY = "compute_capability"


@attrs.frozen(kw_only=True)
class TensorRT(Backend):
    """TensorRT, or TensorRT-RTX, which has the same Python interface.

    Attributes:
        module: package to use; also the name of the backend.
        device: index of the GPU.
        compute_capability: GPU to build for, e.g. "8.9", so that the building machine needs none (TensorRT-RTX);
            None builds for the GPU that is there.
        workspace: bytes of scratch memory the builder may plan with; 0 is the whole device.
        tf32: multiply fp32 with 10-bit mantissas; faster, but no longer the ids of fp32.
        optimization_level: 0 (quick build) to 5 (quick engine); None is the package's own.
    """

    dtypes: ClassVar[Mapping[str, str]] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    memory: ClassVar[MemoryRules] = MemoryRules(as_filed=True)
    candidates: ClassVar[int] = 1024

    module: Literal["tensorrt", "tensorrt_rtx"] = attrs.field(
        default="tensorrt", validator=v.in_(("tensorrt", "tensorrt_rtx"))
    )
    device: int = attrs.field(default=0, validator=v.ge(0))
    compute_capability: str | None = attrs.field(default=None, validator=v.optional(v.matches_re(r"\d+\.\d")))
    workspace: int = attrs.field(default=0, validator=v.ge(0))
    tf32: bool = False
    optimization_level: int | None = attrs.field(default=None, validator=v.optional(v.and_(v.ge(0), v.le(5))))

    @property
    def name(self) -> str:
        return self.module

    @property
    def packages(self) -> Sequence[str]:
        return (_DISTRIBUTION[self.module], "onnx", "onnx_ir")

    @property
    def place(self) -> str:
        return f"GPU {self.device}"

    def free_memory(self) -> int:
        from framework.engines.cuda.memory import DeviceMemory

        return DeviceMemory(self.device).free

    def copy_rate(self) -> float:
        from framework.engines.cuda.memory import DeviceMemory

        return DeviceMemory(self.device).copy_rate()

    def on_device(self, device: int) -> TensorRT:
        return attrs.evolve(self, device=device)

    def passes(self) -> Sequence[Pass]:
        return ()  # it takes the standard operators as they are

    def compile(
        self, model: ir.Model, folder: Path, *, spec: EngineSpec, opt: Mapping[str, int], where: str
    ) -> Compiled:
        from framework.engines.tensorrt import plan

        trt = self._package()
        capability = self._target(trt)
        plan.compile_plan(
            trt, model, folder, lambda config: self._configure(trt, config), spec=spec, opt=opt, where=where
        )
        return Compiled(files=[plan.PLAN], needs={_CAPABILITY: capability})

    def unable(self, record: Manifest) -> str | None:
        try:
            self._check_gpu("", record)
        except ConfigError as error:
            return f"{error.problems[0].got} where {error.problems[0].expected} is needed"
        return None

    def load(self, folder: Path, record: Manifest) -> Engine:
        from framework.engines.tensorrt.engine import TensorRTEngine

        trt = self._package()
        self._check_version(folder, record)
        memory = self._check_gpu(str(folder), record)
        return TensorRTEngine(trt, folder, record, memory)

    @property
    def _again(self) -> str:
        return f"build again: multistage-build backend={self.name}"

    def _package(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            package = _DISTRIBUTION[self.module]
            raise ConfigError(
                Problem(
                    where=f"backend={self.name}",
                    got=str(error),
                    expected=f"the package {package}",
                    hint=f"pip install 'multistage[{package}]'",
                )
            ) from None

    def _configure(self, trt: Any, config: Any) -> None:
        if self.workspace:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, self.workspace)
        if self.optimization_level is not None:
            config.builder_optimization_level = self.optimization_level
        if not self.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        if self.compute_capability is not None:
            config.num_compute_capabilities = 1
            config.set_compute_capability(_capabilities(trt)[self.compute_capability], 0)

    def _target(self, trt: Any) -> str:
        """Compute capability of the GPU to build for."""
        if self.compute_capability is None:
            from framework.engines.cuda.memory import DeviceMemory

            return DeviceMemory(self.device).compute_capability
        known = _capabilities(trt)
        if self.compute_capability not in known:
            expected = f"one of {', '.join(known)}" if known else "none: this package builds for the GPU that is there"
            got = repr(self.compute_capability)
            raise ConfigError(Problem(where=f"backend.{_CAPABILITY}", got=got, expected=expected))
        return self.compute_capability

    def _check_gpu(self, where: str, record: Manifest) -> DeviceMemory:
        """The GPU's memory. Raises ConfigError for one that the engine was not built for."""
        from framework.engines.cuda.memory import DeviceMemory

        memory = DeviceMemory(self.device)
        built = record.options.get(_CAPABILITY)
        if built != memory.compute_capability:
            got = f"a plan for compute capability {built}"
            expected = f"{memory.compute_capability}, that of {self.place}"
            raise ConfigError(Problem(where=where, got=got, expected=expected, hint=self._again))
        return memory

    def _check_version(self, folder: Path, record: Manifest) -> None:
        package = _DISTRIBUTION[self.module]
        built, here = record.versions.get(package), manifest.versions(package).get(package)
        if built != here:
            got, expected = f"a plan of {package} {built}", f"one of the installed {here}"
            raise ConfigError(Problem(where=str(folder), got=got, expected=expected, hint=self._again))


def _capabilities(trt: Any) -> dict[str, Any]:
    """GPUs that the package can build for without one: compute capability -> its own constant; SM120 is 12.0."""
    choices = getattr(trt, "ComputeCapability", None)
    members = choices.__members__ if choices is not None else {}
    return {f"{name[2:-1]}.{name[-1]}": value for name, value in members.items() if name.startswith("SM")}
