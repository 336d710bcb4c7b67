"""Causal layers that go on where a row's last call ended, so that every step is computed once.

A layer that looks back keeps the last steps of its own input as a state (`History`). Decoding in chunks of any sizes
then gives what one call over all of it gives: nothing is computed twice, and nothing is cut off or cross-faded.

Every row of a call brings the same number of steps, of which the first `counts` are real. What comes after them is
computed, handed out and forgotten: it enters no state.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import Array, TensorSpec
from framework.nn.attention import ones_like
from framework.nn.conv import Conv1d
from framework.nn.layers import Linear


@attrs.frozen(kw_only=True, eq=False)
class Continuation:
    """What the layers of one call share.

    Attributes:
        counts: int64 [batch], real steps of each row.
        states: `History` states by name, as the last call left them.
        updated: the same after this call; the layers fill it.
        index: int64 [batch, time], place of each step in its row's sequence; needed only where layers look ahead.
        late: steps at the start of a row's sequence that are none. A layer that looks ahead answers later instead:
            what it has said of the steps before the first one must not be seen (`real`), and is not wanted.
    """

    counts: ir.Value
    states: Mapping[str, ir.Value]
    updated: dict[str, ir.Value] = attrs.field(factory=dict)
    index: ir.Value | None = None
    late: int = 0

    def upsampled(self, op: OpBuilder, factor: int, *, late: int = 0) -> Continuation:
        """For the layers that see `factor` steps where the layers before saw one, the answer of which is `late` more of
        these steps late."""
        index = self.index
        if index is not None:
            within = op.Unsqueeze(op.Mul(index, factor), [2])  # [batch, time, 1]
            index = op.Reshape(op.Add(within, [*range(factor)]), [0, -1])
        return attrs.evolve(self, counts=op.Mul(self.counts, factor), index=index, late=self.late * factor + late)

    def real(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """x [batch, channels, time] with zeros in place of steps that are none, as before a sequence's start."""
        if not self.late or self.index is None:
            return x
        return op.Mul(x, op.CastLike(op.Unsqueeze(op.GreaterOrEqual(self.index, self.late), [1]), x))


class History(nn.Module):
    """The last steps along axis 2 of a layer's input; zeros before a row's first step.

    Args:
        shape: of a row: (channels, steps) or (channels, steps, width).
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.state = shape, ""
        self.steps = nn.Parameter([shape[1]], data=ir.tensor(np.arange(shape[1], dtype=np.int64)))

    def forward(self, op: OpBuilder, x: ir.Value, call: Continuation) -> ir.Value:
        """x [batch, channels, time, ...] -> [batch, channels, steps + time, ...]."""
        joined = op.Concat(call.states[self.state], x, axis=2)
        trailing = list(range(3, len(self.shape) + 1))
        last = op.Add(op.Unsqueeze(call.counts, [1, 2, *trailing]), op.Unsqueeze(self.steps, [0, 1, *trailing]))
        last = op.Expand(last, [1, self.shape[0], 1, *self.shape[2:]])
        call.updated[self.state] = op.GatherElements(joined, last, axis=2)
        return joined


def history_states(network: nn.Module, dtype: str) -> tuple[TensorSpec, ...]:
    """The state of every `History` below `network`, which is named after its place there."""
    specs = []
    for name, module in network.named_modules():
        if isinstance(module, History):
            module.state = name
            specs.append(TensorSpec(name=name, dtype=dtype, shape=("batch", *module.shape)))
    return tuple(specs)


class CausalConv1d(nn.Module):
    """A convolution that sees a step and those before it."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = Conv1d(in_channels, out_channels, kernel, dilation=dilation, groups=groups)
        self.past = History(in_channels, (kernel - 1) * dilation) if kernel > 1 else None

    def forward(self, op: OpBuilder, x: ir.Value, call: Continuation) -> ir.Value:
        """x [batch, in, time] -> [batch, out, time]."""
        return self.conv(op, x if self.past is None else self.past(op, x, call))


