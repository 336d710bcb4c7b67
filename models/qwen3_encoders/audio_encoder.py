"""The audio encoder: a log-mel spectrogram to features of the thinker's width, 13 a second.

Upstream: transformers' Qwen3OmniMoeAudioEncoder. Parameter names are theirs below `thinker.audio_tower.`.

    mel, order, windows, real -> features

Sound is cut into chunks of a second, which go through the convolutions as a batch and have positions of their own;
tokens attend to those of their window of eight chunks, which are a batch too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import Linear
from framework.nn.export import DTYPES
from framework.nn.transformer import LayerNorm
from models.qwen3_encoders.config import AudioConfig, halved


class Conv2d(nn.Module):
    """Halves bands and time, weight [out, in, 3, 3]."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter([out_channels, in_channels, 3, 3])
        self.bias = nn.Parameter([out_channels])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        y = op.Conv(x, self.weight, self.bias, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        return op.Gelu(y, approximate="none")


class Attention(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        self.heads, self.head_dim = config.encoder_attention_heads, width // config.encoder_attention_heads
        self.q_proj = Linear(width, width, bias=True)
        self.k_proj = Linear(width, width, bias=True)
        self.v_proj = Linear(width, width, bias=True)
        self.out_proj = Linear(width, width, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value, given: Mapping[str, ir.Value]) -> ir.Value:
        """[tokens, width] -> the same shape."""
        q, k, v = (
            op.Transpose(
                op.Reshape(op.Gather(layer(op, x), given["windows"], axis=0), [0, 0, self.heads, self.head_dim]),
                perm=[0, 2, 1, 3],
            )  # [windows, heads, window, head_dim]
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = op.Attention(q, k, v, given["mask"], scale=self.head_dim**-0.5)
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [-1, self.heads * self.head_dim])
        # Windows are full but for the last: their tokens stand where they stood.
        return self.out_proj(op, op.Gather(y, given["order"], axis=0))


class Layer(nn.Module):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.self_attn_layer_norm = LayerNorm(config.d_model)
        self.fc1 = Linear(config.d_model, config.encoder_ffn_dim, bias=True)
        self.fc2 = Linear(config.encoder_ffn_dim, config.d_model, bias=True)
        self.final_layer_norm = LayerNorm(config.d_model)

    def forward(self, op: OpBuilder, x: ir.Value, given: Mapping[str, ir.Value]) -> ir.Value:
        x = op.Add(x, self.self_attn(op, self.self_attn_layer_norm(op, x), given))
        y = op.Gelu(self.fc1(op, self.final_layer_norm(op, x)), approximate="none")
        return op.Add(x, self.fc2(op, y))


class AudioEncoder(nn.Module):
    """Features of one sound."""

    def __init__(self, config: AudioConfig, *, dtype: str) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        channels = config.downsample_hidden_size
        self.conv2d1 = Conv2d(1, channels)
        self.conv2d2 = Conv2d(channels, channels)
        self.conv2d3 = Conv2d(channels, channels)
        self.conv_out = Linear(channels * config.bands, config.d_model)
        positions = sinusoids(halved(config.chunk), config.d_model).astype(DTYPES[dtype].numpy())
        self.positions = nn.Parameter(list(positions.shape), data=ir.tensor(positions))
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.encoder_layers)])
        self.ln_post = LayerNorm(config.d_model)
        self.proj1 = Linear(config.d_model, config.d_model, bias=True)
        self.proj2 = Linear(config.d_model, config.output_dim, bias=True)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Chunks, the last one filled up with zeros; which of their tokens are real; the tokens of each window."""
        config = self.config
        window = ("windows", config.window)
        return (
            TensorSpec(name="mel", dtype="float32", shape=("chunks", config.num_mel_bins, "frames")),
            TensorSpec(name="order", dtype="int64", shape=("tokens",)),
            TensorSpec(name="windows", dtype="int64", shape=window),
            TensorSpec(name="real", dtype="bool", shape=window),
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="features", dtype=self.dtype, shape=("tokens", self.config.output_dim)),)

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        config = self.config
        x = op.Cast(op.Unsqueeze(given["mel"], [1]), to=DTYPES[self.dtype])  # [chunks, 1, mel, frames]
        for halve in (self.conv2d1, self.conv2d2, self.conv2d3):
            x = halve(op, x)
        x = op.Reshape(op.Transpose(x, perm=[0, 3, 1, 2]), [0, 0, config.downsample_hidden_size * config.bands])
        x = self.conv_out(op, x)  # [chunks, steps, width]
        x = op.Add(x, op.Slice(self.positions, [0], op.Shape(x, start=1, end=2), [0]))
        x = op.Gather(op.Reshape(x, [-1, config.d_model]), given["order"], axis=0)  # [tokens, width]
        mask = op.Expand(op.Unsqueeze(given["real"], [1, 2]), [1, 1, config.window, 1])
        for layer in self.layers:
            x = layer(op, x, {**given, "mask": mask})
        x = op.Gelu(self.proj1(op, self.ln_post(op, x)), approximate="none")
        return {"features": self.proj2(op, x)}


def sinusoids(length: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Position embeddings of "Attention Is All You Need" as Whisper has them: sines, then cosines; [length, width]."""
    inverse = np.exp(-math.log(10_000.0) / (width // 2 - 1) * np.arange(width // 2, dtype=np.float32))
    angles = np.arange(length, dtype=np.float32)[:, None] * inverse.astype(np.float32)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
