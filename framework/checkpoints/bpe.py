"""`tokenizer.json` of a byte-level BPE tokenizer, made from its vocabulary and merges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from framework.errors import ConfigError, Problem, nearest

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


# How text is cut before the merges, by the name GGUF files give it: (normalizer, pre-tokenizers).
_PRE: Mapping[str, tuple[dict[str, Any] | None, list[dict[str, Any]]]] = {
    "smollm": (None, [{"type": "Digits", "individual_digits": True}, _byte_level(True)]),
    "qwen2": (
        {"type": "NFC"},
        [
            {"type": "Split", "pattern": {"Regex": _QWEN2}, "behavior": "Isolated", "invert": False},
            _byte_level(False),
        ],
    ),
}


@attrs.frozen(kw_only=True)
class AddedToken:
    """A token that is found in the text before anything else; a special one is left out of decoded text."""

    id: int
    content: str
    special: bool


def bpe_tokenizer(
    vocab: Mapping[str, int],
    merges: Iterable[Sequence[str]],
    added: Iterable[AddedToken],
    pre: str,
    where: str,
    bos: AddedToken | None = None,
) -> bytes:
    """The file for the `tokenizers` library.

    Args:
        vocab: byte-level token -> id.
        merges: pairs of tokens, first merged first.
        pre: how text is cut, `smollm` or `qwen2`.
        where: names the source in the ConfigError that an unknown `pre` raises.
        bos: put before every encoded text, when the model wants that.
    """
    if pre not in _PRE:
        expected = f"a supported pre-tokenizer: {', '.join(sorted(_PRE))}"
        raise ConfigError(Problem(where=where, got=repr(pre), expected=expected, hint=nearest(pre, _PRE)))
    normalizer, pretokenizers = _PRE[pre]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{**attrs.asdict(token), **flags} for token in sorted(added, key=lambda token: token.id)],
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pretokenizers},
            "post_processor": _prepend(bos) if bos else None,
            "decoder": _byte_level(True),
            "model": {"type": "BPE", "vocab": vocab, "merges": [list(pair) for pair in merges]},
        },
        ensure_ascii=False,
    ).encode()


def _prepend(bos: AddedToken) -> dict[str, Any]:
    first, a, b = (
        {"SpecialToken": {"id": bos.content, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
    )
    tokens = {bos.content: {"id": bos.content, "ids": [bos.id], "tokens": [bos.content]}}
    return {"type": "TemplateProcessing", "single": [first, a], "pair": [first, a, b], "special_tokens": tokens}
