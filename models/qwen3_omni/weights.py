"""Weights of the talker. Parameters have the checkpoint's own names but for the tables of codes, which are one, and the
table of texts, which is made here: text_projection(embed_tokens)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import onnx_ir as ir

from framework.checkpoints.checkpoint import Checkpoint
from framework.checkpoints.weights import load_weights
from framework.engines.pieces import PiecedTensor, pieces_of
from models.language.weights import official_names
from models.qwen3_omni.config import OmniSpeechConfig
from models.qwen3_talker.weights import speech_weights

TEXTS = "talker.text_rows.weight"
EMBEDDING = "thinker.model.embed_tokens.weight"
PROJECTION = "talker.text_projection"
MEDIA = "talker.hidden_projection.*"
OTHERS = ("thinker.*", "code2wav.*")

Float32 = np.ndarray[Any, np.dtype[np.float32]]


def talker_weights(
    parameters: Mapping[str, Sequence[int]], config: OmniSpeechConfig, checkpoint: Checkpoint, *, where: str
) -> dict[str, Any]:
    """Tensors for the parameters of `AnswerSpeech`.

    Raises:
        ConfigError: every weight missing, left over or of another shape.
    """
    inner, width = config.projection, config.talker.hidden
    source = {
        EMBEDDING: (config.text_vocab, config.thinker_hidden),
        f"{PROJECTION}.linear_fc1.weight": (inner, config.thinker_hidden),
        f"{PROJECTION}.linear_fc1.bias": (inner,),
        f"{PROJECTION}.linear_fc2.weight": (width, inner),
        f"{PROJECTION}.linear_fc2.bias": (width,),
    }
    own = {name: shape for name, shape in parameters.items() if name != TEXTS}
    names = official_names(own, checkpoint.tensors.keys())
    weights = speech_weights({**own, **source}, config, checkpoint, names=names, ignore=(MEDIA, *OTHERS), where=where)
    parts = [weights.pop(name) for name in source]
    return {**weights, TEXTS: _texts(parts[0], parts[1:], parameters[TEXTS])}


def projection_weights(
    parameters: Mapping[str, Sequence[int]], checkpoint: Checkpoint, *, where: str
) -> dict[str, Any]:
    """Tensors for the parameters of `MediaProjection`. Raises ConfigError as `talker_weights`."""
    names = {name: f"talker.{name}" for name in parameters}
    return load_weights(parameters, checkpoint, names=names, ignore=("talker.*", *OTHERS), where=where)


def _texts(embedding: Any, projection: Sequence[Any], shape: Sequence[int]) -> PiecedTensor:
    """Every embedding projected, in fp32, a piece at a time; then a row of zeros for what is no text."""
    kept: list[Float32] = []
    reading = Lock()

    def projected(rows: Float32) -> Float32:
        with reading:  # pieces are made by several threads
            if not kept:
                kept.extend(part.numpy().astype(np.float32) for part in projection)
        first, first_bias, second, second_bias = kept
        x = rows.astype(np.float32) @ first.T + first_bias
        x = x / (1.0 + np.exp(-x))
        found: Float32 = x @ second.T + second_bias
        return found

    def piece(rows: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: projected(rows())

    pieces = [*(piece(rows) for rows in pieces_of(embedding)), lambda: np.zeros((1, shape[1]), np.float32)]
    return PiecedTensor(pieces, ir.DataType.FLOAT, shape, TEXTS)
