"""How much memory an engine takes: recorded when it is built, read before it is loaded.

Weights are known exactly but for what a backend makes of them when it loads; states follow from their shapes. What lies
between the nodes is estimated: the most that is alive at once when the nodes run one after another at the largest
shapes, where a value whose shape is not known counts as much as the largest input of its node.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from framework.engines.base import EngineSpec, TensorSpec
from framework.engines.memory import numpy_dtype

if TYPE_CHECKING:
    import onnx_ir as ir

    from framework.engines.manifest import Manifest

_ENGINE = 30_000_000  # a session of ONNX Runtime without weights
# ONNX Runtime on the CPU widens 16-bit weights to fp32 and lays the result out anew before it lets go of it.
_WIDENED = 4
_ARENA = 2  # its arena on the CPU grows in powers of two


@attrs.frozen(kw_only=True)
class Footprint:
    """Bytes by what they are for."""

    weights: int
    states: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.states + self.activations


def footprint(record: Manifest, batch: int) -> Footprint:
    """What the engine of a record takes with room for `batch` rows.

    One without recorded numbers, of an older build, counts the bytes of its files and of its inputs and outputs alone.
    """
    rows = min(batch, record.spec.caps.get("batch", batch))
    dims = {**record.spec.caps, "batch": rows}
    weights = record.weights or sum(file.bytes for file in record.files.values())
    # A state that cannot be written in place has a second buffer.
    buffers = {s: 1 if s.input.name in record.in_place.get(s.output, ()) else 2 for s in record.spec.states}
    states = sum(_bytes(state.input, dims) * count for state, count in buffers.items())
    share = rows / record.spec.caps["batch"] if "batch" in record.spec.caps else 1
    between = math.ceil(record.activations * share) if record.activations else _ends(record.spec, dims)
    return Footprint(weights=weights, states=states, activations=between)


def foreseen(model: ir.Model, backend: str, states: Mapping[str, str], caps: Mapping[str, int]) -> Footprint:
    """What the engine of a network that is not built yet will take; none of its weights is read. `model` is changed.

    Matrices are taken to be stored as the precision says, each of them.
    """
    import onnx_ir as ir

    from framework.engines import verify
    from framework.engines.passes import for_backend
    from framework.engines.passes.weights import block_size, store_weights

    for rewrite in for_backend(backend):
        if rewrite is not store_weights:  # that reads them
            model = rewrite(model)
    spec = verify.spec_of(model, states=states, caps=caps)
    weights = weights_of(model, backend)
    if backend == "cpu":
        bits = _stored_bits(model.metadata_props.get("precision", ""), block_size(model))
        matrices = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
        plain = sum(t.nbytes for t in matrices if t.dtype == ir.DataType.FLOAT and len(t.shape) > 1)
        weights += round(plain * (bits / 32 - 1))
    buffers = sum(_bytes(state.input, caps) for state in spec.states)
    return Footprint(weights=weights, states=buffers, activations=activations_of(model, spec, backend))


def _stored_bits(precision: str, block: int) -> float:
    """Bits in memory of a weight of a matrix: with its share of a scale and a zero point, or widened."""
    if precision in ("int4", "int8"):
        bits = 4 if precision == "int4" else 8
        return bits + (32 + bits) / block
    return 16 * _WIDENED if precision in ("fp16", "bf16") else 32


def weights_of(model: ir.Model, backend: str) -> int:
    """Bytes the weights of a network take once a backend has loaded it; `model` is as the backend's passes left it."""
    import onnx_ir as ir

    halves = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    total = _ENGINE if backend == "cpu" else 0
    for value in model.graph.initializers.values():
        if (tensor := value.const_value) is None:
            continue
        widened = backend == "cpu" and tensor.dtype in halves
        total += tensor.nbytes * (_WIDENED if widened else 1)
    return total


def activations_of(model: ir.Model, spec: EngineSpec, backend: str) -> int:
    """Bytes of the values alive at once, at the most, inputs and outputs included and states left out; as
    `weights_of`."""
    return _alive(model, spec) * (_ARENA if backend == "cpu" else 1)


