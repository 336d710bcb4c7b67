"""Each layer against a few lines of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from onnxscript import nn

from framework.nn import Embedding, GatedMLP, Linear, MoE, RMSNorm, SharedMoE
from tests.nn.running import Array, Layer, random_weights, silu, softmax

RNG = np.random.default_rng(7)
X = RNG.standard_normal((2, 3, 8)).astype(np.float32)  # [batch, tokens, hidden]


def of_floats(layer: nn.Module, weights: dict[str, Array], x: Array) -> Array:
    run = Layer(
        layer,
        lambda op, module, given: [module(op, given["x"])],
        inputs={"x": ("float32", x.shape)},
        outputs={"y": ("float32", x.ndim)},
        weights=weights,
    )
    return np.asarray(run(x=x))


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_linear_multiplies_by_rows_of_its_weight(bias: bool) -> None:
    layer = Linear(8, 5, bias=bias)
    weights = random_weights(layer)
    expected = X @ weights["weight"].T + (weights["bias"] if bias else 0)
    np.testing.assert_allclose(of_floats(layer, weights, X), expected, atol=1e-6)


def test_embedding_looks_rows_up() -> None:
    layer = Embedding(6, 4)
    weights = random_weights(layer)
    ids = np.array([[5, 0, 0], [2, 1, 5]])
    run = Layer(
        layer,
        lambda op, module, given: [module(op, given["ids"])],
        inputs={"ids": ("int64", ids.shape)},
        outputs={"y": ("float32", 3)},
        weights=weights,
    )
    np.testing.assert_array_equal(run(ids=ids), weights["weight"][ids])


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm_divides_by_the_root_of_the_mean_square(eps: float) -> None:
    layer = RMSNorm(8, eps)
    weights = random_weights(layer)
    expected = X / np.sqrt((X**2).mean(axis=-1, keepdims=True) + eps) * weights["weight"]
    np.testing.assert_allclose(of_floats(layer, weights, X), expected, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_gated_mlp(bias: bool) -> None:
    layer = GatedMLP(8, 12, bias=bias)
    w = random_weights(layer)

    def linear(name: str, x: Array) -> Array:
        return np.asarray(x @ w[f"{name}.weight"].T + (w[f"{name}.bias"] if bias else 0))

    expected = linear("down_proj", silu(linear("gate_proj", X)) * linear("up_proj", X))
    np.testing.assert_allclose(of_floats(layer, w, X), expected, atol=1e-6)


@pytest.mark.parametrize("norm_topk", [False, True], ids=["raw probabilities", "normed probabilities"])
@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_mixture_adds_the_best_experts_by_their_probability(norm_topk: bool, top_k: int) -> None:
    layer = MoE(8, 6, experts=5, top_k=top_k, norm_topk=norm_topk)
    w = random_weights(layer)
    np.testing.assert_allclose(of_floats(layer, w, X), mixture(w, X, top_k, norm_topk), atol=1e-6)


def test_a_shared_expert_is_added_by_its_gate() -> None:
    layer = SharedMoE(8, 6, shared=10, experts=5, top_k=2, norm_topk=True)
    w = random_weights(layer)
    inner = silu(X @ w["shared_expert.gate_proj.weight"].T) * (X @ w["shared_expert.up_proj.weight"].T)
    gate = 1 / (1 + np.exp(-X @ w["shared_expert_gate.weight"].T))
    expected = mixture(w, X, 2, True) + gate * (inner @ w["shared_expert.down_proj.weight"].T)
    np.testing.assert_allclose(of_floats(layer, w, X), expected, atol=1e-6)


def mixture(w: dict[str, Array], x: Array, top_k: int, norm_topk: bool) -> Array:
    expected = np.zeros_like(x)
    for place in np.ndindex(x.shape[:2]):
        probability = softmax(w["gate.weight"] @ x[place])
        best = np.argsort(-probability)[:top_k]
        share = probability[best] / (probability[best].sum() if norm_topk else 1)
        for expert, amount in zip(best, share, strict=True):
            gate, up, down = (w[f"experts.{name}_proj"][expert] for name in ("gate", "up", "down"))
            expected[place] += amount * (down @ (silu(gate @ x[place]) * (up @ x[place])))
    return expected
