"""The published network, cut in two where text becomes time.

It encodes a sentence, predicts how long each phoneme lasts, repeats each phoneme's encoding that often, and
decodes that. How long it all is is known only in the middle, and an engine's call has fixed shapes: so the text
encoder is one engine, the decoder another, and the repetition between them a line of numpy (`alignment`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from framework.errors import ConfigError, Problem

if TYPE_CHECKING:
    import onnx_ir as ir

FRAMES_PER_STEP = 2  # durations count steps of 25 ms, the spectrum has frames of 12.5 ms
BINS = 601  # of the spectrum, DC to 12 kHz
SPECTRUM = ("lh", "theta", "ln", "lr", "phi")  # float32 [1, 601, frames] each
PITCH = "f0"  # float32 [1, frames]
# What the encoder hands to the decoder, float32 [1, width, tokens], in the order in which the decoder reads it.
ENCODINGS = ("spectrum_encoding", "prosody_encoding")


def text_encoder(model: ir.Model, where: str = "") -> ir.Model:
    """ids int64 [1, tokens], speed float32 [1] -> ENCODINGS, durations int64 [tokens] in steps of 25 ms.

    Raises ConfigError when `model` is not a network of this kind. It is changed.
    """
    encodings, durations, _ = _seam(model, where)
    part = _part(model, model.graph.inputs, [*encodings, durations])
    _describe(part.graph.inputs, {"ids": (1, "tokens"), "speed": (1,)})
    shapes = {name: (1, _width(value), "tokens") for name, value in zip(ENCODINGS, encodings, strict=True)}
    _describe(part.graph.outputs, {**shapes, "durations": ("tokens",)})
    return part


def decoder(model: ir.Model, where: str = "") -> ir.Model:
    """ENCODINGS, alignment int64 [steps] -> SPECTRUM, PITCH; frames is FRAMES_PER_STEP * steps. See `text_encoder`."""
    encodings, _, alignment = _seam(model, where)
    part = _part(model, [*encodings, alignment], model.graph.outputs)
    shapes = {name: (1, _width(value), "tokens") for name, value in zip(ENCODINGS, encodings, strict=True)}
    _describe(part.graph.inputs, {**shapes, "alignment": ("steps",)})
    spectrum = {name: (1, BINS, "frames") for name in SPECTRUM}
    _describe(part.graph.outputs, {**spectrum, PITCH: (1, "frames")})
    return part


def alignment(durations: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The token that each step belongs to: int64 [tokens] steps each -> int64 [steps]."""
    return np.repeat(np.arange(len(durations)), durations)


def _seam(model: ir.Model, where: str) -> tuple[list[ir.Value], ir.Value, ir.Value]:
    """The encodings, the durations and the alignment: two Gathers along time read one index made of a CumSum."""
    sums = [node.inputs[0] for node in model.graph if node.op_type == "CumSum"]
    repeats = [node.inputs for node in model.graph if node.op_type == "Gather" and _axis(node) == 2]
    encodings = [encoding for encoding, _ in repeats if encoding is not None]
    indices = {index for _, index in repeats if index is not None}
    names = [str(value.name) for value in (*model.graph.inputs, *model.graph.outputs)]
    expected = ["ids", "speed", *SPECTRUM, PITCH]
    if names != expected or len(sums) != 1 or sums[0] is None or len(encodings) != 2 or len(indices) != 1:
        got = f"a network of {', '.join(names)} with {len(sums)} running sums and {len(encodings)} repetitions"
        wanted = f"{', '.join(expected)}, with one running sum and two repetitions by one index"
        raise ConfigError(Problem(where=where or "hibari", got=got, expected=wanted))
    return encodings, sums[0], indices.pop()


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else 0


def _width(value: ir.Value) -> int:
    width = value.shape[1] if value.shape is not None else None
    assert isinstance(width, int)
    return width


def _part(model: ir.Model, inputs: Any, outputs: Any) -> ir.Model:
    """The nodes between `inputs` and `outputs` as a network of its own, with the metadata of the whole."""
    import onnx_ir as ir

    graph = ir.convenience.extract(model.graph, list(inputs), list(outputs))
    graph.opset_imports.update(model.graph.opset_imports)
    # Its weights have 8 bits already; no build changes how they are stored.
    return ir.Model(graph, ir_version=model.ir_version, metadata_props={"precision": "published"})


def _describe(values: Any, shapes: dict[str, tuple[int | str, ...]]) -> None:
    """Name the values in order, and their dimensions."""
    import onnx_ir as ir

    for value, (name, shape) in zip(values, shapes.items(), strict=True):
        value.name = name
        value.shape = ir.Shape(shape)
