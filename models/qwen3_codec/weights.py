"""Weights of the codec and the speaker encoder. Parameters have the checkpoint's own names but for what stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from framework.checkpoints.checkpoint import Checkpoint
from framework.checkpoints.weights import load_weights
from framework.nn import weight_shapes
from framework.nn.streaming import CausalConvTranspose1d, by_step

# A codebook is saved as sums over its clusters and how often each was used; the quantizers of a group are one parameter
# [quantizers, entries, width].
CODEBOOK = ".codebook"
SMALLEST_USAGE = 1e-5

DECODER = "decoder."
DECODER_SUMS = "{group}.vq.layers.{quantizer}._codebook.embedding_sum"
DECODER_USAGE = "{group}.vq.layers.{quantizer}._codebook.cluster_usage"
DECODER_UNUSED = ("encoder.*", "decoder.quantizer.*.input_proj.weight")  # a decoder projects out alone

ENCODER = "encoder."
ENCODER_SUMS = "{group}.layers.{quantizer}.codebook.embed_sum"
ENCODER_USAGE = "{group}.layers.{quantizer}.codebook.cluster_usage"
ENCODER_UNUSED = ("decoder.*", "encoder.quantizer.*.output_proj.weight", "*.codebook.initialized")

SPEAKER = "speaker_encoder."
SPEAKER_UNUSED = ("talker.*",)


def codec_weights(
    network: nn.Module, checkpoint: Checkpoint, *, prefix: str, where: str, unused: Sequence[str] | None = None
) -> dict[str, Any]:
    """Weights of the codec's decoder (prefix `decoder.`) or encoder (`encoder.`), out of `speech_tokenizer/`; or of
    another vocoder of such layers, with patterns of what else is `unused` in its checkpoint.

    Raises ConfigError with every weight missing, left over or of another shape.
    """
    sums, usage = (DECODER_SUMS, DECODER_USAGE) if prefix == DECODER else (ENCODER_SUMS, ENCODER_USAGE)
    parameters = weight_shapes(network)
    strides = {
        f"{name}.conv.{part}": module.stride
        for name, module in network.named_modules()
        if isinstance(module, CausalConvTranspose1d)
        for part in ("weight", "bias")
    }
    wanted: dict[str, Sequence[int]] = {}
    names: dict[str, Sequence[str] | str] = {}
    for parameter, shape in parameters.items():
        if parameter.endswith(CODEBOOK):
            group = parameter.removesuffix(CODEBOOK)
            for kind, pattern, dims in (("sums", sums, shape), ("usage", usage, shape[:-1])):
                wanted[f"{group}.{kind}"] = dims
                names[f"{group}.{kind}"] = [prefix + pattern.format(group=group, quantizer=i) for i in range(shape[0])]
        else:
            wanted[parameter] = _published(shape, strides[parameter]) if parameter in strides else shape
            names[parameter] = prefix + parameter
    if unused is None:
        unused = DECODER_UNUSED if prefix == DECODER else (*ENCODER_UNUSED, *_beyond(parameters, checkpoint))
    weights = load_weights(wanted, checkpoint, names=names, ignore=unused, where=where)
    for parameter, shape in parameters.items():
        if parameter in strides:
            weights[parameter] = _turned(weights[parameter], strides[parameter], shape)
        elif parameter.endswith(CODEBOOK):
            group = parameter.removesuffix(CODEBOOK)
            weights[parameter] = _centroids(weights.pop(f"{group}.sums"), weights.pop(f"{group}.usage"))
    return weights


def speaker_weights(network: nn.Module, checkpoint: Checkpoint, *, where: str) -> dict[str, Any]:
    """Weights of the speaker encoder, out of a Base model's own checkpoint. Raises ConfigError as `codec_weights`."""
    parameters = weight_shapes(network)
    names = {parameter: SPEAKER + parameter for parameter in parameters}
    return load_weights(parameters, checkpoint, names=names, ignore=SPEAKER_UNUSED, where=where)


def _beyond(parameters: Mapping[str, Sequence[int]], checkpoint: Checkpoint) -> list[str]:
    """Codebooks that the encoder was published with and this codec leaves out."""
    names = []
    for parameter, shape in parameters.items():
        if parameter.endswith(CODEBOOK):
            start = f"{ENCODER}{parameter.removesuffix(CODEBOOK)}.layers."
            places = {
                name: name.removeprefix(start).split(".")[0] for name in checkpoint.tensors if name.startswith(start)
            }
            names += [name for name, place in places.items() if place.isdecimal() and int(place) >= shape[0]]
    return names


def _published(shape: Sequence[int], stride: int) -> Sequence[int]:
    """Shape of what `by_step` turns into `shape`."""
    out, *others = shape
    return (others[0], out // stride, stride * others[1]) if others else (out // stride,)


def _turned(weight: Any, stride: int, shape: Sequence[int]) -> Any:
    """A transposed convolution's weight or bias as the network has it, read when saved."""
    return ir.LazyTensor(lambda: ir.tensor(by_step(weight.numpy(), stride)), dtype=weight.dtype, shape=ir.Shape(shape))


def _centroids(sums: Any, usage: Any) -> Any:
    """[quantizers, entries, width] by [quantizers, entries], read when saved."""

    def divided() -> ir.TensorProtocol:
        used = np.maximum(usage.numpy().astype(np.float32), np.float32(SMALLEST_USAGE))
        return ir.tensor(sums.numpy().astype(np.float32) / used[..., None])

    return ir.LazyTensor(divided, dtype=ir.DataType.FLOAT, shape=sums.shape)
