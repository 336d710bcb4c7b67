"""Standard input, output and error of a command: also closed, on a full disk, or with a reader that has gone.

A stream that the shell has closed leaves its number free: the next file that is opened would get it, and what is
printed would be written into that file. And Python prints on standard output what is meant for a closed standard error.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any, TextIO

READER_GONE = 128 + signal.SIGPIPE  # exit status: what a shell reports of its own tools when their reader leaves

STANDARD_OUTPUT = "standard output"


class Lasting(io.FileIO):
    """A standard stream that never stops its writer: after the first failure what is written is dropped.

    Attributes:
        fault: the first failure, with the stream's name as its file name; None while there was none.
    """

    fault: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.fault is None:
            try:
                return super().write(data) or 0  # one that does not block, and is full for now, is tried again
            except OSError as error:
                error.filename = STANDARD_OUTPUT
                self.fault = error
        return len(data)


def protect() -> None:
    """Make the standard streams of this process last. Streams that somebody has put in their place are left alone."""
    for number in range(3):
        _occupy(number)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _lasting(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _lasting(2, sys.stderr)


def fault() -> OSError | None:
    """Why something written to standard output did not get there; a BrokenPipeError when its reader has gone."""
    if sys.stdout is None:
        return None
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.fault if isinstance(raw, Lasting) else None


def _occupy(number: int) -> None:
    """Let no file get the number of a closed stream. What is there instead fails when it is read or written."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)


def _lasting(number: int, stream: TextIO | None) -> TextIO:
    raw = Lasting(number, "w", closefd=False)
    buffer = io.BufferedWriter(raw)
    if not isinstance(stream, io.TextIOWrapper):  # closed when Python started
        raw.fault = OSError(errno.EBADF, "closed", STANDARD_OUTPUT)
        return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")
    at_once = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=at_once)
