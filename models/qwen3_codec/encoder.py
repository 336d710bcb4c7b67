"""The codec's encoder: sound to codes, for cloning a voice.

Upstream: transformers' MimiModel.encode, as qwen-tts 0.1.1 runs it (with transformers 4.57.3, in whose attention a step
sees everything before it). Parameter names are theirs.

    samples, lengths -> codes
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import Linear, rotary_tables
from framework.nn.attention import ones_like
from framework.nn.conv import Conv1d
from framework.nn.export import DTYPES
from framework.nn.transformer import LayerNorm, split_heads
from framework.nn.vocoder import LayerScale
from models.qwen3_codec.config import FRAME, QUANTIZERS, EncoderConfig


@attrs.frozen(kw_only=True, eq=False)
class Heard:
    """Which steps of a sequence [batch, 1, time] are sound (bool); the others pad the batch."""

    steps: ir.Value

    def every(self, op: OpBuilder, stride: int) -> Heard:
        return Heard(steps=op.Slice(self.steps, [0], [2**31 - 1], [2], [stride]))


class PaddedConv1d(nn.Module):
    """A causal convolution over a whole sequence: zeros before its start."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, dilation: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        self.conv = Conv1d(in_channels, out_channels, kernel, stride=stride, dilation=dilation, bias=bias)
        self.before = (kernel - 1) * dilation + 1 - stride

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """x [batch, in, time] -> [batch, out, time / stride]."""
        return self.conv(op, op.Pad(x, [self.before, 0], None, [2]) if self.before else x)


class ResnetBlock(nn.Module):
    def __init__(self, config: EncoderConfig, channels: int, dilation: int) -> None:
        super().__init__()
        hidden = channels // config.compress
        self.block = nn.ModuleList(
            [
                Elu(),
                PaddedConv1d(channels, hidden, config.residual_kernel_size, dilation=dilation),
                Elu(),
                PaddedConv1d(hidden, channels, 1),
            ]
        )

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        y = x
        for layer in self.block:
            y = layer(op, y)
        return op.Add(x, y)


class Elu(nn.Module):
    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.Elu(x)


class Convolutions(nn.Module):
    """[batch, 1, samples] -> [batch, hidden, samples / 960]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.num_filters
        layers: list[nn.Module] = [PaddedConv1d(1, width, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            layers += [
                ResnetBlock(config, width, config.dilation_growth_rate**index)
                for index in range(config.num_residual_layers)
            ]
            layers += [Elu(), PaddedConv1d(width, 2 * width, 2 * ratio, stride=ratio)]
            width *= 2
        layers += [Elu(), PaddedConv1d(width, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.ModuleList(layers)

    def forward(self, op: OpBuilder, x: ir.Value, heard: Heard) -> tuple[ir.Value, Heard]:
        for layer in self.layers:
            stride = layer.conv.stride if isinstance(layer, PaddedConv1d) else 1
            if stride > 1:  # its last step looks beyond the end, where there are zeros
                x = op.Mul(x, op.CastLike(heard.steps, x))
                heard = heard.every(op, stride)
            x = layer(op, x)
        return x, heard


class MLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.fc1 = Linear(hidden, intermediate)
        self.fc2 = Linear(intermediate, hidden)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return self.fc2(op, op.Gelu(self.fc1(op, x), approximate="none"))


class SelfAttention(nn.Module):
    """Causal attention of a whole sequence with rotary positions."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.head_width
        self.heads, self.kv_heads, self.width = config.num_attention_heads, config.num_key_value_heads, width
        self.q_proj = Linear(hidden, self.heads * width, bias=config.attention_bias)
        self.k_proj = Linear(hidden, self.kv_heads * width, bias=config.attention_bias)
        self.v_proj = Linear(hidden, self.kv_heads * width, bias=config.attention_bias)
        self.o_proj = Linear(self.heads * width, hidden, bias=config.attention_bias)

    def forward(self, op: OpBuilder, x: ir.Value, rotary: tuple[ir.Value, ...]) -> ir.Value:
        q = op.RotaryEmbedding(split_heads(op, self.q_proj(op, x), self.heads), *rotary)
        k = op.RotaryEmbedding(split_heads(op, self.k_proj(op, x), self.kv_heads), *rotary)
        v = split_heads(op, self.v_proj(op, x), self.kv_heads)
        y = op.Attention(q, k, v, is_causal=1, scale=self.width**-0.5)
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, self.heads * self.width])
        return self.o_proj(op, y)


class TransformerLayer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.input_layernorm = LayerNorm(config.hidden_size, config.norm_eps)
        self.self_attn = SelfAttention(config)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, op: OpBuilder, x: ir.Value, rotary: tuple[ir.Value, ...]) -> ir.Value:
        y = self.self_attn(op, self.input_layernorm(op, x), rotary)
        x = op.Add(x, self.self_attn_layer_scale(op, y))
        return op.Add(x, self.mlp_layer_scale(op, self.mlp(op, self.post_attention_layernorm(op, x))))


class Transformer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TransformerLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, op: OpBuilder, x: ir.Value, rotary: tuple[ir.Value, ...]) -> ir.Value:
        for layer in self.layers:
            x = layer(op, x, rotary)
        return x


