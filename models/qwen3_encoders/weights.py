"""Weights of the encoders: the checkpoint's names are the parameters' own behind a prefix."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxscript import nn

from framework.checkpoints.checkpoint import Checkpoint
from framework.checkpoints.weights import load_weights
from framework.nn import weight_shapes
from models.qwen3_encoders.config import VisionConfig

AUDIO, VISUAL = "thinker.audio_tower.", "thinker.visual."
OTHERS = ("thinker.model.*", "thinker.lm_head.*", "talker.*", "code2wav.*")
TABLES = ("*.positional_embedding.*", "*.rotary_pos_emb.*")  # computed here
PATCHES = "patch_embed.proj.weight"


def audio_weights(network: nn.Module, checkpoint: Checkpoint, *, where: str) -> dict[str, Any]:
    """Weights by parameter name. Raises ConfigError with every one missing, left over or of another shape."""
    parameters = weight_shapes(network)
    names = {parameter: AUDIO + parameter for parameter in parameters}
    ignore = (*OTHERS, *TABLES, f"{VISUAL}*")
    return load_weights(parameters, checkpoint, names=names, ignore=ignore, where=where)


def visual_weights(network: nn.Module, config: VisionConfig, checkpoint: Checkpoint, *, where: str) -> dict[str, Any]:
    """The same of the visual encoder, whose convolution over patches is a product here."""
    shapes = weight_shapes(network)
    kernel = (config.in_channels, config.temporal_patch_size, config.patch_size, config.patch_size)
    published = {**shapes, PATCHES: (config.hidden_size, *kernel)}
    names = {parameter: VISUAL + parameter for parameter in shapes}
    ignore = (*OTHERS, *TABLES, f"{AUDIO}*")
    weights = load_weights(published, checkpoint, names=names, ignore=ignore, where=where)
    weights[PATCHES] = _flat(weights[PATCHES])
    return weights


def _flat(tensor: Any) -> Any:
    """[out, ...] -> [out, in], read when saved."""
    out, *others = tensor.shape
    shape = (int(out), math.prod(map(int, others)))
    return ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().reshape(shape)), dtype=tensor.dtype, shape=ir.Shape(shape), name=tensor.name
    )
