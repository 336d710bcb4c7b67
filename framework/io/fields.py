"""What may stand under a key of a request file, or of a published config."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from framework.errors import Problem, at, nearest
from framework.schema import show


@attrs.frozen
class Kind:
    """A sort of value: how it is named in an error, and whether a value is one."""

    expected: str
    accepts: Callable[[Any], bool]

    def problem(self, where: str, value: Any) -> Problem | None:
        return None if self.accepts(value) else Problem(where=where, got=show(value), expected=self.expected)


@attrs.frozen
class Text(Kind):
    """A string that can be written as UTF-8: JSON may spell half a surrogate pair, which is no character."""

    def problem(self, where: str, value: Any) -> Problem | None:
        return super().problem(where, value) or unicode_problem(where, value)


def unicode_problem(where: str, text: str) -> Problem | None:
    """What is wrong with a text that is no valid Unicode; characters are counted from 0."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"U+{ord(text[error.start]):04X} at character {error.start}"
        return Problem(where=where, got=got, expected="valid Unicode")
    return None


def one_of(*words: str) -> Kind:
    return Kind(" or ".join(map(repr, words)), lambda value: value in words)


def whole(low: int, high: int | None = None) -> Kind:
    name = f"a whole number of {low} or more" if high is None else f"a whole number from {low} to {high}"
    return Kind(name, lambda v: is_whole(v) and v >= low and (high is None or v <= high))


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Text("text", lambda value: isinstance(value, str))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
POSITIVE = Kind("a number above 0", lambda value: _is_number(value) and value > 0)
TEXTS = Kind("a list of one or more texts", _is_texts)
PATHS = Kind("a path, or a list of paths", lambda value: isinstance(value, str) or _is_texts(value))
CODES = Kind(
    "a list of frames, each a list of codec codes",
    lambda value: isinstance(value, list) and all(isinstance(f, list) and all(map(is_whole, f)) for f in value),
)


def unknown_key(where: str, key: str, valid: Iterable[str]) -> Problem:
    return Problem(
        where=at(where, key), got=f"unknown key {show(key)}", expected="a known key", hint=nearest(key, valid)
    )
