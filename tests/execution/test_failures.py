"""One failing request or stage touches no other."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from framework.errors import Problem, StageError
from framework.execution.policies import InFlight
from framework.execution.request import Result
from framework.execution.runner import Row
from tests.execution.fakes import ask, speech

BOOM = ValueError("boom")


def by_index(results: list[Result]) -> list[Result]:
    return sorted(results, key=lambda result: result.request.index)


@pytest.mark.parametrize(
    ("fault", "text", "audio"),
    [
        pytest.param(("talker", "check", BOOM), (), (), id="check"),
        pytest.param(("thinker", "admit", BOOM), (), (), id="admit of the first stage"),
        pytest.param(("vocoder", "admit", BOOM), (0, 1), (), id="admit of the last stage"),
        pytest.param(("talker", "ready", BOOM), (0,), (), id="ready"),
        pytest.param(("thinker", "release", BOOM), (0, 1, 2, 3), (0, 1), id="release"),
    ],
)
def test_an_exception_fails_its_request_alone_and_keeps_what_was_made(fault: Any, text: Any, audio: Any) -> None:
    bench = speech()
    good, bad = by_index(bench.run([ask(0, 4, kinds="text audio"), ask(1, 4, kinds="text audio", fault=fault)]))
    assert good.ok and good.outputs == {"thinker:out": (0, 1, 2, 3), "vocoder:out": (0, 1, 2, 3)}
    assert not bad.ok and not bad.cancelled
    assert bad.outputs == {"thinker:out": text, "vocoder:out": audio}
    assert isinstance(bad.error, StageError)
    assert f"request 1, stage {fault[0]}: got ValueError: boom" in str(bad.error)


def test_the_cause_and_its_traceback_are_kept() -> None:
    [bad] = speech().run([ask(0, 4, fault=("thinker", "admit", KeyError("token")))])
    assert bad.error is not None
    cause = bad.error.__cause__
    assert isinstance(cause, KeyError)
    assert "fault" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]


@pytest.mark.parametrize("event", ["check", "admit", "step"])
def test_a_stage_error_of_a_runner_is_the_error_of_the_result(event: str) -> None:
    error = StageError(Problem(where="voice", got="'amy'", expected="a speaker of the checkpoint"))
    [bad] = speech().run([ask(0, 4, fault=("thinker", event, error))])
    assert bad.error is error


def test_the_first_error_is_told_when_the_release_goes_wrong_too() -> None:
    bench = speech()
    release = bench.runners["thinker"].release

    def stuck(row: Row) -> None:
        release(row)
        raise OSError("stuck")

    bench.runners["thinker"].release = stuck  # type: ignore[method-assign]
    [bad] = bench.run([ask(0, 4, fault=("thinker", "step", BOOM))])
    assert bad.error is not None and bad.error.__cause__ is BOOM


def test_a_rejected_request_takes_no_row() -> None:
    bench = speech()
    bench.run([ask(0, 4, kinds="audio", fault=("vocoder", "check", BOOM))])
    assert bench.log == []


def test_a_row_that_fails_fails_its_request_alone() -> None:
    bench = speech()
    good, bad = by_index(
        bench.run([ask(0, 4, kinds="audio"), ask(1, 4, kinds="text audio", fault=("talker", "step", "fail"))])
    )
    assert good.ok and good.outputs["vocoder:out"] == (0, 1, 2, 3)
    assert bad.outputs == {"thinker:out": (0, 1), "vocoder:out": (0,)}
    assert "got bad luck, expected good luck" in str(bad.error)


def test_a_step_that_raises_fails_exactly_the_rows_in_it() -> None:
    bench = speech(policy=InFlight(3))
    results = by_index(
        bench.run(
            [
                ask(0, 1, kinds="audio"),  # in the talker by then
                ask(1, 4),
                ask(2, 4, fault=("thinker", "step", BOOM)),
                ask(3, 4),  # waits for a place
                ask(4, 4, kinds="audio"),
            ]
        )
    )
    assert [result.ok for result in results] == [True, False, False, True, True]
    assert [result.outputs["thinker:out"] for result in results[1:3]] == [(0, 1), (0,)]
    for result in results[1:3]:
        assert f"request {result.request.index}, stage thinker" in str(result.error)
        assert result.error is not None and result.error.__cause__ is BOOM
    assert bench.events("release").count(("release", "thinker", 1)) == 1


@pytest.mark.parametrize(
    ("stage_id", "waits", "text"),
    [
        pytest.param("thinker", "items (1 chunks unread, closed)", (), id="first stage"),
        pytest.param("talker", "items (9 chunks unread, closed)", tuple(range(9)), id="middle stage"),
        pytest.param("vocoder", "items (9 chunks unread, closed)", tuple(range(9)), id="last stage"),
    ],
)
def test_a_runner_that_is_never_ready_fails_its_request_with_what_it_has(stage_id: str, waits: str, text: Any) -> None:
    bench = speech(capacity=2)
    good, stuck = by_index(
        bench.run([ask(0, 9, kinds="audio"), ask(1, 9, kinds="text audio", fault=(stage_id, "ready", "never"))])
    )
    assert good.ok
    assert stuck.outputs["thinker:out"] == text
    assert f"request 1, stage {stage_id}: got no more progress: it is never ready with {waits}" in str(stuck.error)


def test_a_stuck_request_does_not_keep_others_from_its_place_for_ever() -> None:
    bench = speech(policy=InFlight(1))
    results = bench.run([ask(0, 3, fault=("thinker", "ready", "never")), ask(1, 3)])
    assert [result.ok for result in results] == [False, True]
