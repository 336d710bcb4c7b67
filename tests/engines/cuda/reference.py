"""The decoder stack in numpy, fp32, with the cache in the stack's dtype: what the kernel must compute."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from framework.engines.cuda.kernels.pack import DecoderWeights
from framework.engines.cuda.kernels.shape import DecoderShape
from framework.engines.memory import numpy_dtype

Array = np.ndarray[Any, Any]
FORBIDDEN = -1e30


def random_weights(shape: DecoderShape, seed: int, spread: float = 3.0) -> DecoderWeights:
    """Weights that keep activations near 1 and make scores of about `spread`."""
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(shape.dtype)

    def matrix(*size: int, scale: float = 1.0) -> Array:
        value = rng.standard_normal(size, np.float32)
        value *= scale * size[-1] ** -0.5
        return value.astype(dtype)

    def norm(*size: int) -> Array:
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    layers, heads, half = shape.layers, 1 if shape.one_head else shape.steps, shape.head_dim // 2
    angle = np.arange(shape.capacity)[:, None] * 1e4 ** (-np.arange(half) / half)
    return DecoderWeights(
        qkv=matrix(layers, shape.qkv, shape.width),
        out=matrix(layers, shape.width, shape.queries),
        gate=matrix(layers, shape.mlp, shape.width),
        up=matrix(layers, shape.mlp, shape.width),
        down=matrix(layers, shape.width, shape.mlp),
        norm_attention=norm(layers, shape.width),
        norm_mlp=norm(layers, shape.width),
        norm_query=norm(layers, shape.head_dim) if shape.qk_norm else None,
        norm_key=norm(layers, shape.head_dim) if shape.qk_norm else None,
        norm=norm(shape.width),
        head=matrix(heads, shape.vocab, shape.width, scale=spread),
        table=matrix(heads, shape.vocab, shape.width, scale=shape.width**0.5),
        cosine=np.cos(angle).astype(np.float32),
        sine=np.sin(angle).astype(np.float32),
    )


@attrs.frozen(kw_only=True, eq=False)
class Inputs:
    """Of one call; names and shapes as `Decoder.buffers` has them, but `input` [rows, prompt, width] is not padded."""

    input: Array
    past: Array
    noise: Array
    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    penalty: Array | None = None
    bias: Array | None = None
    history: Array | None = None
    spoken: Array | None = None
    never: Array | None = None
    stop: int = -1
    least: int = 0

    def row(self, row: int) -> Inputs:
        """A batch of one."""
        whole = {"never", "stop", "least"}
        names = [field.name for field in attrs.fields(Inputs)]
        values = {name: getattr(self, name) for name in names}
        return Inputs(**{n: v if n in whole or v is None else v[row : row + 1] for n, v in values.items()})


def random_inputs(shape: DecoderShape, rows: int, past: int, seed: int, *, greedy: bool = False) -> Inputs:
    rng = np.random.default_rng(seed)

    def same(value: float, dtype: type) -> Array:
        return np.full(rows, value, dtype)

    shaped: dict[str, Any] = {}
    if shape.shaped:
        never = np.zeros(shape.vocab, np.uint8)
        never[shape.vocab // 2 :] = 1
        never[-1] = 0
        shaped = {
            "penalty": same(1.3, np.float32),
            "bias": rng.standard_normal((rows, shape.vocab)).astype(np.float32),
            "history": rng.integers(0, shape.vocab // 2, (rows, shape.capacity)),
            "spoken": rng.integers(1, 9, rows),
            "never": never,
            "stop": shape.vocab - 1,
            "least": 3,
        }
    return Inputs(
        input=rng.standard_normal((rows, shape.prompt, shape.width)).astype(np.float32),
        past=np.maximum(past - np.arange(rows), 0).astype(np.int64),
        noise=rng.random((rows, shape.steps), np.float32),
        temperature=same(0 if greedy else 0.9, np.float32),
        top_k=same(min(50, shape.vocab), np.int64),
        top_p=same(0.95, np.float32),
        min_p=same(0.01, np.float32),
        **shaped,
    )


def random_cache(shape: DecoderShape, rows: int, seed: int) -> Array:
    """[layers, rows, kv_heads, capacity, head_dim]"""
    size = (shape.layers, rows, shape.kv_heads, shape.capacity, shape.head_dim)
    return np.random.default_rng(seed).standard_normal(size, np.float32).astype(numpy_dtype(shape.dtype))


def chosen(scores: Array, noise: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """`nn.Sampler`'s rule for one row, over all of its codes."""
    order = np.argsort(-scores, kind="stable")
    if temperature <= 0:
        return int(order[0])
    order = order[: top_k or None]
    weight = np.exp((scores[order] - scores[order[0]]) / np.float32(temperature))
    ends = np.cumsum(weight, dtype=np.float32)
    before = np.concatenate([np.zeros(1, np.float32), ends[:-1]])
    keep = (before < ends[-1] * np.float32(top_p)) & (weight >= min_p)
    mass = np.cumsum(np.where(keep, weight, 0), dtype=np.float32)
    passed = int((mass <= np.float32(noise) * mass[-1]).sum())
    return int(order[min(passed, int(keep.sum()) - 1)])


