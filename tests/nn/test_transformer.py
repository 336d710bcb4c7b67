"""Convolution, LayerNorm, attention without rotary positions and integer products, each against numpy."""

from __future__ import annotations

from math import erf

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from framework.engines.base import TensorSpec
from framework.nn import Linear, export
from framework.nn.conv import Conv1d
from framework.nn.integer import integer_matmuls
from framework.nn.transformer import MLP, Cache, CrossAttention, KeysValues, LayerNorm, SelfAttention
from tests.nn.running import Array, Layer, Root, random_weights, softmax
from tests.nn.test_layers import of_floats

HIDDEN, HEADS, CAPACITY = 12, 3, 6


def noise(*shape: int) -> Array:
    """The same for a shape, whichever tests run."""
    return np.random.default_rng(11).standard_normal(shape).astype(np.float32)


X = noise(2, 4, HIDDEN)


def linear(weights: dict[str, Array], name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.float32(0))


def heads(x: Array) -> Array:
    return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)


def attend(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    y = softmax(scores if mask is None else np.where(mask, scores, -1e30)) @ v
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


@pytest.mark.parametrize(("stride", "padding", "bias"), [(1, 1, True), (2, 1, True), (3, 0, False)])
def test_conv1d_slides_along_time(stride: int, padding: int, bias: bool) -> None:
    layer = Conv1d(5, 4, 3, stride=stride, padding=padding, bias=bias)
    w, x = random_weights(layer), noise(2, 5, 9)
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=2)[:, :, ::stride]  # [b, in, time, k]
    expected = np.einsum("bitk,oik->bot", windows, w["weight"]) + (w["bias"][None, :, None] if bias else 0)
    np.testing.assert_allclose(of_floats(layer, w, x), expected, atol=1e-5)


def test_layer_norm_has_zero_mean_and_unit_variance() -> None:
    layer = LayerNorm(HIDDEN)
    w = random_weights(layer)
    expected = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5) * w["weight"] + w["bias"]
    np.testing.assert_allclose(of_floats(layer, w, X), expected, atol=1e-5)


def test_mlp_has_the_exact_gelu() -> None:
    layer = MLP(HIDDEN, 20)
    w = random_weights(layer)
    inner = linear(w, "fc1", X)
    inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
    np.testing.assert_allclose(of_floats(layer, w, X), linear(w, "fc2", inner), atol=1e-5)


@pytest.mark.parametrize("key_bias", [False, True], ids=["keys without bias", "keys with bias"])
def test_self_attention_looks_at_the_whole_sequence(key_bias: bool) -> None:
    layer = SelfAttention(HIDDEN, HEADS, key_bias=key_bias)
    w = random_weights(layer)
    assert ("k_proj.bias" in w) is key_bias
    run = Layer(
        layer,
        lambda op, module, given: module(op, given["x"])[:1],
        inputs={"x": ("float32", X.shape)},
        outputs={"y": ("float32", 3)},
        weights=w,
    )
    q, k, v = (heads(linear(w, f"{name}_proj", X)) for name in "qkv")
    np.testing.assert_allclose(run(x=X), linear(w, "out_proj", attend(q, k, v)), atol=1e-5)


