"""The talker of Qwen3-TTS: it reads text, a row a token.

Upstream: the package qwen-tts, Qwen3TTSTalkerForConditionalGeneration. Parameter names are its own, but for the tables
of codes, which are one parameter (`models/qwen3_talker/weights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnxscript import OpBuilder

from framework.engines.base import TensorSpec
from framework.engines.frames import FrameLoop, Stack
from framework.nn import Embedding
from models.language.config import LLMConfig
from models.qwen3_talker.config import RESERVED, SPEAKER, TTSConfig
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

    def embedded(self, op: OpBuilder, given: Mapping[str, ir.Value]) -> ir.Value:
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

    def frame_loop(self) -> FrameLoop | None:
        """How a frame is said, for backends with kernels of their own for it; None where the predictor is narrower
        than the talker and reads it through a projection."""
        config, predictor = self.config, "talker.code_predictor"
        if config.predictor.hidden != config.talker.hidden:
            return None
        return FrameLoop(
            talker=_stack(config.talker, "talker.model", "talker"),
            predictor=_stack(config.predictor, f"{predictor}.model", predictor),
            head="talker.codec_head.weight",
            heads=tuple(f"{predictor}.lm_head.{step}.weight" for step in range(config.groups - 1)),
            codes="talker.codes.weight",
            text="talker.text_embedding.weight",  # named for the module that looks it up
            fc1="talker.text_projection.linear_fc1",
            fc2="talker.text_projection.linear_fc2",
            stop=config.codec.eos,
            least=config.min_frames,
            reserved=RESERVED,
            candidates=self.candidates,
        )


def _stack(config: LLMConfig, layers: str, rotary: str) -> Stack:
    return Stack(
        prefix=layers,
        layers=config.layers,
        width=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        mlp=config.intermediate,
        vocab=config.vocab,
        qk_norm=config.qk_norm,
        eps=config.rms_eps,
        cosine=f"{rotary}.rotary_cos",
        sine=f"{rotary}.rotary_sin",
    )
