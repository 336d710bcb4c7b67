"""What a model must be before it becomes an engine, every fault at once, and which of its tensors may share memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from framework.engines.base import EngineSpec, StateSpec, TensorSpec
from framework.errors import ConfigError, Problem, nearest

if TYPE_CHECKING:
    import onnx_ir as ir

# Operators that may overwrite an input of their output's shape: no element is read after it was written.
# fmt: off
_OVERWRITE = frozenset({
    "Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Neg", "Abs", "Exp", "Log", "Sqrt", "Sign", "Relu",
    "Sigmoid", "Tanh", "Clip", "Floor", "Ceil", "Round", "Where", "And", "Or", "Xor", "Not", "BitwiseAnd",
    "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift", "TensorScatter", "ScatterElements", "ScatterND",
})
# fmt: on
_OVERWRITE_CONTRIB = frozenset({"GroupQueryAttention"})
# Operators whose output may be a view of their first input, so that who reads the output reads the input.
_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"})
_STANDARD = ("", "ai.onnx")


def check(model: ir.Model, *, where: str, states: Mapping[str, str], caps: Mapping[str, int]) -> None:
    """Raise ConfigError with everything that keeps `model` from becoming an engine."""
    problems = [*_initializers(model, where), *_operators(model, where), *_tensors(model, where, states, caps)]
    if not problems:
        import onnx_ir.passes.common as passes

        try:
            passes.CheckerPass()(model)
        except Exception as error:
            cause = str(error.__cause__ or error).strip()
            problems.append(Problem(where=where, got=cause, expected="a model that the ONNX checker accepts"))
    if problems:
        raise ConfigError(problems)


def spec_of(model: ir.Model, *, states: Mapping[str, str], caps: Mapping[str, int]) -> EngineSpec:
    """Names, dtypes and shapes of a checked model."""
    inputs = {value.name or "": _tensor(value) for value in _inputs(model)}
    outputs = {value.name or "": _tensor(value) for value in model.graph.outputs}
    return EngineSpec(
        inputs=tuple(tensor for name, tensor in inputs.items() if name not in states),
        outputs=tuple(tensor for name, tensor in outputs.items() if name not in set(states.values())),
        states=tuple(StateSpec(input=inputs[name], output=output) for name, output in states.items()),
        caps=dict(caps),
    )


def in_place(model: ir.Model) -> dict[str, tuple[str, ...]]:
    """For each output the inputs that it may share a buffer with: same dtype and rank, and overwriting is safe.

    A backend may run independent nodes in any order, so it is safe exactly when every reader of the input comes before
    the node that writes the output on a path of the graph, or is that node and allows it.
    """
    pairs: dict[str, tuple[str, ...]] = {}
    reads = {node: _reads(node) for node in model.graph}
    for output in model.graph.outputs:
        writer = output.producer()
        if writer is None:
            continue
        before = _ancestors(writer, reads)
        safe = (
            value.name
            for value in _inputs(model)
            if value.dtype == output.dtype
            and len(value.shape or ()) == len(output.shape or ())
            and all(reader in before or (reader is writer and _overwrites(reader)) for reader in _readers(value, reads))
        )
        names = tuple(name for name in safe if name)
        if names and output.name:
            pairs[output.name] = names
    return pairs


def _overwrites(node: ir.Node) -> bool:
    if node.domain == "com.microsoft":
        return node.op_type in _OVERWRITE_CONTRIB
    return node.domain in _STANDARD and node.op_type in _OVERWRITE


def _reads(node: ir.Node) -> set[ir.Value]:
    """What a node reads, also from inside its subgraphs."""
    import onnx_ir as ir

    values = {value for value in node.inputs if value is not None}
    for attribute in node.attributes.values():
        if isinstance(attribute, ir.Attr) and attribute.type == ir.AttributeType.GRAPH:
            for child in attribute.as_graph():
                values |= _reads(child)
    return values


def _readers(value: ir.Value, reads: Mapping[ir.Node, set[ir.Value]]) -> Iterator[ir.Node]:
    """Nodes of the main graph that read `value`, also through views of it."""
    for node, values in reads.items():
        if value in values:
            yield node
            if node.op_type in _VIEWS and node.domain in _STANDARD:
                for output in node.outputs:
                    yield from _readers(output, reads)


def _ancestors(node: ir.Node, reads: Mapping[ir.Node, set[ir.Value]]) -> set[ir.Node]:
    """Every node on a path to `node`."""
    seen: set[ir.Node] = set()
    waiting = [node]
    while waiting:
        for value in reads.get(waiting.pop(), ()):
            parent = value.producer()
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return seen


def _tensor(value: ir.Value) -> TensorSpec:
    assert value.dtype is not None and value.shape is not None  # `check` has seen to it
    dims = tuple(dim if isinstance(dim, int) else str(dim.value) for dim in value.shape)
    return TensorSpec(name=value.name or "", dtype=value.dtype.numpy().name, shape=dims)


def _inputs(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def _initializers(model: ir.Model, where: str) -> Iterator[Problem]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is None:
                yield Problem(where=f"{where}: {name}", got="no data", expected="weights of the checkpoint")


def _operators(model: ir.Model, where: str) -> Iterator[Problem]:
    import onnx

    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain in _STANDARD}
    functions = {(function.domain, function.name) for function in model.functions.values()}
    for graph in model.graphs():
        for node in graph.all_nodes():
            if node.domain in _STANDARD and node.op_type not in known and ("", node.op_type) not in functions:
                hint = nearest(node.op_type, known) if len(node.op_type) > 2 else ""
                yield Problem(
                    where=f"{where}: {node.name or '(unnamed node)'}",
                    got=f"operator {node.op_type}",
                    expected="an operator of ONNX",
                    hint=hint if hint.startswith("did") else "",
                )


def _tensors(model: ir.Model, where: str, states: Mapping[str, str], caps: Mapping[str, int]) -> Iterator[Problem]:
    inputs = {value.name or "": value for value in _inputs(model)}
    outputs = {value.name or "": value for value in model.graph.outputs}
    unbounded: dict[str, str] = {}
    for name, value in [*inputs.items(), *outputs.items()]:
        if value.dtype is None or value.shape is None:
            yield Problem(where=f"{where}: {name}", got="no dtype or no shape", expected="both")
            continue
        for dim in value.shape:
            symbol = getattr(dim, "value", dim)
            if symbol is None:
                got = f"shape {value.shape}"
                yield Problem(where=f"{where}: {name}", got=got, expected="a name for every dimension")
            elif isinstance(symbol, str) and symbol not in caps:
                unbounded.setdefault(symbol, name)
    for symbol, name in unbounded.items():
        hint = nearest(symbol, caps)
        yield Problem(where=f"{where}: {name}", got=f"dimension {symbol!r}", expected="a cap for it", hint=hint)
    for source, target in states.items():
        yield from _state(inputs, outputs, where, source, target)


def _state(
    inputs: Mapping[str, ir.Value], outputs: Mapping[str, ir.Value], where: str, source: str, target: str
) -> Iterator[Problem]:
    found = True
    sides: Iterable[tuple[str, Mapping[str, ir.Value], str]] = (("input", inputs, source), ("output", outputs, target))
    for side, values, name in sides:
        if name not in values:
            found = False
            hint = nearest(name, values)
            yield Problem(where=f"{where}: state {source}", got=f"{side} {name!r}", expected=f"an {side}", hint=hint)
    if found and (inputs[source].dtype, inputs[source].shape) != (outputs[target].dtype, outputs[target].shape):
        got, expected = f"{_show(outputs[target])} as {target!r}", f"{_show(inputs[source])} as it came in"
        yield Problem(where=f"{where}: state {source}", got=got, expected=expected)


def _show(value: ir.Value) -> str:
    return f"{value.dtype.name.lower() if value.dtype else 'unknown'}{value.shape}"
