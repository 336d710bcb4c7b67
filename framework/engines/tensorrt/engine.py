"""TensorRT and TensorRT-RTX: one class, since both packages have the same Python interface."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.engines import manifest
from framework.engines.base import EngineSpec, TensorSpec
from framework.engines.bound import Bindings, BufferCall, BufferEngine, BufferStates
from framework.engines.cuda.memory import DeviceMemory
from framework.engines.manifest import Manifest
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir

    from framework.engines.backend import TensorRT

PLAN = "engine.plan"
_DISTRIBUTION = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}


def compile_plan(
    model: ir.Model, folder: Path, backend: TensorRT, *, spec: EngineSpec, opt: Mapping[str, int], where: str
) -> tuple[Sequence[str], dict[str, Any]]:
    """Parse, plan and serialise a network.

    Args:
        opt: value of each symbolic dimension that the kernels are tuned for.

    Returns:
        Names of the files written, and what must be equal where the plan is loaded.

    Raises:
        ConfigError: every node the parser refuses, or the builder's own errors.
    """
    import onnx_ir as ir

    trt = _module(backend)
    log = _make_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    _fix_state_dims(model, spec)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        ir.save(model, Path(scratch) / "model.onnx", external_data="model.onnx.data")
        if not parser.parse_from_file(str(Path(scratch) / "model.onnx")):
            raise ConfigError(_parser_problems(parser, where))
        _allow_decomposition(trt, network)
        config = builder.create_builder_config()
        if backend.workspace:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, backend.workspace)
        if backend.optimization_level is not None:
            config.builder_optimization_level = backend.optimization_level
        if not backend.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        capability = _target(trt, config, backend)
        config.add_optimization_profile(_profile(builder, network, spec, opt, where))
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ConfigError(log.problems(where, "a network that it can build"))
    (folder / PLAN).write_bytes(plan)
    return [PLAN], {"compute_capability": capability}


class TensorRTEngine(BufferEngine):
    captures = True

    def __init__(self, folder: Path, backend: TensorRT, record: Manifest) -> None:
        trt = _module(backend)
        _check_version(folder, backend, record)
        memory = DeviceMemory(backend.device)
        built = record.options.get("compute_capability")
        if built != memory.compute_capability:
            raise ConfigError(
                Problem(
                    where=str(folder),
                    got=f"a plan for compute capability {built}",
                    expected=f"{memory.compute_capability}, that of GPU {backend.device}",
                    hint=f"build again: multistage-build backend={backend.name}",
                )
            )
        log = _make_log(trt)
        self._runtime = trt.Runtime(log)
        self._engine = self._runtime.deserialize_cuda_engine((folder / PLAN).read_bytes())
        if self._engine is None:
            raise ConfigError(log.problems(str(folder / PLAN), "a plan that it can load"))
        # TensorRT lets outputs overlay only those inputs that it has made one itself (KV cache updates).
        aliases = {state.output: self._engine.get_aliased_input_tensor(state.output) for state in record.spec.states}
        super().__init__(record.spec, memory, {output: (source,) for output, source in aliases.items() if source})
        self._user_managed = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        # Calls run one after another on one stream, so all of them share one scratch memory.
        self._scratch = memory.zeros((self._engine.device_memory_size_v2,), "uint8")

    def new_states(self, batch: int, **dims: int) -> BufferStates:
        for name, size in _state_dims(self.spec).items():
            if dims.get(name, size) != size:
                raise ValueError(f"dimension {name!r}: got {dims[name]}, but TensorRT built for exactly {size}")
        return super().new_states(batch, **dims)

    def close(self) -> None:
        super().close()
        self._engine = self._runtime = None

    def _call(self, bindings: Bindings) -> BufferCall:
        if self._engine is None:
            raise ValueError("the engine is closed")
        context = self._engine.create_execution_context(self._user_managed)
        return _TensorRTCall(self, context, bindings)


class _TensorRTCall(BufferCall):
    def __init__(self, engine: TensorRTEngine, context: Any, bindings: Bindings) -> None:
        super().__init__(engine.spec, bindings)
        self._keep = (engine._scratch, bindings)
        self._fed_back = bindings.fed_back()
        self._context = context
        self._memory: Any = engine._memory
        self._replay: Any = None
        context.set_device_memory(engine._scratch.pointer, engine._scratch.nbytes)
        for name, buffer in bindings.inputs.items():
            if not context.set_input_shape(name, buffer.shape):
                raise ValueError(f"input {name!r}: TensorRT refuses shape {buffer.shape}")
        for name, buffer in [*bindings.inputs.items(), *bindings.outputs.items()]:
            if not context.set_tensor_address(name, buffer.pointer):
                raise ValueError(f"tensor {name!r}: TensorRT refuses its address")

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
        else:
            super().__call__()

    def _launch(self) -> None:
        if self._context is None:
            raise ValueError("the engine is closed")
        if not self._context.execute_async_v3(self._memory.stream):
            raise RuntimeError("TensorRT could not enqueue the call; its log says why")

    def close(self) -> None:
        self._context = self._replay = None

    def capture(self) -> None:
        # The first run allocates, which cannot be captured; what it did to states and fed-back inputs is undone.
        saved = [(buffer, buffer.read().copy()) for buffer in self._fed_back]
        super().__call__()
        for buffer, value in saved:
            buffer.write(value)
        self._replay = self._memory.record(super().__call__)


def _module(backend: TensorRT) -> Any:
    try:
        return importlib.import_module(backend.module)
    except ImportError as error:
        package = _DISTRIBUTION[backend.module]
        raise ConfigError(
            Problem(
                where=f"backend={backend.name}",
                got=str(error),
                expected=f"the package {package}",
                hint=f"pip install 'multistage[{package}]'",
            )
        ) from None


def _make_log(trt: Any) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        """Keeps errors for the ConfigError that follows; drops the rest."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(_reason(message))

        def problems(self, where: str, expected: str) -> list[Problem]:
            reasons = [error for error in self.errors if error] or ["a failure without an error"]
            return [Problem(where=where, got=reason, expected=expected) for reason in reasons]

    return Log()


