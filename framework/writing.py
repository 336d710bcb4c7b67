"""Writing files: each is there whole or not at all, and none takes the place of a device, a FIFO or a socket."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from framework.errors import ConfigError, Problem

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def write_bytes(path: Path, data: bytes) -> None:
    """Write the whole file; its folder is made.

    The file appears in one step. What was there before stays when it cannot be written. A symlink keeps pointing, and
    the file that it points to is written.

    Raises:
        ConfigError: what lies there is no regular file (`not_a_file`).
        OSError: it cannot be written; names the file.
    """
    with _replacing(path) as out:
        out.write(data)


def write_text(path: Path, pieces: Iterable[str]) -> None:
    """As `write_bytes`, of texts one after the other, in UTF-8.

    Half a surrogate pair is no UTF-8; it is written with a backslash, which is JSON's own escape of it.
    """
    with _replacing(path) as out:
        out.writelines(piece.encode("utf-8", "backslashreplace") for piece in pieces)


def not_a_file(path: Path, where: str) -> Problem | None:
    """What keeps `path` from being an output: it is there and no regular file. None where it may be written.

    A file is put in its place by a rename, which would remove a device or a FIFO for every other process too.

    Args:
        where: the setting that names it.
    """
    try:
        mode = mode_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), None)
    if kind is None:
        return None
    return Problem(where=where, got=f"'{path}', which is {kind}", expected="a regular file, or a name that is free")


def mode_of(path: Path) -> int:
    """Type and permissions of what lies at `path`, behind symlinks."""
    return os.stat(path).st_mode


class Unwritten(OSError):
    """An output that could not be written when requests had run."""


@contextmanager
def after_requests() -> Iterator[None]:
    """An OSError of the block is `Unwritten`: requests have run. That a reader has gone is no fault of theirs."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritten(error.errno, error.strerror or str(error), error.filename) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError of the block names the file: one of a write, a disk that is full, does not by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content is the file `path` when the block ends."""
    if problem := not_a_file(path, str(path)):
        raise ConfigError(problem)
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")  # nobody else's
    try:
        with naming(path):
            with unfinished.open("wb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            if target.exists():
                shutil.copymode(target, unfinished)
            unfinished.replace(target)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) == str(unfinished):
            error.filename = str(path)  # the name that the user knows
        raise
