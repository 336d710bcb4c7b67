"""How far a request file is: a bar for a person, a line every so often where standard error is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

EVERY = 30.0  # seconds between lines

Advance = Callable[[int, str | None], None]


@contextmanager
def progress(total: int, done: int = 0, failed: int = 0) -> Iterator[Advance]:
    """Yields a function to call as each request ends, with its index and its error or None.

    Args:
        done, failed: of a run that is gone on with; they do not count for the rate.
    """
    with (_bar if sys.stderr.isatty() else _lines)(_Count(total, done, failed)) as advance:
        yield advance


class _Count:
    def __init__(self, total: int, done: int, failed: int) -> None:
        self.total, self.done, self.failed = total, done, failed
        self._first, self._begin = done, monotonic()

    def add(self, failed: bool) -> None:
        self.done += 1
        self.failed += failed

    def __str__(self) -> str:
        """E.g. `120 of 10000 done, 2 failed, 3.1 a second, 0:53:07 left`."""
        rate = (self.done - self._first) / max(monotonic() - self._begin, 1e-9)
        text = f"{self.done} of {self.total} done, {self.failed} failed"
        if self.done == self._first:
            return text
        left = round((self.total - self.done) / rate)
        speed = f"{rate:.1f} a second" if rate >= 1 else f"{1 / rate:.1f} s each"
        return f"{text}, {speed}, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"


@contextmanager
def _lines(count: _Count) -> Iterator[Advance]:
    last = monotonic()

    def advance(index: int, error: str | None) -> None:
        nonlocal last
        count.add(error is not None)
        if error is not None:
            print(_failure(index, error), file=sys.stderr, flush=True)
        if monotonic() - last >= EVERY:
            last = monotonic()
            print(count, file=sys.stderr, flush=True)

    yield advance


@contextmanager
def _bar(count: _Count) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    with Progress(BarColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task(str(count), total=count.total, completed=count.done)

        def advance(index: int, error: str | None) -> None:
            count.add(error is not None)
            if error is not None:
                console.print(_failure(index, error), markup=False, highlight=False)
            bar.update(task, completed=count.done, description=str(count))

        yield advance


def _failure(index: int, error: str) -> str:
    return f"request {index} failed: {error}"
