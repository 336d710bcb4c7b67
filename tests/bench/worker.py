"""A process of its own for each contender: libraries never share threads, and one that crashes ends alone.

Also keeps this process small: what it starts counts its starter's memory as its own until it has loaded its program.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any


class Missing(RuntimeError):
    """A contender that cannot run: the message says why and what to install."""


class Worker:
    """`make(*args)` in a new process; `call` runs one of its methods there. A context manager.

    Raises Missing (also from `call`) when it fails, is not installed or dies.
    """

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def call(self, method: str, *args: Any) -> Any:
        with suppress(BrokenPipeError):  # the process has ended: `_receive` says how
            self._connection.send((method, args))
        return self._receive()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join()

    def _receive(self) -> Any:
        try:
            value, problem = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise Missing(f"its process was ended by {_reason(self._process.exitcode)}") from None
        if problem:
            raise Missing(problem)
        return value


def _reason(exitcode: int | None) -> str:
    signal_number = -(exitcode or 0)
    return signal.Signals(signal_number).name if signal_number > 0 else f"status {exitcode}"


def _serve(connection: Connection, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):  # the bench has ended
        subject, problem = _try(make, *args)
        connection.send((None, problem))
        while not problem:
            method, args = connection.recv()
            connection.send(_try(getattr(subject, method), *args))


def _try(function: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """What it returns, or else why not."""
    try:
        return function(*args), ""
    except ModuleNotFoundError as error:
        return None, f"no package {error.name}: pip install 'multistage[cpu,bench]'"
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
