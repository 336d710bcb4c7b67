"""Grouped-query attention over a key-value cache that is updated in place.

Every row of a call brings `tokens` new positions, of which the first `token_counts` are real: the rest write
cache entries that no real position can see and that the row's next call overwrites. So prompts of unequal length,
prefill in chunks and decode are one network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn.layers import Linear, RMSNorm

Float32 = np.ndarray[Any, np.dtype[np.float32]]


@attrs.frozen(kw_only=True, eq=False)
class Positions:
    """What all attention layers of one call share.

    Attributes:
        past: int64 [batch], entries that each row has in its cache; None where the call makes the caches longer.
        ids: int64 [batch, tokens], cache entry of each new token, which is also its row in rotary tables by position.
        mask: bool [batch, 1, tokens, capacity], True where a query may look; None where the call makes the caches
            longer, and each token sees those before it.
        cos, sin: rotary tables, [positions, head_dim / 2], or with `per_token` [batch, tokens, head_dim / 2].
        per_token: the tables have a row for each new token, not for each position.
    """

    past: ir.Value | None
    ids: ir.Value
    mask: ir.Value | None
    cos: ir.Value
    sin: ir.Value
    per_token: bool = False


def rotary_tables(head_dim: int, positions: int, rope: Mapping[str, Any]) -> tuple[Float32, Float32]:
    """Cosines and sines of rotary positions (Su et al., "RoFormer", 2021), each float32 [positions, head_dim / 2].

    `rope` has transformers' names: `rope_theta`, `rope_type` (default, linear, llama3) and the type's own numbers.
    Raises ValueError for another type.
    """
    # transformers multiplies in fp32; the same here keeps the tables equal to the last bit that matters.
    angles = np.arange(positions, dtype=np.float32)[:, None] * rotary_frequencies(head_dim, rope)[None]
    return np.cos(angles), np.sin(angles)


def rotary_frequencies(head_dim: int, rope: Mapping[str, Any]) -> Float32:
    """Radians a position, float32 [head_dim / 2]; arguments as `rotary_tables` has them."""
    kind = rope.get("rope_type", "default")
    frequency = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if kind == "linear":
        frequency /= rope["factor"]
    elif kind == "llama3":  # long wavelengths are stretched by `factor`, short ones kept, those between blended
        original = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        share = np.clip((original * frequency / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
        frequency = (1 - share) * frequency / rope["factor"] + share * frequency
    elif kind != "default":
        raise ValueError(f"rope_type {kind!r}; supported: default, linear, llama3")
    found: Float32 = frequency.astype(np.float32)
    return found


def mixed_axes(sections: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which of time, height and width (0, 1, 2) each frequency turns with, int64 [sum of sections].

    They take turns as long as height and width have some left; the rest is time's (Qwen3-VL's interleaved layout).
    """
    axes = np.zeros(sum(sections), np.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def mixed_rotary(op: OpBuilder, at: ir.Value, frequency: ir.Value, axes: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Cosines and sines of positions in three directions, for `Positions.per_token`.

    `at` float32 [3, batch, tokens], `frequency` float32 and `axes` int64 [head_dim / 2] -> float32 [batch, tokens,
    head_dim / 2] each. Positions may have fractions, and end anywhere, so there is no table.
    """
    angle = op.Mul(op.Transpose(op.Gather(at, axes, axis=0), perm=[1, 2, 0]), frequency)
    return op.Cos(angle), op.Sin(angle)


def positions(
    op: OpBuilder,
    ids: ir.Value,
    past: ir.Value,
    *,
    capacity: int,
    cos: ir.Value,
    sin: ir.Value,
    per_token: bool = False,
) -> Positions:
    """Causal positions of a call: `ids` [batch, tokens], `past` [batch], caches of `capacity` entries.

    Made by counting, not from shapes: a shape is known to the host alone, which keeps a GPU from capturing the call.
    """
    index = op.CumSum(ones_like(op, ids), 1, exclusive=1)  # [batch, tokens]: 0, 1, 2 ...
    query = op.Add(op.Unsqueeze(past, [1]), index, _outputs=["cache_positions"])
    key = op.initializer(ir.tensor(np.arange(capacity, dtype=np.int64)), name="cache_entries")
    mask = op.LessOrEqual(key, op.Unsqueeze(query, [1, 3]))  # [capacity] <= [batch, 1, tokens, 1]
    return Positions(past=past, ids=query, mask=mask, cos=cos, sin=sin, per_token=per_token)


def ones_like(op: OpBuilder, x: ir.Value) -> ir.Value:
    return op.Add(op.Mul(x, 0), 1)


class Attention(nn.Module):
    """Self-attention with rotary positions; with `qk_norm_eps`, queries and keys are normalised per head (Qwen3).

    Reference: transformers' LlamaAttention and Qwen3Attention.
    """

    def __init__(
        self,
        hidden: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = Linear(hidden, heads * head_dim, bias=bias)
        self.k_proj = Linear(hidden, kv_heads * head_dim, bias=bias)
        self.v_proj = Linear(hidden, kv_heads * head_dim, bias=bias)
        self.o_proj = Linear(heads * head_dim, hidden, bias=out_bias)
        self.q_norm = RMSNorm(head_dim, qk_norm_eps) if qk_norm_eps is not None else None
        self.k_norm = RMSNorm(head_dim, qk_norm_eps) if qk_norm_eps is not None else None

    def forward(
        self, op: OpBuilder, x: ir.Value, at: Positions, key_cache: ir.Value | None, value_cache: ir.Value | None
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """x [batch, tokens, hidden], caches [batch, kv_heads, capacity, head_dim] -> y, new caches.

        Caches that grow are [batch, kv_heads, entries, head_dim], at first None, and get several tokens only then.
        """
        q = self._rotated(op, self._split(op, self.q_proj(op, x), self.heads), self.q_norm, at)
        k = self._rotated(op, self._split(op, self.k_proj(op, x), self.kv_heads), self.k_norm, at)
        v = op.Transpose(self._split(op, self.v_proj(op, x), self.kv_heads), perm=[0, 2, 1, 3])
        scale = self.head_dim**-0.5
        if at.past is not None:
            key_cache = op.TensorScatter(key_cache, k, at.past, axis=-2)
            value_cache = op.TensorScatter(value_cache, v, at.past, axis=-2)
            y = op.Attention(q, key_cache, value_cache, at.mask, scale=scale)  # [batch, heads, tokens, d]
        elif key_cache is None or value_cache is None:
            key_cache, value_cache = k, v
            y = op.Attention(q, k, v, is_causal=1, scale=scale)
        else:
            key_cache, value_cache = op.Concat(key_cache, k, axis=2), op.Concat(value_cache, v, axis=2)
            y = op.Attention(q, key_cache, value_cache, scale=scale)
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, self.heads * self.head_dim])
        return self.o_proj(op, y), key_cache, value_cache

    def _split(self, op: OpBuilder, x: ir.Value, heads: int) -> ir.Value:
        return op.Reshape(x, [0, 0, heads, self.head_dim])  # [batch, tokens, heads * d] -> [batch, tokens, heads, d]

    def _rotated(self, op: OpBuilder, x: ir.Value, norm: RMSNorm | None, at: Positions) -> ir.Value:
        if norm is not None:
            x = norm(op, x)
        ids = () if at.per_token else (at.ids,)
        return op.RotaryEmbedding(op.Transpose(x, perm=[0, 2, 1, 3]), at.cos, at.sin, *ids)  # [batch, heads, tokens, d]


def decoder_states(layers: int, *, kv_heads: int, head_dim: int, capacity: int, dtype: str) -> tuple[TensorSpec, ...]:
    """`history`, the token ids of every row so far, and the caches of every layer."""
    cache = ("batch", kv_heads, capacity, head_dim)
    names = [f"{kind}_cache.{layer}" for layer in range(layers) for kind in ("key", "value")]
    history = TensorSpec(name="history", dtype="int64", shape=("batch", capacity))
    return (history, *(TensorSpec(name=name, dtype=dtype, shape=cache) for name in names))


def updated(states: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The states as outputs."""
    return tuple(attrs.evolve(state, name=f"{state.name}.next") for state in states)
