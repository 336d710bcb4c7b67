"""Opening runners: loading engines takes seconds, so the stages of a run are opened at the same time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from framework.errors import ConfigError, MultistageError, Problem
from framework.execution.runner import OpenContext, Runner
from framework.graph.model import Graph, Stage

MakeContext = Callable[[Stage], OpenContext]


def open_runners(
    graph: Graph, runners: Mapping[str, Runner], make_context: MakeContext, stages: Collection[str] | None = None
) -> None:
    """Open the given stages (default: all) in parallel; afterwards all are open, or none is.

    Raises:
        ConfigError: with the problems of every stage that does not open.
    """
    chosen = [stage for stage in graph.stages if stages is None or stage.id in stages]
    failures = try_open(chosen, runners, make_context)
    if failures:
        with suppress(Exception), ExitStack() as closing:
            for stage in chosen:
                if stage.id not in failures:
                    closing.callback(runners[stage.id].close)
        raise opening_error(failures)


def try_open(
    stages: Collection[Stage], runners: Mapping[str, Runner], make_context: MakeContext
) -> dict[str, Exception]:
    """Open the stages in parallel; returns what went wrong, by the id of each stage that did not open."""

    def attempt(stage: Stage) -> Exception | None:
        try:
            runners[stage.id].open(make_context(stage))
        except Exception as error:
            return error
        return None

    if not stages:
        return {}
    with ThreadPoolExecutor(max_workers=len(stages), thread_name_prefix="open") as pool:
        errors = zip(stages, pool.map(attempt, stages), strict=True)
        return {stage.id: error for stage, error in errors if error is not None}


def opening_error(failures: Mapping[str, Exception]) -> ConfigError:
    """One error for all stages that did not open; its cause is the first of theirs."""
    problems: list[Problem] = []
    for stage_id, error in failures.items():
        if isinstance(error, MultistageError):
            problems += error.problems
        else:
            got = f"{type(error).__name__}: {error}"
            problems.append(Problem(where=f"stages.{stage_id}", got=got, expected="a stage that opens"))
    result = ConfigError(problems)
    result.__cause__ = next(iter(failures.values()))
    return result
