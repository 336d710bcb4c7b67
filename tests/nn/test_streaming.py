"""Layers that go on where a row's last call ended, against their definitions over the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from onnxscript import nn

from framework.nn import rotary_tables
from framework.nn.attention import ones_like
from framework.nn.streaming import (
    CausalConv1d,
    CausalConvTranspose1d,
    Continuation,
    WindowAttention,
    by_step,
    history_states,
    sliding_window,
)
from framework.nn.vocoder import ConvNeXtBlock, SnakeBeta
from tests.nn.running import Array, Layer, Weights, random_weights, softmax

CHANNELS, LENGTH, WINDOW, HEADS, KV_HEADS, HEAD_DIM = 6, 13, 4, 4, 2, 8
X = np.random.default_rng(7).standard_normal((2, CHANNELS, LENGTH)).astype(np.float32)
CUTS = [
    pytest.param([(13, 13)], id="whole"),
    pytest.param([(1, 1)] * 13, id="one by one"),
    pytest.param([(5, 5), (5, 5), (3, 3)], id="chunks of 5"),
    pytest.param([(7, 2), (0, 6), (6, 5)], id="unequal rows, one rests"),
]


def streamed(
    layer: nn.Module,
    weights: Weights,
    calls: Sequence[Sequence[int]],
    *,
    attention: bool = False,
    ahead: bool = False,
) -> list[Array]:
    """X in calls that give each row its number of new steps; shorter rows are padded with noise. A layer that looks
    `ahead` is told the steps' places."""
    states = history_states(layer, "float32")
    cos, sin = rotary_tables(HEAD_DIM, WINDOW - 1 + LENGTH, {"rope_theta": 100.0})

    def body(op: Any, module: Any, given: Any) -> Any:
        call = Continuation(counts=given["counts"], states={state.name: given[state.name] for state in states})
        if attention:
            at = sliding_window(op, given["ids"], given["past"], window=WINDOW, cos=given["cos"], sin=given["sin"])
            x = op.Transpose(given["x"], perm=[0, 2, 1])
            y = op.Transpose(module(op, x, at, call), perm=[0, 2, 1])
        else:
            if ahead:
                index = op.CumSum(ones_like(op, given["ids"]), 1, exclusive=1)
                call = attrs.evolve(call, index=op.Add(index, op.Unsqueeze(given["past"], [1])))
            y = module(op, given["x"], call)
        return [y, *(call.updated[state.name] for state in states)]

    extra: dict[str, Any] = {}
    if attention or ahead:
        extra = {"ids": ("int64", ("batch", "time")), "past": ("int64", ("batch",))}
    if attention:
        extra |= {name: ("float32", table.shape) for name, table in (("cos", cos), ("sin", sin))}
    run = Layer(
        layer,
        body,
        inputs={
            "x": ("float32", ("batch", CHANNELS, "time")),
            "counts": ("int64", ("batch",)),
            **extra,
            **{state.name: ("float32", state.shape) for state in states},
        },
        outputs={"y": ("float32", 3), **{f"{s.name}.next": ("float32", len(s.shape)) for s in states}},
        weights=weights,
    )
    rng = np.random.default_rng(5)
    done = np.zeros(2, np.int64)
    held = {state.name: np.zeros(state.resolve({"batch": 2}), np.float32) for state in states}
    parts: list[list[Array]] = [[], []]
    for counts in calls:
        x = rng.standard_normal((2, CHANNELS, max(counts))).astype(np.float32)
        for row, count in enumerate(counts):
            x[row, :, :count] = X[row, :, done[row] : done[row] + count]
        feeds = {"x": x, "counts": np.array(counts), **held}
        if attention or ahead:
            feeds |= {"ids": np.zeros((2, max(counts)), np.int64), "past": done}
        if attention:
            feeds |= {"cos": cos, "sin": sin}
        results = run(**feeds)
        y, *updated = results if states else (results,)
        held = dict(zip(held, updated, strict=True))
        for row, count in enumerate(counts):
            parts[row].append(y[row, :, : count * (y.shape[2] // max(counts))])
            done[row] += count
    assert (done == LENGTH).all()
    return [np.concatenate(part, axis=-1) for part in parts]


def causal(x: Array, weight: Array, bias: Array, dilation: int) -> Array:
    """One row [in, time] by weight [out, in, kernel]."""
    reach = (weight.shape[2] - 1) * dilation
    padded = np.pad(x, ((0, 0), (reach, 0)))
    taps = [padded[:, k * dilation : k * dilation + x.shape[1]] for k in range(weight.shape[2])]
    return np.asarray(sum(weight[:, :, k] @ tap for k, tap in enumerate(taps)) + bias[:, None])


@pytest.mark.parametrize("calls", CUTS)
@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (7, 1), (3, 4)])
def test_causal_convolution(kernel: int, dilation: int, calls: Any) -> None:
    layer = CausalConv1d(CHANNELS, 5, kernel, dilation=dilation)
    weights = random_weights(layer)
    for row, y in enumerate(streamed(layer, weights, calls)):
        expected = causal(X[row], weights["conv.weight"], weights["conv.bias"], dilation)
        np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("calls", CUTS)
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (10, 5), (9, 3)])
def test_transposed_convolution_of_published_weights(kernel: int, stride: int, calls: Any) -> None:
    layer = CausalConvTranspose1d(CHANNELS, 5, kernel, stride=stride)
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((CHANNELS, 5, kernel)).astype(np.float32)
    bias = rng.standard_normal(5).astype(np.float32)
    own = {"conv.weight": by_step(weight, stride), "conv.bias": by_step(bias, stride)}
    for row, y in enumerate(streamed(layer, own, calls)):
        whole = np.zeros((5, (LENGTH - 1) * stride + kernel))
        for t in range(LENGTH):  # each step adds its kernel where it stands
            whole[:, t * stride : t * stride + kernel] += np.einsum("i,iok->ok", X[row, :, t], weight)
        np.testing.assert_allclose(y, whole[:, : LENGTH * stride] + bias[:, None], atol=1e-5)


