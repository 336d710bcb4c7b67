"""What a run cost: time by stage, memory, wall time."""

from __future__ import annotations

import resource
import sys

import attrs

from framework.cli.text import columns
from framework.execution.request import Result, StageReport
from framework.execution.results import speech_of

_HEADINGS = ("stage", "requests", "steps", "busy s", "ms a step", "first output ms", "wall s")


@attrs.define
class _Stage:
    """Sums over the requests of one stage; times in seconds."""

    requests: int = 0
    steps: int = 0
    busy: float = 0.0
    firsts: int = 0
    first: float = 0.0
    start: float = float("inf")
    end: float = 0.0

    def add(self, report: StageReport) -> None:
        self.requests += 1
        self.steps += report.steps
        self.busy += report.busy_s
        if report.first_output_s is not None:
            self.firsts += 1
            self.first += report.first_output_s - report.start_s
        self.start = min(self.start, report.start_s)
        self.end = max(self.end, report.end_s)

    def row(self, name: str) -> tuple[str, ...]:
        return (
            name,
            str(self.requests),
            str(self.steps),
            f"{self.busy:.3f}",
            f"{self.busy / self.steps * 1e3:.2f}" if self.steps else "-",
            f"{self.first / self.firsts * 1e3:.0f}" if self.firsts else "-",
            f"{self.end - self.start:.3f}",
        )


class Profile:
    """Gathers what results say of time; keeps none of them."""

    def __init__(self) -> None:
        self._stages: dict[str, _Stage] = {}
        self._speech: list[str] = []

    def add(self, result: Result, *, speech: bool = False) -> None:
        """Args:
        speech: also tell how soon and how quickly this reply was spoken.
        """
        for stage, report in result.stages.items():
            self._stages.setdefault(stage, _Stage()).add(report)
        if speech and (line := _speech(result)):
            self._speech.append(line)

    def table(self, wall_s: float) -> str:
        """A table of stages and the totals below it.

        `busy s` adds up the step calls of each request, so that calls that several requests share count for each.
        """
        rows = [_HEADINGS, *(stage.row(name) for name, stage in self._stages.items())]
        totals = f"wall {wall_s:.3f} s, peak memory {peak_memory() / 1e6:.0f} MB"
        return "\n".join([columns(rows), *self._speech, totals])


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