def _alive(model: ir.Model, spec: EngineSpec) -> int:
    sizes = _sizes(model, spec)
    nodes = list(model.graph)
    last = {value: number for number, node in enumerate(nodes) for value in node.inputs if value is not None}
    alive = peak = sum(sizes.get(value, 0) for value in model.graph.inputs)
    kept = {*model.graph.inputs, *model.graph.outputs}
    for number, node in enumerate(nodes):
        alive += sum(sizes.get(output, 0) for output in node.outputs)
        peak = max(peak, alive + _scratch(node, spec.caps))
        used = {value for value in (*node.inputs, *node.outputs) if value is not None} - kept
        alive -= sum(sizes.get(value, 0) for value in used if last.get(value, number) == number)
    return peak


def _sizes(model: ir.Model, spec: EngineSpec) -> dict[ir.Value, int]:
    """Bytes of every value that a run makes; not of states, which are counted apart, nor of what is made of weights
    alone, once, when the engine loads."""
    states = {name for state in spec.states for name in (state.input.name, state.output)}
    weights = set(model.graph.initializers.values())
    sizes = {value: _value_bytes(value, spec.caps) or 0 for value in model.graph.inputs if value.name not in states}
    for node in model.graph:
        given = [value for value in node.inputs if value is not None]
        largest = max((sizes[value] for value in given if value in sizes), default=0)
        for output in node.outputs:
            if given and all(value in weights for value in given):
                weights.add(output)
            elif output.name not in states:
                found = _value_bytes(output, spec.caps)
                sizes[output] = largest if found is None else found
    return sizes


def _scratch(node: Any, caps: Mapping[str, int]) -> int:
    """Scores of attention, which a kernel holds for itself."""
    if node.op_type not in ("Attention", "GroupQueryAttention"):
        return 0
    query, keys = _dims(node.inputs[0], caps), _dims(node.inputs[3 if node.domain else 1], caps)
    if query is None or keys is None:
        return 0
    heads = node.attributes["num_heads"].as_int() if "num_heads" in node.attributes else 1
    rows = math.prod(query[:-1]) if len(query) == 4 else query[0] * query[1] * heads
    return rows * keys[-2] * 4


def _value_bytes(value: Any, caps: Mapping[str, int]) -> int | None:
    dims = _dims(value, caps)
    if dims is None or value.dtype is None:
        return None
    return math.ceil(math.prod(dims) * float(value.dtype.itemsize))


def _dims(value: Any, caps: Mapping[str, int]) -> list[int] | None:
    if value is None or value.shape is None:
        return None
    dims = [dim if isinstance(dim, int) else _number(dim.value, caps) for dim in value.shape]
    known = [dim for dim in dims if dim is not None]
    return known if len(known) == len(dims) else None


def _number(text: str | None, caps: Mapping[str, int]) -> int | None:
    """A symbolic dimension (`tokens`, `8*frames + 2`) at its cap."""
    if text is None or text in caps:
        return None if text is None else caps[text]
    try:
        return round(_value_of(ast.parse(text, mode="eval").body, caps))
    except (SyntaxError, KeyError, ArithmeticError):
        return None


def _value_of(tree: ast.expr, caps: Mapping[str, int]) -> float:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.Name):
        return caps[tree.id]
    if isinstance(tree, ast.BinOp):
        a, b = _value_of(tree.left, caps), _value_of(tree.right, caps)
        if isinstance(tree.op, ast.Add):
            return a + b
        if isinstance(tree.op, ast.Sub):
            return a - b
        if isinstance(tree.op, ast.Mult):
            return a * b
        if isinstance(tree.op, (ast.Div, ast.FloorDiv)):
            return a // b
    raise KeyError(ast.dump(tree))


def _bytes(tensor: TensorSpec, dims: Mapping[str, int]) -> int:
    return math.prod(tensor.resolve(dims)) * numpy_dtype(tensor.dtype).itemsize


def _ends(spec: EngineSpec, dims: Mapping[str, int]) -> int:
    return sum(_bytes(tensor, dims) for tensor in (*spec.inputs, *spec.outputs))
