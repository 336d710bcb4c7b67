"""Engine folders appear whole or not at all, and a file has a name made of its content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from framework.errors import ConfigError, Problem

_MARKS = ("engine.json", "multistage_config.json", "*/engine.json")  # what only a build leaves
_BLOCK = 64 * 1024
_SAMPLES = 32
_NAMED_WITHIN = 2.0  # seconds from having a lock to having written who has it, on a machine that is busy


@contextlib.contextmanager
def building(folder: Path, *, needed: int | None = None, keep_subfolders: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder` to build in; it becomes `folder` when the block ends without an error.

    A second builder of the same folder, in any process, waits for the first. After an error or an interrupt nothing is
    left behind and an older `folder` is as it was; what a killed process left is removed by the next build.

    Args:
        folder: where the result shall lie; an older one is replaced as a whole.
        needed: bytes the build will write, when known; too little free space is then found before the work.
        keep_subfolders: carry over the subfolders of the older folder that the new one does not have (the engines of
            other components lie in those).

    Raises:
        ConfigError: the disk is full, or will be; or `folder` is a file, or holds something that no build has made.
    """
    folder = Path(os.path.realpath(folder) if folder.is_symlink() else os.path.abspath(folder))
    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary, old = (parent / f".{folder.name}.{suffix}" for suffix in ("building", "old"))
    with _locked(parent / f".{folder.name}.lock"):
        _recover(folder, temporary, old)
        _ours(folder)
        free = shutil.disk_usage(parent).free
        if needed is not None and free < needed:
            raise ConfigError(_full(folder, needed))
        temporary.mkdir()
        try:
            yield temporary
            if keep_subfolders and folder.is_dir():
                _carry(folder, temporary)
            _flush(temporary)
            _swap(temporary, folder, old)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConfigError(_full(folder, needed)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def claimed(folder: Path, *, waiting: Callable[[str], None] = lambda who: None) -> Iterator[None]:
    """Be the only process that looks what `folder` lacks and builds it; also of those that do not build at once.

    The claim goes with its process, however that ends.

    Args:
        waiting: called once when another process has it, with who that is ("process 123 on host, since 12:34:56").
    """
    folder = Path(os.path.abspath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{folder.name}.claim", waiting):
        yield


def _ours(folder: Path) -> None:
    """Raise ConfigError for a place where a build would destroy what somebody else put there."""
    hint = "name a folder that is not there yet"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(Problem(where=str(folder), got="a file", expected="a folder to build in", hint=hint))
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and not any(any(folder.glob(mark)) for mark in _MARKS):
        got = f"a folder with {names[0]!r} in it"
        expected = "an empty folder, or one with engines that a build may replace"
        raise ConfigError(Problem(where=str(folder), got=got, expected=expected, hint=hint))


def digest(path: Path) -> str:
    """Digest of a file: its size and 32 blocks of 64 KiB spread evenly from the first byte to the last.

    Files up to 2 MiB are read whole. Of larger ones this sees truncation and other weights, which differ everywhere, in
    milliseconds, but not a change of a few bytes between two samples.
    """
    size = path.stat().st_size
    state = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        if size <= _BLOCK * _SAMPLES:
            state.update(file.read())
        else:
            for sample in range(_SAMPLES):
                file.seek((size - _BLOCK) * sample // (_SAMPLES - 1))
                state.update(file.read(_BLOCK))
    return state.hexdigest()[:32]


@contextlib.contextmanager
def _locked(path: Path, waiting: Callable[[str], None] = lambda who: None) -> Iterator[None]:
    told = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                waiting(_holder(handle))
                told = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        # The holder before us removed the file it had locked: lock the one that stands there now.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                break
        os.close(handle)
    try:
        os.truncate(handle, 0)
        os.pwrite(
            handle, f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%H:%M:%S},".encode(), 0
        )
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _holder(handle: int) -> str:
    """Who has the lock of this file, as it writes a moment after it has it."""
    name = b""
    deadline = time.monotonic() + _NAMED_WITHIN
    while not name and time.monotonic() < deadline:
        time.sleep(0.05)
        name = os.pread(handle, 200, 0)
    return name.decode(errors="replace") or "another process"


def _recover(folder: Path, temporary: Path, old: Path) -> None:
    """Undo what a process killed in the middle left behind."""
    shutil.rmtree(temporary, ignore_errors=True)
    if old.exists():
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)


def _carry(folder: Path, temporary: Path) -> None:
    """Link the subfolders that the new folder lacks, so that the old one stays whole until it is replaced."""
    for child in folder.iterdir():
        if child.is_dir() and not (temporary / child.name).exists():
            shutil.copytree(child, temporary / child.name, copy_function=os.link)


def _swap(temporary: Path, folder: Path, old: Path) -> None:
    if folder.exists():
        folder.rename(old)
    try:
        temporary.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _full(folder: Path, needed: int | None) -> Problem:
    free = shutil.disk_usage(folder.parent).free
    expected = f"{needed:,} bytes for the build" if needed is not None else "room for the build"
    return Problem(where=str(folder), got=f"{free:,} bytes free on its disk", expected=expected)
