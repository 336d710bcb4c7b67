from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError, Problem
from framework.execution.executor import Executor
from framework.execution.opening import open_runners
from framework.execution.policies import Cohort, InFlight
from framework.execution.runner import OpenContext
from framework.graph.model import Stage
from tests.execution.fakes import Bench, ask, speech


def context(stage: Stage) -> OpenContext:
    return OpenContext(engine_dir=Path("engines"), artifact=Path("engines") / stage.id, backend=None, batch=4)


def lazy(bench: Bench, policy: Any = None) -> Executor:
    return Executor(bench.graph, bench.runners, policy=policy or InFlight(4), make_context=context)


def opened(bench: Bench) -> set[str]:
    return {stage_id for stage_id, runner in bench.runners.items() if runner.is_open}


def broken(bench: Bench, stage_id: str, error: Exception) -> list[str]:
    """Lets a stage not open; returns the list its attempts are noted in."""
    attempts: list[str] = []

    def fail(_: OpenContext) -> None:
        attempts.append(stage_id)
        raise error

    bench.runners[stage_id].open = fail  # type: ignore[assignment,method-assign]
    return attempts


WRONG = ConfigError(Problem(where="talker/engine.json", got="backend 'cuda'", expected="'cpu'"))


def test_stages_are_opened_with_their_context() -> None:
    bench = speech()
    open_runners(bench.graph, bench.runners, context)
    assert opened(bench) == {"thinker", "talker", "vocoder"}
    assert sorted(bench.log) == [("open", "talker", 4), ("open", "thinker", 4), ("open", "vocoder", 4)]


def test_only_the_stages_asked_for_are_opened() -> None:
    bench = speech()
    open_runners(bench.graph, bench.runners, context, stages={"thinker"})
    assert opened(bench) == {"thinker"}
    open_runners(bench.graph, bench.runners, context, stages=())
    assert opened(bench) == {"thinker"}


def test_stages_are_opened_at_the_same_time() -> None:
    bench = speech()
    both = threading.Barrier(2, timeout=60)  # nobody passes it alone
    for runner in bench.runners.values():
        runner.open = lambda _: both.wait()  # type: ignore[assignment,method-assign]
    open_runners(bench.graph, bench.runners, context, stages={"thinker", "talker"})


def test_when_one_does_not_open_none_stays_open_and_every_problem_is_told() -> None:
    bench = speech()
    broken(bench, "talker", WRONG)
    broken(bench, "vocoder", OSError("disk on fire"))
    with pytest.raises(ConfigError) as caught:
        open_runners(bench.graph, bench.runners, context)
    assert opened(bench) == set()
    assert [str(problem) for problem in caught.value.problems] == [
        "talker/engine.json: got backend 'cuda', expected 'cpu'",
        "stages.vocoder: got OSError: disk on fire, expected a stage that opens",
    ]
    assert caught.value.__cause__ is WRONG


def test_a_stage_that_no_request_needs_is_not_opened() -> None:
    bench = speech()
    with lazy(bench) as executor:
        assert [result.ok for result in executor.run([ask(0, 2), ask(1, 2)])] == [True, True]
        assert opened(bench) == executor.opened == {"thinker"}


def test_a_result_is_not_kept_back_while_stages_are_opened() -> None:
    bench = speech()
    with lazy(bench, Cohort(4)) as executor:
        results = executor.run([ask(0, 2), ask(1, 2, kinds="audio")])
        next(results)
        assert opened(bench) == {"thinker"}
        assert next(results).ok and opened(bench) == {"thinker", "talker", "vocoder"}


def test_a_later_request_opens_what_it_needs_once() -> None:
    bench = speech()
    with lazy(bench, Cohort(1)) as executor:
        results = executor.run([ask(0, 2), ask(1, 2, kinds="audio"), ask(2, 2, kinds="audio")])
        next(results)
        assert opened(bench) == {"thinker"}
        assert [result.ok for result in results] == [True, True]
        assert sorted(stage_id for _, stage_id, _ in bench.events("open")) == ["talker", "thinker", "vocoder"]
        list(executor.run([ask(0, 2, kinds="audio")]))
        assert len(bench.events("open")) == 3


def test_leaving_the_executor_closes_what_it_opened() -> None:
    bench = speech()
    with lazy(bench) as executor:
        list(executor.run([ask(0, 2, kinds="audio")]))
        assert opened(bench) == {"thinker", "talker", "vocoder"}
    assert opened(bench) == set()


def test_every_runner_is_closed_also_when_one_cannot_be() -> None:
    bench = speech()

    def stuck() -> None:
        raise OSError("stuck")

    bench.runners["talker"].close = stuck  # type: ignore[method-assign]
    with pytest.raises(OSError, match="stuck"), lazy(bench) as executor:
        list(executor.run([ask(0, 2, kinds="audio")]))
    assert opened(bench) == {"talker"}


def test_runners_that_the_caller_opened_are_left_open() -> None:
    bench = speech()
    open_runners(bench.graph, bench.runners, context)
    with bench.executor as executor:
        list(executor.run([ask(0, 2)]))
    assert opened(bench) == {"thinker", "talker", "vocoder"}
    assert len(bench.events("open")) == 3


def test_when_the_first_stages_do_not_open_the_run_ends_and_all_is_closed() -> None:
    bench = speech()
    broken(bench, "talker", WRONG)
    broken(bench, "vocoder", OSError("disk on fire"))
    with pytest.raises(ConfigError) as caught, lazy(bench) as executor:
        list(executor.run([ask(0, 2, kinds="audio")]))
    assert len(caught.value.problems) == 2
    assert opened(bench) == set()
    assert bench.events("admit") == []


def test_when_later_stages_do_not_open_only_the_requests_that_need_them_fail() -> None:
    bench = speech()
    attempts = broken(bench, "talker", WRONG)
    with lazy(bench, Cohort(1)) as executor:
        requests = [ask(0, 2), ask(1, 2, kinds="audio"), ask(2, 2), ask(3, 2, kinds="audio")]
        results = list(executor.run(requests))
    assert [(result.request.index, result.ok) for result in results] == [(0, True), (1, False), (2, True), (3, False)]
    for result in (results[1], results[3]):
        assert isinstance(result.error, ConfigError)
        assert "talker/engine.json: got backend 'cuda'" in str(result.error)
    assert attempts == ["talker"], "it is not tried again"


def test_a_request_is_checked_by_its_stages_when_they_are_open() -> None:
    bench = speech()
    seen: list[bool] = []
    bench.runners["vocoder"].check = lambda _: seen.append(bench.runners["vocoder"].is_open)  # type: ignore[assignment,method-assign]
    with lazy(bench) as executor:
        list(executor.run([ask(0, 2, kinds="audio")]))
    assert seen == [True]
