"""Files that are there whole or not at all, whoever else writes them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.errors import ConfigError
from framework.writing import not_a_file, write_bytes, write_text


def test_two_that_write_one_file_at_once_both_write_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"

    def slow() -> Iterator[str]:
        yield "slow: "
        write_text(path, ["quick"])
        assert path.read_text() == "quick"
        yield "whole"

    write_text(path, slow())
    assert path.read_text() == "slow: whole"
    assert [*tmp_path.iterdir()] == [path]


def test_where_nothing_can_be_written_the_file_itself_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 100)
    with pytest.raises(OSError, match="name too long") as raised:
        write_text(path, ["whole"])
    assert raised.value.filename == str(path)


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "half"
        raise OSError(28, "No space left on device")

    path = tmp_path / "table.csv"
    write_text(path, ["whole"])
    with pytest.raises(OSError, match="No space left") as raised:
        write_text(path, broken())
    assert raised.value.filename == str(path)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("table.csv", "whole")]


def test_the_folder_of_a_file_is_made(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a" / "b" / "sound.wav", b"RIFF")
    assert (tmp_path / "a" / "b" / "sound.wav").read_bytes() == b"RIFF"


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "private.json"
    path.touch(mode=0o600)
    write_text(path, ["whole"])
    assert stat.filemode(path.stat().st_mode) == "-rw-------"


def test_a_symlink_keeps_pointing_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "real.json", tmp_path / "link.json"
    link.symlink_to(target)
    for content in ("new", "again"):  # first it points to nothing
        write_text(link, [content])
        assert link.is_symlink()
        assert target.read_text() == content
        assert not target.is_symlink()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL = [(fifo, "a FIFO"), (socket_file, "a socket"), (Path.mkdir, "a folder")]


@pytest.mark.parametrize(("make", "kind"), SPECIAL)
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_regular_file_is_never_replaced(
    make: Callable[[Path], None], kind: str, linked: bool, tmp_path: Path
) -> None:
    path = place = tmp_path / "out.wav"
    make(place)
    if linked:
        path = tmp_path / "link.wav"
        path.symlink_to(place)
    before = place.stat()
    with pytest.raises(ConfigError) as raised:
        write_bytes(path, b"RIFF")
    expected = "a regular file, or a name that is free"
    assert str(raised.value) == f"{path}: got '{path}', which is {kind}, expected {expected}"
    assert os.path.samestat(before, place.stat())
    assert path.is_symlink() is linked
    assert {*tmp_path.iterdir()} == {path, place}


@pytest.mark.parametrize(("mode", "kind"), [(stat.S_IFCHR, "a character device"), (stat.S_IFBLK, "a block device")])
def test_a_device_is_never_replaced(mode: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "null"
    path.write_text("as it was")
    monkeypatch.setattr("framework.writing.mode_of", lambda _: mode | 0o666)
    problem = not_a_file(path, "output_file")
    assert problem is not None
    assert (problem.where, problem.got) == ("output_file", f"'{path}', which is {kind}")
    with pytest.raises(ConfigError):
        write_text(path, ["new"])
    assert path.read_text() == "as it was"


def test_a_file_and_a_free_name_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    assert not_a_file(tmp_path / "there", "out") is None
    assert not_a_file(tmp_path / "free", "out") is None
