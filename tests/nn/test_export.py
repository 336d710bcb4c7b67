"""Guards on the way from modules to a model: weights, tied parameters, dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.errors import ConfigError
from framework.nn import Embedding, Linear, export


class Tied(nn.Module):
    """An embedding that is also the output layer, a table of its own data, and a plain layer."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter([5], data=ir.tensor(np.arange(5, dtype=np.float32)))
        self.embed = Embedding(5, 4)
        self.inner = Linear(4, 4, bias=True)
        self.head = Linear(4, 5)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        y = self.head(op, self.inner(op, self.embed(op, given["ids"])))
        return {"y": op.Add(op.Cast(y, to=ir.DataType.FLOAT), self.table)}


INPUTS = [TensorSpec(name="ids", dtype="int64", shape=("n",))]
OUTPUTS = [TensorSpec(name="y", dtype="float32", shape=("n", 5))]


def weights(**changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"embed.weight": (5, 4), "inner.weight": (4, 4), "inner.bias": (4,)}
    made = {name: ir.tensor(rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
    return {name: tensor for name, tensor in (made | changed).items() if tensor is not None}


def initializers(model: ir.Model) -> dict[str, Any]:
    return {name: value.const_value for name, value in model.graph.initializers.items()}


def test_parameters_keep_their_names_and_tensors() -> None:
    given = weights()
    found = initializers(export(Tied(), INPUTS, OUTPUTS, given))
    assert {name: found[name] for name in given} == given, "not copied: they stay on disk until the model is saved"
    np.testing.assert_array_equal(found["table"].numpy(), np.arange(5))


def test_tied_weight_is_one_tensor_and_wanted_once() -> None:
    model = export(Tied(), INPUTS, OUTPUTS, weights())
    assert "head.weight" not in initializers(model)
    assert len(model.graph.initializers["embed.weight"].uses()) == 2
    with pytest.raises(ConfigError, match=r"weight head\.weight: got nothing, expected a tensor of shape \(5, 4\)"):
        export(Tied(tied=False), INPUTS, OUTPUTS, weights())


def test_every_wrong_weight_is_named_at_once() -> None:
    wrong = weights(**{"inner.bias": None, "inner.weight": ir.tensor(np.zeros((4, 3), np.float32))})
    wrong["inner.scale"] = ir.tensor(np.zeros(2, np.float32))
    with pytest.raises(ConfigError) as error:
        export(Tied(), INPUTS, OUTPUTS, wrong)
    assert [str(problem) for problem in error.value.problems] == [
        "weight inner.weight: got shape (4, 3), expected (4, 4)",
        "weight inner.bias: got nothing, expected a tensor of shape (4,)",
        "weight inner.scale: got shape (2,), expected no such weight",
    ]


def test_a_weight_for_a_parameter_that_has_data_is_left_over() -> None:
    with pytest.raises(ConfigError, match=r"weight table: .* expected no such weight"):
        export(Tied(), INPUTS, OUTPUTS, weights(table=ir.tensor(np.zeros(5, np.float32))))


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_are_cast_to_the_dtype_of_the_network(stored: str, dtype: str) -> None:
    def numpy_dtype(name: str) -> Any:
        return np.dtype(getattr(ml_dtypes, name, name))

    values = np.random.default_rng(1).standard_normal((4, 4)).astype(numpy_dtype(stored))
    changed = weights(**{"inner.weight": ir.tensor(values)})
    found = initializers(export(Tied(), INPUTS, OUTPUTS, changed, dtype=dtype))
    assert {found[name].dtype for name in changed} == {ir.DataType.from_numpy(numpy_dtype(dtype))}
    np.testing.assert_array_equal(found["inner.weight"].numpy(), values.astype(numpy_dtype(dtype)))
    assert found["table"].dtype == ir.DataType.FLOAT, "a table of its own data keeps its dtype"


def test_a_cast_weight_is_read_only_when_the_model_is_saved() -> None:
    read = []

    class Big(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = Embedding(4000, 5)

        def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
            return {"y": op.Cast(self.embed(op, given["ids"]), to=ir.DataType.FLOAT)}

    def load() -> ir.TensorProtocol:
        read.append(1)
        return ir.tensor(np.ones((4000, 5), np.float32))

    lazy = ir.LazyTensor(load, dtype=ir.DataType.FLOAT, shape=ir.Shape((4000, 5)))
    model = export(Big(), INPUTS, OUTPUTS, {"embed.weight": lazy}, dtype="float16")
    assert not read
    assert initializers(model)["embed.weight"].numpy().all()
    assert read


def test_a_parameter_that_the_network_never_reads_is_an_error() -> None:
    class Forgotten(Tied):
        def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
            return {"y": op.Add(self.head(op, self.embed(op, given["ids"])), self.table)}

    with pytest.raises(AssertionError, match=r"never realised: .*inner\.bias.*inner\.weight"):
        export(Forgotten(), INPUTS, OUTPUTS, weights())


def test_the_model_is_of_opset_24_with_the_declared_inputs_and_outputs() -> None:
    model = export(Tied(), INPUTS, OUTPUTS, weights())
    assert model.opset_imports == {"": 24}
    assert [(v.name, str(v.shape)) for v in model.graph.inputs] == [("ids", "[n]")]
    assert [(v.name, str(v.shape), v.dtype) for v in model.graph.outputs] == [("y", "[n,5]", ir.DataType.FLOAT)]
