"""Text to token ids and back, as the checkpoint's tokenizer.json says."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError, Problem, StageError
from framework.io.fields import unicode_problem
from framework.parsing import read_object

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer:
    """A byte-level BPE, or a SentencePiece-like model with byte fallback.

    Attributes:
        eos_ids: tokens that end a reply; () where the checkpoint names none.
        special_ids: tokens that are not text; left out of decoded text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, eos_ids: Sequence[int] = (), where: str = "tokenizer") -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.eos_ids = tuple(eos_ids)
        self.special_ids = frozenset(id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special)
        self._bytes_of, self.strips_first_space = _byte_rule(backend, where)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json; the end tokens from the first of generation_config.json, config.json and
        tokenizer_config.json that has them. Raises ConfigError when one of them is missing or malformed."""
        import tokenizers

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(Problem(where=str(path), got="no such file", expected="a tokenizer"))
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(Problem(where=str(path), got=str(error), expected="a tokenizer")) from error
        return cls(backend, _eos_ids(folder, backend), where=str(path))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id; the logits of a model may be wider."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of `text`. Special tokens written in the text are found; `add_special_tokens` also adds those that the
        tokenizer puts around any text, which a rendered chat template has already. Raises StageError for text that is
        no valid Unicode."""
        if problem := unicode_problem("text", text):
            raise StageError(problem)
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; U+FFFD stands where the bytes are no UTF-8."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def id_of(self, token: str) -> int | None:
        """Id of a token by its exact spelling in the vocabulary."""
        id_: int | None = self._backend.token_to_id(token)
        return id_

    def token_bytes(self, id_: int) -> bytes:
        """Bytes a token adds to the text, perhaps a part of a character; b"" for an id the vocabulary lacks."""
        token = self._backend.id_to_token(id_)
        return b"" if token is None else self._bytes_of(token)


class Detokenizer:
    """Text of one reply while its tokens come: what all calls return together is `Tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.strips_first_space

    def push(self, id_: int) -> str:
        """The characters that are complete with this token; often none, for a token may be a part of one."""
        return "" if id_ in self._skipped else self._strip_first(self._utf8.decode(self._tokenizer.token_bytes(id_)))

    def flush(self) -> str:
        """What is left at the end: "", or U+FFFD when the last character was cut."""
        return self._strip_first(self._utf8.decode(b"", final=True))

    def _strip_first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte: itself where it is printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _byte_rule(backend: tokenizers.Tokenizer, where: str) -> tuple[Any, bool]:
    """How a token becomes bytes, and whether the first space of a text is dropped."""
    decoder: Mapping[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": "none"}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        alphabet = _byte_alphabet()

        def byte_level(token: str) -> bytes:
            if all(char in alphabet for char in token):
                return bytes(alphabet[char] for char in token)
            return token.encode()

        return byte_level, False
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"]):
        old, new = steps[0]["pattern"].get("String", ""), steps[0]["content"]

        def with_fallback(token: str) -> bytes:
            byte = _BYTE_TOKEN.fullmatch(token)
            return bytes([int(byte[1], 16)]) if byte else token.replace(old, new).encode()

        strips = bool(kinds[3:]) and steps[3] == {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        if old and strips == bool(kinds[3:]):
            return with_fallback, strips
    expected = "ByteLevel, or Replace, ByteFallback, Fuse and perhaps Strip of one space at the start"
    raise ConfigError(Problem(where=f"{where}: decoder", got=", ".join(kinds), expected=expected))


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            ids = read_object(folder / name).get("eos_token_id")
            if ids is not None:
                return tuple(ids) if isinstance(ids, list) else (ids,)
    if (folder / "tokenizer_config.json").exists():
        token = token_text(read_object(folder / "tokenizer_config.json").get("eos_token"))
        id_ = backend.token_to_id(token) if token else None
        return () if id_ is None else (id_,)
    return ()


def token_text(entry: Any) -> str | None:
    """Spelling of a token in tokenizer_config.json, where it is a string or an object with `content`."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return text if isinstance(text, str) else None
