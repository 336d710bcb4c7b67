from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import attrs
import pytest

from framework.execution.policies import Cohort, InFlight
from framework.execution.request import Request
from framework.execution.runner import Row
from tests.execution.fakes import Bench, Count, Relay, Whole, WideRelay, alone, ask, speech, stage

# What comes out


def test_a_request_gets_the_chunks_of_its_terminals_in_order() -> None:
    [result] = speech().run([ask(7, 3, kinds="text audio")])
    assert result.ok and result.error is None and not result.cancelled
    assert result.outputs == {"thinker:out": (0, 1, 2), "vocoder:out": (0, 1, 2)}


def test_only_the_stages_of_the_route_run() -> None:
    bench = speech()
    [result] = bench.run([ask(0, 3, kinds="text")])
    assert result.outputs == {"thinker:out": (0, 1, 2)}
    assert set(result.stages) == {stage_id for _, stage_id, _ in bench.log} == {"thinker"}


def test_an_output_not_asked_for_is_not_returned() -> None:
    [result] = speech().run([ask(0, 3, kinds="audio")])
    assert result.outputs == {"vocoder:out": (0, 1, 2)}


def test_results_come_as_they_end() -> None:
    results = alone().run([ask(0, 9), ask(1, 2), ask(2, 5)])
    assert [result.request.index for result in results] == [1, 2, 0]


def test_each_result_is_yielded_before_the_next_step() -> None:
    bench = alone()
    results = bench.executor.run([ask(0, 2), ask(1, 3)])
    next(results)
    assert bench.log[-1] == ("release", "count", 0)
    assert bench.log.count(("step", "count", 1)) == 2


def test_on_chunk_hears_of_every_chunk_of_a_requested_terminal_when_it_is_made() -> None:
    bench = speech()
    heard: list[Any] = []
    bench.run([ask(5, 2, kinds="audio")], on_chunk=lambda r, t, c: heard.append((r.index, t, c, bench.log[-1])))
    assert heard == [
        (5, "vocoder:out", 0, ("step", "vocoder", 5)),
        (5, "vocoder:out", 1, ("step", "vocoder", 5)),
    ]


def test_an_output_by_name_runs_what_it_needs_and_no_more() -> None:
    """Also one that the graph does not return by itself, such as a transcript."""
    bench = Bench(
        (Count, stage("ear", "items<-request:n", terminal=False)),
        (Relay, stage("thinker", "items<-ear:out")),
    )
    [result] = bench.run([attrs.evolve(ask(0, 3), terminals=("ear:out",))])
    assert result.outputs == {"ear:out": (0, 1, 2)}
    assert set(result.stages) == {"ear"}


def test_what_a_request_brings_takes_the_place_of_a_stage() -> None:
    bench = speech()
    [result] = bench.run([attrs.evolve(ask(0, 3, kinds="audio"), given={"thinker:out": "hello"})])
    assert result.outputs == {"vocoder:out": ("hello",)}
    assert "thinker" not in result.stages


def test_a_skipped_input_is_absent() -> None:
    bench = Bench((Whole, stage("end", "items<-request:n", "whole<-request:voice?")))
    without, given = bench.run([ask(0, 3), ask(1, 3, voice="amy")])
    assert without.outputs["end:out"] == (((3,), None),)
    assert given.outputs["end:out"] == (((3,), ("amy",)),)


def test_a_skipped_input_from_a_stage_that_does_not_run_is_absent() -> None:
    bench = Bench(
        (Count, stage("encoder", "items<-request:audio", out="codec", terminal=False)),
        (Whole, stage("end", "items<-request:n", "whole<-encoder:out?")),
    )
    without, given = sorted(bench.run([ask(0, 3), ask(1, 3, audio=2)]), key=lambda result: result.request.index)
    assert without.outputs["end:out"] == (((3,), None),)
    assert given.outputs["end:out"] == (((3,), (0, 1)),)


def test_a_port_with_several_readers_serves_them_all() -> None:
    bench = Bench(
        (Count, stage("source", "items<-request:n", out="codec", terminal=False)),
        (Relay, stage("relay", "items<-source:out")),
        (Whole, stage("whole", "items<-source:out")),
        capacity=1,
    )
    [result] = bench.run([ask(0, 5)])
    assert result.outputs == {"relay:out": (0, 1, 2, 3, 4), "whole:out": (((0, 1, 2, 3, 4),),)}


