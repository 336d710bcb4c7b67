"""Tiny random Qwen3-TTS checkpoints in the official layout, the same bit for bit wherever they are made.

`talker.json` holds the shapes of the published class's weights, and what it says, greedily, to every one of `CASES`
with the weights made here (recorded by `tests/oracles/record_qwen3_tts.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tests.models.qwen3_codec import tiny as codec_tiny

HERE = Path(__file__).parent
LANGUAGES = {"chinese": 2055, "english": 2050, "german": 2053, "beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {"serena": 3066, "ryan": 3061, "eric": 2875, "dylan": 2878}
DIALECTS = {"serena": False, "ryan": False, "eric": "sichuan_dialect", "dylan": "beijing_dialect"}
GENERATION = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
END = 2150
BYTES = 256
# Merges that make the words of the prompt one token each, as they are in the real vocabulary.
WORDS = ("assistant", "user", "the", "ing", "\u0120the", "\u0120you")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")


@attrs.frozen(kw_only=True)
class Kind:
    """What checkpoints differ in: type, size, widths of talker and predictor."""

    type: str
    size: str
    hidden: int
    inner: int
    head_dim: int = 16


CHECKPOINTS: Mapping[str, Kind] = {
    "custom-0b6": Kind(type="custom_voice", size="0b6", hidden=64, inner=64),
    "custom-1b7": Kind(type="custom_voice", size="1b7", hidden=96, inner=64, head_dim=32),
    "design-1b7": Kind(type="voice_design", size="1b7", hidden=64, inner=32),
    # As wide as the tiny speaker encoder.
    "base-0b6": Kind(type="base", size="0b6", hidden=24, inner=24),
    "base-1b7": Kind(type="base", size="1b7", hidden=24, inner=32),
}


@attrs.frozen(kw_only=True)
class Case:
    """Requests said together; `reference` is samples and text of the recording to clone."""

    checkpoint: str
    texts: tuple[str, ...]
    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ("auto",)
    instruct: str = ""
    streaming: bool = False
    samples: int = 0
    ref_text: str = ""


HELLO = "Hello there, friend. How are you?"
MIXED = "Größe 42, 你好 \U0001f600 -- the thing,\n\n done!"
CASES: Mapping[str, Case] = {
    "0.6B, language auto": Case(checkpoint="custom-0b6", texts=(HELLO,), voices=("ryan",)),
    "0.6B, English, streaming text": Case(
        checkpoint="custom-0b6", texts=(HELLO,), voices=("serena",), languages=("english",), streaming=True
    ),
    "0.6B, instruct is not read": Case(
        checkpoint="custom-0b6", texts=(MIXED,), voices=("ryan",), languages=("german",), instruct="Whisper."
    ),
    "0.6B, one character, streaming text": Case(
        checkpoint="custom-0b6", texts=("a",), voices=("ryan",), streaming=True
    ),
    "1.7B, language auto": Case(checkpoint="custom-1b7", texts=(MIXED,), voices=("serena",)),
    "1.7B, instruct": Case(
        checkpoint="custom-1b7", texts=(HELLO,), voices=("ryan",), languages=("english",), instruct="Speak slowly."
    ),
    "1.7B, dialect of the voice": Case(checkpoint="custom-1b7", texts=(HELLO,), voices=("dylan",)),
    "1.7B, Chinese by a voice with a dialect": Case(
        checkpoint="custom-1b7", texts=("你好",), voices=("Eric",), languages=("Chinese",), streaming=True
    ),
    "1.7B, English by a voice with a dialect": Case(
        checkpoint="custom-1b7", texts=(HELLO,), voices=("eric",), languages=("English",)
    ),
    "0.6B, batch of unequal lengths": Case(
        checkpoint="custom-0b6",
        texts=(HELLO, "a", MIXED * 3),
        voices=("ryan", "dylan", "serena"),
        languages=("english", "auto", "german"),
    ),
    "1.7B, batch of unequal lengths, streaming text": Case(
        checkpoint="custom-1b7",
        texts=("Yes.", MIXED, HELLO, HELLO * 4),
        voices=("serena", "eric", "ryan", "ryan"),
        languages=("english", "chinese", "auto", "german"),
        instruct="Quick!",
        streaming=True,
    ),
    "voice design": Case(checkpoint="design-1b7", texts=(HELLO,), instruct="A deep, calm voice of an old man."),
    "voice design, no instruct, German": Case(checkpoint="design-1b7", texts=(MIXED,), languages=("german",)),
    "clone by vector": Case(checkpoint="base-0b6", texts=(HELLO,), samples=48_000, streaming=True),
    "clone by vector, whole text, English": Case(
        checkpoint="base-1b7", texts=(HELLO,), languages=("english",), samples=30_001
    ),
    "clone with a text longer than the recording": Case(
        checkpoint="base-1b7", texts=(HELLO,), samples=30_001, ref_text="I said the thing.", streaming=True
    ),
    "clone with a text shorter than the recording": Case(
        checkpoint="base-0b6", texts=("Yes.",), samples=100_000, ref_text="Oh.", streaming=True
    ),
    "clone with a text, whole text, German": Case(
        checkpoint="base-0b6", texts=(HELLO,), languages=("german",), samples=48_000, ref_text="I said the thing."
    ),
}  # fmt: skip
FRAMES = 14  # at most, of every case


def recorded() -> Mapping[str, Any]:
    """`weights`: shapes by checkpoint and name. `codes`: [frames][16] of every request of every case."""
    found: Mapping[str, Any] = json.loads((HERE / "talker.json").read_text())
    return found


def config(name: str) -> dict[str, Any]:
    """config.json of a checkpoint."""
    kind = CHECKPOINTS[name]
    decoder = {
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": kind.head_dim,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "num_code_groups": 16,
    }
    half, custom = kind.head_dim // 2, kind.type == "custom_voice"
    sections = [half - 2 * (half // 3), half // 3, half // 3]
    talker = {
        **decoder,
        "vocab_size": 3072,
        "hidden_size": kind.hidden,
        "rope_scaling": {"interleaved": True, "mrope_section": sections, "rope_type": "default", "type": "default"},
        "text_hidden_size": 64,
        "text_vocab_size": 320,
        "codec_eos_token_id": END,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "spk_id": SPEAKERS if custom else {},
        "spk_is_dialect": DIALECTS if custom else {},
        "codec_language_id": LANGUAGES,
        "code_predictor_config": {**decoder, "vocab_size": 2048, "hidden_size": kind.inner},
    }
    first = BYTES + sum(len(word) - 1 for word in WORDS)
    found = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_type": kind.type,
        "tts_model_size": kind.size,
        "im_start_token_id": first + 1,
        "im_end_token_id": first + 2,
        "tts_pad_token_id": first + 3,
        "tts_bos_token_id": first + 4,
        "tts_eos_token_id": first + 5,
        "talker_config": talker,
    }
    if kind.type == "base":
        found["speaker_encoder_config"] = {**codec_tiny.SPEAKER_CONFIG, **codec_tiny.SPEAKER_SIZES}
    return found


def save_checkpoint(name: str, folder: Path, shapes: Mapping[str, Any] | None = None) -> Path:
    """Write it as it is published; `shapes` are those of the weights, default the recorded ones."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shapes = recorded()["weights"][name] if shapes is None else shapes
    weights = codec_tiny.random_weights(shapes)
    # So that some speak their last word within the first frames.
    weights["talker.codec_head.weight"][END] *= 4.5
    if CHECKPOINTS[name].type == "base":
        weights |= codec_tiny.random_weights(codec_tiny.recorded()["speaker"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(name)))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    codec_tiny.save_codec(folder / "speech_tokenizer")
    save_tokenizer(folder, WORDS, SPECIAL)
    return folder


def recording(samples: int) -> Any:
    """What is cloned: float32 [samples] at 24 kHz."""
    return codec_tiny.noise(samples)


def vocabulary(words: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Token ids of bytes and words, and the merges that make the words."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(BYTES - len(printable))]
    vocab, merges = {letter: number for number, letter in enumerate(letters)}, list[str]()
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
            vocab.setdefault(word[:end], len(vocab))
    return vocab, merges


def save_tokenizer(folder: Path, words: Sequence[str], special: Sequence[str], **settings: Any) -> None:
    """A token a byte, but for `words`; in the files that official checkpoints have."""
    vocab, merges = vocabulary(words)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(len(vocab) + at): {"content": token, **plain} for at, token in enumerate(special)},
        "add_prefix_space": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "bos_token": None,
        **settings,
    }
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def codes_of(name: str) -> list[Any]:
    """int32 [frames, 16] of every request of a case."""
    return [np.array(codes, np.int32).reshape(-1, 16) for codes in recorded()["codes"][name]]
