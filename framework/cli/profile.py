"""What a run cost: time by stage, memory, wall time."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

from framework.cli.text import columns
from framework.execution.request import Result, StageReport
from framework.execution.results import speech_of

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
    totals = f"wall {wall_s:.3f} s, peak memory {peak_memory() / 1e6:.0f} MB"
    return "\n".join([columns(rows), *(line for result in results if (line := _speech(result))), totals])


def _speech(result: Result) -> str | None:
    """How soon and how quickly a reply was spoken; None when it was not."""
    speech = speech_of(result)
    if speech is None:
        return None
    stage, sound = speech
    seconds = len(sound.samples) / sound.sample_rate
    return (
        f"first sound after {result.stages[stage].first_output_s or 0.0:.2f} s, "
        f"all {seconds:.2f} s of it after {result.wall_s:.2f} s: "
        f"real-time factor {result.wall_s / seconds:.2f} (seconds of work per second of sound)"
    )


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
