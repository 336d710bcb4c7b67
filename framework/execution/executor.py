"""The executor: runs requests through a graph, one step of one stage at a time.

It goes round the stages, those nearest to the output first, so that a vocoder window runs as soon as its codes are
there. At each stage it gives free rows to requests whose inputs have come, then calls `step` once with all rows that
have input and room for output. Which requests are active is the policy's choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from framework.errors import MultistageError, StageError
from framework.execution.jobs import Job, Lane, Task, ended
from framework.execution.opening import MakeContext, opening_error, try_open
from framework.execution.policies import Candidate, Policy
from framework.execution.request import Request, Result
from framework.execution.runner import Row, Runner
from framework.graph.model import Graph, Stage
from framework.graph.routes import route, topological

OnChunk = Callable[[Request, str, Any], None]


class Executor:
    """Runs requests through a valid graph. A context manager: leaving it closes the runners it opened.

    Args:
        runners: by stage id, for every stage of the graph.
        policy: which requests run together (`framework.execution.policies`).
        make_context: what to open a stage with. A stage is opened when the first request needs it, together with
            the others that are needed then. None when the caller has opened (and will close) the runners.
        stream_capacity: chunks a stage may run ahead of a stage that streams from it. It is exceeded only where a
            request could not go on otherwise (a window larger than this, say).
    """

    def __init__(
        self,
        graph: Graph,
        runners: Mapping[str, Runner],
        *,
        policy: Policy,
        make_context: MakeContext | None = None,
        stream_capacity: int = 64,
    ) -> None:
        self.graph = graph
        self.runners = runners
        self.policy = policy
        self.stream_capacity = stream_capacity
        self.running = False
        self.opening_s = 0.0  # spent on opening stages so far
        self._make_context = make_context
        self._closing = ExitStack()
        self._open: set[str] = set()
        self._broken: dict[str, Exception] = {}  # stages that did not open
        self._run: _Run | None = None

    def run(self, requests: Iterable[Request], on_chunk: OnChunk | None = None) -> Iterator[Result]:
        """Run the requests and yield each result as it ends; the caller sorts where order matters.

        Args:
            requests: may be endless; read ahead no further than the policy's window.
            on_chunk: called as `on_chunk(request, "<stage>:<port>", chunk)` with every chunk of a requested output
                when it is made. What it raises ends the run.

        A request that fails has its error in its result and touches no other. Closing the iterator, or an exception
        that ends the run (KeyboardInterrupt), frees every row. One run at a time.

        Raises:
            ConfigError: the stages that the first requests need do not open, so that nothing can run. When stages
                needed later do not, the requests that need them fail with it.
        """
        self._run = _Run(self, requests, on_chunk)
        return self._run.results()

    def cancel(self, index: int) -> None:
        """Give up the request of this index in the present run; its rows are free before the next step. May be called
        from `on_chunk`, another thread or a signal handler; an index that has ended or never comes is ignored."""
        if self._run is not None:
            self._run.cancelled.add(index)

    def open(self, stages: Collection[str]) -> dict[str, Exception]:
        """Open those of the stages that are not open yet, in parallel; returns the errors of those that cannot be."""
        if self._make_context is not None:
            known = self._open | self._broken.keys()
            new = [stage for stage in self.graph.stages if stage.id in stages and stage.id not in known]
            begin = perf_counter()
            failures = try_open(new, self.runners, self._make_context)
            self.opening_s += perf_counter() - begin
            self._broken |= failures
            for stage in new:
                if stage.id not in failures:
                    self._open.add(stage.id)
                    self._closing.callback(self.runners[stage.id].close)
        return {stage_id: self._broken[stage_id] for stage_id in stages if stage_id in self._broken}

    @property
    def opened(self) -> frozenset[str]:
        """Ids of the stages it has opened."""
        return frozenset(self._open)

    @property
    def broken(self) -> frozenset[str]:
        """Ids of the stages that did not open; they are not tried again."""
        return frozenset(self._broken)

    def close(self) -> None:
        """Close the runners it opened."""
        self._open.clear()
        self._closing.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Run:
    """The state of one `Executor.run`."""

    def __init__(self, executor: Executor, requests: Iterable[Request], on_chunk: OnChunk | None) -> None:
        self.executor = executor
        self.policy = executor.policy
        self.on_chunk = on_chunk
        self.cancelled: set[int] = set()
        self.requests: Iterator[Request] | None = iter(requests)  # None after the last one
        self.stages = {stage.id: stage for stage in executor.graph.stages}
        self.lanes = {stage.id: self._lane(stage) for stage in reversed(topological(executor.graph))}
        self.waiting: list[Candidate] = []
        self.active: list[Job] = []
        self.ended: deque[Result] = deque()
        self.changed = True  # requests have come or gone since the policy was asked

    def _lane(self, stage: Stage) -> Lane:
        return Lane(stage, self.executor.runners[stage.id], [None] * min(stage.max_batch, self.policy.size))

    def results(self) -> Iterator[Result]:
        if self.executor.running:
            raise RuntimeError("another run of this executor has not ended: its runners' rows are taken")
        self.executor.running = True
        try:
            while self.requests is not None or self.waiting or self.active or self.ended:
                for lane in self.lanes.values():
                    yield from self._settle()
                    self._turn(lane)
                self._free_stuck()
        finally:
            for lane in self.lanes.values():
                for task in lane.tasks:
                    self._free(lane, task)
            self.executor.running = False

    # Requests

    def _settle(self) -> Iterator[Result]:
        """Hand out what has ended and start what may start. Before every step, not every round: a place that comes
        free is taken at once."""
        while True:
            while self.ended:
                yield self.ended.popleft()
            if self.cancelled:
                self._drop_cancelled()
            if self.changed:
                self._read_ahead()
                self._start()
            if not self.ended:
                return

    def _read_ahead(self) -> None:
        window = self.policy.window
        while self.requests is not None and not self.ended and len(self.waiting) + len(self.active) < window:
            request = next(self.requests, None)
            if request is None:
                self.requests = None
                return
            try:
                way = route(
                    self.executor.graph,
                    request.fields.keys(),
                    request.kinds,
                    terminals=request.terminals,
                    given=request.given,
                )
            except MultistageError as error:
                self.ended.append(ended(request, error))
                continue
            width = min(self.stages[stage_id].max_batch for stage_id in way.stages)
            self.waiting.append(Candidate(request=request, route=way, max_batch=width))

    def _drop_cancelled(self) -> None:
        for candidate in [c for c in self.waiting if c.request.index in self.cancelled]:
            self.waiting.remove(candidate)
            self.changed = True
            self.ended.append(ended(candidate.request, cancelled=True))
        for job in [job for job in self.active if job.request.index in self.cancelled]:
            self._end(job, cancelled=True)

    def _start(self) -> None:
        self.changed = bool(self.ended)  # more can be read once these are handed out
        if not self.waiting:
            return
        chosen = self.policy.select(self.waiting, [job.candidate for job in self.active])
        if not chosen and not self.active:
            raise RuntimeError(f"{self.policy!r} starts none of {len(self.waiting)} waiting requests")
        if not chosen:
            return
        self.changed = True
        self.waiting = [candidate for candidate in self.waiting if candidate not in chosen]
        first = not self.executor.opened
        broken = self.executor.open({stage_id for candidate in chosen for stage_id in candidate.route.stages})
        if broken and first:
            raise opening_error(broken)
        for candidate in chosen:
            lacking = {stage_id: broken[stage_id] for stage_id in candidate.route.stages if stage_id in broken}
            if lacking:
                self.ended.append(ended(candidate.request, opening_error(lacking)))
            else:
                self._start_one(candidate)

    def _start_one(self, candidate: Candidate) -> None:
        job = Job(candidate, self.executor.graph, self.executor.runners, self.executor.stream_capacity)
        for task in job.tasks.values():
            try:
                self.lanes[task.stage.id].runner.check(job.request)
            except Exception as error:
                self.ended.append(job.result(task.error(error)))
                return
        self.active.append(job)
        for task in job.tasks.values():
            self.lanes[task.stage.id].waiting.append(task)

    def _end(self, job: Job, error: Exception | None = None, *, cancelled: bool = False) -> None:
        for task in job.tasks.values():
            lane = self.lanes[task.stage.id]
            if task in lane.waiting:
                lane.waiting.remove(task)
            elif task in lane.slots:
                freed = self._free(lane, task)
                error = error or freed  # the first thing that went wrong
        self.active.remove(job)
        self.changed = True
        self.ended.append(job.result(error, cancelled=cancelled))

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
            if self.on_chunk is not None:
                self.on_chunk(job.request, terminal, chunk)
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
        for job in list(self.active):
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
