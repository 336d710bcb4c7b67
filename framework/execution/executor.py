"""The executor: opens the stages of a graph as they are needed, and runs requests through them.

`Executor.session` is for requests that come when they come; `Executor.run` stands on it, for those there are already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from time import perf_counter

from framework.execution.opening import MakeContext, opening_error, try_open
from framework.execution.policies import Policy, Ticket
from framework.execution.request import Request, Result
from framework.execution.runner import Runner
from framework.execution.session import Ended, OnChunk, OpenStages, Session
from framework.graph.model import Graph


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
        self.opening_s = 0.0  # spent on opening stages so far
        self._make_context = make_context
        self._closing = ExitStack()
        self._open: set[str] = set()
        self._broken: dict[str, Exception] = {}  # stages that did not open
        self._session: Session | None = None
        self._run: _Run | None = None

    def session(self, on_chunk: OnChunk | None = None) -> Session:
        """A session over the stages of this executor, with the policy and the stream capacity that it has now.

        RuntimeError while another session, or a run, has not been closed: its runners' rows are taken.
        """
        return self._opened_session(self.open, on_chunk)

    def _opened_session(self, open_stages: OpenStages, on_chunk: OnChunk | None) -> Session:
        if self._session is not None and not self._session.closed:
            raise RuntimeError("another run of this executor has not ended: its runners' rows are taken")
        self._session = Session(
            graph=self.graph,
            runners=self.runners,
            policy=self.policy,
            open_stages=open_stages,
            stream_capacity=self.stream_capacity,
            on_chunk=on_chunk,
        )
        return self._session

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
            self._run.cancel(index)

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
    """One `Executor.run`: a session that is fed from an iterable, no further ahead than the policy's window."""

    def __init__(self, executor: Executor, requests: Iterable[Request], on_chunk: OnChunk | None) -> None:
        self._executor = executor
        self._requests: Iterator[Request] | None = iter(requests)  # None after the last one
        self._on_chunk = on_chunk or (lambda *_: None)
        self._session: Session | None = None
        self._under_way: dict[Ticket, Request] = {}
        self._cancelled: set[int] = set()

    def cancel(self, index: int) -> None:
        self._cancelled.add(index)  # first: a request that is just being submitted looks here afterwards
        for ticket, request in list(self._under_way.items()):
            if request.index == index and self._session is not None:
                self._session.cancel(ticket)

    def results(self) -> Iterator[Result]:
        with self._executor._opened_session(self._open, self._on_chunk) as session:
            self._session = session
            self._read_ahead(session)
            while self._under_way:
                for event in session.poll():
                    assert isinstance(event, Ended)
                    del self._under_way[event.ticket]
                    yield event.result
                self._read_ahead(session)

    def _read_ahead(self, session: Session) -> None:
        while self._requests is not None and len(self._under_way) < self._executor.policy.window:
            request = next(self._requests, None)
            if request is None:
                self._requests = None
                return
            ticket = session.submit(request)
            self._under_way[ticket] = request
            if request.index in self._cancelled:
                session.cancel(ticket)

    def _open(self, stages: Collection[str]) -> Mapping[str, Exception]:
        """As `Executor.open`; raises when nothing has been opened before, so that nothing can run."""
        first = not self._executor.opened
        broken = self._executor.open(stages)
        if broken and first:
            raise opening_error(broken)
        return broken