def _parser_problems(parser: Any, where: str) -> list[Problem]:
    """One problem for each node the parser refuses."""
    problems = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        node = error.node_name() or f"node {error.node()}"
        reason = error.code().name if error.desc() in ("", "false") else _reason(error.desc())
        problems.append(
            Problem(
                where=f"{where}: {node}",
                got=f"{error.node_operator() or 'an operator'}: {reason}",
                expected="what the TensorRT parser takes",
            )
        )
    return problems or [Problem(where=where, got="a file the parser refuses", expected="an ONNX model")]


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Let attention that no fused kernel serves (fp32, unusual heads) become several kernels instead of an error."""
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        if layer.type == trt.LayerType.ATTENTION_OUTPUT:
            layer.__class__ = trt.IAttentionOutputLayer  # the package's own way to reach what a layer has of its own
            layer.attention.decomposable = True


def _reason(text: str) -> str:
    """An error without the lines in which the library reports, after each one, that it met no GPU."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return "; ".join(line for line in lines if line and "catchCudaError" not in line)


def _fix_state_dims(model: ir.Model, spec: EngineSpec) -> None:
    """Give the dimensions of states, but the batch, their caps: TensorRT takes only caches of one length."""
    import onnx_ir as ir

    fixed = _state_dims(spec)
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.shape is not None:
            value.shape = ir.Shape(fixed.get(str(getattr(dim, "value", dim)), dim) for dim in value.shape)


def _state_dims(spec: EngineSpec) -> dict[str, int]:
    dims = {dim for state in spec.states for dim in state.input.shape if isinstance(dim, str)} - {"batch"}
    return {dim: spec.caps[dim] for dim in dims}


def _target(trt: Any, config: Any, backend: TensorRT) -> str:
    """Set the GPU to build for; returns its compute capability."""
    if backend.compute_capability is None:
        return DeviceMemory(backend.device).compute_capability
    choices = getattr(trt, "ComputeCapability", None)
    members = choices.__members__ if choices is not None else {}
    names = {f"{name[2:-1]}.{name[-1]}": name for name in members if name.startswith("SM")}  # SM120 -> 12.0
    if backend.compute_capability not in names:
        expected = f"one of {', '.join(names)}" if names else "none: this package builds for the GPU that is there"
        raise ConfigError(
            Problem(
                where="backend.compute_capability",
                got=repr(backend.compute_capability),
                expected=expected,
            )
        )
    config.num_compute_capabilities = 1
    config.set_compute_capability(members[names[backend.compute_capability]], 0)
    return backend.compute_capability


def _profile(builder: Any, network: Any, spec: EngineSpec, opt: Mapping[str, int], where: str) -> Any:
    profile = builder.create_optimization_profile()
    tensors: dict[str, TensorSpec] = {t.name: t for t in [*spec.inputs, *(state.input for state in spec.states)]}
    fixed = _state_dims(spec)
    problems = []
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if tensor.is_shape_tensor:
            problems.append(
                Problem(
                    where=f"{where}: {tensor.name}",
                    got="an input whose values decide a shape",
                    expected="shapes that follow from shapes",
                )
            )
            continue
        named = tensors[tensor.name]
        if any(isinstance(dim, str) for dim in named.shape):
            least = {dim: 1 for dim in named.shape if isinstance(dim, str)} | fixed
            profile.set_shape(tensor.name, *(named.resolve(dims) for dims in (least, {**opt, **fixed}, spec.caps)))
    if problems:
        raise ConfigError(problems)
    return profile


def _check_version(folder: Path, backend: TensorRT, record: Manifest) -> None:
    package = _DISTRIBUTION[backend.module]
    built, here = record.versions.get(package), manifest.versions(package).get(package)
    if built != here:
        raise ConfigError(
            Problem(
                where=str(folder),
                got=f"a plan of {package} {built}",
                expected=f"one of the installed {here}",
                hint=f"build again: multistage-build backend={backend.name}",
            )
        )
