"""The codec's decoder, its encoder and the speaker encoder, as three graphs.

Upstream: the package qwen-tts 0.1.1 (Qwen3TTSTokenizerV2Decoder, Qwen3TTSSpeakerEncoder) and transformers' MimiModel.
Parameter names are theirs.

    decoder:         codes, past_lengths, frame_counts, histories -> audio, histories
    encoder:         samples, lengths -> codes
    speaker encoder: mel -> speaker

| | decoder | encoder (Mimi) | speaker encoder |
|---|---|---|---|
| quantizers | 1 semantic + 15 acoustic of 2048 x 256 | the same, of 32 | |
| transformer | 8 layers, 512, 16 heads of 64, window 72 | 8 layers, 512, 8 heads | |
| rates | x2 x2 (1024 wide), x8 x5 x4 x3 (1536 to 96) | /4 /5 /6 /8 (64 to 512), /2 | 128 mel to 1536, one vector |
| parameters | 114 M | 39 M | 12 M |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import GatedMLP, Linear, RMSNorm, constant, rotary_tables, updated
from framework.nn.conv import Conv1d
from framework.nn.streaming import (
    CausalConv1d,
    CausalConvTranspose1d,
    Continuation,
    Window,
    WindowAttention,
    history_states,
    sliding_window,
)
from framework.nn.vocoder import ConvNeXtBlock, LayerScale, SnakeBeta
from models.qwen3_codec.config import FRAME, MAX_FRAMES, QUANTIZERS, DecoderConfig, VocoderConfig


class Codebooks(nn.Module):
    """Entries of several residual quantizers, summed and projected."""

    def __init__(self, quantizers: int, entries: int, width: int, out: int) -> None:
        super().__init__()
        self.first = [quantizer * entries for quantizer in range(quantizers)]
        self.width = width
        self.codebook = nn.Parameter([quantizers, entries, width])
        self.output_proj = Conv1d(width, out, 1, bias=False)

    def forward(self, op: OpBuilder, codes: ir.Value) -> ir.Value:
        """codes int64 [batch, frames, quantizers] -> [batch, out, frames]."""
        table = op.Reshape(self.codebook, [-1, self.width])
        rows = op.Gather(table, op.Add(codes, self.first), axis=0)  # [batch, frames, quantizers, width]
        summed = op.ReduceSum(rows, [2], keepdims=0)
        return self.output_proj(op, op.Transpose(summed, perm=[0, 2, 1]))


class Quantizer(nn.Module):
    """Split residual vector quantizer: the first code says what is said, the others how it sounds."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.rvq_first = Codebooks(1, config.codebook_size, width, config.codebook_dim)
        self.rvq_rest = Codebooks(config.num_quantizers - 1, config.codebook_size, width, config.codebook_dim)

    def forward(self, op: OpBuilder, codes: ir.Value) -> ir.Value:
        first, rest = op.Split(codes, [1, QUANTIZERS - 1], axis=2, _outputs=2)
        return op.Add(self.rvq_first(op, first), self.rvq_rest(op, rest))


class TransformerLayer(nn.Module):
    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = WindowAttention(
            config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_width,
            window=config.sliding_window,
            bias=config.attention_bias,
        )
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, op: OpBuilder, x: ir.Value, at: Window, call: Continuation) -> ir.Value:
        y = self.self_attn(op, self.input_layernorm(op, x), at, call)
        x = op.Add(x, self.self_attn_layer_scale(op, y))
        y = self.mlp(op, self.post_attention_layernorm(op, x))
        return op.Add(x, self.mlp_layer_scale(op, y))


