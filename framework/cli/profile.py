"""What a run cost: time by stage, memory, wall time."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

from framework.cli.text import columns
from framework.execution.request import Result, StageReport

_HEADINGS = ("stage", "requests", "steps", "busy s", "ms a step", "first output ms", "wall s")


def profile(results: Sequence[Result], wall_s: float) -> str:
    """A table of stages and the totals below it.

    `busy s` adds up the step calls of each request, so that calls that several requests share count for each of them.
    """
    stages: dict[str, list[StageReport]] = {}
    for result in results:
        for stage, report in result.stages.items():
            stages.setdefault(stage, []).append(report)
    rows = [_HEADINGS, *(_row(stage, reports) for stage, reports in stages.items())]
    return f"{columns(rows)}\nwall {wall_s:.3f} s, peak memory {peak_memory() / 1e6:.0f} MB"


def peak_memory() -> int:
    """Most bytes this process has held in memory at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _row(stage: str, reports: Sequence[StageReport]) -> tuple[str, ...]:
    steps, busy = sum(report.steps for report in reports), sum(report.busy_s for report in reports)
    firsts = [report.first_output_s - report.start_s for report in reports if report.first_output_s is not None]
    return (
        stage,
        str(len(reports)),
        str(steps),
        f"{busy:.3f}",
        f"{busy / steps * 1e3:.2f}" if steps else "-",
        f"{sum(firsts) / len(firsts) * 1e3:.0f}" if firsts else "-",
        f"{max(r.end_s for r in reports) - min(r.start_s for r in reports):.3f}",
    )
