"""Dims and dtypes of every value of a network whose inputs have given ones: numbers, where it has names and gaps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.engines.base import TensorSpec

if TYPE_CHECKING:
    import onnx_ir as ir

_SMALL = 64  # elements of an integer tensor that may be a shape: what is known of those is computed


def tensors_of(model: ir.Model, caps: Mapping[str, int]) -> dict[str, TensorSpec]:
    """Inputs and weights by name, and what the nodes make, node by node as ONNX infers it; every dim a number.

    A value whose dims depend on what a run is given, and are declared nowhere, is absent.

    Args:
        caps: the number behind each symbolic dimension, and in each input of that name.
    """
    import onnx_ir as ir
    from onnx import numpy_helper

    known = _Known(model.graph.opset_imports, caps)
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        known.take(value)
        tensor, name = value.const_value, value.name or ""
        if name in known.types and tensor is not None and tensor.size <= _SMALL and tensor.dtype.is_integer():
            known.data[name] = numpy_helper.from_array(tensor.numpy(), name)
    for name in known.types.keys() & caps.keys():
        known.data[name] = numpy_helper.from_array(np.full(known.dims(name), caps[name], np.int64), name)
    for node in model.graph:
        known.add(node)
    dtypes = {name: ir.DataType(kind.tensor_type.elem_type).numpy().name for name, kind in known.types.items()}
    return {name: TensorSpec(name=name, dtype=dtype, shape=known.dims(name)) for name, dtype in dtypes.items()}


class _Known:
    """Types of values so far, and the numbers of those that are the same in every run; as ONNX's protobufs."""

    def __init__(self, opsets: Mapping[str, int], caps: Mapping[str, int]) -> None:
        self.types: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self._opsets, self._caps = opsets, caps

    def dims(self, name: str) -> tuple[int, ...]:
        return tuple(dim.dim_value for dim in self.types[name].tensor_type.shape.dim)

    def take(self, value: ir.Value) -> None:
        """A value as the network itself declares it, where that is complete."""
        from onnx import helper

        dims = [dim if isinstance(dim, int) else self._caps.get(str(dim.value)) for dim in value.shape or ()]
        if value.name and value.shape is not None and value.dtype is not None and None not in dims:
            self.types[value.name] = helper.make_tensor_type_proto(int(value.dtype), dims)

    def add(self, node: ir.Node) -> None:
        from onnx_ir.serde import serialize_node

        proto = serialize_node(node)
        given = [name for name in proto.input if name]
        if all(name in self.types for name in given):
            made = self._contrib(node, proto) if proto.domain else self._inferred(proto, given)
            for name, kind in made.items():
                dims = kind.tensor_type.shape.dim
                if kind.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
                    self.types[name] = kind
        for output in node.outputs:
            if output.name not in self.types:
                self.take(output)
        self._compute(proto, given)

    def _inferred(self, proto: Any, given: list[str]) -> Mapping[str, Any]:
        from onnx import checker, defs, numpy_helper, shape_inference

        data = {name: self.data[name] for name in given if name in self.data}
        if proto.op_type == "TopK":  # all of them, where a run says how many
            data.setdefault(given[1], numpy_helper.from_array(np.array(self.dims(given[0])[-1:], np.int64)))
        types = {name: self.types[name] for name in given}
        try:
            schema = defs.get_schema(proto.op_type, self._opsets[""])
            found: Mapping[str, Any] = shape_inference.infer_node_outputs(schema, proto, types, data)
        except (defs.SchemaError, shape_inference.InferenceError, checker.ValidationError):
            return {}  # it may be declared
        return found

    def _contrib(self, node: ir.Node, proto: Any) -> Mapping[str, Any]:
        """ONNX Runtime's own operators: what they make is like their first input but for its width."""
        from onnx import helper

        first, kind = self.dims(proto.input[0]), self.types[proto.input[0]].tensor_type.elem_type
        number = {name: attribute.as_int() for name, attribute in node.attributes.items() if name in _WIDTHS}
        match proto.op_type:
            case "MatMulNBits":
                dims = (*first[:-1], number["N"])
            case "GroupQueryAttention":  # query, key and value may come in one
                dims = (*first[:-1], number["num_heads"] * self.dims(proto.input[3])[-1])
            case "GatherBlockQuantized":
                dims = (*self.dims(proto.input[1]), *first[1:-1], first[-1] * 8 // number["bits"])
                kind = self.types[proto.input[2]].tensor_type.elem_type
            case _:
                dims = first
        return {name: helper.make_tensor_type_proto(kind, dims) for name in proto.output if name}

    def _compute(self, proto: Any, given: list[str]) -> None:
        """The numbers that a node makes of numbers, or of the dims of anything: what shapes are put together from."""
        from onnx import TensorProto, numpy_helper
        from onnx.reference import ReferenceEvaluator

        for name in proto.output:
            kind = self.types[name].tensor_type.elem_type if name in self.types else None
            if kind not in (TensorProto.INT64, TensorProto.INT32) or np.prod(self.dims(name)) > _SMALL:
                return
        if proto.op_type == "Shape":
            feeds = {name: np.broadcast_to(np.float32(0), self.dims(name)) for name in given}
        elif all(name in self.data for name in given):
            feeds = {name: numpy_helper.to_array(self.data[name]) for name in given}
        else:
            return
        for name, value in zip(proto.output, ReferenceEvaluator(proto).run(None, feeds), strict=True):
            self.data[name] = numpy_helper.from_array(value, name)


_WIDTHS = ("N", "num_heads", "bits")