class CausalConvTranspose1d(nn.Module):
    """A transposed convolution whose `stride` outputs for a step follow from it and those before it.

    It is an ordinary convolution that makes the outputs of a step as channels, and then puts them in a row: faster, and
    in types that backends transpose no convolution in. `by_step` turns published weights into its own.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, stride: int) -> None:
        super().__init__()
        if kernel % stride:
            raise ValueError(f"kernel {kernel} and stride {stride}: supported are kernels of whole strides")
        self.stride, self.out_channels = stride, out_channels
        steps = kernel // stride  # that reach into a step's outputs, itself one of them
        self.conv = Conv1d(in_channels, stride * out_channels, steps)
        self.past = History(in_channels, steps - 1) if steps > 1 else None

    def forward(self, op: OpBuilder, x: ir.Value, call: Continuation) -> ir.Value:
        """x [batch, in, time] -> [batch, out, stride * time]."""
        y = self.conv(op, x if self.past is None else self.past(op, x, call))
        y = op.Reshape(y, [0, self.out_channels, self.stride, -1])
        return op.Reshape(op.Transpose(y, perm=[0, 1, 3, 2]), [0, self.out_channels, -1])


def by_step(weight: Array, stride: int) -> Array:
    """Weight [in, out, kernel] of a torch.nn.ConvTranspose1d, or its bias [out], for a `CausalConvTranspose1d`:
    [out * stride, in, kernel / stride], or [out * stride]."""
    if weight.ndim == 1:
        return np.repeat(weight, stride)
    channels, out, kernel = weight.shape
    taps = weight.reshape(channels, out, kernel // stride, stride)[:, :, ::-1]  # the oldest step first
    return np.ascontiguousarray(taps.transpose(1, 3, 0, 2).reshape(out * stride, channels, -1))


@attrs.frozen(kw_only=True, eq=False)
class Window:
    """Where the queries of a call may look, in a sequence of the `window - 1` steps before it and its own.

    Attributes:
        key_ids: int64 [batch, window - 1 + time], places in that sequence.
        query_ids: int64 [batch, time].
        mask: bool [batch, 1, time, window - 1 + time].
        cos, sin: rotary tables; only differences between places matter, so they are as long as that sequence.
    """

    key_ids: ir.Value
    query_ids: ir.Value
    mask: ir.Value
    cos: ir.Value
    sin: ir.Value


def sliding_window(
    op: OpBuilder, ids: ir.Value, past: ir.Value, *, window: int, cos: ir.Value, sin: ir.Value
) -> Window:
    """Each step sees itself and the `window - 1` before it.

    Args:
        ids: int64 [batch, time], of any values; counted instead of asked for its shape (see `nn.positions`).
        past: int64 [batch], steps each row has had so far.
    """
    earlier = op.Expand(ones_like(op, op.Unsqueeze(past, [1])), [1, window - 1])  # [batch, window - 1]
    key = op.CumSum(op.Concat(earlier, ones_like(op, ids), axis=1), 1, exclusive=1)
    query = op.Add(op.CumSum(ones_like(op, ids), 1, exclusive=1), window - 1)
    first = op.Sub(window - 1, op.Min(past, window - 1))  # what lies before it was never written
    at, seen = op.Unsqueeze(query, [1, 3]), op.Unsqueeze(key, [1, 2])  # [batch, 1, time, 1], [batch, 1, 1, ...]
    near = op.And(op.LessOrEqual(seen, at), op.Greater(seen, op.Sub(at, window)))
    mask = op.And(near, op.GreaterOrEqual(seen, op.Unsqueeze(first, [1, 2, 3])))
    return Window(key_ids=key, query_ids=query, mask=mask, cos=cos, sin=sin)


class WindowAttention(nn.Module):
    """Self-attention with rotary positions over a sliding window; keys are kept as they were before rotation, so that
    places count from the window's start and a sequence may go on for ever."""

    def __init__(self, hidden: int, *, heads: int, kv_heads: int, head_dim: int, window: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = Linear(hidden, heads * head_dim, bias=bias)
        self.k_proj = Linear(hidden, kv_heads * head_dim, bias=bias)
        self.v_proj = Linear(hidden, kv_heads * head_dim, bias=bias)
        self.o_proj = Linear(heads * head_dim, hidden, bias=bias)
        self.past_keys = History(kv_heads, window - 1, head_dim)
        self.past_values = History(kv_heads, window - 1, head_dim)

    def forward(self, op: OpBuilder, x: ir.Value, at: Window, call: Continuation) -> ir.Value:
        """x [batch, time, hidden] -> the same shape."""
        q = self._split(op, self.q_proj(op, x), self.heads)
        k = self.past_keys(op, self._split(op, self.k_proj(op, x), self.kv_heads), call)
        v = self.past_values(op, self._split(op, self.v_proj(op, x), self.kv_heads), call)
        q = op.RotaryEmbedding(q, at.cos, at.sin, at.query_ids)
        k = op.RotaryEmbedding(k, at.cos, at.sin, at.key_ids)
        y = op.Attention(q, k, v, at.mask, scale=self.head_dim**-0.5)  # [batch, heads, time, head_dim]
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, self.heads * self.head_dim])
        return self.o_proj(op, y)

    def _split(self, op: OpBuilder, x: ir.Value, heads: int) -> ir.Value:
        return op.Transpose(op.Reshape(x, [0, 0, heads, self.head_dim]), perm=[0, 2, 1, 3])
