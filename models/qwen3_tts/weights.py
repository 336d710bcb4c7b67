"""Names in the checkpoint. Parameters have the checkpoint's own names but for the tables of codes, which are one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.build.checkpoint import Checkpoint
from framework.build.weights import load_weights
from models.qwen3_tts.config import TTSConfig

CODES = "talker.codes.weight"
FIRST_TABLE = "talker.model.codec_embedding.weight"
GROUP_TABLE = "talker.code_predictor.model.codec_embedding.{}.weight"
IGNORED = ("speaker_encoder.*", "*.rotary_emb.inv_freq")  # the first is an engine of its own


def talker_weights(
    parameters: Mapping[str, Sequence[int]], config: TTSConfig, checkpoint: Checkpoint, *, where: str
) -> dict[str, Any]:
    """Tensors for the parameters of `network.Speech`; the tables are put below each other when they are saved.

    Raises:
        ConfigError: every weight missing, left over or of another shape.
    """
    width = config.talker.hidden
    tables = {FIRST_TABLE: (config.talker.vocab, width)}
    tables |= {GROUP_TABLE.format(group): (config.predictor.vocab, width) for group in range(config.groups - 1)}
    own = {name: shape for name, shape in parameters.items() if name != CODES}
    weights = load_weights({**own, **tables}, checkpoint, ignore=IGNORED, where=where)
    return {**{name: weights[name] for name in own}, CODES: _below([weights[name] for name in tables])}


def _below(tensors: Sequence[Any]) -> Any:
    import numpy as np
    import onnx_ir as ir

    rows = sum(int(tensor.shape[0]) for tensor in tensors)
    return ir.LazyTensor(
        lambda: ir.tensor(np.concatenate([tensor.numpy() for tensor in tensors])),
        dtype=tensors[0].dtype,
        shape=ir.Shape((rows, *tensors[0].shape[1:])),
        name=CODES,
    )
