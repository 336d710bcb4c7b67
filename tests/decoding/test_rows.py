"""Which rows share a call."""

from __future__ import annotations

from typing import Any

import pytest

from framework.decoding.rows import Work, plan
from tests.decoding.fakes import Writer

LONG = range(1, 9)


def planned(writers: list[Writer], **settings: Any) -> list[Work[Writer]]:
    rows = {writer.row.index: writer for writer in writers}
    return plan(writers, rows, **{"count": 6, "chunk": 4, "bucket": 0, "full": False, **settings})


def reading(index: int, length: int = 0) -> Writer:
    writer = Writer(index, LONG)
    writer.length = length
    return writer


def writing(index: int) -> Writer:
    return reading(index, len(LONG))


def shape(work: Work[Writer]) -> tuple[int, int, int]:
    return work.start, work.stop, work.tokens


@pytest.mark.parametrize(
    ("writers", "settings", "calls"),
    [
        ([reading(0), reading(1), reading(3)], {}, [(0, 2, 4), (3, 4, 4)]),  # runs without a gap
        ([reading(0, 4), reading(1, 4)], {}, [(0, 1, 4), (1, 2, 4)]),  # prompts that go on
        ([reading(0, 6)], {}, [(0, 1, 2)]),  # what is left of a prompt
        ([reading(0), reading(1)], {"bucket": 2}, [(0, 1, 4), (1, 2, 4)]),
        ([writing(2), writing(4)], {}, [(2, 5, 1)]),  # one call over the gap
        ([writing(1)], {"bucket": 3}, [(0, 3, 1)]),
        ([writing(4)], {"bucket": 3}, [(0, 5, 1)]),
        ([writing(4)], {"full": True}, [(0, 6, 1)]),
        ([reading(2), writing(1)], {"full": True}, [(2, 3, 4), (0, 6, 1)]),  # prompts first
        ([], {}, []),
    ],
)
def test_calls_of_a_step(writers: list[Writer], settings: dict[str, Any], calls: list[tuple[int, int, int]]) -> None:
    assert [shape(work) for work in planned(writers, **settings)] == calls


def test_a_row_in_between_is_fed_what_the_first_active_one_is() -> None:
    first, last = writing(1), writing(3)
    (work,) = planned([first, last])
    assert work.rows == (first, None, last)
    assert work.fed == ((first, 1), (first, 1), (last, 1))
