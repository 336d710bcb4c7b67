"""Hyper-parameters and special tokens of a Whisper checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from framework.checkpoints.keys import Keys
from framework.io.fields import LIST

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
    def of(cls, generation: Mapping[str, Any], vocab: int, where: str = "generation_config.json") -> Tokens:
        """From generation_config.json, for a vocabulary of `vocab` entries. Raises ConfigError."""
        keys = Keys(generation, f"{where}:")
        return keys.checked(cls.read(keys, vocab))

    @classmethod
    def read(cls, keys: Keys, vocab: int) -> Tokens:
        """All vocabularies end alike: languages, translate, transcribe, startoflm, startofprev, nospeech, notimestamps,
        timestamps."""
        start, last = keys.id("decoder_start_token_id"), keys.id("no_timestamps_token_id", vocab - TIMESTAMPS - 1)
        return cls(
            start=start,
            end=keys.id("eos_token_id"),
            no_speech=last - 1,
            no_timestamps=last,
            translate=last - 5,
            transcribe=last - 4,
            languages=(start + 1, last - 6),
            # English-only vocabularies have 51,864 entries, multilingual ones one more (v3: two).
            multilingual=keys.flag("is_multilingual", vocab >= 51865),
            suppressed=tuple(keys.get("suppress_tokens", LIST, [], [])),
            at_begin=tuple(keys.get("begin_suppress_tokens", LIST, [], [])),
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
        named = {key: value for key, value in (generation or {}).items() if value is not None}
        keys = Keys({**config, **named}, f"{where}:")
        keys.only(activation_function="gelu", scale_embedding=False)
        vocab = keys.size("vocab_size")
        return keys.checked(
            cls(
                vocab=vocab,
                mels=keys.size("num_mel_bins"),
                hidden=keys.size("d_model"),
                encoder_layers=keys.size("encoder_layers"),
                encoder_heads=keys.size("encoder_attention_heads"),
                encoder_intermediate=keys.size("encoder_ffn_dim"),
                decoder_layers=keys.size("decoder_layers"),
                decoder_heads=keys.size("decoder_attention_heads"),
                decoder_intermediate=keys.size("decoder_ffn_dim"),
                frames=keys.size("max_source_positions", 1500),
                context=keys.size("max_target_positions", 448),
                tokens=Tokens.read(keys, vocab),
            )
        )
