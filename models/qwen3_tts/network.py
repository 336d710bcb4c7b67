"""The talker of Qwen3-TTS: it reads text, a row a token.

Upstream: the package qwen-tts, Qwen3TTSTalkerForConditionalGeneration. Parameter names are its, but for the tables of
codes, which are one parameter (`models/qwen3_talker/weights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnxscript import OpBuilder

from framework.engines.base import TensorSpec
from framework.nn import Embedding
from models.qwen3_talker.config import SPEAKER, TTSConfig
from models.qwen3_talker.network import Layers, Projection, Speech, Talker


class TalkerModel(Layers):
    """The talker's layers, and the table its text is read from."""

    def __init__(self, config: TTSConfig) -> None:
        super().__init__(config.talker)
        self.text_embedding = Embedding(config.text_vocab, config.text_hidden)


class TextTalker(Talker):
    """One that reads text ids; a voice may be given as a vector."""

    model: TalkerModel

    def __init__(self, config: TTSConfig, *, capacity: int, dtype: str, candidates: int = 0) -> None:
        super().__init__(config, TalkerModel(config), capacity=capacity, dtype=dtype, candidates=candidates)
        self.text_projection = Projection(config.text_hidden, config.text_hidden, config.talker.hidden)

    def rows(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> ir.Value:
        text = self.text_projection(op, self.model.text_embedding(op, given["text"]))
        x = op.Add(text, self.codes(op, given["codes"]))  # [batch, tokens, hidden]
        if "speaker" in given:
            mark = op.Slice(given["codes"], [0], [1], [2])  # [batch, tokens, 1]
            here = op.CastLike(op.Equal(mark, SPEAKER), x)
            x = op.Add(x, op.Mul(here, op.Unsqueeze(op.CastLike(given["speaker"], x), [1])))
        return x


class TextSpeech(Speech):
    """Speech of a Qwen3-TTS checkpoint.

    Args:
        clones: whether a voice may be given as a vector, in the input `speaker`.
    """

    def __init__(
        self, config: TTSConfig, *, capacity: int, dtype: str, candidates: int = 0, clones: bool = False
    ) -> None:
        super().__init__(TextTalker(config, capacity=capacity, dtype=dtype, candidates=candidates))
        self.clones = clones

    def extras(self) -> tuple[TensorSpec, ...]:
        width = self.config.talker.hidden
        return (TensorSpec(name="speaker", dtype="float32", shape=("batch", width)),) if self.clones else ()
