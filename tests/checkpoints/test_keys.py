"""A published config: every fault at once, each with its place, what stands there and what may."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import pytest

from framework.checkpoints.keys import Keys
from framework.errors import ConfigError


@attrs.frozen(kw_only=True)
class Part:
    width: int = 4
    act: Literal["gelu"] = "gelu"
    bands: int | None = 8


def keys(**data: Any) -> Keys:
    return Keys(data, "config.json:")


def test_what_is_given_and_what_is_not() -> None:
    read = keys(layers=2, eps=1e-6, tied=True, pad=0, name="a", ids={"Ann": 3}, null=None, other=object())
    assert (read.size("layers"), read.number("eps"), read.flag("tied"), read.id("pad")) == (2, 1e-6, True, 0)
    assert (read.text("name"), read.ids("ids")) == ("a", {"ann": 3})
    assert (read.size("null", 7), read.flag("absent"), read.number("absent", 0.5)) == (7, False, 0.5)
    assert (read.either("null", "layers"), read.either("null", "absent")) == ("layers", "null")
    assert read.checked("value") == "value"


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda k: k.size("absent"), "absent: got nothing, expected a whole number of 1 or more"),
        (lambda k: k.size("zero"), "zero: got 0, expected a whole number of 1 or more"),
        (lambda k: k.id("flag"), "flag: got true, expected a whole number of 0 or more"),
        (lambda k: k.number("word"), 'word: got "two", expected a number above 0'),
        (lambda k: k.flag("word"), 'word: got "two", expected true or false'),
        (lambda k: k.ids("part"), 'part: got {"width": "wide"}, expected an object of names and ids'),
        (lambda k: k.only(word="one"), 'word: got "two", expected "one"'),
        (lambda k: k.part("part").size("width"), 'part.width: got "wide", expected a whole number of 1 or more'),
        (lambda k: k.part("part").fields(Part), 'part.width: got "wide", expected an integer'),
        (lambda k: k.part("tanh").fields(Part), 'tanh.act: got "tanh", expected "gelu"'),
    ],
)
def test_a_fault(read: Any, said: str) -> None:
    found = keys(zero=0, flag=True, word="two", part={"width": "wide"}, tanh={"act": "tanh"})
    read(found)
    with pytest.raises(ConfigError) as caught:
        found.checked(None)
    assert str(caught.value) == f"config.json: {said}"


def test_all_faults_are_told_and_each_once() -> None:
    found = keys(part={"inner": {"heads": -1}})
    inner = found.part("part").part("inner")
    assert 64 // inner.size("heads") == inner.size("heads") * 64, "what is read goes on"
    found.id("pad")
    assert [problem.where for problem in found.problems] == ["config.json: part.inner.heads", "config.json: pad"]


def test_of_a_part_that_is_missing_only_that_is_told() -> None:
    found = keys(other=1)
    found.part("part").part("inner").size("heads")
    assert [str(problem) for problem in found.problems] == ["config.json: part: got nothing, expected an object"]
    assert found.part("part", default={}).size("heads", 2) == 2


def test_fields_are_keys_and_null_is_a_value_only_where_it_may_be_one() -> None:
    part = keys(part={"width": None, "bands": None, "unknown": 1}).part("part")
    assert part.fields(Part) == Part(width=4, bands=None)
