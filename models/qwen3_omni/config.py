"""Hyper-parameters and ids of a Qwen3-Omni checkpoint, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from framework.checkpoints.keys import IDS, Keys
from framework.io.fields import Kind, is_whole
from models.language.config import LLMConfig, rope_of
from models.qwen3_codec.config import VocoderConfig
from models.qwen3_encoders.config import MediaTokens
from models.qwen3_talker.config import CodecIds, SpeechConfig

DEFAULT_SPEAKER = "ethan"  # the published class's


@attrs.frozen(kw_only=True)
class OmniConfig:
    """The thinker and what it reads; encoders, talker and vocoder read their own parts.

    Attributes:
        thinker: its decoder layers.
        media: the tokens that stand for sound, pictures and video.
        speaks: the checkpoint has a talker.
        accept_layer: layer of the thinker whose output the talker hears; 0 without a talker.
    """

    thinker: LLMConfig
    media: MediaTokens
    speaks: bool
    accept_layer: int

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str = "config.json") -> OmniConfig:
        """Read a checkpoint's config.json, with or without a talker.

        Raises:
            ConfigError: every key missing or unsupported.
        """
        keys = Keys(config, f"{where}:")
        thinker = keys.part("thinker_config")
        text = thinker.part("text_config")
        speaks = keys.flag("enable_audio_output", bool(keys.given.get("talker_config")))
        decoder = LLMConfig.read(text, "qwen3_moe")
        rope = rope_of(text)
        if not rope.flag(rope.either("mrope_interleaved", "interleaved")):
            rope.fault("mrope_interleaved", got="false", expected="true")
        media = MediaTokens.read(thinker, width=decoder.hidden)
        return keys.checked(
            cls(
                thinker=attrs.evolve(
                    decoder, mrope=sections(text, decoder.head_dim), media=True, deepstack=media.deepstack
                ),
                media=media,
                speaks=speaks,
                accept_layer=keys.part("talker_config").id("accept_hidden_layer") if speaks else 0,
            )
        )


def sections(text: Keys, head_dim: int) -> tuple[int, int, int]:
    """Channel pairs of a head that turn with time, height and width."""
    half = head_dim // 2
    three = Kind(
        f"three numbers with the sum {half}, half a head",
        lambda value: isinstance(value, list) and len(value) == 3 and all(map(is_whole, value)) and sum(value) == half,
    )
    time, height, width = rope_of(text).get("mrope_section", three, instead=(0, 0, 0))
    return time, height, width


@attrs.frozen(kw_only=True)
class OmniSpeechConfig(SpeechConfig):
    """The talker's side of a Qwen3-Omni checkpoint.

    Attributes:
        sections: channel pairs of a head that turn with time, height and width; they are interleaved.
        thinker_hidden: width of the thinker's states.
        projection: width inside the projections of text and media.
        accept_layer: thinker layer whose states say what media are.
        im_start, user, assistant: marks in the text's vocabulary.
        media: ids of the placeholders of sound, images and video.
        vision_start, vision_end, audio_start: marks around them.
    """

    sections: tuple[int, ...]
    thinker_hidden: int
    projection: int
    accept_layer: int
    im_start: int
    user: int
    assistant: int
    media: frozenset[int]
    vision_start: int
    vision_end: int
    audio_start: int

    @property
    def text_rows(self) -> int:
        """Rows of the table of texts: its last one, of zeros, is for what is no text."""
        return self.text_vocab + 1

    @property
    def no_text(self) -> int:
        return self.text_vocab

    @property
    def default_speaker(self) -> str:
        return DEFAULT_SPEAKER if DEFAULT_SPEAKER in self.speakers else next(iter(self.speakers), "")

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str = "config.json") -> OmniSpeechConfig:
        """Read a checkpoint's config.json, as transformers 4 and 5 write it.

        Raises:
            ConfigError: every key missing or unsupported.
        """
        keys = Keys(config, f"{where}:")
        thinker, talker = keys.part("thinker_config"), keys.part("talker_config")
        text, inner = talker.part("text_config"), talker.part("code_predictor_config")
        outer, predictor = LLMConfig.read(text, "qwen3_moe"), LLMConfig.read(inner, "qwen3")
        assert outer.moe is not None
        # Every layer is a mixture, whatever the config says of others.
        moe = attrs.evolve(outer.moe, shared=text.id("shared_expert_intermediate_size"), dense_layers=frozenset())
        vision_start = thinker.id("vision_start_token_id")
        read = cls(
            talker=attrs.evolve(outer, moe=moe, tied=False),
            predictor=attrs.evolve(predictor, tied=False),
            groups=talker.size("num_code_groups"),
            min_frames=0,
            text_vocab=thinker.part("text_config").size("vocab_size"),
            text_pad=keys.id("tts_pad_token_id"),
            text_bos=keys.id("tts_bos_token_id"),
            text_eos=keys.id("tts_eos_token_id"),
            codec=CodecIds.read(talker, "pad", "bos", "nothink", "think_bos", "think_eos"),
            speakers=talker.ids("speaker_id", _VOICES),
            sections=sections(text, outer.head_dim),
            thinker_hidden=talker.size("thinker_hidden_size"),
            projection=outer.intermediate,
            accept_layer=talker.id("accept_hidden_layer"),
            im_start=keys.id("im_start_token_id"),
            user=keys.id("user_token_id"),
            assistant=keys.id("assistant_token_id"),
            media=frozenset(thinker.id(f"{kind}_token_id") for kind in ("audio", "image", "video")),
            vision_start=vision_start,
            # Their names in the vocabulary follow each other; older files name the first alone.
            vision_end=thinker.id("vision_end_token_id", vision_start + 1),
            audio_start=thinker.id("audio_start_token_id"),
        )
        if not keys.problems:
            inner.only(hidden_size=outer.hidden, num_code_groups=read.groups)
        return keys.checked(read)


_VOICES = Kind("names of voices and their ids", lambda value: bool(value) and IDS.accepts(value))


def vocoder_config(config: Mapping[str, Any], where: str = "config.json") -> VocoderConfig:
    """The vocoder's numbers. Raises ConfigError with every key malformed or unsupported."""
    keys = Keys(config, f"{where}:")
    vocoder = keys.part("code2wav_config", default={})
    vocoder.given.setdefault("rope_theta", vocoder.part("rope_parameters", default={}).number("rope_theta", 10000.0))
    return keys.checked(vocoder.fields(VocoderConfig))
