"""The visual encoder: patches of pictures and video frames to features of the thinker's width.

Upstream: transformers' Qwen3OmniMoeVisionEncoder. Parameter names are theirs below `thinker.visual.`.

    pixels, positions, taps, shares -> features, deepstack

A frame attends to itself alone, so frames are a batch: a picture is one, a video as many as its grid is long. The
`merge`² patches of a token lie next to each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import Embedding, Linear
from framework.nn.export import DTYPES
from framework.nn.transformer import LayerNorm
from models.qwen3_encoders.config import VisionConfig

EPS = 1e-6
TAPS = 4  # position embeddings that a patch's own lies between


class Attention(nn.Module):
    """Attention of a frame's patches to each other, with rotary positions of row and column."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_heads, config.head_dim
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=True)
        self.proj = Linear(config.hidden_size, config.hidden_size, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
        """x [frames, patches, hidden], cos and sin [frames, patches, head_dim / 2] -> the shape of x."""
        q, k, v = op.Split(self.qkv(op, x), axis=-1, num_outputs=3, _outputs=3)
        q, k = (op.RotaryEmbedding(part, cos, sin, num_heads=self.heads) for part in (q, k))
        heads = {"q_num_heads": self.heads, "kv_num_heads": self.heads}
        return self.proj(op, op.Attention(q, k, v, scale=self.head_dim**-0.5, **heads))


class MLP(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.linear_fc1 = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.linear_fc2 = Linear(config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return self.linear_fc2(op, op.Gelu(self.linear_fc1(op, x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = LayerNorm(config.hidden_size, EPS)
        self.norm2 = LayerNorm(config.hidden_size, EPS)
        self.attn = Attention(config)
        self.mlp = MLP(config)

    def forward(self, op: OpBuilder, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
        x = op.Add(x, self.attn(op, self.norm1(op, x), cos, sin))
        return op.Add(x, self.mlp(op, self.norm2(op, x)))


class Gelu(nn.Module):
    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.Gelu(x, approximate="none")


class Merger(nn.Module):
    """The patches of a token, side by side, to one vector; normalised before or after they are."""

    def __init__(self, config: VisionConfig, *, norm_merged: bool) -> None:
        super().__init__()
        self.width, self.norm_merged = config.hidden_size * config.merge**2, norm_merged
        self.ln_q = LayerNorm(self.width if norm_merged else config.hidden_size, EPS)
        self.mlp = nn.ModuleList(
            [
                Linear(self.width, self.width, bias=True),
                Gelu(),
                Linear(self.width, config.out_hidden_size, bias=True),
            ]
        )

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        """[frames, patches, hidden] -> [frames, tokens, out]."""
        if not self.norm_merged:
            x = self.ln_q(op, x)
        x = op.Reshape(x, [0, -1, self.width])
        if self.norm_merged:
            x = self.ln_q(op, x)
        for layer in self.mlp:
            x = layer(op, x)
        return x


class PatchEmbed(nn.Module):
    """A convolution whose kernel is a patch: each pixel is seen once, so it is a product."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.proj = Linear(config.patch_width, config.hidden_size, bias=True)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return self.proj(op, x)


class VisualEncoder(nn.Module):
    """Features of frames that have all one size.

    Args:
        dtype: of the activations; angles are computed in fp32.
    """

    def __init__(self, config: VisionConfig, *, dtype: str) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        # Half of the angles turn with the row, half with the column.
        half = config.head_dim // 2
        inverse = (1.0 / config.rope_theta ** (np.arange(0, half, 2, dtype=np.float32) / half)).astype(np.float32)
        self.frequencies = nn.Parameter([len(inverse)], data=ir.tensor(inverse))
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = Embedding(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.depth)])
        self.merger = Merger(config, norm_merged=False)
        self.merger_list = nn.ModuleList([Merger(config, norm_merged=True) for _ in config.deepstack_visual_indexes])

    def inputs(self) -> tuple[TensorSpec, ...]:
        """pixels of each patch, its row and column, and the position embeddings around it with the share of each."""
        patches = ("tokens", self.config.merge**2)
        return (
            TensorSpec(name="pixels", dtype="float32", shape=("frames", *patches, self.config.patch_width)),
            TensorSpec(name="positions", dtype="int64", shape=(*patches, 2)),
            TensorSpec(name="taps", dtype="int64", shape=(*patches, TAPS)),
            TensorSpec(name="shares", dtype="float32", shape=(*patches, TAPS)),
        )

    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = ("frames", "tokens", self.config.out_hidden_size)
        levels = len(self.config.deepstack_visual_indexes)
        deepstack = TensorSpec(name="deepstack", dtype=self.dtype, shape=(levels, *shape))
        return (TensorSpec(name="features", dtype=self.dtype, shape=shape), *([deepstack] if levels else []))

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        dtype, config = DTYPES[self.dtype], self.config
        pixels = op.Cast(op.Reshape(given["pixels"], [0, -1, config.patch_width]), to=dtype)
        x = op.Add(self.patch_embed(op, pixels), self._places(op, given))
        turn = op.Mul(
            op.Cast(op.Reshape(given["positions"], [1, -1, 2, 1]), to=ir.DataType.FLOAT), self.frequencies
        )  # [1, patches, 2, head_dim / 4]
        frames = op.Concat(op.Shape(given["pixels"], start=0, end=1), [1, 1], axis=0)
        angle = op.Expand(op.Reshape(turn, [1, -1, config.head_dim // 2]), frames)  # the same in every frame
        cos, sin = op.Cast(op.Cos(angle), to=dtype), op.Cast(op.Sin(angle), to=dtype)
        levels = []
        for number, block in enumerate(self.blocks):
            x = block(op, x, cos, sin)
            if number in config.deepstack_visual_indexes:
                merge = self.merger_list[config.deepstack_visual_indexes.index(number)]
                levels.append(op.Unsqueeze(merge(op, x), [0]))
        outputs = {"features": self.merger(op, x)}
        if levels:
            outputs["deepstack"] = op.Concat(*levels, axis=0) if len(levels) > 1 else levels[0]
        return outputs

    def _places(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> ir.Value:
        """Position embeddings, between those that were learned: [patches, hidden]."""
        near = self.pos_embed(op, op.Reshape(given["taps"], [-1, TAPS]))  # [patches, 4, hidden]
        share = op.CastLike(op.Reshape(given["shares"], [-1, TAPS, 1]), near)
        return op.ReduceSum(op.Mul(near, share), [1], keepdims=0)
