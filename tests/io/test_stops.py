"""Stop strings: found however the text is cut, and not part of it."""

from __future__ import annotations

import itertools

import pytest

from framework.errors import ConfigError
from framework.io.stops import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    finder = StopStrings(stops)
    text = ""
    for piece in pieces:
        safe, stopped = finder.push(piece)
        text += safe
        if stopped:
            return text, True
    return text + finder.flush(), False


def cuts(text: str) -> list[list[str]]:
    """Every way to cut `text` into pieces."""
    ways = itertools.product([False, True], repeat=max(0, len(text) - 1))
    result = []
    for way in ways:
        places = [0, *(place for place, cut in enumerate(way, 1) if cut), len(text)]
        result.append([text[a:b] for a, b in itertools.pairwise(places)])
    return result


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        pytest.param(["END"], "abc END d", ("abc ", True), id="in the middle"),
        pytest.param(["\n\n"], "ab\n\n\nc", ("ab", True), id="the first of two"),
        pytest.param(["END"], "abc EN", ("abc EN", False), id="only its start"),
        pytest.param(["aab"], "aaaabc", ("aa", True), id="start repeats"),
        pytest.param(["cd", "b"], "abcd", ("a", True), id="the earlier one"),
        pytest.param(["abcd", "bc"], "xabcd", ("xa", True), id="complete first"),
        pytest.param(["abc", "bc"], "xabc", ("x", True), id="end together"),
        pytest.param(["🐈é"], "a🐈🐈éb", ("a🐈", True), id="any characters"),
        pytest.param(["abc"], "", ("", False), id="no text"),
        pytest.param([], "abc", ("abc", False), id="no stop strings"),
    ],
)
def test_result_does_not_depend_on_the_pieces(stops: list[str], text: str, expected: tuple[str, bool]) -> None:
    assert {run(stops, pieces) for pieces in cuts(text)} == {expected}


def test_only_a_possible_start_is_held_back() -> None:
    finder = StopStrings(["<end>", "||"])
    assert [finder.push(piece) for piece in ["a<", "b<e", "n", "x|", "y"]] == [
        ("a", False),
        ("<b", False),
        ("", False),
        ("<enx", False),
        ("|y", False),
    ]
    assert finder.flush() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stop\[1\]: got '', expected at least one character"):
        StopStrings(["a", ""])
