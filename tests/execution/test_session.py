"""A session: requests come from anywhere, at any time, and one thread does the work."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from framework.errors import ConfigError, StageError
from framework.execution.executor import Executor
from framework.execution.policies import Cohort, InFlight, Ticket
from framework.execution.request import Request, Result
from framework.execution.session import Chunk, Ended, Session
from tests.execution.fakes import Bench, Count, Relay, alone, ask, speech, stage
from tests.execution.test_opening import WRONG, broken, lazy


def urgent(index: int, n: int, *, priority: int = 0, deadline_s: float | None = None) -> Request:
    return Request(index=index, fields={"n": n}, priority=priority, deadline_s=deadline_s)


def finish(session: Session) -> list[Result]:
    """All results, in the order of their end."""
    session.drain()
    results = []
    while not session.done:
        results += [event.result for event in session.poll() if isinstance(event, Ended)]
    return results


# Events


def test_chunks_come_as_they_are_made_and_the_result_last() -> None:
    bench = speech()
    with bench.executor.session() as session:
        ticket = session.submit(ask(5, 2, kinds="text audio"))
        session.drain()
        events = []
        while not session.done:
            events += session.poll()
    *chunks, last = events
    assert all(event.ticket == ticket for event in events)
    assert [(chunk.terminal, chunk.value) for chunk in chunks if isinstance(chunk, Chunk)] == [
        ("thinker:out", 0),
        ("thinker:out", 1),
        ("vocoder:out", 0),
        ("vocoder:out", 1),
    ]
    assert isinstance(last, Ended)
    assert last.result.outputs == {"thinker:out": (0, 1), "vocoder:out": (0, 1)}


def test_a_chunk_is_handed_out_before_the_next_step() -> None:
    bench = alone()
    with bench.executor.session() as session:
        session.submit(ask(0, 3))
        for done in (1, 2):
            assert [type(event) for event in session.poll()] == [Chunk]
            assert len(bench.steps()) == done


def test_requests_of_one_index_are_told_apart_by_their_tickets() -> None:
    with alone().executor.session() as session:
        first, second = session.submit(ask(0, 1)), session.submit(ask(0, 4))
        session.cancel(second)
        session.drain()
        ends: dict[Ticket, Result] = {}
        while not session.done:
            ends |= {event.ticket: event.result for event in session.poll() if isinstance(event, Ended)}
    assert (ends[first].ok, ends[second].cancelled) == (True, True)


def test_a_request_without_a_route_fails_alone() -> None:
    with speech().executor.session() as session:
        session.submit(ask(0, 3, kinds="video"))
        session.submit(ask(1, 3))
        bad, good = finish(session)
    assert "video" in str(bad.error) and good.ok


def test_on_chunk_is_called_in_place_of_chunk_events() -> None:
    heard: list[Any] = []
    with alone().executor.session(on_chunk=lambda *what: heard.append(what[1:])) as session:
        session.submit(ask(0, 2))
        assert [type(event) for event in session.poll()] == [Ended]
    assert heard == [("count:out", 0), ("count:out", 1)]


# Nothing waiting is not the end


def test_a_request_that_comes_late_joins_those_under_way() -> None:
    bench = alone()
    with bench.executor.session() as session:
        session.submit(ask(0, 5))
        session.poll()
        session.submit(ask(1, 2))
        assert [result.request.index for result in finish(session)] == [1, 0]
    assert len(bench.steps()) == 7


def test_active_requests_go_on_while_nothing_waits() -> None:
    with alone().executor.session() as session:
        session.submit(ask(0, 3))
        events = [event for _ in range(3) for event in session.poll(timeout=30)]
        assert isinstance(events[-1], Ended) and not session.done


def test_an_idle_session_waits_asleep_until_its_time_is_up() -> None:
    with alone().executor.session() as session:
        begin, busy = time.perf_counter(), time.thread_time()
        assert session.poll(timeout=0.2) == []
        assert time.perf_counter() - begin >= 0.2
        assert time.thread_time() - busy < 0.05


def test_a_request_from_another_thread_wakes_it() -> None:
    with alone().executor.session() as session:
        threading.Timer(0.05, session.submit, [ask(0, 1)]).start()
        events = session.poll(timeout=30)
    assert [type(event) for event in events] == [Chunk, Ended]


def test_draining_from_another_thread_wakes_it() -> None:
    with alone().executor.session() as session:
        threading.Timer(0.05, session.drain).start()
        assert session.poll(timeout=30) == []
        assert session.done


def test_polling_without_time_does_one_round_at_most() -> None:
    bench = Bench(
        (Count, stage("quiet", "items<-request:n", terminal=False)), (Relay, stage("end", "items<-quiet:out"))
    )
    with bench.executor.session() as session:
        session.submit(ask(0, 9))
        session.poll(timeout=0)
        assert bench.steps() == ["quiet"]


def test_many_threads_may_submit_and_cancel() -> None:
    bench = alone()
    ends: list[Ended] = []
    with bench.executor.session(on_chunk=lambda *_: None) as session:

        def ask_some(first: int) -> None:
            for index in range(first, first + 25):
                ticket = session.submit(ask(index, 3))
                if index % 5 == 0:
                    session.cancel(ticket)

        threads = [threading.Thread(target=ask_some, args=(100 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        while len(ends) < 100:
            ends += [event for event in session.poll(timeout=30) if isinstance(event, Ended)]
        for thread in threads:
            thread.join()
    assert len({end.ticket for end in ends}) == 100
    assert all(end.result.ok for end in ends if end.result.request.index % 5)
    bench.assert_free()


# The end


def test_a_drained_session_finishes_what_it_has_and_takes_no_more() -> None:
    with alone().executor.session() as session:
        session.submit(ask(0, 3))
        session.submit(ask(1, 3))
        session.drain()
        with pytest.raises(RuntimeError, match="takes no more requests"):
            session.submit(ask(2, 1))
        assert [result.ok for result in finish(session)] == [True, True]
        assert session.poll() == []


def test_closing_frees_every_row_and_lets_the_next_session_begin() -> None:
    bench = speech()
    with bench.executor.session() as session:
        session.submit(ask(0, 99, kinds="audio"))
        session.poll()
        with pytest.raises(RuntimeError, match="another run of this executor"):
            bench.executor.session()
    bench.assert_free()
    with bench.executor.session() as session:
        session.submit(ask(0, 3, kinds="audio"))
        assert [result.ok for result in finish(session)] == [True]


def test_a_stage_that_does_not_open_fails_the_requests_that_need_it() -> None:
    bench = speech()
    broken(bench, "talker", WRONG)
    with lazy(bench) as executor, executor.session() as session:
        session.submit(ask(0, 2, kinds="audio"))
        session.submit(ask(1, 2))
        bad, good = sorted(finish(session), key=lambda result: result.request.index)
    assert isinstance(bad.error, ConfigError) and good.ok


# Priority and deadline


def order(executor: Executor, requests: list[Request]) -> list[int]:
    with executor.session() as session:
        for request in requests:
            session.submit(request)
        return [result.request.index for result in finish(session)]


def test_of_waiting_requests_the_highest_priority_starts_first_and_the_oldest_of_these() -> None:
    requests = [urgent(0, 2), urgent(1, 2, priority=1), urgent(2, 2, priority=1), urgent(3, 2, priority=-1)]
    assert order(alone(policy=InFlight(1)).executor, requests) == [1, 2, 0, 3]


def test_of_one_priority_the_request_that_is_due_first_starts_first() -> None:
    requests = [urgent(0, 2), urgent(1, 2, deadline_s=90), urgent(2, 2, deadline_s=60), urgent(3, 2, priority=1)]
    assert order(alone(policy=InFlight(1)).executor, requests) == [3, 2, 1, 0]


def test_a_request_that_has_started_is_not_stopped_for_a_higher_priority() -> None:
    with alone(policy=InFlight(1)).executor.session() as session:
        session.submit(urgent(0, 3))
        session.poll()
        session.submit(urgent(1, 3, priority=9))
        assert [result.request.index for result in finish(session)] == [0, 1]


@pytest.mark.parametrize("policy", [InFlight(1), Cohort(1)], ids=repr)
def test_a_request_out_of_time_fails_with_what_it_has_also_one_that_waits(policy: Any) -> None:
    class Slow(Count):
        def step(self, rows: Any) -> None:
            time.sleep(0.02)
            super().step(rows)

    bench = Bench((Slow, stage("slow", "items<-request:n")), policy=policy)
    with bench.executor.session() as session:
        session.submit(urgent(0, 1000, deadline_s=0.15))
        session.submit(urgent(1, 2, deadline_s=0.1))
        session.submit(urgent(2, 2))
        results = {result.request.index: result for result in finish(session)}
    bench.assert_free()
    late = results[0]
    assert isinstance(late.error, StageError) and not late.cancelled
    assert "request 0: got no end in time, expected its end within 0.15 s (deadline_s)" in str(late.error)
    if policy == Cohort(1):  # in flight, the one that was due first had started first
        assert 0 < len(late.outputs["slow:out"]) < 20
        assert not results[1].ok and results[1].stages == {}
    assert results[2].ok


def test_a_deadline_is_more_than_no_time() -> None:
    with pytest.raises(ValueError, match="deadline_s"):
        urgent(0, 1, deadline_s=0.0)


def test_a_run_cancels_by_index_what_is_under_way() -> None:
    bench = speech()
    results = bench.run([ask(0, 3, kinds="audio"), ask(1, 3)], on_chunk=lambda r, t, c: bench.executor.cancel(r.index))
    assert [result.cancelled for result in results] == [True, True]
