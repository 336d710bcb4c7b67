from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.parsing import attempt, dump_json, dump_yaml, parse_object, read_object


def test_malformed_json_shows_the_place() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_object('{"a": 1,\n "b": [1 2]}', "requests.json")
    assert str(caught.value).splitlines() == [
        "requests.json, line 2, column 10: got malformed JSON, expected ',' delimiter",
        '     "b": [1 2]}',
        "             ^",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b'{\n  "a": 1,\n  "b" 2\n}', ", line 3, column 7: got malformed JSON, expected ':'", id="syntax"),
        pytest.param(b'{"a": [1,', ", line 1, column 10: got malformed JSON", id="ends early"),
        pytest.param(b"", ", line 1, column 1: got malformed JSON", id="empty"),
        pytest.param(b"[1]", ": got [1], expected a JSON object", id="no object"),
        pytest.param(b'{"a": "\xff"}', ": got byte 0xff at offset 7, expected text in UTF-8", id="no UTF-8"),
        pytest.param(b'{"a": ' * 100_000, ": got brackets nested too deeply", id="brackets without end"),
        pytest.param(
            b'{"a": ' + b"9" * 5000 + b"}",
            ": a: got an integer of 5,000 digits",
            id="endless number",
        ),
        pytest.param(None, ": got No such file", id="missing"),
    ],
)
def test_a_file_that_holds_no_json_object(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_object(path)
    assert str(caught.value).startswith(str(path)) and said in str(caught.value)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_an_object_is_read_from_its_file(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "file.json").write_bytes(mark + '{"ä": [1, null]}'.encode())
    assert read_object(tmp_path / "file.json") == {"ä": [1, None]}


def test_what_published_loaders_take_is_taken() -> None:
    """A checkpoint is not refused for a key that is not read."""
    assert parse_object('{"a": 1, "limit": Infinity, "eps": NaN, "a": 2}', "config.json") == {
        "a": 2,
        "limit": None,
        "eps": None,
    }


def test_a_long_line_is_cut_around_the_fault() -> None:
    _, (problem,) = attempt("[" + "1, " * 1000 + "x]", where="f")
    line, caret = problem.hint.splitlines()
    assert line[caret.index("^")] == "x"
    assert len(line) <= 104


def test_malformed_yaml_shows_the_place() -> None:
    _, (problem,) = attempt("a:\n  b: c: d\n", where="f.yaml", yaml=True)
    assert (problem.where, problem.got) == ("f.yaml, line 2, column 7", "malformed YAML")
    assert problem.hint.splitlines() == ["      b: c: d", "          ^"]


@pytest.mark.parametrize(
    ("text", "yaml", "where", "got"),
    [
        pytest.param('{"x": {"id": 1, "id": 2}}', False, "f: x", 'the key "id" twice', id="json"),
        pytest.param("x:\n  id: 1\n  id: 2\n", True, "f, line 3: x", 'the key "id" twice', id="yaml"),
    ],
)
def test_a_key_given_twice_is_named(text: str, yaml: bool, where: str, got: str) -> None:
    data, (problem,) = attempt(text, where="f", yaml=yaml)
    assert (problem.where, problem.got) == (where, got)
    assert data == {"x": {"id": 2}}


@pytest.mark.parametrize(
    ("text", "yaml"),
    [
        pytest.param("[NaN]", False, id="json NaN"),
        pytest.param("[" * 100_000, False, id="json nested too deeply"),
        pytest.param("[" * 5_000, True, id="yaml nested too deeply"),
        pytest.param("[" + "9" * 5000 + "]", False, id="json integer of 5000 digits"),
        pytest.param("", False, id="empty json"),
        pytest.param("a: &x 1\nb: *x", True, id="yaml alias"),
        pytest.param("a: &x [*x]", True, id="yaml alias of itself"),
        pytest.param("!!python/object/apply:os.system ['true']", True, id="yaml tag"),
        pytest.param("? [a]\n: b", True, id="yaml list as key"),
        pytest.param("a: 1\n---\nb: 2", True, id="two yaml documents"),
        pytest.param("a: \x07", True, id="yaml control character"),
    ],
)
def test_what_is_refused(text: str, yaml: bool) -> None:
    _, problems = attempt(text, where="f", yaml=yaml)
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("8", 8),
        ("010", "010"),
        ("1e-5", 1e-5),
        ("-1.5", -1.5),
        ("'8'", "8"),
        ("2026-01-01", "2026-01-01"),
        ("request:messages", "request:messages"),
    ],
)
def test_yaml_means_what_json_means(text: str, value: Any) -> None:
    assert attempt(f"key: {text}", where="f", yaml=True) == ({"key": value}, [])


def test_yaml_keys_are_strings() -> None:
    assert attempt("{1: a, no: b, true: c}", where="f", yaml=True) == ({"1": "a", "no": "b", "true": "c"}, [])


@pytest.mark.parametrize("yaml", [False, True], ids=["json", "yaml"])
def test_what_is_written_reads_back_equal(yaml: bool) -> None:
    words = ["", "~", "null", "true", "no", "8", "010", "1e-5", "-1.5", "2026-01-01", "a: b", "#", "é\n語", " x ", "*a"]
    data: dict[str, Any] = {
        "words": words,
        "keys": {word: 1 for word in words},
        "n": [1, -2, 1e-5, 1e20, 0.1, True, None, {}, []],
    }
    assert attempt((dump_yaml if yaml else dump_json)(data), where="f", yaml=yaml) == (data, [])


@pytest.mark.parametrize("dump", [dump_json, dump_yaml])
def test_infinity_is_not_written(dump: Any) -> None:
    with pytest.raises(ValueError):
        dump([float("inf")])