class Ahead(nn.Module):
    """Two transposed convolutions cropped on both sides, and a causal one behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (CausalConvTranspose1d(CHANNELS, CHANNELS, 2 * rate, stride=rate) for rate in (3, 2))
        self.third, self.fourth = (CausalConv1d(CHANNELS, CHANNELS, 3) for _ in range(2))

    def forward(self, op: Any, x: Any, call: Continuation) -> Any:
        for rate, raising, causal in ((3, self.first, self.third), (2, self.second, self.fourth)):
            x = raising(op, x, call)
            call = call.upsampled(op, rate, late=rate)
            x = call.real(op, causal(op, call.real(op, x), call))
        return x


@pytest.mark.parametrize("calls", CUTS)
def test_layers_that_look_ahead_answer_later(calls: Any) -> None:
    """A crop of both sides lets each output follow from the step after it. Here it comes that much later, and nothing
    before it is seen by the layers behind."""
    rng = np.random.default_rng(4)
    raising = [rng.standard_normal((CHANNELS, CHANNELS, 2 * rate)).astype(np.float32) / 4 for rate in (3, 2)]
    weights = random_weights(Ahead())
    for name, weight, rate in (("first", raising[0], 3), ("second", raising[1], 2)):
        weights[f"{name}.conv.weight"] = by_step(weight, rate)
        weights[f"{name}.conv.bias"] = by_step(np.arange(CHANNELS, dtype=np.float32), rate)
    late = 3 * 2 + 2
    for row, y in enumerate(streamed(Ahead(), weights, calls, ahead=True)):
        x = X[row]
        for weight, rate, name in ((raising[0], 3, "third"), (raising[1], 2, "fourth")):
            whole = np.zeros((CHANNELS, (x.shape[1] + 1) * rate))
            for t in range(x.shape[1]):
                whole[:, t * rate : (t + 2) * rate] += np.einsum("i,iok->ok", x[:, t], weight)
            cropped = whole[:, rate:-rate] + np.arange(CHANNELS)[:, None]
            x = causal(cropped, weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"], 1)
        assert x.shape[1] == LENGTH * 6 - late
        np.testing.assert_array_equal(y[:, :late], 0.0)
        np.testing.assert_allclose(y[:, late:], x, atol=1e-4)


def test_a_kernel_that_is_no_whole_number_of_strides_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel 7 and stride 5: supported are kernels of whole strides"):
        CausalConvTranspose1d(2, 2, 7, stride=5)


@pytest.mark.parametrize("calls", CUTS)
def test_attention_sees_a_window(calls: Any) -> None:
    layer = WindowAttention(CHANNELS, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, window=WINDOW, bias=True)
    w = random_weights(layer)
    cos, sin = rotary_tables(HEAD_DIM, LENGTH, {"rope_theta": 100.0})

    def heads(x: Array, name: str, count: int) -> Array:
        return np.asarray(
            (x @ w[f"{name}.weight"].T + w[f"{name}.bias"]).reshape(LENGTH, count, HEAD_DIM).swapaxes(0, 1)
        )

    def rotated(y: Array) -> Array:
        a, b = np.split(y, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    for row, y in enumerate(streamed(layer, w, calls, attention=True)):
        x = X[row].T
        q, k = rotated(heads(x, "q_proj", HEADS)), rotated(heads(x, "k_proj", KV_HEADS))
        k, v = (z.repeat(HEADS // KV_HEADS, axis=0) for z in (k, heads(x, "v_proj", KV_HEADS)))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(HEAD_DIM)
        scores = np.where((distance >= 0) & (distance < WINDOW), scores, -np.inf)
        z = (softmax(scores) @ v).swapaxes(0, 1).reshape(LENGTH, -1)
        np.testing.assert_allclose(y, (z @ w["o_proj.weight"].T + w["o_proj.bias"]).T, atol=1e-5)


def test_convnext_block() -> None:
    import torch

    layer = ConvNeXtBlock(CHANNELS)
    weights = {name: value if value.ndim > 1 else value + 0.5 for name, value in random_weights(layer).items()}
    w = {name: torch.from_numpy(value) for name, value in weights.items()}
    x = torch.from_numpy(X)
    y = torch.nn.functional.pad(x, (6, 0))
    y = torch.nn.functional.conv1d(y, w["dwconv.conv.weight"], w["dwconv.conv.bias"], groups=CHANNELS).mT
    y = torch.nn.functional.layer_norm(y, (CHANNELS,), w["norm.weight"], w["norm.bias"], eps=1e-6)
    y = torch.nn.functional.gelu(y @ w["pwconv1.weight"].T + w["pwconv1.bias"])
    expected = x + (w["gamma"] * (y @ w["pwconv2.weight"].T + w["pwconv2.bias"])).mT
    for row, found in enumerate(streamed(layer, weights, [(5, 5), (8, 8)])):
        np.testing.assert_allclose(found, expected[row].numpy(), atol=1e-5)


def test_snake() -> None:
    layer = SnakeBeta(CHANNELS)
    weights = random_weights(layer)
    run = Layer(
        layer,
        lambda op, module, given: [module(op, given["x"])],
        inputs={"x": ("float32", ("batch", CHANNELS, "time"))},
        outputs={"y": ("float32", 3)},
        weights=weights,
    )
    alpha, beta = (np.exp(weights[name])[:, None] for name in ("alpha", "beta"))
    np.testing.assert_allclose(run(x=X), X + np.sin(alpha * X) ** 2 / beta, atol=1e-5)
