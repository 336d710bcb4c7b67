"""A JSON object that need not fit in memory: its settings, and one by one the items of its one long list."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import attrs

from framework.errors import ConfigError, Problem, at
from framework.parsing import no_utf8, strict, syntax
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
        problems: keys given twice in it, and numbers that JSON does not have.
    """

    key: str
    value: Any
    index: int | None
    offset: int
    length: int
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
                yield Found(key, [], None, 0, 0, ())
        else:
            yield text.found(key, None, where)
    text.expect_end()


class _Window:
    """The part of a file's text that is in memory, and how far it has been read."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self._where = where
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._problems: list[Problem] = []
        self._json = strict(where, self._problems)
        self._text, self._at = "", 0
        self._line = self._column = 1  # of the text's first sign
        self._byte = 0  # of the place that has been reached
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
        while True:
            del self._problems[:]
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                going_on = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - _MARGIN
                if self._ended or not going_on:
                    raise self._told(error) from error
            except (RecursionError, ValueError) as error:  # an integer of thousands of digits
                deep = isinstance(error, RecursionError)
                got = "brackets nested too deeply" if deep else "malformed JSON"
                expected = "a document of sane depth" if deep else str(error)
                raise ConfigError(Problem(where=self._where, got=got, expected=expected)) from error
            else:
                if self._ended or end <= len(self._text) - _MARGIN:
                    self._go(end)
                    return value
            self._more()

    def found(self, key: str, index: int | None, where: str) -> Found:
        self.peek()
        begin = self._byte
        value = self.value()
        problems = tuple(attrs.evolve(problem, where=where) for problem in self._problems)
        return Found(key, value, index, begin, self._byte - begin, problems)

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.fault(f"Expecting '{sign}' delimiter")
        self._go(self._at + 1)

    def expect_end(self) -> None:
        if self.peek():
            raise self.fault("Extra data")

    def fault(self, message: str) -> ConfigError:
        return self._told(json.JSONDecodeError(message, self._text, self._at))

    def _told(self, error: json.JSONDecodeError) -> ConfigError:
        return ConfigError(syntax(error, self._where, self._line, self._column))

    def _go(self, to: int) -> None:
        passed = self._text[self._at : to]
        self._byte += len(passed) if passed.isascii() else len(passed.encode())
        self._at = to

    def _more(self) -> None:
        """Let go of what is done with, and take in as much again as is left, or a block."""
        kept = max(0, self._at - _SHOWN)
        used, rest = self._text[:kept], self._text[kept:]
        lines = used.count("\n")
        self._column = len(used) - used.rfind("\n") if lines else self._column + len(used)
        self._line += lines
        block = self._file.read(max(BLOCK, len(rest)))
        self._read += len(block)
        self._ended = not block
        try:
            self._text, self._at = rest + self._decoder.decode(block, final=self._ended), self._at - kept
        except UnicodeDecodeError as error:
            offset = self._read - len(error.object) + error.start
            raise ConfigError(no_utf8(error, self._where, offset)) from error
