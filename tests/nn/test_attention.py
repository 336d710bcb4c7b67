"""Attention over a cache against whole causal attention in numpy, and rotary tables against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnxscript import nn

from framework.nn import Attention, mixed_axes, mixed_rotary, positions, rotary_frequencies, rotary_tables
from tests.nn.running import Array, Layer, Weights, random_weights, softmax

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, CAPACITY, LENGTH = 24, 4, 2, 8, 22, 11
RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, LENGTH, HIDDEN)).astype(np.float32)
COS, SIN = rotary_tables(HEAD_DIM, CAPACITY, {"rope_theta": 100.0})


def make(*, per_token: bool = False, **options: Any) -> tuple[Layer, Weights]:
    """A layer and its weights; with `per_token` the rotary tables have a row for each token, not for each place."""
    layer = Attention(HIDDEN, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, **options)
    weights = random_weights(layer)
    cache = ("float32", ("batch", KV_HEADS, CAPACITY, HEAD_DIM))
    table = ("float32", ("batch", "tokens", HEAD_DIM // 2) if per_token else COS.shape)

    def body(op: Any, module: Any, given: Any) -> Any:
        cos, sin = given["cos"], given["sin"]
        at = positions(op, given["ids"], given["past"], capacity=CAPACITY, cos=cos, sin=sin, per_token=per_token)
        return module(op, given["x"], at, given["keys"], given["values"])

    run = Layer(
        layer,
        body,
        inputs={
            "x": ("float32", ("batch", "tokens", HIDDEN)),
            "ids": ("int64", ("batch", "tokens")),
            "past": ("int64", ("batch",)),
            "keys": cache,
            "values": cache,
            "cos": table,
            "sin": table,
        },
        outputs={"y": ("float32", 3), "keys_out": ("float32", 4), "values_out": ("float32", 4)},
        weights=weights,
    )
    return run, weights


def whole(x: Array, w: Weights, eps: float | None = None) -> Array:
    """One row [tokens, hidden] by the definition."""

    def heads(name: str, count: int) -> Array:
        y = x @ w[f"{name}_proj.weight"].T + w.get(f"{name}_proj.bias", np.float32(0))
        y = y.reshape(len(x), count, HEAD_DIM)
        if eps is not None and name != "v":
            y = y / np.sqrt((y**2).mean(axis=-1, keepdims=True) + eps) * w[f"{name}_norm.weight"]
        return np.asarray(y.swapaxes(0, 1))  # [heads, tokens, head_dim]

    def rotated(y: Array) -> Array:
        a, b = np.split(y, 2, axis=-1)
        cos, sin = COS[: len(x)], SIN[: len(x)]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    q, k, v = rotated(heads("q", HEADS)), rotated(heads("k", KV_HEADS)), heads("v", KV_HEADS)
    k, v = (y.repeat(HEADS // KV_HEADS, axis=0) for y in (k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(HEAD_DIM)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    y = (softmax(scores) @ v).swapaxes(0, 1).reshape(len(x), HEADS * HEAD_DIM)
    return np.asarray(y @ w["o_proj.weight"].T + w.get("o_proj.bias", np.float32(0)))


def chunked(run: Layer, calls: Sequence[Sequence[int]]) -> list[Array]:
    """Reads X in calls that give each row its number of new positions; shorter rows are padded with noise."""
    rng = np.random.default_rng(5)
    rows = len(X)
    # What an earlier request left in the cache must not be seen.
    keys, values = (rng.standard_normal((rows, KV_HEADS, CAPACITY, HEAD_DIM)).astype(np.float32) for _ in range(2))
    done = np.zeros(rows, np.int64)
    parts: list[list[Array]] = [[] for _ in range(rows)]
    for counts in calls:
        width = max(counts)
        x = rng.standard_normal((rows, width, HIDDEN)).astype(np.float32)
        for row, count in enumerate(counts):
            x[row, :count] = X[row, done[row] : done[row] + count]
        ids = np.zeros((rows, width), np.int64)
        y, keys, values = run(x=x, ids=ids, past=done, keys=keys, values=values, cos=COS, sin=SIN)
        for row, count in enumerate(counts):
            parts[row].append(y[row, :count])
            done[row] += count
    assert (done == LENGTH).all()
    return [np.concatenate(part) for part in parts]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([(11, 11)], id="whole"),
        pytest.param([(4, 4), (4, 4), (3, 3)], id="chunks of 4"),
        pytest.param([(1, 1)] * 11, id="one by one"),
        pytest.param([(7, 2), (1, 5), (3, 4)], id="unequal rows"),
        pytest.param([(5, 0), (6, 0), (0, 11)], id="idle rows"),
    ],
)
@pytest.mark.parametrize(
    ("options", "eps"),
    [
        pytest.param({}, None, id="llama"),
        pytest.param({"bias": True, "out_bias": True}, None, id="bias"),
        pytest.param({"qk_norm_eps": 1e-6}, 1e-6, id="norm per head"),
    ],
)
def test_any_split_equals_whole_attention(options: Any, eps: float | None, calls: Sequence[Sequence[int]]) -> None:
    run, weights = make(**options)
    for row, y in enumerate(chunked(run, calls)):
        np.testing.assert_allclose(y, whole(X[row], weights, eps), atol=2e-6)


def test_cache_holds_rotated_keys_and_plain_values_at_their_places() -> None:
    run, w = make()
    zeros = np.zeros((2, KV_HEADS, CAPACITY, HEAD_DIM), np.float32)
    x, past = X[:, :1], np.array([0, 5])
    _, keys, values = run(x=x, ids=np.zeros((2, 1), np.int64), past=past, keys=zeros, values=zeros, cos=COS, sin=SIN)
    for row, place in enumerate(past):
        k = (x[row, 0] @ w["k_proj.weight"].T).reshape(KV_HEADS, HEAD_DIM)
        a, b = np.split(k, 2, axis=-1)
        rotated = np.concatenate([a * COS[place] - b * SIN[place], b * COS[place] + a * SIN[place]], axis=-1)
        np.testing.assert_allclose(keys[row, :, place], rotated, atol=5e-6)
        plain = (x[row, 0] @ w["v_proj.weight"].T).reshape(KV_HEADS, HEAD_DIM)
        np.testing.assert_allclose(values[row, :, place], plain, atol=5e-6)
        others = [entry for entry in range(CAPACITY) if entry != place]
        assert not keys[row, :, others].any() and not values[row, :, others].any()


def test_tokens_can_have_rotary_positions_other_than_their_places() -> None:
    """Only how far apart two tokens are counts: all of them moved together say the same."""
    run, weights = make(per_token=True)
    zeros = np.zeros((2, KV_HEADS, CAPACITY, HEAD_DIM), np.float32)
    places = np.stack([np.arange(LENGTH), np.arange(LENGTH) + 7])
    given = {"x": X, "ids": np.zeros((2, LENGTH), np.int64), "past": np.zeros(2, np.int64), "keys": zeros}
    y, *_ = run(**given, values=zeros, cos=COS[places], sin=SIN[places])
    for row in range(2):
        np.testing.assert_allclose(y[row], whole(X[row], weights), atol=2e-6)
    y, *_ = run(**given, values=zeros, cos=COS[places * [[1], [0]]], sin=SIN[places * [[1], [0]]])
    assert np.abs(y[1] - whole(X[1], weights)).max() > 0.01, "and where they are counts"


@pytest.mark.parametrize("sections", [(24, 20, 20), (4, 2, 2), (8, 0, 0)], ids=str)
def test_positions_in_three_directions_equal_transformers(sections: tuple[int, int, int]) -> None:
    import torch
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as official
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTextConfig

    half = sum(sections)
    rope = {"rope_type": "default", "rope_theta": 1e6}
    places = (np.random.default_rng(2).random((3, 2, 5)) * 5000).astype(np.float32)
    config = Qwen3OmniMoeTextConfig(head_dim=2 * half, rope_parameters={**rope, "mrope_section": list(sections)})
    expected = official.Qwen3OmniMoeThinkerTextRotaryEmbedding(config)(torch.zeros(1), torch.tensor(places))
    run = Layer(
        nn.Module(),
        lambda op, _, given: mixed_rotary(op, given["at"], given["frequency"], given["axes"]),
        inputs={
            "at": ("float32", (3, "batch", "tokens")),
            "frequency": ("float32", (half,)),
            "axes": ("int64", (half,)),
        },
        outputs={"cos": ("float32", 3), "sin": ("float32", 3)},
    )
    found = run(at=places, frequency=rotary_frequencies(2 * half, rope), axes=mixed_axes(sections))
    for table, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.concatenate([table, table], axis=-1), theirs.numpy(), atol=2e-3)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "rope",
    [
        pytest.param({"rope_type": "default", "rope_theta": 10000.0}, id="default"),
        pytest.param({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, id="linear"),
        pytest.param({**LLAMA3, "rope_theta": 500000.0}, id="llama3"),
        pytest.param({**LLAMA3, "rope_theta": 100.0}, id="llama3, all three bands"),
    ],
)
def test_rotary_tables_equal_transformers(rope: dict[str, Any]) -> None:
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(head_dim=64, hidden_size=256, num_attention_heads=4, rope_parameters=rope)
    ids = torch.arange(300)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), ids)
    ours = rotary_tables(64, 300, rope)
    for table, theirs in zip(ours, (cos, sin), strict=True):
        assert table.dtype == np.float32
        # transformers rounds frequencies and angles, of up to 300, to float32.
        np.testing.assert_allclose(np.concatenate([table, table], axis=-1), theirs[0].numpy(), atol=1e-4)


def test_unknown_rotary_type_lists_the_supported_ones() -> None:
    with pytest.raises(ValueError, match="'yarn'; supported: default, linear, llama3"):
        rotary_tables(8, 4, {"rope_type": "yarn", "rope_theta": 1e4})
