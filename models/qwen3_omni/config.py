"""What a Qwen3-Omni checkpoint's config.json says of its thinker, and of the marks around media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from framework.checkpoints.keys import Keys
from framework.io.fields import LIST, Kind, is_whole
from models.llm.config import LLMConfig, rope_of


@attrs.frozen(kw_only=True)
class OmniConfig:
    """Thinker and marks; encoders, talker and vocoder read their own parts.

    Attributes:
        thinker: its decoder layers.
        audio, image, video: ids of the tokens that stand for what was heard or seen.
        audio_start, audio_end: ids of the marks around sound.
        positions_per_second: rotary positions that a second of video takes.
        merge: patches a side that the visual encoder makes one token of.
        speaks: the checkpoint has a talker.
        accept_layer: layer of the thinker whose output the talker hears; 0 without a talker.
    """

    thinker: LLMConfig
    audio: int
    image: int
    video: int
    audio_start: int
    audio_end: int
    positions_per_second: float
    merge: int
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
        text, vision = thinker.part("text_config"), thinker.part("vision_config")
        speaks = keys.flag("enable_audio_output", bool(keys.given.get("talker_config")))
        decoder = LLMConfig.read(text, "qwen3_moe")
        audio_start = thinker.id("audio_start_token_id")
        rope = rope_of(text)
        if not rope.flag(rope.either("mrope_interleaved", "interleaved")):
            rope.fault("mrope_interleaved", got="false", expected="true")
        return keys.checked(
            cls(
                thinker=attrs.evolve(
                    decoder,
                    mrope=sections(text, decoder.head_dim),
                    media=True,
                    deepstack=len(vision.get("deepstack_visual_indexes", LIST, [], [])),
                ),
                audio=thinker.id("audio_token_id"),
                image=thinker.id("image_token_id"),
                video=thinker.id("video_token_id"),
                audio_start=audio_start,
                # Their names in the vocabulary follow each other; older files name the first alone.
                audio_end=thinker.id("audio_end_token_id", audio_start + 1),
                positions_per_second=thinker.number("position_id_per_seconds"),
                merge=vision.size("spatial_merge_size"),
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
