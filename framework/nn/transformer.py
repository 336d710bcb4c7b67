"""Parts of the original transformer (Vaswani et al., 2017): LayerNorm, and attention without rotary positions."""

from __future__ import annotations

import attrs
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.nn.layers import Linear


class LayerNorm(nn.Module):
    """Zero mean and unit variance over the last axis, computed in fp32 (Ba et al., 2016)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter([width])
        self.bias = nn.Parameter([width])
        self.eps = eps

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.LayerNormalization(x, self.weight, self.bias, axis=-1, epsilon=self.eps, stash_type=1)


class MLP(nn.Module):
    """fc2(gelu(fc1(x))) with the exact GELU; the layers' names are transformers'."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.fc1 = Linear(hidden, intermediate, bias=True)
        self.fc2 = Linear(intermediate, hidden, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return self.fc2(op, op.Gelu(self.fc1(op, x), approximate="none"))


@attrs.frozen(kw_only=True, eq=False)
class Cache:
    """Keys and values of one layer's earlier tokens, and where a call looks.

    Attributes:
        keys, values: [batch, heads, capacity, head_dim].
        past: int64 [batch], entries each row already has.
        mask: bool [batch, 1, tokens, capacity], True where a query may look.
    """

    keys: ir.Value
    values: ir.Value
    past: ir.Value
    mask: ir.Value


class KeysValues(nn.Module):
    """Keys and values of a sequence: [batch, time, hidden] -> two of [batch, heads, time, head_dim]."""

    def __init__(self, hidden: int, heads: int, *, key_bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = Linear(hidden, hidden, bias=key_bias)
        self.v_proj = Linear(hidden, hidden, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        return split_heads(op, self.k_proj(op, x), self.heads), split_heads(op, self.v_proj(op, x), self.heads)


class SelfAttention(nn.Module):
    """Attention of a sequence to itself: to all of it, or with a `Cache` to what came before.

    Reference: transformers' WhisperAttention; its keys have no bias.
    """

    def __init__(self, hidden: int, heads: int, *, key_bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = Linear(hidden, hidden, bias=True)
        self.k_proj = Linear(hidden, hidden, bias=key_bias)
        self.v_proj = Linear(hidden, hidden, bias=True)
        self.out_proj = Linear(hidden, hidden, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value, cache: Cache | None = None) -> tuple[ir.Value, ir.Value, ir.Value]:
        """x [batch, tokens, hidden] -> y, keys, values; with a cache these are the cache's, updated."""
        q, k, v = (split_heads(op, layer(op, x), self.heads) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if cache is not None:
            k = op.TensorScatter(cache.keys, k, cache.past, axis=-2)
            v = op.TensorScatter(cache.values, v, cache.past, axis=-2)
        y = attend(op, q, k, v, cache.mask if cache is not None else None)
        return self.out_proj(op, y), k, v


class CrossAttention(nn.Module):
    """Attention to another sequence, whose keys and values `KeysValues` made."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = Linear(hidden, hidden, bias=True)
        self.out_proj = Linear(hidden, hidden, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value, keys: ir.Value, values: ir.Value) -> ir.Value:
        return self.out_proj(op, attend(op, split_heads(op, self.q_proj(op, x), self.heads), keys, values))


def split_heads(op: OpBuilder, x: ir.Value, heads: int) -> ir.Value:
    """[batch, time, heads * head_dim] -> [batch, heads, time, head_dim]."""
    return op.Transpose(op.Reshape(x, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def attend(op: OpBuilder, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value | None = None) -> ir.Value:
    """softmax(q kᵀ / √head_dim) v of [batch, heads, time, head_dim] each -> [batch, tokens, heads * head_dim]."""
    y = op.Attention(q, k, v, *(() if mask is None else (mask,)))
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])
