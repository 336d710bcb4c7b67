"""Weights of the codec and the speaker encoder. Parameters have the checkpoint's own names but for what stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from framework.build.checkpoint import Checkpoint

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
    parameters: Mapping[str, Sequence[int]],
    checkpoint: Checkpoint,
    *,
    prefix: str,
    where: str,
) -> dict[str, Any]:
    """Weights of the codec's decoder (prefix `decoder.`) or encoder (`encoder.`), out of `speech_tokenizer/`.

    Args:
        parameters: shape of each parameter that needs a weight.

    Raises:
        ConfigError: every weight missing, left over or of another shape.
    """
    from framework.build.weights import load_weights

    sums, usage = (DECODER_SUMS, DECODER_USAGE) if prefix == DECODER else (ENCODER_SUMS, ENCODER_USAGE)
    wanted: dict[str, Sequence[int]] = {}
    names: dict[str, Sequence[str] | str] = {}
    for parameter, shape in parameters.items():
        if not parameter.endswith(CODEBOOK):
            wanted[parameter], names[parameter] = shape, prefix + parameter
            continue
        group = parameter.removesuffix(CODEBOOK)
        for kind, pattern, dims in (("sums", sums, shape), ("usage", usage, shape[:-1])):
            wanted[f"{group}.{kind}"] = dims
            names[f"{group}.{kind}"] = [prefix + pattern.format(group=group, quantizer=i) for i in range(shape[0])]
    unused = DECODER_UNUSED if prefix == DECODER else (*ENCODER_UNUSED, *_beyond(parameters, checkpoint))
    weights = load_weights(wanted, checkpoint, names=names, ignore=unused, where=where)
    for parameter in parameters:
        if parameter.endswith(CODEBOOK):
            group = parameter.removesuffix(CODEBOOK)
            weights[parameter] = _centroids(weights.pop(f"{group}.sums"), weights.pop(f"{group}.usage"))
    return weights


def speaker_weights(parameters: Mapping[str, Sequence[int]], checkpoint: Checkpoint, *, where: str) -> dict[str, Any]:
    """Weights of the speaker encoder, out of a Base model's own checkpoint. Raises ConfigError as `codec_weights`."""
    from framework.build.weights import load_weights

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


def _centroids(sums: Any, usage: Any) -> Any:
    """[quantizers, entries, width] by [quantizers, entries], read when saved."""
    import onnx_ir as ir

    def divided() -> ir.TensorProtocol:
        used = np.maximum(usage.numpy().astype(np.float32), np.float32(SMALLEST_USAGE))
        return ir.tensor(sums.numpy().astype(np.float32) / used[..., None])

    return ir.LazyTensor(divided, dtype=ir.DataType.FLOAT, shape=sums.shape)
