"""Names in the checkpoint: the parameters' own, but for the tables of codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from models.qwen3_talker.config import TTSConfig
from models.qwen3_talker.weights import speech_weights

IGNORED = ("speaker_encoder.*", "*.rotary_emb.inv_freq")  # the first is an engine of its own


def talker_weights(
    parameters: Mapping[str, Sequence[int]], config: TTSConfig, checkpoint: Checkpoint, *, where: str
) -> dict[str, Any]:
    """Tensors for the parameters of `network.TextSpeech`.

    Raises:
        ConfigError: every weight missing, left over or of another shape.
    """
    return speech_weights(parameters, config, checkpoint, ignore=IGNORED, where=where)
