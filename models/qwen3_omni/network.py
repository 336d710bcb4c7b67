"""The talker of Qwen3-Omni with its code predictor and both samplers, as one graph; and what makes rows of media.

Upstream: transformers' Qwen3OmniMoeTalkerForConditionalGeneration. Parameter names are its, but for `text_rows`, the
text's embeddings as the talker reads them (`weights.py`).

    talker:     text, codes, features, positions, past_lengths, token_counts, frames, sampling, caches -> frame, caches
    projection: hidden -> features

| official sizes | talker | code predictor |
|---|---|---|
| layers, hidden | 20, 1024 | 5, 1024 |
| heads / kv, head_dim | 16/2, 128 | 16/8, 128 |
| feed-forward | 128 experts of 384, 6 a token, beside a shared one of 768 | 3072 |

A row is a text id, codes and features, added up. The projection of a text id is part of the table of texts: half as
wide as the thinker's embeddings, which it is made of (311 MB in 16 bits for the published size, where the embeddings
would be 623), and a frame then costs a look-up. The projection of media is needed for prompts alone, so it is an engine
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import Embedding, Positions, constant, mixed_axes, mixed_rotary, positions, rotary_frequencies
from framework.nn.export import DTYPES
from models.qwen3_omni.config import OmniSpeechConfig
from models.qwen3_talker.network import Layers, Projection, Speech, Talker


class AnswerTalker(Talker):
    """One that reads what was asked and answered."""

    def __init__(self, config: OmniSpeechConfig, *, capacity: int, dtype: str, candidates: int = 0) -> None:
        super().__init__(config, Layers(config.talker), capacity=capacity, dtype=dtype, candidates=candidates)
        self.text_rows = Embedding(config.text_rows, config.talker.hidden)
        frequency = rotary_frequencies(config.talker.head_dim, config.talker.rope)
        self.rotary_frequency = constant(frequency, "float32")
        self.rotary_axes = constant(mixed_axes(config.sections), "int64")

    def embedded(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> ir.Value:
        x = self.codes(op, given["codes"])  # [batch, tokens, hidden]
        # Broadcast here: backends join the last sum with the norm behind it, where both sides must have one shape.
        x = op.Add(x, op.CastLike(given["features"], x))
        return op.Add(x, self.text_rows(op, given["text"]))

    def positions(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> Positions:
        cos, sin = mixed_rotary(op, given["positions"], self.rotary_frequency, self.rotary_axes)
        cos, sin = (op.Cast(table, to=DTYPES[self.dtype]) for table in (cos, sin))
        past = given["past_lengths"]
        return positions(op, given["text"], past, capacity=self.capacity, cos=cos, sin=sin, per_token=True)


class AnswerSpeech(Speech):
    """Speech of a Qwen3-Omni checkpoint."""

    def __init__(self, config: OmniSpeechConfig, *, capacity: int, dtype: str, candidates: int = 0) -> None:
        super().__init__(AnswerTalker(config, capacity=capacity, dtype=dtype, candidates=candidates))

    def extras(self) -> tuple[TensorSpec, ...]:
        """`media` is `tokens`, or 1 in calls without features, which are zeros then."""
        width = self.config.talker.hidden
        return (
            TensorSpec(name="features", dtype="float32", shape=("batch", "media", width)),
            TensorSpec(name="positions", dtype="float32", shape=(3, "batch", "tokens")),
        )


class MediaProjection(nn.Module):
    """What the thinker made of media, as the talker reads it."""

    def __init__(self, config: OmniSpeechConfig, *, dtype: str) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.hidden_projection = Projection(config.thinker_hidden, config.projection, config.talker.hidden)

    def inputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="hidden", dtype="float32", shape=("rows", self.config.thinker_hidden)),)

    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="features", dtype="float32", shape=("rows", self.config.talker.hidden)),)

    def forward(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        x = self.hidden_projection(op, op.Cast(given["hidden"], to=DTYPES[self.dtype]))
        return {"features": op.Cast(x, to=ir.DataType.FLOAT)}
