"""The rows of a decoder's cache, and which of them one call advances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs

from framework.execution.runner import Row
from framework.execution.sampling import Sampling


class DecoderRow:
    """One request's place in the cache.

    Attributes:
        samplings: how what it writes is chosen, one for each sampler of the engine; the first one's seed is its own.
        length: entries in the cache.
        prompt_length: entries to read before it writes.
        step: the number of its next noise: what it has written so far.
    """

    def __init__(self, row: Row, *samplings: Sampling) -> None:
        self.row = row
        self.samplings = samplings
        self.length = self.prompt_length = self.step = 0

    @property
    def reading(self) -> bool:
        return self.length < self.prompt_length

    @property
    def sampled(self) -> bool:
        return any(sampling.temperature > 0 for sampling in self.samplings)


R = TypeVar("R", bound=DecoderRow)


@attrs.frozen(kw_only=True, eq=False)
class Work(Generic[R]):
    """What one call does.

    Attributes:
        start: the first row of the cache in the call.
        rows: who has this row and each one behind it; None where nobody has.
        active: those of them that the call advances.
        counts: entries that it adds to each of `active`.
        tokens: entries that the call takes of every row; what is behind a row's own is overwritten later.
        fed: for each row whose input it gets, and how many entries of it count. A row with nothing to do gets what the
            first active one gets: what that writes is overwritten by the row's own next call.
    """

    start: int
    rows: tuple[R | None, ...]
    active: tuple[R, ...]
    counts: tuple[int, ...]
    tokens: int
    fed: tuple[tuple[R, int], ...]

    @classmethod
    def of(cls, start: int, rows: Sequence[R | None], active: Sequence[R], counts: Sequence[int]) -> Work[R]:
        own = {one.row.index - start: (one, count) for one, count in zip(active, counts, strict=True)}
        idle = active[0], counts[0]
        return cls(
            start=start,
            rows=tuple(rows),
            active=tuple(active),
            counts=tuple(counts),
            tokens=max(counts),
            fed=tuple(own.get(index, idle) for index in range(len(rows))),
        )

    @property
    def stop(self) -> int:
        return self.start + len(self.rows)

    def index(self, one: R) -> int:
        """Its row in the call."""
        return one.row.index - self.start


def plan(
    active: Sequence[R], rows: Mapping[int, R], *, count: int, chunk: int, bucket: int, full: bool
) -> list[Work[R]]:
    """The calls that advance all of `active` by one step: a chunk of each prompt, and what comes next in all others.

    Args:
        rows: everyone, by row.
        count: rows of the cache.
        chunk: entries of a prompt that one call reads at most.
        bucket: rows, from the first, of every call that writes, at least; prompts are then read alone. 0 is none.
        full: calls that write take all rows.
    """
    reading = [one for one in active if one.reading]
    writing = [one for one in active if not one.reading]
    work = []
    for group in [[one] for one in reading] if bucket else contiguous(reading):
        counts = [min(chunk, one.prompt_length - one.length) for one in group]
        work.append(Work.of(group[0].row.index, group, group, counts))
    if writing:
        indices = [one.row.index for one in writing]
        start, stop = min(indices), max(indices) + 1
        if full:
            start, stop = 0, count
        elif bucket:
            start, stop = 0, max(stop, bucket)
        among = [rows.get(index) for index in range(start, stop)]
        work.append(Work.of(start, among, writing, [1] * len(writing)))
    return work


def contiguous(rows: Iterable[R]) -> list[list[R]]:
    """Split rows into runs without a gap. A prompt that goes on is read alone: GroupQueryAttention takes several rows
    of several tokens only while their caches are empty."""
    groups: list[list[R]] = []
    for one in sorted(rows, key=lambda one: one.row.index):
        last = groups[-1][-1] if groups else None
        if last and last.row.index + 1 == one.row.index and not last.length and not one.length:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
