"""One measured line: what we do, what the peer does, what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import attrs

Verdict = Literal["pass", "below", "not measured", "-"]


@attrs.frozen(kw_only=True)
class Line:
    """
    Attributes:
        ours, peer: medians, in `unit`. Without a peer, `wanted` is about `ours`.
        ratio: ours over peer; of rounds that are paired, the median of each round's own ratio, so that a machine
            whose speed drifts from round to round does not move it.
        at_least, at_most: the bound of `ratio`, or of `ours` without a peer; neither for a line that only tells.
        missing: why it was not measured, and what to do.
    """

    name: str
    unit: str
    ours: float | None = None
    peer: float | None = None
    peer_name: str = ""
    ratio: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    missing: str = ""

    @property
    def verdict(self) -> Verdict:
        value = self.ratio if self.peer_name else self.ours
        if self.missing or value is None:
            return "not measured"
        if self.at_least is None and self.at_most is None:
            return "-"
        high = self.at_least is None or value >= self.at_least
        low = self.at_most is None or value <= self.at_most
        return "pass" if high and low else "below"

    @property
    def wanted(self) -> str:
        unit = "" if self.peer_name else f" {self.unit}"
        if self.at_least is not None:
            return f">= {self.at_least:g}{unit}"
        return f"<= {self.at_most:g}{unit}" if self.at_most is not None else "-"


def paired(line: Line, ours: Sequence[float], peer: Sequence[float]) -> Line:
    """The line with the samples of rounds in which both took their turn."""
    ratio = median(a / b for a, b in zip(ours, peer, strict=True))
    return attrs.evolve(line, ours=median(ours), peer=median(peer), ratio=ratio)
