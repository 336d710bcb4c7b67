"""Runs one layer on ONNX Runtime, as the network has it: no backend pass, no optimisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import export, weight_shapes

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]
Body = Callable[[OpBuilder, Any, Mapping[str, ir.Value]], Sequence[ir.Value]]


class Root(nn.Module):
    """A network of one layer: `body(op, layer, inputs)` returns its outputs in order."""

    def __init__(self, layer: nn.Module, body: Body, outputs: Sequence[str]) -> None:
        super().__init__()
        self.layer, self.body, self.outputs = layer, body, outputs

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        return dict(zip(self.outputs, self.body(op, self.layer, given), strict=True))


def random_weights(layer: nn.Module, seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in weight_shapes(layer).items()
    }


class Layer:
    """A layer ready to run.

    Args:
        inputs: dtype and shape of each; a dimension that changes between calls has a name.
        outputs: dtype and number of dimensions of each, in the order that `body` returns them.
    """

    def __init__(
        self,
        layer: nn.Module,
        body: Body,
        *,
        inputs: Mapping[str, tuple[str, tuple[int | str, ...]]],
        outputs: Mapping[str, tuple[str, int]],
        weights: Weights | None = None,
    ) -> None:
        weights = random_weights(layer) if weights is None else weights
        model = export(
            Root(layer, body, list(outputs)),
            [TensorSpec(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in inputs.items()],
            [
                TensorSpec(name=name, dtype=dtype, shape=tuple(f"{name}_{axis}" for axis in range(rank)))
                for name, (dtype, rank) in outputs.items()
            ],
            {f"layer.{name}": ir.tensor(weight) for name, weight in weights.items()},
        )
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        data = ir.to_proto(model).SerializeToString()
        self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self._outputs = list(outputs)

    def __call__(self, **feeds: Array) -> Any:
        """The output, or a tuple of them."""
        results = self._session.run(self._outputs, feeds)
        return results[0] if len(results) == 1 else tuple(results)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))