class Downsample(nn.Module):
    """Two steps to one; the first and the last step go on beyond their ends."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv = Conv1d(hidden, hidden, 4, stride=2, bias=False)

    def forward(self, op: OpBuilder, x: ir.Value, heard: Heard) -> ir.Value:
        first = op.Slice(x, [0], [1], [2])
        shifted = op.Concat(first, op.Slice(x, [0], [-1], [2]), axis=2)
        x = op.Where(heard.steps, x, shifted)  # of odd sequences the step after the last
        return self.conv(op, op.Concat(first, first, x, axis=2))


class ResidualQuantizer(nn.Module):
    """Nearest entry, then the nearest to what is left, and so on."""

    def __init__(self, config: EncoderConfig, quantizers: int) -> None:
        super().__init__()
        width = config.codebook_dim or config.hidden_size
        self.quantizers = quantizers
        projected = config.vector_quantization_hidden_dimension != config.hidden_size
        self.input_proj = Conv1d(config.hidden_size, width, 1, bias=False) if projected else None
        self.codebook = nn.Parameter([quantizers, config.codebook_size, width])

    def forward(self, op: OpBuilder, x: ir.Value) -> list[ir.Value]:
        """x [batch, hidden, frames] -> a code int64 [batch, frames] for each quantizer."""
        if self.input_proj is not None:
            x = self.input_proj(op, x)
        left = op.Cast(op.Transpose(x, perm=[0, 2, 1]), to=ir.DataType.FLOAT)  # [batch, frames, width]
        tables = op.Split(
            op.Cast(self.codebook, to=ir.DataType.FLOAT), axis=0, num_outputs=self.quantizers, _outputs=self.quantizers
        )
        codes = []
        for table in [tables] if self.quantizers == 1 else tables:
            table = op.Squeeze(table, [0])  # [entries, width]
            # |x - e|² is least where x·e - |e|²/2 is greatest.
            half = op.Mul(op.ReduceSum(op.Mul(table, table), [1], keepdims=0), 0.5)
            near = op.Sub(op.MatMul(left, op.Transpose(table, perm=[1, 0])), half)
            code = op.ArgMax(near, axis=-1, keepdims=0)
            left = op.Sub(left, op.Gather(table, code, axis=0))
            codes.append(code)
        return codes


class Quantizer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        semantic = config.num_semantic_quantizers
        self.semantic_residual_vector_quantizer = ResidualQuantizer(config, semantic)
        self.acoustic_residual_vector_quantizer = ResidualQuantizer(config, QUANTIZERS - semantic)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """x [batch, hidden, frames] -> int64 [batch, frames, 16]."""
        semantic = self.semantic_residual_vector_quantizer(op, x)
        acoustic = self.acoustic_residual_vector_quantizer(op, x)
        return op.Concat(*(op.Unsqueeze(code, [2]) for code in (*semantic, *acoustic)), axis=2)


class CodecEncoder(nn.Module):
    """Codes of rows of sound of unequal lengths; a row's first ceil(length / 1920) frames are real.

    Args:
        max_frames: longest sound, in frames.
        dtype: of the activations; which entry is nearest is computed in fp32.
    """

    def __init__(self, config: EncoderConfig, *, max_frames: int, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype
        cos, sin = rotary_tables(config.head_width, 2 * max_frames, {"rope_theta": config.rope_theta})
        self.rotary_cos = nn.Parameter(list(cos.shape), data=ir.tensor(cos.astype(DTYPES[dtype].numpy())))
        self.rotary_sin = nn.Parameter(list(sin.shape), data=ir.tensor(sin.astype(DTYPES[dtype].numpy())))
        self.encoder = Convolutions(config)
        self.encoder_transformer = Transformer(config)
        self.downsample = Downsample(config.hidden_size)
        self.quantizer = Quantizer(config)

    def inputs(self) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec(name="samples", dtype="float32", shape=("batch", "frames", FRAME)),
            TensorSpec(name="lengths", dtype="int64", shape=("batch",)),
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="codes", dtype="int64", shape=("batch", "frames", QUANTIZERS)),)

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        samples = given["samples"]
        frame = op.Cast(op.Slice(samples, [0], [1], [2]), to=ir.DataType.INT64)  # [batch, frames, 1]
        starts = op.Mul(op.CumSum(ones_like(op, frame), 1, exclusive=1), FRAME)
        left = op.Sub(op.Unsqueeze(given["lengths"], [1, 2]), starts)  # [batch, frames, 1]: samples from here on
        heard = Heard(steps=op.Reshape(op.Greater(left, list(range(FRAME))), [0, 1, -1]))  # [batch, 1, samples]

        x = op.Cast(op.Reshape(samples, [0, 1, -1]), to=DTYPES[self.dtype])
        x, heard = self.encoder(op, x, heard)
        x = op.Transpose(x, perm=[0, 2, 1])  # [batch, 2 * frames, hidden]
        step = op.Cast(op.Squeeze(op.Slice(x, [0], [1], [2]), [2]), to=ir.DataType.INT64)
        ids = op.CumSum(ones_like(op, step), 1, exclusive=1)
        x = self.encoder_transformer(op, x, (self.rotary_cos, self.rotary_sin, ids))
        x = self.downsample(op, op.Transpose(x, perm=[0, 2, 1]), heard)
        return {"codes": self.quantizer(op, x)}
