"""JSON and YAML text to plain data, telling exactly where a text is malformed.

YAML is read as JSON's data model with lighter punctuation: keys are strings, `no` is a word, `1e-5` is a number, dates
are strings; tags, anchors and merge keys are refused. So a document says the same in either form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from framework.errors import ConfigError, Problem, at
from framework.schema import show

_VISIBLE = {code: 0x2400 + code for code in range(0x20)}  # Unicode's pictures of control characters
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SPACE = re.compile(r"[ \t\n\r]*")
DIGITS = 4300  # the most of an integer; Python reads no more by default
_FEWER_DIGITS = f"at most {DIGITS:,} digits"
# What `json` says of a fault, and what that means.
_SENTENCES = {
    "Unterminated string starting at": 'a closing " of the string that begins here',
    "Invalid \\escape": r"one of the escapes \" \\ \/ \b \f \n \r \t \uXXXX",
    "Invalid \\uXXXX escape": r"four hexadecimal digits after \u",
    "Extra data": "nothing after the end of the value",
}
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file. Raises ConfigError: missing, unreadable, or as `parse_object` does."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(Problem(where=str(path), got=error.strerror or str(error), expected="a JSON file")) from error
    return parse_object(text, str(path))


def parse_object(text: str | bytes, where: str) -> Mapping[str, Any]:
    """The JSON object that a program wrote: of a key given twice the last counts, and NaN and infinity are null.

    Raises ConfigError: malformed (line, column, the line itself with a caret), or no object.
    """
    value, problems = attempt(text, where=where)
    if not isinstance(value, dict):
        raise ConfigError(problems or Problem(where=where, got=show(value), expected="a JSON object"))
    if too_many := [problem for problem in problems if problem.expected == _FEWER_DIGITS]:
        raise ConfigError(too_many)
    return value


def attempt(
    text: str | bytes, *, where: str, yaml: bool = False, line: int = 0, column: int = 1, root: str | None = None
) -> tuple[Any, list[Problem]]:
    """(data, faults); the data is None when the text is malformed, and holds the last one of a key given twice.

    Args:
        text: bytes are UTF-8.
        line, column: where JSON that is a part of the file `where` begins in it, from 1; 0 for a whole file.
        root: place of the value of JSON, which the places of faults in it begin with; None is the file's.
    """
    place = f"{where}, line {line}" if line else where
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        return _yaml(text, where) if yaml else _json(text, where, line, column, f"{where}:" if root is None else root)
    except UnicodeDecodeError as error:
        return None, [no_utf8(error, place, error.start)]
    except RecursionError:
        return None, [Problem(where=place, got="brackets nested too deeply", expected="a document of sane depth")]


def dump_json(data: Any) -> str:
    """Raises ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def dump_yaml(data: Any) -> str:
    """Raises ValueError for NaN and infinity, as for JSON."""
    import yaml  # type: ignore[import-untyped]

    dumper_class: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})

    def write_string(dumper: Any, value: str) -> Any:
        quotes = None if isinstance(_scalar(value), str) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=quotes)

    dumper_class.add_representer(str, write_string)
    plain = json.loads(json.dumps(data, allow_nan=False))
    return str(yaml.dump(plain, Dumper=dumper_class, sort_keys=False, allow_unicode=True, width=120))


