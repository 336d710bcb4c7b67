"""Layers shared by all networks, on `onnxscript.nn`, in standard ONNX operators of opset 24."""

from framework.nn.attention import (
    Attention,
    Positions,
    decoder_states,
    mixed_axes,
    mixed_rotary,
    positions,
    rotary_frequencies,
    rotary_tables,
    updated,
)
from framework.nn.decoder import DecoderLayer
from framework.nn.export import export, shape_of, weight_shapes
from framework.nn.layers import Embedding, GatedMLP, Linear, RMSNorm, constant
from framework.nn.moe import Experts, MoE, SharedMoE
from framework.nn.sampler import Sampler, sampler_inputs, sampler_outputs

__all__ = [
    "Attention",
    "DecoderLayer",
    "Embedding",
    "Experts",
    "GatedMLP",
    "Linear",
    "MoE",
    "Positions",
    "RMSNorm",
    "Sampler",
    "SharedMoE",
    "constant",
    "decoder_states",
    "export",
    "mixed_axes",
    "mixed_rotary",
    "positions",
    "rotary_frequencies",
    "rotary_tables",
    "sampler_inputs",
    "sampler_outputs",
    "shape_of",
    "updated",
    "weight_shapes",
]
