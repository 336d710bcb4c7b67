"""Writing files so that a full disk is told with the file's name, and no file is half written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


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


def write_bytes(path: Path, data: bytes) -> None:
    """The file; its folder is made."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def replace(path: Path, text: Iterable[str]) -> None:
    """Put a file of these texts in the place of `path` in one step; nothing is left of one that cannot be written.

    Half a surrogate pair is no UTF-8; it is written with a backslash, which is JSON's own escape of it.
    """
    with (
        replacing(path) as unfinished,
        unfinished.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as out,
    ):
        out.writelines(text)
        out.flush()
        os.fsync(out.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to, which is nobody else's; what lies there at the end of the block becomes `path`."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with naming(path):
            yield unfinished
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) == str(unfinished):
            error.filename = str(path)  # the name that the user knows
        raise
