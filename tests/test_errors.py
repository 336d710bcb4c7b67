from __future__ import annotations

import pytest

from framework.errors import ConfigError, GraphError, MultistageError, Problem, StageError, at, closest, nearest

FAULT = Problem(where="stages.a.max_batch", got="0", expected="an integer >= 1")


def test_one_problem_is_one_line() -> None:
    assert str(ConfigError(FAULT)) == "stages.a.max_batch: got 0, expected an integer >= 1"


def test_a_hint_stands_in_brackets() -> None:
    problem = Problem(where="runner", got='"a"', expected="a runner", hint="did you mean 'b'?")
    assert str(problem) == "runner: got \"a\", expected a runner (did you mean 'b'?)"


def test_a_hint_of_several_lines_stands_below() -> None:
    problem = Problem(where="f.json, line 1, column 2", got="malformed JSON", expected="value", hint="    [,\n     ^")
    assert str(problem).splitlines()[1:] == ["    [,", "     ^"]


def test_several_problems_are_numbered_and_kept() -> None:
    error = GraphError(iter([FAULT, FAULT]))
    assert error.problems == (FAULT, FAULT)
    assert str(error).splitlines() == ["2 problems:", f"  1. {FAULT}", f"  2. {FAULT}"]


@pytest.mark.parametrize("kind", [ConfigError, GraphError, StageError])
def test_all_errors_share_a_base(kind: type[MultistageError]) -> None:
    assert issubclass(kind, MultistageError)


@pytest.mark.parametrize(
    ("where", "key", "path"),
    [
        ("", "stages", "stages"),
        ("stages", "talker", "stages.talker"),
        ("terminals", 0, "terminals[0]"),
        ("graph.json:", "stages", "graph.json: stages"),
        ("requests.json:", 2, "requests.json: [2]"),
    ],
)
def test_paths(where: str, key: str | int, path: str) -> None:
    assert at(where, key) == path


def test_nearest_names_the_close_one_or_all() -> None:
    assert nearest("talkr", ["talker", "thinker"]) == "did you mean 'talker'?"
    assert nearest("zzz", ["b", "a"]) == "valid: a, b"
    assert nearest("zzz", []) == ""


def test_closest_is_none_when_nothing_is_close() -> None:
    assert closest("talkr", ["talker", "thinker"]) == "talker"
    assert closest("zzz", ["talker"]) is None
