"""Which waiting requests start, and when: the two ways of batching.

A policy sees requests and routes, never runners, and no runner knows which policy is on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NewType, Protocol

import attrs

from framework.errors import ConfigError, Problem
from framework.execution.request import Request
from framework.execution.sampling import BATCH_WIDE
from framework.graph.routes import Route

Ticket = NewType("Ticket", int)  # of one request in one session; a caller makes none and reads nothing from it


@attrs.frozen(kw_only=True, eq=False)
class Candidate:
    """A request and what it needs.

    Attributes:
        max_batch: the smallest `max_batch` among the stages of its route.
        due: when it must have ended, on the clock of `time.perf_counter`; infinite without a deadline.
    """

    request: Request
    route: Route
    max_batch: int
    ticket: Ticket = Ticket(0)
    due: float = math.inf


class Policy(Protocol):
    """Attributes:
    size: most requests that are active together, and so the most rows a stage is opened with.
    window: most requests, active ones included, that are read ahead for the policy to choose from.
    """

    @property
    def size(self) -> int: ...

    @property
    def window(self) -> int: ...

    def select(self, waiting: Sequence[Candidate], active: Sequence[Candidate]) -> list[Candidate]:
        """The waiting requests, oldest first, that start now; at least one when none is active."""
        ...


def _at_least_one(_: Any, __: Any, size: Any) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(Problem(where="batching.size", got=repr(size), expected="a whole number of 1 or more"))


@attrs.frozen
class Cohort:
    """Requests run in fixed groups: the next group starts when the last one has ended completely.

    The members of a cohort run the same stages with the same request fields and share batch-wide sampling. The oldest
    waiting request leads; a request that does not fit waits for a later cohort.
    """

    size: int = attrs.field(validator=_at_least_one)

    @property
    def window(self) -> int:
        return 1 if self.size == 1 else 8 * self.size  # a cohort of one looks for no others

    def select(self, waiting: Sequence[Candidate], active: Sequence[Candidate]) -> list[Candidate]:
        if active or not waiting:
            return []
        leader = waiting[0]
        fitting = [candidate for candidate in waiting if _run_together(leader, candidate)]
        return fitting[: min(self.size, leader.max_batch)]


@attrs.frozen
class InFlight:
    """Any request starts as soon as fewer than `size` are active.

    Those of the highest priority start first; of these, the one that is due first; else the oldest.
    """

    size: int = attrs.field(validator=_at_least_one)

    @property
    def window(self) -> int:
        return self.size

    def select(self, waiting: Sequence[Candidate], active: Sequence[Candidate]) -> list[Candidate]:
        room = max(0, self.size - len(active))
        return sorted(waiting, key=_urgency)[:room] if room else []


def _urgency(candidate: Candidate) -> tuple[int, float]:
    return -candidate.request.priority, candidate.due


def _run_together(one: Candidate, other: Candidate) -> bool:
    a, b = one.request, other.request
    return (
        one.route == other.route
        and a.fields.keys() == b.fields.keys()
        and all(_batch_wide(a, role) == _batch_wide(b, role) for role in {"default", *a.sampling, *b.sampling})
    )


def _batch_wide(request: Request, role: str) -> Mapping[str, Any]:
    # Given settings, not resolved ones: what a missing setting becomes is known to the runner alone
    # (a checkpoint brings its own defaults), so only equally given settings are surely equal.
    given = {**request.sampling.get("default", {}), **request.sampling.get(role, {})}
    return {name: value for name, value in given.items() if name in BATCH_WIDE}
