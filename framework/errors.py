"""The three kinds of error a user meets, and the record each of their faults is made of.

    MultistageError
    ├── ConfigError   what was asked for: an override, a preset, a request file, a checkpoint, an engine folder
    ├── GraphError    the graph file, or how it fits its runners
    └── StageError    one request in one stage, while running

Every error carries *all* faults found at once, each as a `Problem`: where, got, expected, hint.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import attrs


@attrs.frozen(kw_only=True)
class Problem:
    """One fault.

    Attributes:
        where: path to the value, e.g. `multistage_config.json: stages.talker.inputs.voice.from`.
        got: what stands there, as the user wrote it.
        expected: what may stand there.
        hint: nearest valid name, or one line of an example; may be empty. A hint of several lines (a line of the
            file with a caret under the fault) is printed below the rest.
    """

    where: str
    got: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: got {self.got}, expected {self.expected}"
        if "\n" in self.hint:
            return f"{text}\n{self.hint}"
        return f"{text} ({self.hint})" if self.hint else text


class MultistageError(Exception):
    """Base of all errors this project raises on purpose; `problems` is never empty."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(str(self))

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1))
        return f"{len(self.problems)} problems:\n{lines}"


class ConfigError(MultistageError):
    """A setting, file or folder that the user named is wrong."""


class GraphError(MultistageError):
    """A graph is malformed or does not fit the runners it names."""


class StageError(MultistageError):
    """A stage could not serve one request; other requests are not touched."""


def at(where: str, key: str | int) -> str:
    """Path of an item: `at("stages", "talker")` is `stages.talker`, `at("terminals", 0)` is `terminals[0]`.

    A `where` that ends in a colon names a file: `at("graph.json:", "stages")` is `graph.json: stages`.
    """
    gap = " " if where.endswith(":") else ""
    if isinstance(key, int):
        return f"{where}{gap}[{key}]"
    return f"{where}{gap or '.'}{key}" if where else key


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` was probably meant to be, if any is close."""
    return next(iter(difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.6)), None)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Hint naming the closest valid spelling, or all of them when none is close; "" when there are none."""
    names = sorted(valid)
    close = closest(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    return f"valid: {', '.join(names)}" if names else ""