def test_stages_may_stand_in_any_order_in_the_file_and_are_reported_in_it() -> None:
    bench = Bench(
        (Relay, stage("vocoder", "items<-talker:out", out="audio")),
        (Count, stage("thinker", "items<-request:n")),
        (Relay, stage("talker", "items<-thinker:out", out="codec", terminal=False)),
    )
    [result] = bench.run([ask(0, 3, kinds="audio")])
    assert result.outputs == {"vocoder:out": (0, 1, 2)}
    assert list(result.stages) == ["vocoder", "thinker", "talker"]


def test_a_stage_may_finish_in_admit() -> None:
    class AtOnce(Count):
        def admit(self, row: Row) -> None:
            super().admit(row)
            row.outputs["out"].write("done")
            row.finish()

    bench = Bench((AtOnce, stage("once", "items<-request:n")))
    heard: list[Any] = []
    [result] = bench.run([ask(0, 3)], on_chunk=lambda *what: heard.append(what[1:]))
    assert result.ok and result.outputs == {"once:out": ("done",)}
    assert heard == [("once:out", "done")]


# Which requests are read


def test_no_requests_give_no_results() -> None:
    assert alone().run([]) == []


def test_requests_may_be_endless_and_are_read_within_the_window() -> None:
    bench = alone(policy=Cohort(2))
    read: list[int] = []

    def forever() -> Iterator[Request]:
        for index in count():
            read.append(index)
            yield ask(index, 2)

    results = bench.executor.run(forever())
    assert [next(results).request.index for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert len(read) <= 6 + Cohort(2).window


def test_a_request_without_a_route_fails_alone() -> None:
    bad, good = speech().run([ask(0, 3, kinds="video"), ask(1, 3)])
    assert (bad.request.index, bad.ok, bad.outputs, bad.stages) == (0, False, {}, {})
    assert "video" in str(bad.error)
    assert good.ok


def test_endless_requests_without_a_route_are_answered_one_by_one() -> None:
    results = alone().executor.run(ask(index, 1, kinds="video") for index in count())
    assert [next(results).request.index for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("policy", [InFlight(1), Cohort(1)], ids=repr)
def test_one_request_at_a_time_never_reads_ahead(policy: Any) -> None:
    answered: list[int] = []

    def chat() -> Iterator[Request]:
        for index in range(3):
            assert len(answered) == index, "the next question is asked when the last answer is known"
            yield ask(index, 2)

    for result in alone(policy=policy).executor.run(chat()):
        answered.append(result.request.index)
    assert answered == [0, 1, 2]


def test_a_policy_that_starts_nothing_is_an_error() -> None:
    class Idle(InFlight):
        def select(self, waiting: Any, active: Any) -> list[Any]:
            return []

    with pytest.raises(RuntimeError, match="starts none of 1 waiting"):
        alone(policy=Idle(4)).run([ask(0, 1)])


# Rows


def test_the_lowest_free_row_is_taken() -> None:
    bench = alone(policy=InFlight(3))
    bench.run([ask(0, 9), ask(1, 2), ask(2, 9), ask(3, 9), ask(4, 1)])
    assert bench.runners["count"].places == {0: 0, 1: 1, 2: 2, 3: 1, 4: 0}


def test_a_stage_has_no_more_rows_than_its_max_batch() -> None:
    bench = alone(max_batch=2, policy=InFlight(4))
    results = bench.run([ask(index, 3) for index in range(5)])  # the runner asserts it too
    assert [result.ok for result in results] == [True] * 5
    assert set(bench.runners["count"].places.values()) == {0, 1}


def test_rows_that_are_ready_are_stepped_together() -> None:
    batches: list[list[int]] = []

    class Batched(Count):
        def step(self, rows: Any) -> None:
            batches.append([row.request.index for row in rows])
            super().step(rows)

    Bench((Batched, stage("count", "items<-request:n"))).run([ask(0, 1), ask(1, 3), ask(2, 2)])
    assert batches == [[0, 1, 2], [1, 2], [1]]


# Streaming and back-pressure


def test_stages_nearer_to_the_output_go_first() -> None:
    bench = speech()
    bench.run([ask(0, 3, kinds="audio")])
    rounds = "thinker", "talker thinker", "vocoder talker thinker", "vocoder talker", "vocoder"
    assert bench.steps() == " ".join(rounds).split()


def test_a_streaming_stage_is_admitted_with_its_first_chunk() -> None:
    bench = speech()
    bench.run([ask(0, 20, kinds="audio")])
    before = bench.log[: bench.log.index(("admit", "talker", 0))]
    assert before.count(("step", "thinker", 0)) == 1


def test_a_stage_that_wants_everything_is_admitted_after_the_close() -> None:
    bench = Bench((Count, stage("source", "items<-request:n")), (Whole, stage("end", "items<-source:out", out="audio")))
    [result] = bench.run([ask(0, 50, kinds="audio")])  # far beyond the capacity, which is for streaming readers
    assert result.ok
    assert bench.log.index(("release", "source", 0)) < bench.log.index(("admit", "end", 0))


@pytest.mark.parametrize("capacity", [1, 3])
def test_a_stage_never_runs_further_ahead_than_the_capacity(capacity: int) -> None:
    bench = Bench(
        (Count, stage("source", "items<-request:n", out="codec", terminal=False)),
        (Relay, stage("narrow", "items<-source:out", max_batch=1)),  # the others wait for its row
        capacity=capacity,
    )
    results = bench.run([ask(index, 12) for index in range(3)])
    assert all(result.ok for result in results)
    ahead = dict.fromkeys(range(3), 0)
    most = 0
    for _, stage_id, index in bench.events("step"):
        ahead[index] += 1 if stage_id == "source" else -1
        most = max(most, ahead[index])
    assert most == capacity


def test_a_window_wider_than_the_capacity_widens_the_stream() -> None:
    bench = Bench(
        (Count, stage("source", "items<-request:n", out="codec", terminal=False)),
        (WideRelay, stage("windows", "items<-source:out")),
        capacity=2,
    )
    [result] = bench.run([ask(0, 20)])
    assert result.ok and result.outputs["windows:out"] == tuple(range(20))


def test_an_output_read_both_as_a_stream_and_as_a_whole_by_one_stage_does_not_stall() -> None:
    bench = Bench(
        (Count, stage("source", "items<-request:n", terminal=False)),
        (Relay, stage("both", "items<-source:out", "whole<-source:out")),
        capacity=2,
    )
    [result] = bench.run([ask(0, 9)])
    assert result.ok and result.outputs["both:out"] == tuple(range(9))


def test_a_reader_that_stops_early_does_not_hold_its_writer() -> None:
    asked = 0

    class Source(Count):
        def has_input(self, row: Row) -> bool:
            nonlocal asked
            asked += 1
            return True

    class Taste(Relay):
        def advance(self, row: Row) -> None:
            row.outputs["out"].write(row.inputs["items"].take())
            row.finish()

    bench = Bench(
        (Source, stage("source", "items<-request:n")), (Taste, stage("taste", "items<-source:out", out="audio"))
    )
    [result] = bench.run([ask(0, 30, kinds="text audio")])
    assert result.outputs == {"source:out": tuple(range(30)), "taste:out": (0,)}
    assert asked == 30, "one step each time it was asked"


# Cancelling


def test_cancelling_in_the_middle_frees_the_row_for_the_next_request_before_the_next_step() -> None:
    bench = alone(max_batch=2, policy=InFlight(2))

    def give_up(request: Request, _: str, chunk: int) -> None:
        if (request.index, chunk) == (0, 3):
            bench.executor.cancel(0)

    results = bench.run([ask(0, 1000), ask(1, 8), ask(2, 2)], on_chunk=give_up)
    [given_up] = [result for result in results if result.cancelled]
    assert (given_up.request.index, given_up.ok, given_up.outputs) == (0, False, {"count:out": (0, 1, 2, 3)})
    assert "cancelled" in str(given_up.error)
    assert [(result.request.index, result.ok) for result in results] == [(0, False), (2, True), (1, True)]
    at = bench.log.index(("release", "count", 0))
    assert bench.log[at + 1] == ("admit", "count", 2)
    assert bench.runners["count"].places[2] == bench.runners["count"].places[0] == 0


def test_cancelling_frees_every_stage_of_the_request() -> None:
    bench = speech()

    def give_up(_: Request, terminal: str, chunk: int) -> None:
        if (terminal, chunk) == ("vocoder:out", 2):
            bench.executor.cancel(0)

    [result] = bench.run([ask(0, 99, kinds="text audio")], on_chunk=give_up)
    assert result.cancelled and result.outputs["vocoder:out"] == (0, 1, 2)
    assert {stage_id for _, stage_id, _ in bench.events("release")} == {"thinker", "talker", "vocoder"}
    assert set(result.stages) == {"thinker", "talker", "vocoder"}


def test_a_waiting_request_is_cancelled_without_running() -> None:
    bench = alone(policy=Cohort(2))
    results = bench.run([ask(0, 5), ask(1, 5), ask(2, 5)], on_chunk=lambda r, t, c: bench.executor.cancel(2))
    assert [(r.request.index, r.cancelled, r.stages == {}) for r in results] == [
        (2, True, True),
        (0, False, False),
        (1, False, False),
    ]


def test_cancelling_from_another_thread() -> None:
    bench = alone()
    started, done = threading.Event(), threading.Event()

    def other() -> None:
        started.wait()
        bench.executor.cancel(0)
        done.set()

    def on_chunk(*_: Any) -> None:
        started.set()
        done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    [result] = bench.run([ask(0, 1000)], on_chunk=on_chunk)
    thread.join()
    assert result.cancelled and result.stages["count"].steps == 1


def test_cancelling_what_has_ended_or_is_unknown_does_nothing_also_in_the_next_run() -> None:
    bench = alone()
    bench.executor.cancel(3)
    [first] = bench.run([ask(0, 2)], on_chunk=lambda *_: bench.executor.cancel(77))
    bench.executor.cancel(0)
    [second] = bench.run([ask(0, 2)])
    assert first.ok and second.ok


# The end of a run


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_interrupt_goes_through_and_frees_every_row(error: BaseException) -> None:
    bench = speech()
    done: list[int] = []
    with pytest.raises(type(error)):
        for result in bench.executor.run(
            [ask(0, 1), ask(1, 9, kinds="audio"), ask(2, 9, fault=("thinker", "step", error))]
        ):
            done.append(result.request.index)
    bench.assert_free()
    assert done == [0]
    assert [result.ok for result in bench.run([ask(0, 3, kinds="audio")])] == [True]


def test_what_on_chunk_raises_ends_the_run_and_frees_every_row() -> None:
    bench = speech()

    def broken_pipe(*_: Any) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        bench.run([ask(0, 3), ask(1, 3)], on_chunk=broken_pipe)
    bench.assert_free()


def test_what_the_request_source_raises_ends_the_run_and_frees_every_row() -> None:
    def requests() -> Iterator[Request]:
        yield ask(0, 3)
        yield ask(1, 9)
        raise OSError("gone")

    bench = alone(policy=InFlight(2))
    with pytest.raises(OSError, match="gone"):
        bench.run(requests())
    bench.assert_free()


def test_closing_the_iterator_early_frees_every_row() -> None:
    bench = speech()
    results = bench.executor.run([ask(0, 1), ask(1, 99, kinds="audio"), ask(2, 99)])
    next(results)
    assert any(runner.held for runner in bench.runners.values())
    results.close()  # type: ignore[attr-defined]
    bench.assert_free()


def test_two_runs_at_once_are_refused() -> None:
    bench = alone()
    first, second = (bench.executor.run([ask(0, 1), ask(1, 2)]) for _ in range(2))
    next(first)
    with pytest.raises(RuntimeError, match="another run of this executor has not ended"):
        next(second)
    assert next(first).ok and next(first, None) is None
    assert all(result.ok for result in bench.run([ask(0, 1)]))


# Reports


def test_stages_are_reported_with_details_steps_and_times() -> None:
    bench = speech()
    [result] = bench.run([ask(0, 6, kinds="audio")])
    thinker, talker, vocoder = (result.stages[stage_id] for stage_id in ("thinker", "talker", "vocoder"))
    assert thinker.details == {"tokens": 6} and talker.details == {}
    assert (thinker.steps, talker.steps, vocoder.steps) == (6, 6, 6)
    for report in (thinker, talker, vocoder):
        assert report.first_output_s is not None
        assert 0 <= report.start_s < report.first_output_s < report.end_s <= result.wall_s
        assert 0 < report.busy_s <= report.end_s - report.start_s
    assert thinker.first_output_s <= talker.start_s < thinker.end_s  # type: ignore[operator]


def test_a_step_counts_as_busy_for_every_request_in_it() -> None:
    class Slow(Count):
        def step(self, rows: Any) -> None:
            threading.Event().wait(0.01)
            super().step(rows)

    bench = Bench((Slow, stage("slow", "items<-request:n")))
    short, long = bench.run([ask(0, 2), ask(1, 4)])
    assert 0.02 <= short.stages["slow"].busy_s < long.stages["slow"].busy_s
    assert long.stages["slow"].busy_s >= 0.04


def test_a_stage_without_output_reports_no_first_output() -> None:
    [result] = alone().run([ask(0, 3, fault=("count", "admit", ValueError("no")))])
    assert result.stages["count"].first_output_s is None
    assert result.stages["count"].steps == 0
