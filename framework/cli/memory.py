"""`plan_memory=true`: what every stage will take, as a table, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from framework.cli.text import columns
from framework.deployment.planning import Planned, too_much
from framework.engines.footprint import Footprint

if TYPE_CHECKING:
    from framework.engines.backend import Backend

HEADINGS = ("stage", "engine", "rows", "weights", "caches", "activations", "total")
NOTE = "estimated; caches with every row full, activations of the largest call"


def tell(plans: Mapping[Backend, Sequence[Planned]]) -> int:
    """Print a report for each place of engines, once the memory of all is known; 1 when something does not fit."""
    free = {backend: backend.free_memory() for backend in plans}
    for backend, plan in plans.items():
        print(report(plan, free[backend], backend.place))
    return 1 if any(too_much(plan, free[backend]) for backend, plan in plans.items()) else 0


def report(plan: Sequence[Planned], free: int, place: str) -> str:
    """A table, and a sentence that says whether it fits.

    Args:
        free: bytes.
    """
    sums = Footprint(
        **{name: sum(getattr(i.takes, name) for i in plan) for name in ("weights", "states", "activations")}
    )
    rows = [(i.stage or "-", i.engine, str(i.rows or ""), *_sizes(i.takes)) for i in plan]
    outside = too_much(plan, free)
    said = f"does not fit: {', '.join(outside)}" if outside else "fits"
    return "\n".join(
        [columns([HEADINGS, *rows, ("all", "", "", *_sizes(sums))]), f"free on {place}: {_size(free)}; {said} ({NOTE})"]
    )


def _sizes(takes: Footprint) -> Iterator[str]:
    return map(_size, (takes.weights, takes.states, takes.activations, takes.total))


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.2f} {unit}" if unit == "GB" else f"{count / size:.0f} {unit}"
    return f"{count / 1000:.0f} kB"
