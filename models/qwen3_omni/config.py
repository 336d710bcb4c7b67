"""What a Qwen3-Omni checkpoint's config.json says of its thinker, and of the marks around media."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from framework.errors import ConfigError, Problem
from models.llm.config import LLMConfig


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
        thinker = config.get("thinker_config") or {}
        text, vision = thinker.get("text_config") or {}, thinker.get("vision_config") or {}
        talker = config.get("talker_config") or {}
        speaks = bool(config.get("enable_audio_output", bool(talker)))
        place = f"{where}: thinker_config"
        problems = [
            *_missing(thinker, _MARKS, place),
            *_missing(vision, ("spatial_merge_size",), f"{place}.vision_config"),
            *(_missing(talker, ("accept_hidden_layer",), f"{where}: talker_config") if speaks else ()),
            *_sections(text, f"{place}.text_config"),
        ]
        try:
            decoder = LLMConfig.from_checkpoint({**text, "model_type": "qwen3_moe"}, where=f"{place}.text_config")
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        return cls(
            thinker=attrs.evolve(
                decoder,
                mrope=tuple(decoder.rope["mrope_section"]),
                media=True,
                deepstack=len(vision.get("deepstack_visual_indexes", ())),
            ),
            audio=thinker["audio_token_id"],
            image=thinker["image_token_id"],
            video=thinker["video_token_id"],
            audio_start=thinker["audio_start_token_id"],
            # Their names in the vocabulary follow each other; older files name the first alone.
            audio_end=thinker.get("audio_end_token_id", thinker["audio_start_token_id"] + 1),
            positions_per_second=thinker["position_id_per_seconds"],
            merge=vision["spatial_merge_size"],
            speaks=speaks,
            accept_layer=talker["accept_hidden_layer"] if speaks else 0,
        )


_MARKS = ("audio_token_id", "image_token_id", "video_token_id", "audio_start_token_id", "position_id_per_seconds")


def _missing(config: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Iterator[Problem]:
    for key in keys:
        value = config.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            got = "nothing" if value is None else repr(value)
            yield Problem(where=f"{where}.{key}", got=got, expected="a positive number")


def _sections(text: Mapping[str, Any], where: str) -> Iterator[Problem]:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    sections, half = rope.get("mrope_section"), (text.get("head_dim") or 0) // 2
    if not isinstance(sections, list) or len(sections) != 3 or sum(sections) != half:
        expected = f"three numbers whose sum is {half}, half of head_dim"
        yield Problem(where=f"{where}: mrope_section", got=repr(sections), expected=expected)
    if not rope.get("mrope_interleaved", rope.get("interleaved", False)):
        yield Problem(where=f"{where}: mrope_interleaved", got="false", expected="true")
