"""Compiling a plan: a network parsed, its shapes bounded, its kernels chosen."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.engines.base import EngineSpec, TensorSpec
from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir

PLAN = "engine.plan"


def compile_plan(
    trt: Any,
    model: ir.Model,
    folder: Path,
    configure: Callable[[Any], None],
    *,
    spec: EngineSpec,
    opt: Mapping[str, int],
    where: str,
) -> None:
    """Parse, plan and serialise a network into `folder / PLAN`.

    Args:
        trt: the package.
        configure: sets what the settings ask for in the builder's config.
        opt: value of each symbolic dimension that the kernels are tuned for.

    Raises:
        ConfigError: every node the parser refuses, or the builder's own errors.
    """
    import onnx_ir as ir

    log = make_log(trt)
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
        configure(config)
        config.add_optimization_profile(_profile(builder, network, spec, opt, where))
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ConfigError(log.problems(where, "a network that it can build"))
    (folder / PLAN).write_bytes(plan)


def make_log(trt: Any) -> Any:
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

    fixed = state_dims(spec)
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.shape is not None:
            value.shape = ir.Shape(fixed.get(str(getattr(dim, "value", dim)), dim) for dim in value.shape)


def state_dims(spec: EngineSpec) -> dict[str, int]:
    dims = {dim for state in spec.states for dim in state.input.shape if isinstance(dim, str)} - {"batch"}
    return {dim: spec.caps[dim] for dim in dims}


def _profile(builder: Any, network: Any, spec: EngineSpec, opt: Mapping[str, int], where: str) -> Any:
    profile = builder.create_optimization_profile()
    tensors: dict[str, TensorSpec] = {t.name: t for t in [*spec.inputs, *(state.input for state in spec.states)]}
    fixed = state_dims(spec)
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
