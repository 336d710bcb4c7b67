"""Hyper-parameters and special tokens of a Whisper checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from framework.errors import ConfigError, Problem

TIMESTAMPS = 1501  # 0.00 to 30.00 s in steps of 20 ms; the last entries of every official vocabulary


@attrs.frozen(kw_only=True)
class Tokens:
    """Ids of the special tokens.

    Attributes:
        start, end: `<|startoftranscript|>`, `<|endoftext|>`.
        no_speech, no_timestamps: `<|nospeech|>` (`<|nocaptions|>`), `<|notimestamps|>`.
        first_timestamp: `<|0.00|>`; all ids from it on are timestamps.
        translate, transcribe: the tasks of a multilingual model.
        languages: first and last language token.
        multilingual: the prompt names language and task.
        suppressed: never written; at_begin: not written first.
    """

    start: int
    end: int
    no_speech: int
    no_timestamps: int
    translate: int
    transcribe: int
    languages: tuple[int, int]
    multilingual: bool
    suppressed: tuple[int, ...]
    at_begin: tuple[int, ...]

    @property
    def first_timestamp(self) -> int:
        return self.no_timestamps + 1

    @classmethod
    def of(cls, config: Mapping[str, Any], vocab: int) -> Tokens:
        """From config.json or generation_config.json, for a vocabulary of `vocab` entries.

        All vocabularies end alike: languages, translate, transcribe, startoflm, startofprev, nospeech, notimestamps,
        timestamps.
        """
        last = config.get("no_timestamps_token_id")
        last = vocab - TIMESTAMPS - 1 if last is None else last
        start = config["decoder_start_token_id"]
        return cls(
            start=start,
            end=config["eos_token_id"],
            no_speech=last - 1,
            no_timestamps=last,
            translate=last - 5,
            transcribe=last - 4,
            languages=(start + 1, last - 6),
            # English-only vocabularies have 51,864 entries, multilingual ones one more (v3: two).
            multilingual=bool(config.get("is_multilingual", vocab >= 51865)),
            suppressed=tuple(config.get("suppress_tokens") or ()),
            at_begin=tuple(config.get("begin_suppress_tokens") or ()),
        )


@attrs.frozen(kw_only=True)
class WhisperConfig:
    """Widths in elements.

    Attributes:
        frames: of the encoder's output (1,500: 30 s in steps of 20 ms); the spectrogram has twice as many.
        context: most tokens of a window, prompt included.
    """

    vocab: int
    mels: int
    hidden: int
    encoder_layers: int
    encoder_heads: int
    encoder_intermediate: int
    decoder_layers: int
    decoder_heads: int
    decoder_intermediate: int
    frames: int
    context: int
    tokens: Tokens

    @classmethod
    def from_checkpoint(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None = None, where: str = "config.json"
    ) -> WhisperConfig:
        """Read config.json and generation_config.json.

        Raises:
            ConfigError: every key missing or unsupported.
        """
        problems = [
            Problem(where=f"{where}: {key}", got="nothing", expected="a number")
            for key in _REQUIRED
            if not isinstance(config.get(key), int)
        ]
        if config.get("activation_function", "gelu") != "gelu":
            got = repr(config["activation_function"])
            problems.append(Problem(where=f"{where}: activation_function", got=got, expected="'gelu'"))
        if config.get("scale_embedding"):
            problems.append(Problem(where=f"{where}: scale_embedding", got="true", expected="false"))
        if problems:
            raise ConfigError(problems)
        merged = {**config, **{key: value for key, value in (generation or {}).items() if value is not None}}
        return cls(
            vocab=config["vocab_size"],
            mels=config["num_mel_bins"],
            hidden=config["d_model"],
            encoder_layers=config["encoder_layers"],
            encoder_heads=config["encoder_attention_heads"],
            encoder_intermediate=config["encoder_ffn_dim"],
            decoder_layers=config["decoder_layers"],
            decoder_heads=config["decoder_attention_heads"],
            decoder_intermediate=config["decoder_ffn_dim"],
            frames=config.get("max_source_positions", 1500),
            context=config.get("max_target_positions", 448),
            tokens=Tokens.of(merged, config["vocab_size"]),
        )


_REQUIRED = (
    "vocab_size",
    "num_mel_bins",
    "d_model",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "decoder_start_token_id",
    "eos_token_id",
)
