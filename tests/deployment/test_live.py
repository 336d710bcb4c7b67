"""One engine thread, and requests from many."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from framework.deployment.live import Live
from framework.execution.policies import InFlight
from framework.execution.session import Chunk, Ended
from tests.execution.fakes import Bench, Count, alone, ask, stage

TIMEOUT_S = 30


class Slow(Count):
    def step(self, rows: Any) -> None:
        time.sleep(0.002)
        super().step(rows)


@pytest.fixture
def bench() -> Bench:
    return alone()


@pytest.fixture
def live(bench: Bench) -> Iterator[Live]:
    with Live(bench.executor) as live:
        yield live
    bench.assert_free()


def slow() -> Bench:
    return Bench((Slow, stage("slow", "items<-request:n")), policy=InFlight(4))


def test_the_events_of_a_request_end_with_its_result(live: Live) -> None:
    *chunks, last = live.events(ask(7, 3))
    assert [chunk.value for chunk in chunks if isinstance(chunk, Chunk)] == [0, 1, 2]
    assert isinstance(last, Ended) and last.result.ok


def test_requests_of_several_threads_run_together() -> None:
    bench, together = slow(), 4
    with Live(bench.executor) as live:
        begun = threading.Barrier(together, timeout=TIMEOUT_S)

        def talk(index: int) -> None:
            for number, _ in enumerate(live.events(ask(index, 50))):
                if number == 0:
                    begun.wait()  # nobody passes it alone: all have begun before one has ended

        threads = [threading.Thread(target=talk, args=(index,)) for index in range(together)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert not begun.broken and live.load == 0


def test_leaving_the_loop_gives_the_request_up() -> None:
    bench = slow()
    with Live(bench.executor) as live:
        events = live.events(ask(0, 100_000))
        next(events)
        events.close()  # type: ignore[attr-defined]
        assert live.drain(TIMEOUT_S)
    bench.assert_free()


def test_cancelling_a_task_gives_the_request_up() -> None:
    bench = slow()

    async def talk(live: Live) -> None:
        async for _ in live.aevents(ask(0, 100_000)):
            pass

    async def main(live: Live) -> None:
        task = asyncio.create_task(talk(live))
        while not bench.log:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Live(bench.executor) as live:
        asyncio.run(main(live))
        assert live.drain(TIMEOUT_S)
    bench.assert_free()


def test_tasks_of_one_loop_run_together(live: Live) -> None:
    async def talk(index: int) -> list[Any]:
        return [event.value async for event in live.aevents(ask(index, 3)) if isinstance(event, Chunk)]

    async def main() -> list[list[Any]]:
        return await asyncio.gather(*(talk(index) for index in range(6)))

    assert asyncio.run(main()) == [[0, 1, 2]] * 6


def test_a_listener_that_raises_loses_its_request_and_no_other(live: Live) -> None:
    def gone(_: Any) -> None:
        raise ConnectionError("gone")

    live.submit(ask(0, 100_000), gone)
    *_, last = live.events(ask(1, 3))
    assert isinstance(last, Ended) and last.result.ok
    assert live.drain(TIMEOUT_S)


def test_draining_finishes_what_is_there_and_takes_no_more(bench: Bench) -> None:
    ends: list[Any] = []
    with Live(bench.executor) as live:
        for index in range(6):
            live.submit(ask(index, 5), lambda event: ends.append(event) if isinstance(event, Ended) else None)
        assert live.drain(TIMEOUT_S) and not live.alive
        with pytest.raises(RuntimeError, match="takes no more requests"):
            live.submit(ask(9, 1), ends.append)
    assert [end.result.ok for end in ends] == [True] * 6


def test_draining_gives_up_waiting_after_its_time() -> None:
    with Live(slow().executor) as live:
        live.submit(ask(0, 100_000), lambda _: None)
        assert not live.drain(0.05)


def test_closing_cancels_what_has_not_ended() -> None:
    ends: list[Any] = []
    with Live(slow().executor) as live:
        live.submit(ask(0, 100_000), lambda event: ends.append(event) if isinstance(event, Ended) else None)
    assert [end.result.cancelled for end in ends] == [True]


def test_the_executor_is_free_again_after_it(bench: Bench) -> None:
    with Live(bench.executor) as live:
        list(live.events(ask(0, 3)))
    assert [result.ok for result in bench.run([ask(0, 3)])] == [True]


def test_a_bug_in_the_engine_thread_ends_every_request_instead_of_leaving_it_waiting() -> None:
    class Idle(InFlight):
        def select(self, waiting: Any, active: Any) -> list[Any]:
            return []

    with Live(alone(policy=Idle(4)).executor) as live:
        *_, last = live.events(ask(0, 1))
        assert isinstance(last, Ended) and "starts none of 1 waiting" in str(last.result.error)
        with pytest.raises(RuntimeError, match="the engine thread has ended with an error"):
            live.submit(ask(1, 1), lambda _: None)
