"""Names in the checkpoint. Parameters have the checkpoint's own names but for the tables of codes, which are one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from framework.checkpoints.weights import Names, load_weights
from framework.engines.pieces import PiecedTensor, pieces_of
from models.qwen3_talker.config import SpeechConfig

CODES = "talker.codes.weight"
FIRST_TABLE = "talker.model.codec_embedding.weight"
GROUP_TABLE = "talker.code_predictor.model.codec_embedding.{}.weight"


def speech_weights(
    parameters: Mapping[str, Sequence[int]],
    config: SpeechConfig,
    checkpoint: Checkpoint,
    *,
    names: Mapping[str, Names] | None = None,
    ignore: Collection[str],
    where: str,
) -> dict[str, Any]:
    """As `load_weights`, with the tables of codes put below each other when they are saved."""
    width = config.talker.hidden
    tables = {FIRST_TABLE: (config.talker.vocab, width)}
    tables |= {GROUP_TABLE.format(group): (config.predictor.vocab, width) for group in range(config.groups - 1)}
    own = {name: shape for name, shape in parameters.items() if name != CODES}
    weights = load_weights({**own, **tables}, checkpoint, names=names, ignore=ignore, where=where)
    return {**{name: weights[name] for name in own}, CODES: _below([weights[name] for name in tables])}


def _below(tensors: Sequence[Any]) -> PiecedTensor:
    pieces = [piece for tensor in tensors for piece in pieces_of(tensor)]
    rows = sum(int(tensor.shape[0]) for tensor in tensors)
    return PiecedTensor(pieces, tensors[0].dtype, (rows, *tensors[0].shape.numpy()[1:]), CODES)