class Transformer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_proj = Linear(config.latent_dim, config.hidden_size, bias=True)
        self.layers = nn.ModuleList([TransformerLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output_proj = Linear(config.hidden_size, config.latent_dim, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value, at: Window, call: Continuation) -> ir.Value:
        """x [batch, latent, frames] -> the same shape."""
        x = self.input_proj(op, op.Transpose(x, perm=[0, 2, 1]))
        for layer in self.layers:
            x = layer(op, x, at, call)
        return op.Transpose(self.output_proj(op, self.norm(op, x)), perm=[0, 2, 1])


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv1d(channels, channels, 7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    def forward(self, op: OpBuilder, x: ir.Value, call: Continuation) -> ir.Value:
        y = self.conv1(op, self.act1(op, x), call)
        return op.Add(x, self.conv2(op, self.act2(op, y), call))


class UpsampleBlock(nn.Module):
    """[batch, in, time] -> [batch, out, rate * time]; with `ahead` each step's outputs follow from the step after it
    too, and so come a step later."""

    def __init__(self, in_channels: int, out_channels: int, rate: int, *, ahead: bool) -> None:
        super().__init__()
        self.rate, self.late = rate, rate if ahead else 0
        self.block = nn.ModuleList(
            [
                SnakeBeta(in_channels),
                CausalConvTranspose1d(in_channels, out_channels, 2 * rate, stride=rate),
                *(ResidualUnit(out_channels, dilation) for dilation in (1, 3, 9)),
            ]
        )

    def forward(self, op: OpBuilder, x: ir.Value, call: Continuation) -> tuple[ir.Value, Continuation]:
        snake, upsample, *units = self.block
        x = upsample(op, snake(op, x), call)
        call = call.upsampled(op, self.rate, late=self.late)
        x = call.real(op, x)
        for unit in units:
            x = call.real(op, unit(op, x, call))
        return x, call


class Vocoder(nn.Module):
    """Sound of frames in the latent space.

    Args:
        latent: channels of a frame.
        ahead: see `UpsampleBlock`.
        dtype: of the activations and histories.
    """

    def __init__(self, config: VocoderConfig, *, latent: int, ahead: bool, dtype: str) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        rope = {"rope_theta": config.rope_theta}
        cos, sin = rotary_tables(config.head_width, config.sliding_window - 1 + MAX_FRAMES, rope)
        self.rotary_cos, self.rotary_sin = constant(cos, dtype), constant(sin, dtype)
        self.upsample = nn.ModuleList(
            [
                nn.ModuleList([CausalConvTranspose1d(latent, latent, factor, stride=factor), ConvNeXtBlock(latent)])
                for factor in config.upsampling_ratios
            ]
        )
        widths = [config.decoder_dim >> level for level in range(len(config.upsample_rates) + 1)]
        blocks = [
            UpsampleBlock(widths[level], widths[level + 1], rate, ahead=ahead)
            for level, rate in enumerate(config.upsample_rates)
        ]
        self.decoder = nn.ModuleList(
            [CausalConv1d(latent, widths[0], 7), *blocks, SnakeBeta(widths[-1]), CausalConv1d(widths[-1], 1, 7)]
        )
        self.histories: tuple[TensorSpec, ...] = ()

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Graph inputs, the states last."""
        return (
            TensorSpec(name="codes", dtype="int64", shape=("batch", "frames", QUANTIZERS)),
            TensorSpec(name="past_lengths", dtype="int64", shape=("batch",)),
            TensorSpec(name="frame_counts", dtype="int64", shape=("batch",)),
            *self.histories,
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        """Graph outputs, the updated states last."""
        return (
            TensorSpec(name="audio", dtype="float32", shape=("batch", "frames", FRAME)),
            *updated(self.histories),
        )

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        codes, past = given["codes"], given["past_lengths"]
        states = {state.name: given[state.name] for state in self.histories}
        call = Continuation(counts=given["frame_counts"], states=states)
        ids = op.Squeeze(op.Slice(codes, [0], [1], [2]), [2])  # [batch, frames]
        at = sliding_window(op, ids, past, window=self.config.sliding_window, cos=self.rotary_cos, sin=self.rotary_sin)
        x, call = self._latent(op, codes, past, at, call)
        audio = self._sound(op, x, call)
        return {"audio": audio, **{f"{name}.next": state for name, state in call.updated.items()}}

    def _latent(
        self, op: OpBuilder, codes: ir.Value, past: ir.Value, at: Window, call: Continuation
    ) -> tuple[ir.Value, Continuation]:
        """Codes int64 [batch, frames, quantizers] -> [batch, latent, frames], and how to go on."""
        raise NotImplementedError

    def _sound(self, op: OpBuilder, x: ir.Value, call: Continuation) -> ir.Value:
        """[batch, latent, frames] -> float32 [batch, frames, FRAME]."""
        stages: list[Any] = list(self.upsample)
        for (upsample, block), factor in zip(stages, self.config.upsampling_ratios, strict=True):
            x = upsample(op, x, call)
            call = call.upsampled(op, factor)
            x = block(op, x, call)
        first, *blocks, snake, last = self.decoder
        x = first(op, x, call)
        for block in blocks:
            x, call = block(op, x, call)
        x = last(op, snake(op, x), call)  # [batch, 1, frames * FRAME]
        return op.Reshape(op.Clip(op.Cast(x, to=ir.DataType.FLOAT), -1.0, 1.0), [0, -1, FRAME])


class CodecDecoder(Vocoder):
    """Sound of every row's next frames."""

    def __init__(self, config: DecoderConfig, *, dtype: str) -> None:
        super().__init__(config, latent=config.latent_dim, ahead=False, dtype=dtype)
        self.quantizer = Quantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = Transformer(config)
        self.histories = history_states(self, dtype)

    def _latent(
        self, op: OpBuilder, codes: ir.Value, past: ir.Value, at: Window, call: Continuation
    ) -> tuple[ir.Value, Continuation]:
        x = self.pre_conv(op, self.quantizer(op, codes), call)
        return self.pre_transformer(op, x, at, call), call
