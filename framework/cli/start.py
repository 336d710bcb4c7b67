"""Where the commands begin: nothing is imported before an interrupt is told in one word and no file can be opened
under the number of a standard stream that is closed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from framework.cli import streams


def inference() -> NoReturn:
    _start("inference")


def build() -> NoReturn:
    _start("build")


def fetch() -> NoReturn:
    _start("fetch")


def report() -> NoReturn:
    _start("report")


def bench() -> NoReturn:
    _start("bench")


def serve() -> NoReturn:
    _start("serve")


def merge() -> NoReturn:
    _start("merge")


def _start(command: str) -> NoReturn:
    streams.protect()
    # Python would show where in an import it was, or lose the interrupt in a library; there is nothing to unwind yet.
    handler = signal.signal(signal.SIGINT, _leave)
    module = import_module(f"framework.cli.{command}")
    signal.signal(signal.SIGINT, handler)
    module.main()
    raise AssertionError("a command exits")


def _leave(*_: Any) -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(130)