class Reference:
    """Weights once in fp32, then any number of calls; the caches are changed in place."""

    def __init__(self, shape: DecoderShape, weights: DecoderWeights) -> None:
        self.shape = shape
        fields = [field.name for field in attrs.fields(DecoderWeights)]
        given = {name: getattr(weights, name) for name in fields}
        self.w = {name: value.astype(np.float32) for name, value in given.items() if value is not None}

    def __call__(self, given: Inputs, keys: Array, values: Array) -> tuple[Array, Array, Array]:
        """codes int64 [rows, steps], hidden [rows, width] of the last step, scores [rows, steps, vocab]."""
        shape, w = self.shape, self.w
        rows = given.input.shape[0]
        codes = np.zeros((rows, shape.steps), np.int64)
        hidden = np.zeros((rows, shape.width), np.float32)
        scores = np.zeros((rows, shape.steps, shape.vocab), np.float32)
        for row in range(rows):
            x, at = given.input[row], int(given.past[row])
            for step in range(shape.steps):
                which = 0 if shape.one_head else step
                y = self._norm(self._layers(x, at, keys[:, row], values[:, row]), w["norm"])[-1]
                raw = w["head"][which] @ y
                settings = [getattr(given, name)[row] for name in ("temperature", "top_k", "top_p", "min_p")]
                code = chosen(self._shaped(raw, given, row), given.noise[row, step], *settings)
                codes[row, step], hidden[row], scores[row, step] = code, y, raw
                at += len(x)
                x = w["table"][which, code][None]
        return codes, hidden, scores

    def _shaped(self, scores: Array, given: Inputs, row: int) -> Array:
        if not self.shape.shaped:
            return scores
        assert given.never is not None and given.history is not None and given.spoken is not None
        assert given.penalty is not None and given.bias is not None
        spoken = given.spoken[row]
        scores = np.where(given.never, np.float32(FORBIDDEN), scores)
        if spoken < given.least:
            scores[given.stop] = FORBIDDEN
        seen = np.unique(given.history[row, :spoken])
        found = scores[seen]
        scores[seen] = np.where(found > 0, found / given.penalty[row], found * given.penalty[row])
        return scores + given.bias[row]

    def _norm(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.shape.eps)) * weight

    def _layers(self, x: Array, at: int, keys: Array, values: Array) -> Array:
        """x [tokens, width] at cache entries from `at`; caches [layers, kv_heads, capacity, head_dim]."""
        shape, w, tokens = self.shape, self.w, len(x)
        for layer in range(shape.layers):
            qkv = self._norm(x, w["norm_attention"][layer]) @ w["qkv"][layer].T
            qkv = qkv.reshape(tokens, -1, shape.head_dim).transpose(1, 0, 2)  # [heads, tokens, head_dim]
            q, k, v = np.split(qkv, [shape.heads, shape.heads + shape.kv_heads])
            if shape.qk_norm:
                q, k = self._norm(q, w["norm_query"][layer]), self._norm(k, w["norm_key"][layer])
            keys[layer, :, at : at + tokens] = self._rotated(k, at)
            values[layer, :, at : at + tokens] = v
            group = shape.heads // shape.kv_heads
            every = slice(0, at + tokens)
            k_all = np.repeat(keys[layer, :, every].astype(np.float32), group, 0)
            v_all = np.repeat(values[layer, :, every].astype(np.float32), group, 0)
            match = self._rotated(q, at) @ k_all.transpose(0, 2, 1) / np.float32(shape.head_dim**0.5)
            late = np.arange(at + tokens)[None] > at + np.arange(tokens)[:, None]
            match = np.exp(np.where(late, -np.inf, match - match.max(-1, keepdims=True)))
            mixed = match / match.sum(-1, keepdims=True) @ v_all
            x = x + mixed.transpose(1, 0, 2).reshape(tokens, -1) @ w["out"][layer].T
            y = self._norm(x, w["norm_mlp"][layer])
            gate = y @ w["gate"][layer].T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ w["up"][layer].T)) @ w["down"][layer].T
        return x

    def _rotated(self, x: Array, at: int) -> Array:
        half = self.shape.head_dim // 2
        places = slice(at, at + x.shape[1])
        cosine, sine = self.w["cosine"][places], self.w["sine"][places]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)
