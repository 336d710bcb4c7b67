"""A JSON object read bit by bit is the same as one that is read whole, wherever the bits end."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.io import jsonstream
from framework.io.jsonstream import Found, walk
from framework.parsing import parse_object

DOCUMENT = """
{ "before" : -1.5e+3, "é": {"a": [1, {"b": null}], "c": "\\ud83d\\ude00 \\" ] }"},
  "list": [ {"prompt": "añb, ]}" } , 12,\t"x\\\\", [[], {}], 1.25E-2, true ],
  "after": [{"list": [1]}], "last": 7 }
"""


def found(text: str | bytes) -> list[Found]:
    data = text if isinstance(text, bytes) else text.encode()
    return list(walk(io.BytesIO(data), "f.json", "list"))


@pytest.mark.parametrize("block", [1, 2, 3, 5, 7, 64, 1 << 16])
def test_values_and_their_places(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    values: dict[str, Any] = {}
    for part in found(DOCUMENT):
        assert json.loads(DOCUMENT.encode()[part.offset : part.offset + part.length]) == part.value
        if part.index is None:
            values[part.key] = part.value
        else:
            values.setdefault(part.key, []).append(part.value)
            assert part.index == len(values[part.key]) - 1
    assert values == json.loads(DOCUMENT) and list(values) == list(json.loads(DOCUMENT))


@pytest.mark.parametrize("block", [1, 5, 1 << 16])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n ",
        "{",
        '{"a"',
        '{"a" 1}',
        '{"a": 1 "b": 2}',
        '{"a": 1,}',
        '{"a": 1}\n  {',
        '{"list": [1, 2',
        '{"list": [1 2]}',
        '{"list": [1,\n 2\n,]}',
        '{"list": [{"é": "ü" "b"}]}',
        '{"list": [{"a": "b]}',
        '{"list": ["\\x"]}',
        '{"list": ["\\u12"]}',
        '{"list": [tru]}',
        '{"list": [01]}',
        "{list: 1}",
    ],
)
def test_a_fault_is_where_a_whole_reading_finds_it(text: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    with pytest.raises(ConfigError) as whole:
        parse_object(text, "f.json")
    with pytest.raises(ConfigError) as streamed:
        found(text)
    (expected,), (got,) = whole.value.problems, streamed.value.problems
    assert (got.where, got.got) == (expected.where, expected.got)
    assert got.hint.splitlines()[1] == expected.hint.splitlines()[1]
    assert expected.hint.startswith(got.hint.splitlines()[0]), "the line as far as it has been read"


def test_a_fault_far_into_a_file_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"list": [\n' + '  {"prompt": "a"},\n' * 500 + '  {"prompt" "a"}]}'
    with pytest.raises(ConfigError, match=r"f\.json, line 502, column 13: got malformed JSON, expected ':' delimiter"):
        found(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"list": [1]}' + b" " * 70000 + b"\xff", "byte 0xff at offset 70013"),
        ('{"a": "' + "é" * 40000 + '", "b": "', "line 1, column 40016"),
        (b"[1]", r"f.json: got \[1\], expected an object"),
        ('{"a": 1, "list": [], "a": 2}', 'the key "a" twice'),
        ('{"a": ' + "[" * 100000 + "}", "nested too deeply"),
    ],
    ids=["no utf-8", "column counts signs", "no object", "key twice", "depth"],
)
def test_what_else_may_be_wrong(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        found(text)


def test_what_json_lets_pass_is_told_of_the_item_it_is_in() -> None:
    good, bad = found('{"list": [{"a": 1}, {"a": 1, "b": [{"c": NaN}, -Infinity], "a": ' + "9" * 6000 + "}]}")
    assert not good.problems
    assert [(problem.where, problem.got) for problem in bad.problems] == [
        ("f.json: list[1]", 'the key "a" twice'),
        ("f.json: list[1].a", "an integer of 6,000 digits"),
        ("f.json: list[1].b[0].c", "NaN"),
        ("f.json: list[1].b[1]", "-Infinity"),
    ]
    assert bad.value == {"a": None, "b": [{"c": None}, None]}, "null where there is no value"


def test_the_same_below_a_key_at_the_top() -> None:
    (part,) = found('{"a": {"b": [NaN]}}')
    assert [(problem.where, problem.got) for problem in part.problems] == [("f.json: a.b[0]", "NaN")]


@pytest.mark.parametrize("block", [1, 5, 1 << 16])
def test_a_control_character_is_a_fault_of_its_item(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    text = '{"list": [1,\n {"a": "x\0y", "b": "\n"}, 2]}'
    first, bad, last = found(text)
    assert (first.value, last.value, first.problems, last.problems) == (1, 2, (), ())
    assert text.encode()[bad.offset : bad.offset + bad.length] == b'{"a": "x\0y", "b": "\n"}'
    (problem,) = bad.problems
    assert problem.where == "f.json, line 2, column 10"
    assert problem.expected == r"\u0000 for the control character U+0000 in a string"
    assert problem.hint.startswith('     {"a": "x\u2400'), "a control character is shown as its picture"


@pytest.mark.parametrize("block", [1, 5, 1 << 16])
def test_a_string_without_an_end_is_told_where_it_breaks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    with pytest.raises(ConfigError, match=r"line 1, column 20: got malformed JSON, expected \\n for the control"):
        found('{"list": [{"a": "b}\n, {"a": "c"}]}')


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 16])
def test_a_byte_order_mark_is_no_part_of_the_text(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    data = b'\xef\xbb\xbf{"list": [1, "\xff"]}'
    with pytest.raises(ConfigError, match="byte 0xff at offset 17"):
        found(data)
    good = data.replace(b"\xff", "é".encode())
    assert [good[part.offset : part.offset + part.length] for part in found(good)] == [b"1", '"é"'.encode()]


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
def test_every_value_has_its_line_and_column(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "BLOCK", block)
    places = [(part.line, part.column) for part in found('{"é": 1,\n\n "list": [{\n}, 2,\n3]}')]
    assert places == [(1, 7), (3, 11), (4, 4), (5, 1)]


def test_memory_does_not_grow_with_the_file() -> None:
    class Endless(io.RawIOBase):
        """A list of 30 MB that is nowhere whole."""

        def __init__(self) -> None:
            self.parts: Iterator[bytes] = iter(
                [b'{"list": [0', *[b', {"prompt": "' + b"x" * 1000 + b'"}'] * 30000, b"]}"]
            )

        def read(self, size: int = -1) -> bytes:
            return next(self.parts, b"")

    tracemalloc.start()
    count = sum(1 for _ in walk(Endless(), "f", "list"))  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 30001
    assert peak < 1 << 20
