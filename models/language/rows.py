"""Which rows of a decoder's cache go into one call, and how many of the best tokens it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from framework.execution.runner import Row
from framework.execution.sampling import Sampling

CANDIDATES = (1, 64, 256, 1024)  # numbers of best tokens a call may look at, before all of them


class Placed(Protocol):
    """What has a row of the cache, and so many entries in it."""

    row: Row
    length: int


P = TypeVar("P", bound=Placed)


def contiguous(placed: Iterable[P]) -> list[list[P]]:
    """Split rows into runs without a gap. A prompt that goes on is read alone: GroupQueryAttention takes several rows
    of several tokens only while their caches are empty."""
    groups: list[list[P]] = []
    for one in sorted(placed, key=lambda one: one.row.index):
        last = groups[-1][-1] if groups else None
        if last and last.row.index + 1 == one.row.index and not last.length and not one.length:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def bounds(placed: Sequence[Placed], *, rows: int, bucket: int, captures: bool) -> tuple[int, int]:
    """Where the rows of a call for all of these start and stop: all `rows` of the cache where the engine captures
    calls, and the first `bucket` at least where it is not 0."""
    indices = [one.row.index for one in placed]
    if captures:
        return 0, rows
    start, stop = min(indices), max(indices) + 1
    return (0, max(stop, bucket)) if bucket else (start, stop)


def considered(sampling: Sampling, vocab: int) -> int:
    """Best tokens that a row chooses from."""
    return (sampling.top_k or vocab) if sampling.temperature > 0 else 1


def looked_at(wanted: int, vocab: int) -> int:
    """Best tokens that a call looks at where a row needs to see `wanted`."""
    return next((n for n in CANDIDATES if wanted <= n < vocab), vocab)