class Decoder:
    """Decodes JSON and finds what `json` lets pass or cannot name: keys given twice, NaN, infinity, huge integers.

    Args:
        strict: whether a control character in a string is an error; else it is part of the string.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._unfit: list[_Unfit] = []
        self._twice: list[tuple[dict[str, Any], str]] = []
        words: dict[str, Any] = {
            "object_pairs_hook": self._object,
            "parse_constant": self._constant,
            "parse_float": self._float,
        }
        self._quick = json.JSONDecoder(**words, strict=strict)
        self._bounded = json.JSONDecoder(**words, strict=strict, parse_int=self._integer)

    def raw_decode(self, text: str, begin: int = 0) -> tuple[Any, int]:
        """The value that starts at `begin`, not yet `settled`, and where it ends.

        Raises JSONDecodeError for what is malformed, RecursionError for what is nested too deeply.
        """
        for decoder in (self._quick, self._bounded):
            del self._unfit[:], self._twice[:]
            try:
                return decoder.raw_decode(text, begin)
            except json.JSONDecodeError:
                raise
            except ValueError:  # an integer with more digits than Python reads
                if decoder is self._bounded:
                    raise
        raise AssertionError

    def settled(self, value: Any, root: str) -> tuple[Any, list[Problem]]:
        """The value with null for what is no JSON, and every fault of it with its place.

        Args:
            value: the last one decoded.
            root: place of the value itself.
        """
        if not self._unfit and not self._twice:
            return value, []
        holder = {"": value}
        problems = []
        keys: dict[int, list[str]] = {}
        for found, key in self._twice:
            keys.setdefault(id(found), []).append(key)
        left: list[tuple[Any, Any, str]] = [(holder, "", root)]
        while left:
            parent, key, place = left.pop()
            node = parent[key]
            if isinstance(node, _Unfit):
                parent[key] = None
                problems.append(Problem(where=place.removesuffix(":"), got=node.got, expected=node.expected))
            for twice in keys.get(id(node), ()):
                got = f"the key {show(twice)} twice"
                problems.append(Problem(where=place.removesuffix(":"), got=got, expected="each key of an object once"))
            inner = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
            left += [(node, name, at(place, name)) for name, _ in reversed(inner)]
        return holder[""], problems

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) < len(pairs):
            seen = set[str]()
            for key, _ in pairs:
                if key in seen:
                    self._twice.append((read, key))
                seen.add(key)
        return read

    def _constant(self, word: str) -> _Unfit:
        return self._not(word, "a finite number, as JSON demands")

    def _float(self, digits: str) -> Any:
        number = float(digits)
        return number if math.isfinite(number) else self._constant(digits)

    def _integer(self, digits: str) -> Any:
        if len(digits) <= DIGITS:
            return int(digits)
        return self._not(_many(digits), _FEWER_DIGITS)

    def _not(self, got: str, expected: str) -> _Unfit:
        self._unfit.append(_Unfit(got, expected))
        return self._unfit[-1]


@attrs.frozen
class _Unfit:
    """What stands in a decoded value for what is no JSON."""

    got: str
    expected: str


def syntax(error: json.JSONDecodeError, where: str, line: int = 1, column: int = 1) -> Problem:
    """What is malformed and where, in a text that starts at this line and column of its file."""
    expected = _whole_sentence(error)
    place = line + error.lineno - 1, error.colno + (column - 1 if error.lineno == 1 else 0)
    begin = error.doc.rfind("\n", 0, error.pos) + 1
    return _syntax("JSON", where, error.doc[begin:].split("\n", 1)[0], error.pos - begin, *place, expected)


def _beyond_space(text: str, begin: int) -> int:
    space = _SPACE.match(text, begin)
    return space.end() if space else begin


def _whole_sentence(error: json.JSONDecodeError) -> str:
    """What is expected, where `json` says half a sentence that the place is to complete."""
    if error.msg.startswith("Expecting "):
        return error.msg.removeprefix("Expecting ")
    if error.msg.startswith("Invalid control character"):
        code = ord(error.doc[error.pos])
        short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(chr(code), f"\\u{code:04x}")
        return f"{short} for the control character U+{code:04X} in a string"
    return f"JSON: {_SENTENCES.get(error.msg.split(':')[0], error.msg)}"


def too_long(digits: str, where: str) -> Problem:
    """An integer of more digits than Python reads."""
    return Problem(where=where, got=_many(digits), expected=_FEWER_DIGITS)


def _many(digits: str) -> str:
    return f"an integer of {len(digits.removeprefix('-')):,} digits"


def no_utf8(error: UnicodeDecodeError, where: str, offset: int) -> Problem:
    """The byte of a file that is no text, `offset` bytes from its begin."""
    got = f"byte 0x{error.object[error.start]:02x} at offset {offset}"
    return Problem(where=where, got=got, expected="text in UTF-8")


def _json(text: str, where: str, line: int, column: int, root: str) -> tuple[Any, list[Problem]]:
    decoder = Decoder()
    try:
        value, end = decoder.raw_decode(text, _beyond_space(text, 0))
        if (rest := _beyond_space(text, end)) < len(text):
            raise json.JSONDecodeError("Extra data", text, rest)
    except json.JSONDecodeError as error:
        return None, [syntax(error, where, line or 1, column)]
    return decoder.settled(value, root)


def _yaml(text: str, where: str) -> tuple[Any, list[Problem]]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        source = text.splitlines()[mark.line : mark.line + 1] or [""]
        expected = f"YAML: {error.problem}"
        return None, [_syntax("YAML", where, source[0], mark.column, mark.line + 1, mark.column + 1, expected)]
    except yaml.YAMLError as error:  # a character that YAML forbids
        return None, [Problem(where=where, got="malformed YAML", expected=str(error).splitlines()[0])]
    problems: list[Problem] = []
    seen: set[int] = set()

    def fault(node: Any, path: str, got: str, expected: str) -> None:
        line = f", line {node.start_mark.line + 1}"
        problems.append(Problem(where=f"{where}{line}: {path}" if path else where + line, got=got, expected=expected))

    def plain(node: Any, path: str) -> Any:
        if id(node) in seen:
            return fault(node, path, "an alias", "the value itself")
        seen.add(id(node))
        if node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"):
            fault(node, path, f"the tag {node.tag}", "a plain value")
        if isinstance(node, yaml.SequenceNode):
            return [plain(item, at(path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return dict(entries(node, path))
        return _scalar(node.value) if node.style is None else node.value

    def entries(node: Any, path: str) -> Iterator[tuple[str, Any]]:
        keys: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                fault(key, path, "a list or mapping as key", "a string as key")
                continue
            if key.value in keys:
                fault(key, path, f"the key {show(key.value)} twice", "each key of a mapping once")
            keys.add(key.value)
            yield key.value, plain(value, at(path, key.value))

    return (None if root is None else plain(root, "")), problems


def _scalar(text: str) -> Any:
    """Value of an unquoted YAML scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 4000:  # beyond what Python reads as an integer
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _syntax(language: str, where: str, source: str, at: int, line: int, column: int, expected: str) -> Problem:
    """`source` is the line of the fault and `at` its place there."""
    first = max(0, at - 59)
    shown = source[first : first + 100].replace("\t", " ").rstrip("\r").translate(_VISIBLE)
    hint = f"    {shown}\n    {' ' * (at - first)}^"
    place = f"{where}, line {line}, column {column}"
    return Problem(where=place, got=f"malformed {language}", expected=expected, hint=hint)
