"""A progress bar for a person; where standard error is no terminal, only failures are told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, Exception | None], None]


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """Yields a function to call as each request ends, with its index and its error or None."""
    if not sys.stderr.isatty():
        yield lambda index, error: _tell(index, error, lambda line: print(line, file=sys.stderr, flush=True))
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    layout = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"), TimeRemainingColumn())
    with Progress(*layout, console=console, transient=True) as bar:
        task, failed = bar.add_task("requests", total=total, failed=0), 0

        def advance(index: int, error: Exception | None) -> None:
            nonlocal failed
            failed += error is not None
            _tell(index, error, lambda line: console.print(line, markup=False, highlight=False))
            bar.update(task, advance=1, failed=failed)

        yield advance


def _tell(index: int, error: Exception | None, write: Callable[[str], None]) -> None:
    if error is not None:
        write(f"request {index} failed: {error}")
