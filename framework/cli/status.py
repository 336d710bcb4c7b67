"""Errors as text on standard error, and the exit status that a command gives for each."""

from __future__ import annotations

import sys
from collections.abc import Callable

from framework.cli import streams
from framework.errors import ConfigError, MultistageError, Problem
from framework.writing import Unwritten


def check_standard_output() -> int:
    """0; raises OSError when something that was written there is lost."""
    if fault := streams.fault():
        raise fault
    return 0


def status_or_interrupted(action: Callable[[], int]) -> int:
    """The exit status of `action`; our own errors are printed as text on standard error."""
    try:
        return status_of(action)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def status_of(action: Callable[[], int]) -> int:
    """As `status_or_interrupted`, where an interrupt is to go on to the caller."""
    try:
        return action()
    except MultistageError as error:
        print_error(error)
        return 2
    except OSError as error:  # an output that cannot be written: a full disk, a folder that is not ours
        if isinstance(error, BrokenPipeError) and error.filename in (None, streams.STANDARD_OUTPUT):
            return streams.READER_GONE
        got = error.strerror or str(error)
        print_error(
            ConfigError(Problem(where=str(error.filename or "output"), got=got, expected="a place to write to"))
        )
        return 1 if isinstance(error, Unwritten) else 2


def print_error(error: Exception) -> None:
    print(f"error: {error}", file=sys.stderr, flush=True)
