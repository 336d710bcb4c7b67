from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import attrs
import pytest
from attrs import validators as v

from framework.errors import ConfigError
from framework.schema import attempt, structure, unstructure


@attrs.frozen
class Point:
    """A class that is one string in a file."""

    form: ClassVar[str] = "'<x>,<y>'"
    x: int
    y: int

    @classmethod
    def parse(cls, text: str) -> Point:
        x, y = text.split(",")
        return cls(int(x), int(y))

    def __str__(self) -> str:
        return f"{self.x},{self.y}"


@attrs.frozen(kw_only=True)
class Port:
    id: str
    kind: str = "text"


def _even(_: Any, __: Any, value: int) -> None:
    if value % 2:
        raise ValueError("an even number")


@attrs.frozen(kw_only=True)
class Everything:
    required: int
    word: str = "w"
    flag: bool = False
    number: float = attrs.field(default=1.0, validator=[v.gt(0.0), v.le(2.0)])
    mode: Literal["fail", "skip", 1] = "fail"
    words: tuple[str, ...] = ()
    pair: tuple[int, str] = (0, "")
    bias: Mapping[int, float] = attrs.field(factory=dict, validator=v.max_len(2))
    weights: Mapping[str, int] = attrs.field(factory=dict, converter=lambda value: MappingProxyType(dict(value)))
    maybe: int | None = None
    either: int | str = 0
    path: Path = Path()
    anything: Any = None
    kinds: frozenset[str] = frozenset()
    point: Point = Point(0, 0)
    source: str = attrs.field(default="", metadata={"key": "from"})
    even: int = attrs.field(default=0, validator=_even)
    choice: str = attrs.field(default="fp16", validator=v.in_(["fp16", "fp32"]))
    name: str = attrs.field(default="abc", validator=v.matches_re("[a-z]+"))
    child: Port | None = None
    ports: tuple[Port, ...] = attrs.field(default=(), metadata={"by": "id"})


FULL = {
    "required": 1,
    "word": "x",
    "flag": True,
    "number": 2,
    "mode": 1,
    "words": ["a", "b"],
    "pair": [1, "one"],
    "bias": {"7": -1.5, "-8": 2},
    "weights": {"a": 1},
    "maybe": 3,
    "either": "s",
    "path": "a/b",
    "anything": {"deep": [1, {"x": None}]},
    "kinds": ["text", "audio"],
    "point": "3,4",
    "from": "request:x",
    "even": 2,
    "choice": "fp32",
    "name": "abc",
    "child": {"id": "c"},
    "ports": [{"id": "a"}, {"id": "b", "kind": "audio"}],
}


