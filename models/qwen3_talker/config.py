"""Hyper-parameters and ids of a Qwen3-TTS checkpoint's talker, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import attrs

from framework.checkpoints.keys import Keys
from framework.io.fields import OBJECT, one_of
from models.language.config import LLMConfig

FRAME_RATE = 12.5  # codec frames a second
MIN_FRAMES = 2  # frames before the talker may end
RESERVED = 1024  # the last ids of the talker's vocabulary are marks, not sounds; only the end may be chosen
NOTHING, SPEAKER = -1, -2  # in place of a code: no code, and the voice that is given as a vector

ModelType = Literal["custom_voice", "voice_design", "base"]


@attrs.frozen(kw_only=True)
class CodecIds:
    """Marks in the talker's own vocabulary; one that speaks of itself in any language needs no `think`."""

    pad: int
    bos: int
    eos: int
    nothink: int
    think_bos: int
    think_eos: int
    think: int = -1

    @classmethod
    def read(cls, talker: Keys, *marks: str) -> CodecIds:
        """The end, and these marks."""
        return cls(eos=talker.id("codec_eos_token_id"), **{mark: talker.id(f"codec_{mark}_id") for mark in marks})


@attrs.frozen(kw_only=True)
class SpeechConfig:
    """What every talker with a code predictor has; widths in elements.

    Attributes:
        talker, predictor: their decoder layers.
        groups: codes of a frame.
        min_frames: frames before the talker may end.
        text_vocab: text ids.
        text_pad, text_bos, text_eos: marks among them.
        codec: marks in the talker's own vocabulary.
        speakers: id of each voice, by name in lower case.
    """

    talker: LLMConfig
    predictor: LLMConfig
    groups: int
    min_frames: int
    text_vocab: int
    text_pad: int
    text_bos: int
    text_eos: int
    codec: CodecIds
    speakers: Mapping[str, int]


@attrs.frozen(kw_only=True)
class TTSConfig(SpeechConfig):
    """One typed config for the family.

    Attributes:
        kind: custom_voice speaks with its own voices, voice_design with a voice that `instruct` describes, base with
            the voice of a recording.
        size: as the checkpoint names it, `0b6` or `1b7`.
        text_hidden: width of the text's embeddings.
        dialects: language of the voices that have one of their own.
        languages: id of each language, by name in lower case.
    """

    kind: ModelType
    size: str
    text_hidden: int
    dialects: Mapping[str, str]
    languages: Mapping[str, int]

    @property
    def takes_instruct(self) -> bool:
        """The 0.6B checkpoints, and those that clone, were trained without instructions."""
        return self.kind != "base" and self.size != "0b6"

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str = "config.json") -> TTSConfig:
        """Read a checkpoint's config.json.

        Raises:
            ConfigError: every key missing or unsupported.
        """
        keys = Keys(config, f"{where}:")
        keys.only(tokenizer_type="qwen3_tts_tokenizer_12hz")
        talker = keys.part("talker_config")
        predictor = talker.part("code_predictor_config")
        dialects = talker.get("spk_is_dialect", OBJECT, instead={})
        read = cls(
            kind=keys.get("tts_model_type", one_of(*get_args(ModelType))),
            size=keys.text("tts_model_size"),
            talker=_decoder(talker),
            predictor=_decoder(predictor),
            groups=talker.size("num_code_groups"),
            min_frames=MIN_FRAMES,
            text_vocab=talker.size("text_vocab_size"),
            text_hidden=talker.size("text_hidden_size"),
            text_pad=keys.id("tts_pad_token_id"),
            text_bos=keys.id("tts_bos_token_id"),
            text_eos=keys.id("tts_eos_token_id"),
            codec=CodecIds.read(talker, "pad", "bos", "think", "nothink", "think_bos", "think_eos"),
            speakers=talker.ids("spk_id"),
            dialects={name.lower(): dialect for name, dialect in dialects.items() if dialect},
            languages=talker.ids("codec_language_id"),
        )
        if not keys.problems:
            predictor.only(num_code_groups=read.groups)
        return keys.checked(read)


def _decoder(keys: Keys) -> LLMConfig:
    """Layers as Qwen3 has them. The talker's rotary positions are three-dimensional in name only: all three are the
    position in time, for nothing in its input is a picture, which makes them one-dimensional."""
    keys.part("rope_scaling", default={}).only(rope_type="default")
    return attrs.evolve(
        LLMConfig.read(keys, "qwen3"),
        # What other models may leave out.
        kv_heads=keys.size("num_key_value_heads"),
        head_dim=keys.size("head_dim"),
        rope={"rope_type": "default", "rope_theta": keys.number("rope_theta")},
        tied=False,
    )
