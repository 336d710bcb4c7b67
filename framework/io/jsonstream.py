"""A JSON object that need not fit in memory: its settings, and one by one the items of its one long list."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import attrs

from framework.errors import ConfigError, Problem, at
from framework.parsing import Decoder, no_utf8, syntax
from framework.schema import show

BLOCK = 1 << 16  # bytes read at once
# A value that ends this near to the end of what was read may go on (`1` of `1.5e+3`), and a fault there may be none.
_MARGIN = 32
_SHOWN = 60  # signs before a fault that its message shows
_SPACE = re.compile(r"[ \t\n\r]*")


@attrs.frozen
class Found:
    """A value of the object, or an item of its long list.

    Attributes:
        index: of an item; None for a value that is none.
        offset, length: its place in the file, in bytes.
        line, column: where it begins, from 1.
        problems: what is wrong with it alone: keys given twice, numbers that JSON does not have or that are too long,
            control characters in a string.
    """

    key: str
    value: Any
    index: int | None
    offset: int
    length: int
    line: int
    column: int
    problems: tuple[Problem, ...]


def walk(file: BinaryIO, where: str, long: str) -> Iterator[Found]:
    """Every value of the JSON object in `file`, but of the list below the key `long` each item by itself.

    Memory holds one value and a block of the file.

    Raises:
        ConfigError: malformed JSON (line, column, the line itself with a caret), no UTF-8, no object, a key twice.
    """
    text = _Window(file, where)
    if text.peek() != "{":
        value = text.value()
        text.expect_end()
        raise ConfigError(Problem(where=where, got=show(value), expected="an object"))
    keys = set[str]()
    for _ in text.members("{", "}"):
        if text.peek() != '"':
            raise text.fault("Expecting property name enclosed in double quotes")
        key = text.value()
        if key in keys:
            got = f"the key {show(key)} twice"
            raise ConfigError(Problem(where=where, got=got, expected="each key of an object once"))
        keys.add(key)
        text.expect(":")
        if key == long and text.peek() == "[":
            place, empty = at(f"{where}:", key) if where else key, True
            for index in text.members("[", "]"):
                empty = False
                yield text.found(key, index, at(place, index))
            if empty:
                yield Found(key, [], None, 0, 0, 0, 0, ())
        else:
            yield text.found(key, None, at(f"{where}:", key) if where else key)
    text.expect_end()


class _Window:
    """The part of a file's text that is in memory, and how far it has been read."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self._where = where
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json, self._lenient = Decoder(), Decoder(strict=False)
        self._text, self._at = "", 0
        self._line = self._column = 1  # of the text's first sign
        self._byte, self._here = 0, (1, 1)  # offset, line and column of the place that has been reached
        self._read = 0  # bytes
        self._ended = False

    def peek(self) -> str:
        """The next sign that is no white space; "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._go(space.end() if space else self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def members(self, opening: str, closing: str) -> Iterator[int]:
        """Goes from one member of a list or object to the next; the caller reads each."""
        self.expect(opening)
        if self.peek() == closing:
            return self.expect(closing)
        number = 0
        while True:
            self.peek()
            yield number
            number += 1
            if self.peek() == closing:
                return self.expect(closing)
            self.expect(",")

    def value(self) -> Any:
        """The next value. Raises ConfigError for anything wrong with it."""
        found = self.found("", None, f"{self._where}:")
        if found.problems:
            raise ConfigError(found.problems)
        return found.value

    def found(self, key: str, index: int | None, root: str) -> Found:
        """The next value and what is wrong with it alone. Raises ConfigError where its end cannot be told."""
        self.peek()
        begin, (line, column) = self._byte, self._here
        value, problems = self._value(root)
        return Found(key, value, index, begin, self._byte - begin, line, column, tuple(problems))

    def _value(self, root: str) -> tuple[Any, list[Problem]]:
        while True:
            try:
                value, end, problems = self._decoded(root)
            except json.JSONDecodeError as error:
                going_on = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _MARGIN
                if self._ended or not going_on:
                    raise self._told(error.__cause__ or error) from error
            except RecursionError as error:
                got, expected = "brackets nested too deeply", "a document of sane depth"
                raise ConfigError(Problem(where=self._where, got=got, expected=expected)) from error
            else:
                if self._ended or end <= len(self._text) - _MARGIN:
                    self._go(end)
                    return value, problems
            self._more()

    def _decoded(self, root: str) -> tuple[Any, int, list[Problem]]:
        """The value that begins here as far as the text goes, where it ends, and what is wrong with it alone."""
        try:
            value, end = self._json.raw_decode(self._text, self._at)
            value, problems = self._json.settled(value, root)
            return value, end, problems
        except json.JSONDecodeError as error:
            if not error.msg.startswith("Invalid control character"):
                raise
            fault = error
        try:  # beyond it: the value ends where it would without the fault
            value, end = self._lenient.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            raise error from fault
        return value, end, [self._problem(fault)]

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.fault(f"Expecting '{sign}' delimiter")
        self._go(self._at + 1)

    def expect_end(self) -> None:
        if self.peek():
            raise self.fault("Extra data")

    def fault(self, message: str) -> ConfigError:
        return self._told(json.JSONDecodeError(message, self._text, self._at))

    def _told(self, error: Any) -> ConfigError:
        return ConfigError(self._problem(error))

    def _problem(self, error: json.JSONDecodeError) -> Problem:
        return syntax(error, self._where, self._line, self._column)

    def _go(self, to: int) -> None:
        if to == self._at:
            return
        passed = self._text[self._at : to]
        self._byte += len(passed) if passed.isascii() else len(passed.encode())
        self._here = _after(passed, *self._here)
        self._at = to

    def _more(self) -> None:
        """Let go of what is done with, and take in as much again as is left, or a block."""
        kept = max(0, self._at - _SHOWN)
        used, rest = self._text[:kept], self._text[kept:]
        self._line, self._column = _after(used, self._line, self._column)
        block = self._file.read(max(BLOCK, len(rest), len(codecs.BOM_UTF8)))
        if not self._read and block.startswith(codecs.BOM_UTF8):
            self._byte = len(codecs.BOM_UTF8)
        self._read += len(block)
        self._ended = not block
        try:
            self._text, self._at = rest + self._decoder.decode(block, final=self._ended), self._at - kept
        except UnicodeDecodeError as error:
            offset = self._read - len(error.object) + error.start
            raise ConfigError(no_utf8(error, self._where, offset)) from error


def _after(text: str, line: int, column: int) -> tuple[int, int]:
    """Line and column behind a text that begins at these."""
    lines = text.count("\n")
    return line + lines, len(text) - text.rfind("\n") if lines else column + len(text)
