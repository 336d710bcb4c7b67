"""How much memory an engine takes: recorded when it is built, read before it is loaded.

Weights are known exactly but for what a backend makes of them when it loads; states follow from their shapes. What lies
between the nodes is estimated: the most that is alive at once when the nodes run one after another, in the largest call
that a runner makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from framework.engines.base import EngineSpec, TensorSpec
from framework.engines.memory import numpy_dtype
from framework.engines.shapes import tensors_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from framework.engines.manifest import Manifest


@attrs.frozen(kw_only=True)
class MemoryRules:
    """How much memory a backend's engines take, measured in the bytes of their tensors.

    Attributes:
        engine: bytes of an open engine without weights.
        widened: times the bytes of a 16-bit weight that it takes once loaded.
        arena: times the bytes alive between the nodes that are taken for them.
        stores: precisions in which the backend itself stores the matrices of a network in fp32.
        as_filed: an engine takes the bytes of its files, whatever the network weighs.
    """

    engine: int = 0
    widened: int = 1
    arena: float = 1
    stores: frozenset[str] = frozenset()
    as_filed: bool = False

    def stored_bits(self, precision: str, block: int) -> float:
        """Bits in memory of each weight of such a matrix, its share of a scale and a zero point for every `block`
        weights included."""
        if precision not in self.stores:
            return 32
        if precision in ("int4", "int8"):
            bits = 4 if precision == "int4" else 8
            return bits + (32 + bits) / block
        return 16 * self.widened


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
    share = rows / record.spec.caps["batch"] if "batch" in record.spec.caps and not record.alone else 1
    between = math.ceil(record.activations * share) if record.activations else _ends(record.spec, dims)
    return Footprint(weights=weights, states=states, activations=between)


def foreseen(
    model: ir.Model, rules: MemoryRules, states: Mapping[str, str], caps: Mapping[str, int], most: Mapping[str, int]
) -> Footprint:
    """What the engine of a network that is not built yet will take; none of its weights is read.

    Matrices are taken to be stored as the precision says, each of them.

    Args:
        model: as the backend's passes left it, its weights not yet stored.
        rules: of the backend.
        most: dims of the largest call, where those are less than the caps.
    """
    import onnx_ir as ir

    from framework.engines import verify
    from framework.engines.passes.weights import block_size

    spec = verify.spec_of(model, states=states, caps=caps)
    bits = rules.stored_bits(model.metadata_props.get("precision", ""), block_size(model))
    matrices = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    plain = sum(t.nbytes for t in matrices if t.dtype == ir.DataType.FLOAT and len(t.shape) > 1)
    weights = weights_of(model, rules) + round(plain * (bits / 32 - 1))
    buffers = sum(_bytes(state.input, caps) for state in spec.states)
    largest = attrs.evolve(spec, caps={**caps, **most})
    return Footprint(weights=weights, states=buffers, activations=activations_of(model, largest, rules))


def weights_of(model: ir.Model, rules: MemoryRules) -> int:
    """Bytes the weights of a network take once a backend has loaded it; `model` is as the backend's passes left it."""
    import onnx_ir as ir

    halves = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    total = rules.engine
    for value in model.graph.initializers.values():
        if (tensor := value.const_value) is None:
            continue
        total += tensor.nbytes * (rules.widened if tensor.dtype in halves else 1)
    return total


def activations_of(model: ir.Model, spec: EngineSpec, rules: MemoryRules) -> int:
    """Bytes of the values alive at once, at the most, inputs and outputs included and states left out; as
    `weights_of`."""
    ends, between = _alive(model, spec)
    return ends + math.ceil(between * rules.arena)


def _alive(model: ir.Model, spec: EngineSpec) -> tuple[int, int]:
    """Bytes of inputs and outputs, and the most that is alive at once between them."""
    tensors = tensors_of(model, spec.caps)
    sizes, held = _sizes(model, spec, tensors)
    nodes = list(model.graph)
    last = {held.get(v, v): number for number, node in enumerate(nodes) for v in node.inputs if v is not None}
    kept = {held.get(value, value) for value in (*model.graph.inputs, *model.graph.outputs)}
    alive = peak = 0
    for number, node in enumerate(nodes):
        made = [value for value in node.outputs if value in sizes and value not in kept]
        alive += sum(sizes[value] for value in made)
        peak = max(peak, alive + _scratch(node, tensors))
        used = {held.get(value, value) for value in node.inputs if value is not None} | {*made}
        alive -= sum(sizes.get(v, 0) for v in used - kept if last.get(v, number) == number)
    return sum(sizes.get(value, 0) for value in kept), peak


def _sizes(
    model: ir.Model, spec: EngineSpec, tensors: Mapping[str, TensorSpec]
) -> tuple[dict[ir.Value, int], dict[ir.Value, ir.Value]]:
    """Bytes of every value that a run makes, and in which other value those lie that only look at it.

    Not of states, which are counted apart, nor of what is made of weights alone, once, when the engine loads.
    """
    states = {name for state in spec.states for name in (state.input.name, state.output)}
    weights, held = set(model.graph.initializers.values()), dict[Any, Any]()
    found = {name: _bytes(tensor, {}) for name, tensor in tensors.items()}
    sizes = {value: found.get(str(value.name), 0) for value in model.graph.inputs if value.name not in states}
    for node in model.graph:
        given = [value for value in node.inputs if value is not None]
        largest = max((sizes.get(held.get(value, value), 0) for value in given), default=0)
        for output in node.outputs:
            if all(value in weights for value in given):
                weights.add(output)
            elif _looks(node):
                held[output] = held.get(given[0], given[0])
            elif output.name not in states:
                sizes[output] = found.get(str(output.name), largest)
    return sizes, held


def _looks(node: ir.Node) -> bool:
    """Whether what a node makes is its first input seen otherwise, for which no memory is taken."""
    same = node.op_type == "Cast" and node.inputs[0] is not None and node.inputs[0].dtype == node.outputs[0].dtype
    return same or node.op_type in ("Reshape", "Squeeze", "Unsqueeze", "Identity")


def _scratch(node: ir.Node, tensors: Mapping[str, TensorSpec]) -> int:
    """Scores of attention, which a kernel holds for itself; with a cache, for every place of it."""
    if node.op_type not in ("Attention", "GroupQueryAttention"):
        return 0
    named = (tensors.get(getattr(node.inputs[place], "name", "")) for place in (0, 3 if node.domain else 1))
    query, keys = (() if tensor is None else tensor.resolve({}) for tensor in named)
    if not query or not keys:
        return 0
    heads = node.attributes["num_heads"].as_int() if "num_heads" in node.attributes else 1
    rows = math.prod(query[:-1]) if len(query) == 4 else query[0] * query[1] * heads
    return rows * keys[-2] * 4


def _bytes(tensor: TensorSpec, dims: Mapping[str, int]) -> int:
    return math.prod(tensor.resolve(dims)) * numpy_dtype(tensor.dtype).itemsize


def _ends(spec: EngineSpec, dims: Mapping[str, int]) -> int:
    return sum(_bytes(tensor, dims) for tensor in (*spec.inputs, *spec.outputs))