def faults(data: Any, cls: type = Everything, where: str = "") -> dict[str, tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        structure(cls, data, where=where)
    return {problem.where: (problem.got, problem.expected) for problem in caught.value.problems}


def test_every_kind_of_field_is_read() -> None:
    value = structure(Everything, FULL, where="")
    assert value == Everything(
        required=1,
        word="x",
        flag=True,
        number=2.0,
        mode=1,
        words=("a", "b"),
        pair=(1, "one"),
        bias={7: -1.5, -8: 2.0},
        weights={"a": 1},
        maybe=3,
        either="s",
        path=Path("a/b"),
        anything={"deep": [1, {"x": None}]},
        kinds=frozenset({"text", "audio"}),
        point=Point(3, 4),
        source="request:x",
        even=2,
        choice="fp32",
        name="abc",
        child=Port(id="c"),
        ports=(Port(id="a"), Port(id="b", kind="audio")),
    )
    assert type(value.number) is float


def test_written_data_reads_back_equal() -> None:
    value = structure(Everything, FULL, where="")
    assert structure(Everything, json.loads(json.dumps(unstructure(value))), where="") == value


def test_without_defaults_only_what_differs_is_written() -> None:
    assert unstructure(Everything(required=1, maybe=2), defaults=False) == {"required": 1, "maybe": 2}


def test_a_list_of_named_things_may_be_a_mapping() -> None:
    keyed = structure(Everything, {"required": 1, "ports": {"a": {}, "b": {"kind": "audio"}}}, where="")
    assert keyed.ports == (Port(id="a"), Port(id="b", kind="audio"))
    assert unstructure(keyed, defaults=False, keyed=True)["ports"] == {"a": {}, "b": {"kind": "audio"}}


def test_things_of_one_name_are_written_as_a_list() -> None:
    twice = Everything(required=1, ports=(Port(id="a"), Port(id="a", kind="audio")))
    assert unstructure(twice, defaults=False, keyed=True)["ports"] == [{"id": "a"}, {"id": "a", "kind": "audio"}]


def test_an_instance_is_taken_as_it_is() -> None:
    value = Everything(required=1)
    assert structure(Everything, value, where="") is value


@pytest.mark.parametrize(
    ("data", "where", "got", "expected"),
    [
        pytest.param({}, "required", "nothing", "an integer (required)", id="missing"),
        pytest.param({"required": "8"}, "required", '"8"', "an integer", id="no string to integer"),
        pytest.param({"required": True}, "required", "true", "an integer", id="no bool to integer"),
        pytest.param({"required": 2.0}, "required", "2.0", "an integer", id="no float to integer"),
        pytest.param({"required": None}, "required", "null", "an integer", id="no null"),
        pytest.param({"word": 1}, "word", "1", "a string", id="no integer to string"),
        pytest.param({"flag": 1}, "flag", "1", "true or false", id="no integer to bool"),
        pytest.param({"flag": "true"}, "flag", '"true"', "true or false", id="no string to bool"),
        pytest.param({"number": "1"}, "number", '"1"', "a number", id="no string to number"),
        pytest.param({"number": float("inf")}, "number", "Infinity", "a number", id="no infinity"),
        pytest.param({"number": 10**400}, "number", "1" + "0" * 55 + " ...", "a number", id="no number beyond doubles"),
        pytest.param({"number": 0}, "number", "0", "a number > 0.0 and <= 2.0", id="below a bound"),
        pytest.param({"number": 3.5}, "number", "3.5", "a number > 0.0 and <= 2.0", id="above a bound"),
        pytest.param({"mode": "stop"}, "mode", '"stop"', 'one of "fail", "skip", 1', id="literal"),
        pytest.param({"mode": True}, "mode", "true", 'one of "fail", "skip", 1', id="literal 1 is not true"),
        pytest.param({"words": "abc"}, "words", '"abc"', "a list of strings", id="a string is no list"),
        pytest.param({"words": ["a", 1]}, "words[1]", "1", "a string", id="list item"),
        pytest.param({"pair": [1]}, "pair", "[1]", "a list of 2 items", id="fixed length"),
        pytest.param({"pair": [1, 2]}, "pair[1]", "2", "a string", id="fixed item"),
        pytest.param({"bias": {"x": 1}}, "bias.x", 'the key "x"', "an integer as key", id="mapping key"),
        pytest.param({"bias": {"1": "a"}}, "bias.1", '"a"', "a number", id="mapping value"),
        pytest.param({"bias": [1]}, "bias", "[1]", "a mapping", id="a list is no mapping"),
        pytest.param(
            {"bias": {"1": 1, "2": 2, "3": 3}},
            "bias",
            '{"1": 1, "2": 2, "3": 3}',
            "a mapping of at most 2 entries",
            id="too many",
        ),
        pytest.param({"maybe": "x"}, "maybe", '"x"', "an integer", id="optional"),
        pytest.param({"either": 1.5}, "either", "1.5", "an integer or a string", id="union"),
        pytest.param({"path": 3}, "path", "3", "a path", id="path"),
        pytest.param({"path": ""}, "path", '""', "a path", id="empty path"),
        pytest.param({"point": "3"}, "point", '"3"', "'<x>,<y>'", id="malformed string form"),
        pytest.param({"point": 3}, "point", "3", "'<x>,<y>'", id="no string form"),
        pytest.param({"from": 3}, "from", "3", "a string", id="spelling of the file"),
        pytest.param({"source": "x"}, "source", 'unknown key "source"', "a known key", id="not the field's name"),
        pytest.param({"even": 3}, "even", "3", "an even number", id="validator of one's own"),
        pytest.param({"choice": "fp64"}, "choice", '"fp64"', 'one of "fp16", "fp32"', id="in_"),
        pytest.param({"name": "A1"}, "name", '"A1"', "a string matching [a-z]+", id="matches_re"),
        pytest.param({"child": {}}, "child.id", "nothing", "a string (required)", id="nested"),
        pytest.param({"ports": [{"id": "a", "kind": 1}]}, "ports.a.kind", "1", "a string", id="item by its id"),
        pytest.param({"ports": [{"kind": "x"}]}, "ports[0].id", "nothing", "a string (required)", id="item by index"),
        pytest.param({"ports": {"a": 3}}, "ports.a", "3", "a mapping", id="keyed item"),
        pytest.param({"ports": {"a": {"id": "b"}}}, "ports.a.id", '"b"', '"a", as its key says', id="keyed twice"),
        pytest.param({"ports": 3}, "ports", "3", "a list, or a mapping by id", id="neither list nor mapping"),
    ],
)
def test_a_fault_says_where_what_and_what_instead(data: Any, where: str, got: str, expected: str) -> None:
    sound = {} if where == "required" else {"required": 1}
    assert faults({**sound, **data}) == {where: (got, expected)}


def test_every_fault_is_found_at_once_and_a_bad_sibling_hides_no_validator() -> None:
    found = faults({"word": 1, "number": 3, "even": 5, "ports": [{"id": "a"}, {"kind": 2}], "nmae": "x"})
    assert sorted(found) == ["even", "nmae", "number", "ports[1].id", "ports[1].kind", "required", "word"]


def test_a_misspelt_key_names_the_nearest_and_is_one_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        structure(Everything, {"requird": 1}, where="run")
    (problem,) = caught.value.problems
    assert (problem.where, problem.hint) == ("run.requird", "did you mean 'required'?")


@pytest.mark.parametrize(
    ("field", "value", "meant"), [("mode", "fial", "fail"), ("choice", "fp61", "fp16")], ids=["literal", "in_"]
)
def test_a_misspelt_value_names_the_nearest(field: str, value: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        structure(Everything, {"required": 1, field: value}, where="")


@pytest.mark.parametrize(
    ("where", "path"), [("stages.a", "stages.a.word"), ("x.json:", "x.json: word"), ("", "word")], ids=repr
)
def test_paths_begin_where_the_data_stands(where: str, path: str) -> None:
    assert list(faults({"required": 1, "word": 2}, where=where)) == [path]


def test_data_that_is_no_mapping() -> None:
    assert faults([1], where="x.json:") == {"x.json": ("[1]", "a mapping")}


@attrs.frozen(kw_only=True)
class Span:
    first: int
    last: int = attrs.field()

    @last.validator
    def _after(self, _: Any, value: int) -> None:
        if value < self.first:
            raise ValueError("at least first")

    def __attrs_post_init__(self) -> None:
        if self.first + self.last > 100:
            raise ValueError("first + last <= 100")


def test_a_validator_may_look_at_other_fields() -> None:
    assert faults({"first": 3, "last": 2}, Span) == {"last": ("2", "at least first")}


def test_a_validator_that_looks_at_a_faulty_field_is_left_out() -> None:
    assert faults({"first": "3", "last": 2}, Span) == {"first": ('"3"', "an integer")}


def test_a_rule_over_several_fields() -> None:
    assert faults({"first": 60, "last": 61}, Span, "s") == {"s": ('{"first": 60, "last": 61}', "first + last <= 100")}


def test_attempt_gives_what_could_be_read() -> None:
    value, problems = attempt(Everything, {"required": 1, "word": 5, "ports": [{"kind": 1}, 3]}, where="")
    assert value == Everything(required=1, ports=(Port(id=""),))
    assert [problem.where for problem in problems] == ["word", "ports[0].id", "ports[0].kind", "ports[1]"]


def test_attempt_without_a_required_value_gives_nothing() -> None:
    value, problems = attempt(Everything, {}, where="")
    assert value is None
    assert len(problems) == 1


def test_what_no_file_can_carry_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be written"):
        unstructure(Everything(required=1, anything=object()))
