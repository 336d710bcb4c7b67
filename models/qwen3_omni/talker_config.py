"""Hyper-parameters and ids of a Qwen3-Omni checkpoint's speaking part, from its config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from framework.errors import ConfigError, Problem
from models.llm.config import LLMConfig
from models.qwen3_tts.codec_config import VocoderConfig, known_fields
from models.qwen3_tts.config import CodecIds, SpeechConfig

DEFAULT_SPEAKER = "ethan"  # the published class's


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
        talker: Mapping[str, Any] = config.get("talker_config") or {}
        thinker: Mapping[str, Any] = config.get("thinker_config") or {}
        text, inner = talker.get("text_config") or {}, talker.get("code_predictor_config") or {}
        at = f"{where}: talker_config"
        problems = [
            *_ids(config, _TOP, where),
            *_ids(talker, _TALKER, at),
            *_ids(thinker, (*_MEDIA, *_STARTS), f"{where}: thinker_config"),
            *_ids(thinker.get("text_config") or {}, ("vocab_size",), f"{where}: thinker_config.text_config"),
            *_ids(text, ("shared_expert_intermediate_size",), f"{at}.text_config"),
        ]
        if not isinstance(talker.get("speaker_id"), Mapping) or not talker["speaker_id"]:
            got = repr(talker.get("speaker_id"))
            problems.append(Problem(where=f"{at}.speaker_id", got=got, expected="names of voices and their ids"))
        parts: dict[str, LLMConfig] = {}
        for name, part, kind in (("text_config", text, "qwen3_moe"), ("code_predictor_config", inner, "qwen3")):
            try:
                parts[name] = LLMConfig.from_checkpoint({**part, "model_type": kind}, where=f"{at}.{name}")
            except ConfigError as error:
                problems += error.problems
        if not problems:
            problems += _unsupported(talker, text, parts, at)
        if problems:
            raise ConfigError(problems)
        outer = parts["text_config"]
        assert outer.moe is not None
        # Every layer is a mixture, whatever the config says of others.
        shared = text["shared_expert_intermediate_size"]
        moe = attrs.evolve(outer.moe, shared=shared, dense_layers=frozenset())
        return cls(
            talker=attrs.evolve(outer, moe=moe, tied=False),
            predictor=attrs.evolve(parts["code_predictor_config"], tied=False),
            groups=talker["num_code_groups"],
            min_frames=0,
            text_vocab=thinker["text_config"]["vocab_size"],
            text_pad=config["tts_pad_token_id"],
            text_bos=config["tts_bos_token_id"],
            text_eos=config["tts_eos_token_id"],
            codec=CodecIds(
                eos=talker["codec_eos_token_id"],
                **{name: talker[f"codec_{name}_id"] for name in _MARKS},
            ),
            speakers={name.lower(): id_ for name, id_ in talker["speaker_id"].items()},
            sections=tuple(_sections(text)),
            thinker_hidden=talker["thinker_hidden_size"],
            projection=text["intermediate_size"],
            accept_layer=talker["accept_hidden_layer"],
            im_start=config["im_start_token_id"],
            user=config["user_token_id"],
            assistant=config["assistant_token_id"],
            media=frozenset(thinker[key] for key in _MEDIA),
            vision_start=thinker["vision_start_token_id"],
            # Their names in the vocabulary follow each other; older files name the first alone.
            vision_end=thinker.get("vision_end_token_id", thinker["vision_start_token_id"] + 1),
            audio_start=thinker["audio_start_token_id"],
        )


def vocoder_config(config: Mapping[str, Any], where: str = "config.json") -> VocoderConfig:
    """The vocoder's numbers. Raises ConfigError with every key malformed or unsupported."""
    where = f"{where}: code2wav_config"
    given = dict(config.get("code2wav_config") or {})
    given.setdefault("rope_theta", (given.get("rope_parameters") or {}).get("rope_theta", 10000.0))
    read: VocoderConfig = known_fields(VocoderConfig, given, where)
    if problems := [*read.problems(where)]:
        raise ConfigError(problems)
    return read


_TOP = (
    "im_start_token_id",
    "user_token_id",
    "assistant_token_id",
    "tts_pad_token_id",
    "tts_bos_token_id",
    "tts_eos_token_id",
)
_MARKS = ("pad", "bos", "nothink", "think_bos", "think_eos")
_TALKER = (
    "num_code_groups",
    "thinker_hidden_size",
    "accept_hidden_layer",
    "codec_eos_token_id",
    *(f"codec_{name}_id" for name in _MARKS),
)
_STARTS = ("audio_start_token_id", "vision_start_token_id")
_MEDIA = ("audio_token_id", "image_token_id", "video_token_id")


def _ids(config: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Iterator[Problem]:
    for key in keys:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            got = "nothing" if value is None else repr(value)[:60]
            yield Problem(where=f"{where}.{key}", got=got, expected="a whole number of 0 or more")


def _sections(text: Mapping[str, Any]) -> tuple[int, ...]:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return tuple(rope.get("mrope_section") or ())


def _unsupported(
    talker: Mapping[str, Any], text: Mapping[str, Any], parts: Mapping[str, LLMConfig], where: str
) -> Iterator[Problem]:
    outer, inner = parts["text_config"], parts["code_predictor_config"]
    if outer.hidden != inner.hidden:
        expected = f"{outer.hidden}, as wide as the talker, whose input its embeddings are"
        yield Problem(where=f"{where}.code_predictor_config.hidden_size", got=str(inner.hidden), expected=expected)
    groups = talker["num_code_groups"]
    if talker["code_predictor_config"].get("num_code_groups", groups) != groups:
        got = str(talker["code_predictor_config"]["num_code_groups"])
        place = f"{where}.code_predictor_config.num_code_groups"
        yield Problem(where=place, got=got, expected=f"the talker's {groups}")
    sections = _sections(text)
    if len(sections) != 3 or sum(sections) * 2 != outer.head_dim:
        place = f"{where}.text_config.rope_parameters.mrope_section"
        expected = f"three numbers with the sum {outer.head_dim // 2}, half a head"
        yield Problem(where=place, got=repr(list(sections)), expected=expected)
