"""Layers of neural vocoders."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.nn.layers import Linear
from framework.nn.streaming import CausalConv1d, Continuation
from framework.nn.transformer import LayerNorm


class SnakeBeta(nn.Module):
    """x + sin²(eᵅ x) / eᵝ, a frequency and a magnitude a channel (Ziyin et al., 2020; Lee et al., "BigVGAN", 2023)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter([channels])
        self.beta = nn.Parameter([channels])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """x [batch, channels, time] -> the same shape."""
        frequency = op.Unsqueeze(op.Exp(self.alpha), [1])  # [channels, 1]
        magnitude = op.Unsqueeze(op.Reciprocal(op.Add(op.Exp(self.beta), 1e-9)), [1])
        wave = op.Sin(op.Mul(x, frequency))
        return op.Add(x, op.Mul(op.Mul(wave, wave), magnitude))


class LayerScale(nn.Module):
    """A learnt factor a channel of the last axis (Touvron et al., "Going deeper with Image Transformers", 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter([width])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.Mul(x, self.scale)


class ConvNeXtBlock(nn.Module):
    """A depthwise causal convolution and a feed-forward block beside a residual (Liu et al., "A ConvNet for the 2020s",
    2022)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(channels, channels, 7, groups=channels)
        self.norm = LayerNorm(channels, eps=1e-6)
        self.pwconv1 = Linear(channels, 4 * channels, bias=True)
        self.pwconv2 = Linear(4 * channels, channels, bias=True)
        self.gamma = nn.Parameter([channels])

    def forward(self, op: OpBuilder, x: ir.Value, call: Continuation) -> ir.Value:
        """x [batch, channels, time] -> the same shape."""
        y = self.norm(op, op.Transpose(self.dwconv(op, x, call), perm=[0, 2, 1]))
        y = self.pwconv2(op, op.Gelu(self.pwconv1(op, y), approximate="none"))
        return op.Add(x, op.Transpose(op.Mul(y, self.gamma), perm=[0, 2, 1]))
