"""From a module to an ONNX model, with the guards that `onnxscript.nn` lacks.

A network is a root module whose `forward(op, inputs)` takes and returns values by name. Its parameter names are the
checkpoint's; weights are attached as tensors that stay on disk until the model is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass
from onnxscript import GraphBuilder, nn

from framework.engines.base import TensorSpec
from framework.engines.pieces import mapped
from framework.errors import ConfigError, Problem

OPSET = 24
DTYPES: Mapping[str, ir.DataType] = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int64": ir.DataType.INT64,
    "int32": ir.DataType.INT32,
    "bool": ir.DataType.BOOL,
}


def export(
    module: nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weights: Mapping[str, Any],
    *,
    dtype: str = "float32",
    name: str = "main",
) -> ir.Model:
    """Trace `module` into a model of opset 24 and attach `weights`.

    Args:
        module: an unnamed root module, not traced before (its parameters can be realised only once).
        inputs: graph inputs, states included.
        outputs: graph outputs, updated states included; `forward` returns a value for each.
        weights: tensor (onnx_ir's protocol) of every parameter, by parameter name; exactly these.
        dtype: of all float32 parameters that carry no data of their own; `weights` are cast to it.

    Raises:
        ConfigError: every weight missing, left over or of another shape.
    """
    parameters = dict(module.named_parameters())
    wanted = weight_shapes(module)
    _check(wanted, weights)
    for key in wanted:
        parameter = parameters[key]
        if dtype_of(parameter) == ir.DataType.FLOAT:
            parameter.type = ir.TensorType(DTYPES[dtype])
        parameter.const_value = _as_dtype(weights[key], dtype_of(parameter), key)

    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name)
    builder = GraphBuilder(graph)
    values = {spec.name: builder.input(spec.name, DTYPES[spec.dtype], spec.shape) for spec in inputs}
    results = module(builder.op, values)
    for spec in outputs:
        value = results[spec.name]
        value.shape, value.type = ir.Shape(spec.shape), ir.TensorType(DTYPES[spec.dtype])
        builder.add_output(value, spec.name)
    unused = sorted(key for key, p in parameters.items() if p.name not in graph.initializers)
    if unused:  # a child called by another method than __call__ leaves its parameters out
        raise AssertionError(f"parameters never realised: {unused}")
    model = ir.Model(graph, ir_version=11, producer_name="multistage")
    CheckerPass(full_check=False)(model)
    return model


def weight_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter that `export` wants a weight for, by name: those without data, and of tied ones the
    first."""
    first: dict[int, str] = {}
    return {
        key: shape_of(p)
        for key, p in module.named_parameters()
        if first.setdefault(id(p), key) == key and p.const_value is None
    }


def shape_of(parameter: nn.Parameter) -> tuple[int, ...]:
    """Shape of a parameter; every dimension is a number."""
    assert parameter.shape is not None
    return tuple(int(dim) for dim in parameter.shape.numpy())


def dtype_of(parameter: nn.Parameter) -> ir.DataType:
    assert parameter.dtype is not None
    return parameter.dtype


def _check(wanted: Mapping[str, tuple[int, ...]], weights: Mapping[str, Any]) -> None:
    problems = []
    for key, expected in wanted.items():
        if key not in weights:
            problems.append(Problem(where=f"weight {key}", got="nothing", expected=f"a tensor of shape {expected}"))
        elif tuple(weights[key].shape) != expected:
            problems.append(
                Problem(where=f"weight {key}", got=f"shape {tuple(weights[key].shape)}", expected=f"{expected}")
            )
    for key in sorted(weights.keys() - wanted.keys()):
        problems.append(
            Problem(where=f"weight {key}", got=f"shape {tuple(weights[key].shape)}", expected="no such weight")
        )
    if problems:
        raise ConfigError(problems)


def _as_dtype(tensor: Any, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    if tensor.dtype == dtype:
        return tensor
    return mapped(tensor, lambda array: array.astype(dtype.numpy()), dtype, name)
