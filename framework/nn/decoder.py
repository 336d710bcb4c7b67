"""The layer that most decoders are made of."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.nn.attention import Attention, Positions
from framework.nn.layers import RMSNorm


class DecoderLayer(nn.Module):
    """Attention, then a feed-forward block, each behind a norm and beside the residual stream.

    Args:
        hidden: width of the stream, in elements.
        mlp: [batch, tokens, hidden] -> the same: `GatedMLP`, or a mixture of experts.
    """

    def __init__(self, hidden: int, eps: float, attention: Attention, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = mlp

    def forward(
        self, op: OpBuilder, x: ir.Value, at: Positions, keys: ir.Value | None, values: ir.Value | None
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """x [batch, tokens, hidden] -> the same, and the caches `keys` and `values` with the new tokens in them."""
        y, keys, values = self.self_attn(op, self.input_layernorm(op, x), at, keys, values)
        x = op.Add(x, y)
        return op.Add(x, self.mlp(op, self.post_attention_layernorm(op, x))), keys, values
