"""Hyper-parameters and ids of a Qwen3-TTS checkpoint's talker, from its config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from framework.errors import ConfigError, Problem
from models.llm.config import LLMConfig

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
        talker = config.get("talker_config") or {}
        predictor = talker.get("code_predictor_config") or {}
        problems = [
            *_missing(config, _TOP, where),
            *_missing(talker, {**_DECODER, **_TALKER}, f"{where}: talker_config"),
            *_missing(predictor, _DECODER, f"{where}: talker_config.code_predictor_config"),
            *_unsupported(config, talker, predictor, where),
        ]
        if problems:
            raise ConfigError(problems)
        dialects = {name.lower(): dialect for name, dialect in talker["spk_is_dialect"].items() if dialect}
        return cls(
            kind=config["tts_model_type"],
            size=config["tts_model_size"],
            talker=_decoder(talker),
            predictor=_decoder(predictor),
            groups=talker["num_code_groups"],
            min_frames=MIN_FRAMES,
            text_vocab=talker["text_vocab_size"],
            text_hidden=talker["text_hidden_size"],
            text_pad=config["tts_pad_token_id"],
            text_bos=config["tts_bos_token_id"],
            text_eos=config["tts_eos_token_id"],
            codec=CodecIds(
                eos=talker["codec_eos_token_id"],
                **{name: talker[f"codec_{name}_id"] for name in _MARKS},
            ),
            speakers={name.lower(): id_ for name, id_ in talker["spk_id"].items()},
            dialects=dialects,
            languages={name.lower(): id_ for name, id_ in talker["codec_language_id"].items()},
        )


_MARKS = ("pad", "bos", "think", "nothink", "think_bos", "think_eos")
_TOP: Mapping[str, type] = {
    "tts_model_type": str,
    "tts_model_size": str,
    "tts_pad_token_id": int,
    "tts_bos_token_id": int,
    "tts_eos_token_id": int,
}
_DECODER = dict.fromkeys(
    (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "rope_theta",
    ),
    float,  # any positive number
)
_TALKER: Mapping[str, type] = {
    "num_code_groups": int,
    "text_vocab_size": int,
    "text_hidden_size": int,
    "codec_eos_token_id": int,
    **{f"codec_{name}_id": int for name in _MARKS},
    "spk_id": dict,
    "spk_is_dialect": dict,
    "codec_language_id": dict,
}
_NAMES: Mapping[type, str] = {
    float: "a positive number",
    int: "a whole number of 0 or more",
    str: "text",
    dict: "an object",
}


def _missing(config: Mapping[str, Any], types: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Keys that are not there, or of another type."""
    for key, kind in types.items():
        value: Any = config.get(key)
        if kind is float:
            good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        else:
            good = isinstance(value, kind) and not isinstance(value, bool) and not (kind is int and value < 0)
        if not good:
            got = "nothing" if value is None else repr(value)[:60]
            yield Problem(where=f"{where}: {key}", got=got, expected=_NAMES[kind])


def _unsupported(
    config: Mapping[str, Any], talker: Mapping[str, Any], predictor: Mapping[str, Any], where: str
) -> Iterator[Problem]:
    kinds = ("custom_voice", "voice_design", "base")
    if config.get("tts_model_type") not in kinds and "tts_model_type" in config:
        got = repr(config["tts_model_type"])
        yield Problem(where=f"{where}: tts_model_type", got=got, expected=f"one of {', '.join(kinds)}")
    tokenizer = config.get("tokenizer_type", "qwen3_tts_tokenizer_12hz")
    if tokenizer != "qwen3_tts_tokenizer_12hz":
        yield Problem(where=f"{where}: tokenizer_type", got=repr(tokenizer), expected="'qwen3_tts_tokenizer_12hz'")
    groups = talker.get("num_code_groups")
    if predictor.get("num_code_groups", groups) != groups:
        place = f"{where}: talker_config.code_predictor_config.num_code_groups"
        yield Problem(where=place, got=repr(predictor["num_code_groups"]), expected=f"the talker's {groups}")
    for name, part in (("talker_config", talker), ("talker_config.code_predictor_config", predictor)):
        rope = (part.get("rope_scaling") or {}).get("rope_type", "default")
        only: Mapping[str, tuple[Any, Any]] = {
            "hidden_act": (part.get("hidden_act", "silu"), "silu"),
            "use_sliding_window": (part.get("use_sliding_window") or False, False),
            "rope_scaling.rope_type": (rope, "default"),
        }
        for key, (value, expected) in only.items():
            if value != expected:
                yield Problem(where=f"{where}: {name}.{key}", got=repr(value), expected=repr(expected))


def _decoder(config: Mapping[str, Any]) -> LLMConfig:
    """Layers as Qwen3 has them. The talker's rotary positions are three-dimensional in name only: all three are the
    position in time, for nothing in its input is a picture, which makes them one-dimensional."""
    return LLMConfig(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        rms_eps=config["rms_norm_eps"],
        rope={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tied=False,
        attention_bias=bool(config.get("attention_bias", False)),
        qk_norm=True,
    )
