"""Opening a file that is read, which may be a pipe that somebody has yet to write to."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

WAIT_S = 2.0  # seconds without a word from the other end of a pipe before the user is told


def open_input(path: Path, waiting: Callable[[str], None]) -> BufferedReader:
    """The file, open for reading. It waits for the first bytes of a FIFO, and after WAIT_S says so, once.

    Args:
        waiting: told what is waited for.

    Raises OSError when it cannot be opened.
    """
    # A FIFO opens at once this way, also where nobody writes to it yet.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode) and not select.select([file], [], [], WAIT_S)[0]:
        waiting(f"waiting for what is written to '{path}', which is a FIFO")
        select.select([file], [], [])
    os.set_blocking(file.fileno(), True)
    return file
