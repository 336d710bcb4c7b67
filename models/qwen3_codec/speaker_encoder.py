"""The speaker encoder: how somebody sounds, as one vector.

Upstream: Qwen3TTSSpeakerEncoder of qwen-tts 0.1.1, an ECAPA-TDNN (Desplanques et al., 2020). Parameter names are its.

    mel -> speaker
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn.conv import Conv1d
from framework.nn.export import DTYPES
from models.qwen3_codec.config import SpeakerConfig


class TimeDelay(nn.Module):
    """relu(conv(x)) of the same length, the ends mirrored."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = Conv1d(in_channels, out_channels, kernel, dilation=dilation)
        self.around = dilation * (kernel - 1) // 2

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        if self.around:
            x = op.Pad(x, [self.around, self.around], None, [2], mode="reflect")
        return op.Relu(self.conv(op, x))


class Res2Net(nn.Module):
    """Groups of channels, each convolved with what its neighbour made (Gao et al., 2019)."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        self.blocks = nn.ModuleList(
            [TimeDelay(channels // scale, channels // scale, kernel, dilation) for _ in range(scale - 1)]
        )

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        first, *groups = op.Split(x, axis=1, num_outputs=self.scale, _outputs=self.scale)
        parts = [first]
        for block, group in zip(self.blocks, groups, strict=True):
            parts.append(block(op, group if len(parts) == 1 else op.Add(group, parts[-1])))
        return op.Concat(*parts, axis=1)


class SqueezeExcitation(nn.Module):
    """Channels weighed by what all of them are on average (Hu et al., 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = Conv1d(channels, squeezed, 1)
        self.conv2 = Conv1d(squeezed, channels, 1)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        mean = op.ReduceMean(x, [2], keepdims=1)
        return op.Mul(x, op.Sigmoid(self.conv2(op, op.Relu(self.conv1(op, mean)))))


class SERes2Net(nn.Module):
    def __init__(self, in_channels: int, channels: int, kernel: int, dilation: int, config: SpeakerConfig) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(in_channels, channels, 1, 1)
        self.res2net_block = Res2Net(channels, config.enc_res2net_scale, kernel, dilation)
        self.tdnn2 = TimeDelay(channels, channels, 1, 1)
        self.se_block = SqueezeExcitation(channels, config.enc_se_channels)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        y = self.tdnn2(op, self.res2net_block(op, self.tdnn1(op, x)))
        return op.Add(self.se_block(op, y), x)


class AttentiveStatistics(nn.Module):
    """Mean and deviation of each channel over time, some moments counting more (Okabe et al., 2018)."""

    def __init__(self, channels: int, attention: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, attention, 1, 1)
        self.conv = Conv1d(attention, channels, 1)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """x [1, channels, steps] -> [1, 2 * channels, 1]."""
        mean = op.ReduceMean(x, [2], keepdims=1)
        spread = self._deviation(op, op.ReduceMean(self._squared(op, x, mean), [2], keepdims=1))
        everywhere = op.Mul(x, 0.0)
        context = op.Concat(x, op.Add(everywhere, mean), op.Add(everywhere, spread), axis=1)
        weights = op.Softmax(self.conv(op, op.Tanh(self.tdnn(op, context))), axis=2)
        mean = op.ReduceSum(op.Mul(weights, x), [2], keepdims=1)
        spread = self._deviation(op, op.ReduceSum(op.Mul(weights, self._squared(op, x, mean)), [2], keepdims=1))
        return op.Concat(mean, spread, axis=1)

    def _squared(self, op: OpBuilder, x: ir.Value, mean: ir.Value) -> ir.Value:
        away = op.Sub(x, mean)
        return op.Mul(away, away)

    def _deviation(self, op: OpBuilder, variance: ir.Value) -> ir.Value:
        return op.Sqrt(op.Max(variance, 1e-12))


class SpeakerEncoder(nn.Module):
    """One voice at a time. `dtype` is that of the activations."""

    def __init__(self, config: SpeakerConfig, *, dtype: str) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        widths, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self.blocks = nn.ModuleList(
            [
                TimeDelay(config.mel_dim, widths[0], kernels[0], dilations[0]),
                *(
                    SERes2Net(widths[i - 1], widths[i], kernels[i], dilations[i], config)
                    for i in range(1, len(widths) - 1)
                ),
            ]
        )
        self.mfa = TimeDelay(widths[-1], widths[-1], kernels[-1], dilations[-1])
        self.asp = AttentiveStatistics(widths[-1], config.enc_attention_channels)
        self.fc = Conv1d(2 * widths[-1], config.enc_dim, 1)

    def inputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="mel", dtype="float32", shape=(1, self.config.mel_dim, "steps")),)

    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="speaker", dtype="float32", shape=(1, self.config.enc_dim)),)

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        x = op.Cast(given["mel"], to=DTYPES[self.dtype])
        outputs = []
        for block in self.blocks:
            x = block(op, x)
            outputs.append(x)
        pooled = self.asp(op, self.mfa(op, op.Concat(*outputs[1:], axis=1)))
        return {"speaker": op.Cast(op.Squeeze(self.fc(op, pooled), [2]), to=ir.DataType.FLOAT)}
