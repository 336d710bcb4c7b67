"""Convolutions over time."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn


class Conv1d(nn.Module):
    """Cross-correlation along the last axis, weight [out, in / groups, kernel] as in torch.nn.Conv1d."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter([out_channels, in_channels // groups, kernel])
        self.bias = nn.Parameter([out_channels]) if bias else None
        self.kernel, self.stride, self.padding, self.dilation, self.groups = kernel, stride, padding, dilation, groups

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """x [batch, in, time] -> [batch, out, (time + 2 padding - dilation (kernel - 1) - 1) / stride + 1]."""
        weights = (self.weight,) if self.bias is None else (self.weight, self.bias)
        pads = [self.padding, self.padding]
        return op.Conv(
            x,
            *weights,
            kernel_shape=[self.kernel],
            strides=[self.stride],
            pads=pads,
            dilations=[self.dilation],
            group=self.groups,
        )
