"""Strings that end a reply."""

from __future__ import annotations

from collections.abc import Sequence

from framework.errors import ConfigError, Problem


class StopStrings:
    """Finds the first stop string in a text that comes in pieces, wherever the pieces are cut.

    First is the one that is complete first, as no later text can change that; of two that end together the longer one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ConfigError for an empty stop string, which every text has."""
        if "" in stops:
            raise ConfigError(
                Problem(where=f"stop[{list(stops).index('')}]", got="''", expected="at least one character")
            )
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is certainly before any stop string, and whether one was found; after that, push no more.

        Held back is only what may be the start of a stop string.
        """
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        safe = len(text) - held
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """The text still held back when the reply ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper start of `stop` that `text` ends with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
