"""Text to ids and back; a streamed reply is the decoded whole, and no piece of it cuts a character."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from framework.errors import ConfigError, StageError
from framework.io.tokens import Detokenizer, Tokenizer

TEXTS = {
    "plain": "Hello there, it is 12:30.",
    "accents": "Größe naïve Ω",
    "combining": "e\u0301 a\u0308\u0323 नमस्ते",
    "cjk": "你好，世界。こんにちは 안녕",
    "emoji": "🐈 👩‍👩‍👧 🏳️‍🌈 🇫🇷",
    "spaces": "  two  spaces\n\n\ttab \u00a0",
    "replacement": "a \ufffd b",
    "empty": "",
}


def byte_level() -> tokenizers.Tokenizer:
    """Bytes, and a few merges that cut characters: a token may end in the middle of one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space, cat = "Ġ", "ðŁĲ"  # three of the four bytes of 🐈
    tokens = [*alphabet, "ðŁ", cat, space + "ð", "ll", "he"]
    merges = [("ð", "Ł"), ("ðŁ", "Ĳ"), (space, "ð"), ("l", "l"), ("h", "e")]
    backend = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece_like(strip: bool = True) -> tokenizers.Tokenizer:
    """Words with ▁ for the space; every byte that no token covers is a token <0x..>."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for token in ("▁", "h", "e", "l", "o", "ll", "▁he", "é", "t"):
        vocab[token] = len(vocab)
    merges = [("l", "l"), ("▁", "h"), ("▁h", "e")]
    vocab["▁h"] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if strip else []), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    return backend


BACKENDS = {
    "byte level": byte_level,
    "byte fallback": lambda: sentencepiece_like(strip=False),
    "byte fallback, first space dropped": sentencepiece_like,
}


def make(name: str) -> Tokenizer:
    backend = BACKENDS[name]()
    backend.add_special_tokens(["<|start|>", AddedToken("<|end|>", special=True)])
    backend.add_tokens(["<think>"])
    return Tokenizer(backend)


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.push(id_) for id_ in ids), detokenizer.flush()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_text(backend: str, text: str) -> None:
    tokenizer = make(backend)
    ids = tokenizer.encode(TEXTS[text])
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == TEXTS[text]
    assert pieces[-1] == "" and all("\ufffd" not in piece for piece in pieces if "\ufffd" not in TEXTS[text])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("skip", [True, False], ids=["without special tokens", "with special tokens"])
def test_special_tokens_inside_a_reply(backend: str, skip: bool) -> None:
    tokenizer = make(backend)
    ids = tokenizer.encode("<|start|>héllo<think> 🐈<|end|>")
    text = "".join(stream(tokenizer, ids, skip_special_tokens=skip))
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)
    assert ("<|end|>" in text) is not skip and "<think>" in text


@pytest.mark.parametrize("seed", range(20))
def test_any_ids_stream_to_what_they_decode_to(seed: int) -> None:
    tokenizer = make("byte level")
    draw = random.Random(seed)
    ids = [draw.randrange(tokenizer.vocab_size) for _ in range(50)]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_characters_come_as_soon_as_they_are_whole() -> None:
    tokenizer = make("byte level")
    ids = tokenizer.encode("a🐈é")
    assert [tokenizer.token_bytes(id_) for id_ in ids] == [b"a", b"\xf0\x9f\x90", b"\x88", b"\xc3", b"\xa9"]
    assert stream(tokenizer, ids) == ["a", "", "🐈", "", "é", ""]


def test_cut_last_character_becomes_a_replacement() -> None:
    tokenizer = make("byte level")
    ids = tokenizer.encode("a🐈")[:-1]
    assert stream(tokenizer, ids) == ["a", "", "\ufffd"]
    assert tokenizer.decode(ids) == "a\ufffd"


def test_ids_outside_the_vocabulary_are_no_text() -> None:
    tokenizer = make("byte level")
    assert tokenizer.token_bytes(10_000) == b""
    assert stream(tokenizer, [10_000]) == ["", ""]


def test_special_tokens_around_a_text_are_added_when_asked_for() -> None:
    backend = byte_level()
    backend.add_special_tokens(["<s>"])
    start = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("he", add_special_tokens=True) == [start, *tokenizer.encode("he")]


def test_limits_saved_in_the_file_do_not_cut_a_prompt() -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    assert len(Tokenizer(backend).encode("abcdef")) == 6


def test_text_that_is_no_unicode_is_named() -> None:
    with pytest.raises(StageError, match=r"got U\+D83D at character 2, expected valid Unicode"):
        make("byte level").encode("ab\ud83d")


def test_unknown_decoder_is_refused() -> None:
    backend = byte_level()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match="decoder: got WordPiece, expected ByteLevel"):
        Tokenizer(backend)
    backend.decoder = decoders.Sequence([decoders.Replace(Regex("▁+"), " "), decoders.ByteFallback(), decoders.Fuse()])
    with pytest.raises(ConfigError, match="expected ByteLevel"):
        Tokenizer(backend)


# Loading


def write(folder: Path, **files: Any) -> Path:
    backend = byte_level()
    backend.add_special_tokens(["<|end|>", "<|stop|>"])
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {"generation_config": {"eos_token_id": [5, 6]}, "config": {"eos_token_id": 7}}, (5, 6), id="first"
        ),
        pytest.param({"generation_config": {}, "config": {"eos_token_id": 7}}, (7,), id="config"),
        pytest.param({"tokenizer_config": {"eos_token": "<|end|>"}}, (261,), id="spelling"),
        pytest.param({"tokenizer_config": {"eos_token": {"content": "<|stop|>"}}}, (262,), id="object"),
        pytest.param({}, (), id="none"),
    ],
)
def test_end_tokens_come_from_the_checkpoint(tmp_path: Path, files: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert Tokenizer.load(write(tmp_path, **files)).eos_ids == expected


def test_missing_or_malformed_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json: got no such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: got .*, expected a tokenizer"):
        Tokenizer.load(tmp_path)
