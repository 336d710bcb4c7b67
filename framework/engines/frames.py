"""What a network of speech says of its own frame loop, for a backend that has kernels for one.

The note travels in the network's metadata. A backend without such kernels does not read it: the network itself holds
everything.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from framework.schema import structure, unstructure

if TYPE_CHECKING:
    import onnx_ir as ir

KEY = "multistage.frame_loop"


@attrs.frozen(kw_only=True)
class Stack:
    """Decoder layers as `nn.DecoderLayer` has them, and the norm after them.

    Attributes:
        prefix: of its parameters' names: `<prefix>.layers.0.input_layernorm.weight` ... `<prefix>.norm.weight`.
        layers, width, heads, kv_heads, head_dim, mlp, vocab: sizes in elements; `vocab` is of its heads.
        cosine, sine: parameters with the rotary angles [capacity, head_dim / 2].
    """

    prefix: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    qk_norm: bool
    eps: float
    cosine: str
    sine: str


@attrs.frozen(kw_only=True)
class FrameLoop:
    """A talker that says the first code of a frame, and a predictor that says the others, one after another.

    The talker reads fc2(silu(fc1(text))) plus the embeddings of the last frame's codes. The predictor reads the
    talker's hidden state after the norm, the first code, and then each code it has said. Names are of parameters.

    Attributes:
        head, heads: of the talker, and of each step of the predictor.
        codes: table of the codes of all groups, [first vocabulary + (groups - 1) * predictor's, width].
        text: table of the text's embeddings.
        fc1, fc2: the projection's layers, each with `.weight` and `.bias`.
        stop: first code that ends the speech; never said before `least` frames.
        reserved: codes at the end of the talker's vocabulary that are never said, but for `stop`.
        candidates: codes a draw looks at; 0 is all.
    """

    talker: Stack
    predictor: Stack
    head: str
    heads: tuple[str, ...]
    codes: str
    text: str
    fc1: str
    fc2: str
    stop: int
    least: int
    reserved: int
    candidates: int


def note(model: ir.Model, loop: FrameLoop) -> None:
    """Say it in the network's metadata."""
    model.metadata_props[KEY] = json.dumps(unstructure(loop))


def noted(model: ir.Model) -> FrameLoop | None:
    """What the network says of its frame loop, if anything."""
    text = model.metadata_props.get(KEY)
    return None if text is None else structure(FrameLoop, json.loads(text), where=f"{KEY}:")
