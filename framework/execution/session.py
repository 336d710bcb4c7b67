"""A session: requests that come when they come, run through a graph one step of one stage at a time.

It goes round the stages, those nearest to the output first, so that a vocoder window runs as soon as its codes are
there. At each stage it gives free rows to requests whose inputs have come, then calls `step` once with all rows that
have input and room for output. Which requests are active is the policy's choice.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

import attrs

from framework.errors import MultistageError, Problem, StageError
from framework.execution.jobs import Job, Lane, Task, ended
from framework.execution.opening import opening_error
from framework.execution.policies import Candidate, Policy, Ticket
from framework.execution.request import Request, Result
from framework.execution.runner import Row, Runner
from framework.graph.model import Graph, Stage
from framework.graph.routes import route, topological


@attrs.frozen(kw_only=True, eq=False)
class Chunk:
    """A piece of a requested output, when it is made.

    Attributes:
        terminal: `<stage>:<port>`.
        value: as the stage wrote it (`framework.execution.payloads`).
    """

    ticket: Ticket
    terminal: str
    value: Any


@attrs.frozen(kw_only=True, eq=False)
class Ended:
    """The last event of a request, which comes exactly once."""

    ticket: Ticket
    result: Result


Event = Chunk | Ended
OnChunk = Callable[[Request, str, Any], None]
OpenStages = Callable[[Collection[str]], Mapping[str, Exception]]


class Session:
    """Requests under way in one graph. A context manager: leaving it frees every row.

    `submit`, `cancel` and `drain` may be called from any thread, `cancel` from a signal handler too. One thread at a
    time calls `poll`, which does all the work::

        with executor.session() as session:
            ticket = session.submit(request)
            while not session.done:
                for event in session.poll():
                    ...

    That nothing waits is not the end: `poll` then waits for a request, asleep. `drain` says that no more will come.

    Args:
        runners: by stage id, for every stage of the graph; opened by `open_stages` when the first request needs them.
        open_stages: opens those of the given stages that are not open yet; returns the errors of those that cannot be,
            and the requests that need them fail with these.
        stream_capacity: see `Executor`.
        on_chunk: called as `on_chunk(request, "<stage>:<port>", chunk)` as soon as a chunk of a requested output is
            made; `poll` then gives no `Chunk` events. What it raises leaves `poll`, and ends the session.
    """

    def __init__(
        self,
        *,
        graph: Graph,
        runners: Mapping[str, Runner],
        policy: Policy,
        open_stages: OpenStages,
        stream_capacity: int = 64,
        on_chunk: OnChunk | None = None,
    ) -> None:
        self._graph = graph
        self._runners = runners
        self._policy = policy
        self._open_stages = open_stages
        self._stream_capacity = stream_capacity
        self._on_chunk = on_chunk
        self._stages = {stage.id: stage for stage in graph.stages}
        self._lanes = [self._lane(stage) for stage in reversed(topological(graph))]
        self._lane_of = {lane.stage.id: lane for lane in self._lanes}
        self._next = 0  # place in `_lanes` of the stage whose turn it is
        self._tickets = count()
        self.closed = False
        self._taking = True
        self._submitting = threading.RLock()  # no request comes in behind the end of a drain
        # What other threads (and signal handlers) ask for: a queue that may be written to at any moment.
        self._inbox: SimpleQueue[Candidate | _Refused | _Cancel | None] = SimpleQueue()
        self._waiting: list[Candidate] = []
        self._active: list[Job] = []
        self._due: list[tuple[float, Ticket]] = []  # a heap of the moments at which requests must have ended
        self._events: list[Event] = []
        self._changed = False  # requests have come or gone since the policy was asked

    def _lane(self, stage: Stage) -> Lane:
        return Lane(stage, self._runners[stage.id], [None] * min(stage.max_batch, self._policy.size))

    # From any thread

    def submit(self, request: Request) -> Ticket:
        """Take a request in; its events carry the ticket. RuntimeError after `drain` or `close`."""
        begin, ticket = perf_counter(), Ticket(next(self._tickets))
        item: Candidate | _Refused
        try:
            way = route(
                self._graph, request.fields.keys(), request.kinds, terminals=request.terminals, given=request.given
            )
        except MultistageError as error:
            item = _Refused(ticket, request, error)
        else:
            width = min(self._stages[stage_id].max_batch for stage_id in way.stages)
            due = math.inf if request.deadline_s is None else begin + request.deadline_s
            item = Candidate(request=request, route=way, max_batch=width, ticket=ticket, due=due)
        with self._submitting:
            if not self._taking:
                raise RuntimeError("this session takes no more requests")
            self._inbox.put(item)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give a request up; its rows are free before the next step. One that has ended is ignored."""
        self._inbox.put(_Cancel(ticket))

    def drain(self) -> None:
        """Take no more requests; those that are there run to their end."""
        with self._submitting:
            self._taking = False
        self._inbox.put(None)  # wakes `poll`

    # From the thread that drives it

    @property
    def done(self) -> bool:
        """Drained, and every event handed out: `poll` has nothing more to do."""
        return not (self._taking or self._events or self._waiting or self._active) and self._inbox.empty()

    def poll(self, timeout: float | None = None) -> list[Event]:
        """Work until something has happened, and hand it out, in order.

        Args:
            timeout: seconds after which it returns empty-handed, looked at between rounds of the stages and while no
                request is there; 0 does one round at most. None: only when the session is `done`.
        """
        until = None if timeout is None else perf_counter() + timeout
        while True:
            self._settle()
            if self._events:
                break
            if self._active:
                self._turn(self._lanes[self._next])
                self._next = (self._next + 1) % len(self._lanes)
                if self._next == 0:
                    self._free_stuck()
                if self._events or (self._next == 0 and until is not None and perf_counter() >= until):
                    break
            elif self.done or not self._wait(until):
                break
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Free every row and forget what has not ended. May be called again."""
        self._taking = False
        self._waiting.clear()
        self._active.clear()
        try:
            for lane in self._lanes:
                lane.waiting.clear()
                for task in lane.tasks:
                    self._free(lane, task)
        finally:
            self.closed = True  # from here on, another session may take the rows

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Requests

    def _wait(self, until: float | None) -> bool:
        """Sleep until something is asked for; False when the time was up before."""
        try:
            item = self._inbox.get(timeout=None if until is None else max(0.0, until - perf_counter()))
        except Empty:
            return False
        self._take(item)
        return True

    def _settle(self) -> None:
        """Do what was asked for, and start what may start. Before every step, not every round: a place that comes free
        is taken at once."""
        while not self._inbox.empty():
            self._take(self._inbox.get())
        if self._due:
            self._end_overdue()
        if self._changed:
            self._start()

    def _take(self, item: Candidate | _Refused | _Cancel | None) -> None:
        if isinstance(item, Candidate):
            self._waiting.append(item)
            self._changed = True
            if item.due < math.inf:
                heappush(self._due, (item.due, item.ticket))
        elif isinstance(item, _Refused):
            self._hand_out(item.ticket, ended(item.request, item.error))
        elif isinstance(item, _Cancel):
            self._give_up(item.ticket, cancelled=True)

    def _end_overdue(self) -> None:
        now = perf_counter()
        while self._due and self._due[0][0] <= now:
            _, ticket = heappop(self._due)
            self._give_up(ticket)

    def _give_up(self, ticket: Ticket, *, cancelled: bool = False) -> None:
        """End a request wherever it is: cancelled, or out of time."""
        for candidate in self._waiting:
            if candidate.ticket == ticket:
                self._waiting.remove(candidate)
                self._changed = True
                error = None if cancelled else _too_late(candidate.request)
                self._hand_out(ticket, ended(candidate.request, error, cancelled=cancelled))
                return
        for job in self._active:
            if job.candidate.ticket == ticket:
                self._end(job, None if cancelled else _too_late(job.request), cancelled=cancelled)
                return

    def _start(self) -> None:
        self._changed = False
        if not self._waiting:
            return
        chosen = self._policy.select(self._waiting, [job.candidate for job in self._active])
        if not chosen and not self._active:
            raise RuntimeError(f"{self._policy!r} starts none of {len(self._waiting)} waiting requests")
        if not chosen:
            return
        self._changed = True
        self._waiting = [candidate for candidate in self._waiting if candidate not in chosen]
        broken = self._open_stages({stage_id for candidate in chosen for stage_id in candidate.route.stages})
        for candidate in chosen:
            lacking = {stage_id: broken[stage_id] for stage_id in candidate.route.stages if stage_id in broken}
            if lacking:
                self._hand_out(candidate.ticket, ended(candidate.request, opening_error(lacking)))
            else:
                self._start_one(candidate)

    def _start_one(self, candidate: Candidate) -> None:
        job = Job(candidate, self._graph, self._runners, self._stream_capacity)
        for task in job.tasks.values():
            try:
                self._lane_of[task.stage.id].runner.check(job.request)
            except Exception as error:
                self._hand_out(candidate.ticket, job.result(task.error(error)))
                return
        self._active.append(job)
        for task in job.tasks.values():
            self._lane_of[task.stage.id].waiting.append(task)

    def _end(self, job: Job, error: Exception | None = None, *, cancelled: bool = False) -> None:
        for task in job.tasks.values():
            lane = self._lane_of[task.stage.id]
            if task in lane.waiting:
                lane.waiting.remove(task)
            elif task in lane.slots:
                freed = self._free(lane, task)
                error = error or freed  # the first thing that went wrong
        self._active.remove(job)
        self._changed = True
        self._hand_out(job.candidate.ticket, job.result(error, cancelled=cancelled))

    def _hand_out(self, ticket: Ticket, result: Result) -> None:
        self._events.append(Ended(ticket=ticket, result=result))

    # Stages

    def _turn(self, lane: Lane) -> None:
        if lane.waiting:
            for task in [task for task in lane.waiting if task.startable]:
                slot = lane.free_slot
                if slot is None:
                    break
                self._admit(lane, task, slot)
        steppable = [(task, row) for task in lane.tasks if (row := self._ready(lane, task)) is not None]
        if not steppable:
            return
        failure: Exception | None = None
        begin = perf_counter()
        try:
            lane.runner.step([row for _, row in steppable])
        except Exception as error:
            failure = error
        end = perf_counter()
        for task, row in steppable:
            task.stepped(end - begin)
            if failure is not None:
                row.fail(failure)
            self._advance(lane, task, row, end)

    def _admit(self, lane: Lane, task: Task, slot: int) -> None:
        row = Row(index=slot, request=task.job.request, inputs=task.inputs, outputs=task.outputs)
        lane.waiting.remove(task)
        task.admitted(row)
        try:
            lane.runner.admit(row)
        except Exception as error:
            self._end(task.job, task.error(error))
            return
        lane.slots[slot] = task
        self._advance(lane, task, row, perf_counter())

    def _ready(self, lane: Lane, task: Task) -> Row | None:
        """The task's row when it can be stepped now."""
        row = task.row
        assert row is not None
        try:
            ready = lane.runner.ready(row)
        except Exception as error:
            self._end(task.job, task.error(error))
            return None
        task.blocked = ready and not task.has_room
        return row if ready and not task.blocked else None

    def _advance(self, lane: Lane, task: Task, row: Row, now: float) -> None:
        """Hand on what a row has made up to now, and see whether it is done."""
        job = task.job
        job.moved = True
        task.touch(now)
        for terminal, chunk in job.collect(lane.stage.id):
            if self._on_chunk is not None:
                self._on_chunk(job.request, terminal, chunk)
            else:
                self._events.append(Chunk(ticket=job.candidate.ticket, terminal=terminal, value=chunk))
        if not row.finished:
            return
        error = task.error(row.error) if row.error is not None else self._free(lane, task)
        if error is not None or all(other.done for other in job.tasks.values()):
            self._end(job, error)

    def _free(self, lane: Lane, task: Task) -> StageError | None:
        """Release the task's row, once; returns what the release raised."""
        row = task.row
        assert row is not None
        lane.slots[row.index] = None
        for reader in task.inputs.values():
            reader.detach()
        try:
            lane.runner.release(row)
        except Exception as error:
            return task.error(error)
        return None

    def _free_stuck(self) -> None:
        """Deal with requests that nothing happened to in a whole round, and so never will.

        A request depends on others only through rows. When it waits for none, either a full stream holds up a stage
        while its reader waits for more, or for another output of that stage: then the stream grows by one chunk
        (Parks, "Bounded scheduling of process networks", 1995). Or a runner waits for what cannot come.
        """
        for job in list(self._active):
            if job.moved or any(task.startable for task in job.tasks.values()):
                job.moved = False
                continue
            blocked = [task for task in job.tasks.values() if task.blocked and not task.done]
            if blocked:
                for writer in blocked[-1].outputs.values():
                    writer.grow()
                continue
            task = next(task for task in job.tasks.values() if not task.done)
            inputs = ", ".join(f"{name} ({reader.describe()})" for name, reader in task.inputs.items())
            verb = "is never ready with" if task.row is not None else "waits for"
            got = f"no more progress: it {verb} {inputs or 'no inputs'}"
            self._end(job, task.problem(got, "a stage that goes on or finishes"))


@attrs.frozen
class _Refused:
    """A request that no route serves."""

    ticket: Ticket
    request: Request
    error: MultistageError


@attrs.frozen
class _Cancel:
    ticket: Ticket


def _too_late(request: Request) -> StageError:
    where, expected = f"request {request.index}", f"its end within {request.deadline_s:g} s (deadline_s)"
    return StageError(Problem(where=where, got="no end in time", expected=expected))
