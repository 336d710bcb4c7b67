"""Networks for the passes, and ONNX Runtime to run them before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnxscript import OpBuilder, nn

from framework.engines.backend import Backend
from framework.engines.base import TensorSpec
from framework.nn import Embedding, Linear, export, weight_shapes
from models.language.config import LLMConfig
from models.language.network import CausalLM

Array = np.ndarray[Any, Any]
CAPACITY = 24
CONFIG = LLMConfig(
    vocab=50,
    hidden=64,
    intermediate=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    rms_eps=1e-5,
    rope={"rope_theta": 1e4, "rope_type": "default"},
    tied=False,
)


def rewritten(model: ir.Model, backend: Backend) -> ir.Model:
    """The network as a backend compiles it."""
    for rewrite in (*backend.passes(), backend.store_weights):
        model = rewrite(model)
    return model


def run(model: ir.Model, **feeds: Array) -> dict[str, Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


class Net(nn.Module):
    def __init__(self, width: int, inner: int, tied: bool) -> None:
        super().__init__()
        self.embed = Embedding(10, width)
        self.inner = Linear(width, inner)
        self.head = Linear(inner, 10)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        x = self.inner(op, self.embed(op, given["ids"]))
        return {"x": x, "y": self.head(op, x)}


def tiny_model(*, width: int = 64, tied: bool = False, inner: Array | None = None) -> tuple[ir.Model, dict[str, Array]]:
    """ids -> x (embedding, linear layer), y (output layer); and the weights by layer."""
    rng = np.random.default_rng(4)
    size = width if inner is None else len(inner)
    shapes = {"embed": (10, width), "inner": (size, width)} | ({} if tied else {"head": (10, size)})
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    if inner is not None:
        arrays["inner"] = inner
    inputs = [TensorSpec(name="ids", dtype="int64", shape=("batch", "tokens"))]
    outputs = [
        TensorSpec(name=name, dtype="float32", shape=("batch", "tokens", size))
        for name, width in (("x", size), ("y", 10))
    ]
    tensors = {f"{name}.weight": ir.tensor(array) for name, array in arrays.items()}
    return export(Net(arrays["embed"].shape[1], size, tied), inputs, outputs, tensors), arrays


def decoder(config: LLMConfig = CONFIG, hidden_layers: tuple[int, ...] = ()) -> ir.Model:
    """A whole language model of random weights, before any pass; equal in every call."""
    network = CausalLM(config, capacity=CAPACITY, dtype="float32", hidden_layers=hidden_layers)
    rng = np.random.default_rng(6)
    weights = {
        name: ir.tensor((rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32))
        for name, shape in weight_shapes(network).items()
    }
    return export(network, network.inputs(), network.outputs(), weights)


def decoder_feeds(model: ir.Model, *, past: int | list[int], tokens: int, candidates: int = 8) -> dict[str, Array]:
    """Inputs of two rows with random caches."""
    rng = np.random.default_rng(8)
    dims = {"batch": 2, "tokens": tokens, "media": tokens}
    feeds: dict[str, Array] = {}
    for value in model.graph.inputs:
        assert value.name is not None and value.shape is not None and value.dtype is not None
        shape = [dim if isinstance(dim, int) else dims[str(dim.value)] for dim in value.shape]
        feeds[value.name] = (2 * rng.random(shape)).astype(value.dtype.numpy())
    lengths = np.broadcast_to(np.asarray(past), 2)
    return feeds | {
        "ids": rng.integers(0, 50, (2, tokens)),
        "past_lengths": np.ascontiguousarray(lengths),
        "token_counts": np.full(2, tokens),
        "candidates": np.array([candidates]),
        "top_k": np.zeros(2, np.int64),
        "top_p": np.ones(2, np.float32),
        "repetition_penalty": np.ones(2, np.float32),
        "history": rng.integers(0, 50, (2, CAPACITY)),
    }
