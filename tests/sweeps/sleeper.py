"""An echo that falls asleep over the word `sleep`, for tests that kill it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from framework.execution.runner import Row
from tests.cli.fakes import Echo, words_of


class Sleeper(Echo):
    def step(self, rows: Sequence[Row]) -> None:
        if "sleep" in words_of(rows[0].request):
            print("asleep", flush=True)
            time.sleep(60)
        super().step(rows)