def test_cached_self_attention_writes_its_keys_and_looks_back() -> None:
    layer = SelfAttention(HIDDEN, HEADS)
    w = random_weights(layer)
    shape = (2, HEADS, CAPACITY, HIDDEN // HEADS)
    run = Layer(
        layer,
        lambda op, module, given: module(
            op,
            given["x"],
            Cache(keys=given["keys"], values=given["values"], past=given["past"], mask=given["mask"]),
        ),
        inputs={
            "x": ("float32", (2, 1, HIDDEN)),
            "keys": ("float32", shape),
            "values": ("float32", shape),
            "past": ("int64", (2,)),
            "mask": ("bool", (2, 1, 1, CAPACITY)),
        },
        outputs={"y": ("float32", 3), "new_keys": ("float32", 4), "new_values": ("float32", 4)},
        weights=w,
    )
    keys, values = noise(2, *shape)
    past, x = np.array([2, 4]), X[:, :1]
    mask = (np.arange(CAPACITY) <= past[:, None])[:, None, None]
    y, new_keys, new_values = run(x=x, keys=keys, values=values, past=past, mask=mask)
    q, k, v = (heads(linear(w, f"{name}_proj", x)) for name in "qkv")
    for row, at in enumerate(past):
        keys[row, :, at], values[row, :, at] = k[row, :, 0], v[row, :, 0]
    np.testing.assert_allclose(new_keys, keys, atol=1e-6)
    np.testing.assert_allclose(new_values, values, atol=1e-6)
    np.testing.assert_allclose(y, linear(w, "out_proj", attend(q, keys, values, mask)), atol=1e-5)


def test_cross_attention_reads_what_keys_values_made() -> None:
    sound = noise(2, 7, HIDDEN)
    maker, reader = KeysValues(HIDDEN, HEADS), CrossAttention(HIDDEN, HEADS)
    made, read = random_weights(maker, 1), random_weights(reader, 2)
    make = Layer(
        maker,
        lambda op, module, given: module(op, given["x"]),
        inputs={"x": ("float32", sound.shape)},
        outputs={"k": ("float32", 4), "v": ("float32", 4)},
        weights=made,
    )
    keys, values = make(x=sound)
    np.testing.assert_allclose(keys, heads(linear(made, "k_proj", sound)), atol=1e-5)
    run = Layer(
        reader,
        lambda op, module, given: [module(op, given["x"], given["k"], given["v"])],
        inputs={"x": ("float32", X.shape), "k": ("float32", keys.shape), "v": ("float32", values.shape)},
        outputs={"y": ("float32", 3)},
        weights=read,
    )
    expected = linear(read, "out_proj", attend(heads(linear(read, "q_proj", X)), keys, values))
    np.testing.assert_allclose(run(x=X, k=keys, v=values), expected, atol=1e-5)


def test_integer_products_read_no_weight_before_it_is_written() -> None:
    """So that a plan of the memory is made at once."""

    def read() -> ir.Tensor:
        raise AssertionError("read")

    layer = Linear(64, 32, bias=False)
    root = Root(layer, lambda op, module, given: [module(op, given["x"])], ["y"])
    inputs, outputs = (
        [TensorSpec(name=name, dtype="float32", shape=(5, width))] for name, width in (("x", 64), ("y", 32))
    )
    weight = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape((32, 64)))
    model = integer_matmuls(export(root, inputs, outputs, {"layer.weight": weight}))
    stored = model.graph.initializers["layer.weight.q8"].const_value
    assert stored is not None and (stored.dtype, stored.nbytes) == (ir.DataType.INT8, 32 * 64)


def test_integer_products_round_rows_and_channels_alone() -> None:
    """A row or channel of large values does not take the precision of the others; a row of zeros stays one."""
    layer = Linear(64, 32, bias=True)
    w = random_weights(layer)
    w["weight"][3] *= 1000
    x = noise(1, 5, 64)
    x[0, 1] *= 1000
    x[0, 2] = 0
    root = Root(layer, lambda op, module, given: [module(op, given["x"])], ["y"])
    model = export(
        root,
        [TensorSpec(name="x", dtype="float32", shape=x.shape)],
        [TensorSpec(name="y", dtype="float32", shape=(1, 5, 32))],
        {f"layer.{name}": ir.tensor(weight) for name, weight in w.items()},
    )
    model = integer_matmuls(model)
    assert [node.op_type for node in model.graph].count("MatMulInteger") == 1
    assert not any(node.op_type == "MatMul" for node in model.graph)
    assert {v.const_value.dtype for n, v in model.graph.initializers.items() if "weight" in n and "q8" in n} == {
        ir.DataType.INT8
    }
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    y = session.run(None, {"x": x})[0]
    expected = x @ w["weight"].T + w["bias"]
    scale = np.abs(x).max(-1, keepdims=True) * np.abs(w["weight"]).max(-1) * np.sqrt(64)
    assert (np.abs(y - expected) <= 0.01 * scale + 1e-6).all()
    np.testing.assert_allclose(y[0, 2], w["bias"], atol=1e-6)
