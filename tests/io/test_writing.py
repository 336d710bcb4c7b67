"""Files that are there whole or not at all, whoever else writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.io.writing import replace


def test_two_that_write_one_file_at_once_both_write_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"

    def slow() -> Iterator[str]:
        yield "slow: "
        replace(path, ["quick"])
        assert path.read_text() == "quick"
        yield "whole"

    replace(path, slow())
    assert path.read_text() == "slow: whole"
    assert [*tmp_path.iterdir()] == [path]


def test_where_nothing_can_be_written_the_file_itself_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "table.csv"
    with pytest.raises(OSError, match="No such file") as raised:
        replace(path, ["whole"])
    assert raised.value.filename == str(path)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "half"
        raise OSError(28, "No space left on device")

    path = tmp_path / "table.csv"
    replace(path, ["whole"])
    with pytest.raises(OSError, match="No space left") as raised:
        replace(path, broken())
    assert raised.value.filename == str(path)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("table.csv", "whole")]
