"""The deployments of a server, and what each has under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from framework.deployment.live import Live
from framework.errors import MultistageError, Problem, nearest
from framework.execution.executor import Executor
from framework.execution.opening import opening_error
from framework.execution.request import Request
from framework.execution.results import complete
from framework.execution.session import Chunk, Event
from framework.graph.model import Graph
from framework.io.requests import Defaults
from framework.serve.faults import Refused
from framework.serve.flight import Flight
from framework.serve.metrics import Metrics
from framework.serve.settings import Limits

LOG = logging.getLogger("multistage.serve")


class Deployment(Protocol):
    """A checked deployment, whose engines are not loaded yet.

    Attributes:
        defaults: what holds for requests that do not say otherwise.
    """

    @property
    def graph(self) -> Graph: ...

    @property
    def defaults(self) -> Defaults: ...

    def problems(self, request: Request) -> list[Problem]:
        """What is wrong with a request for this graph; no engine is needed."""
        ...

    def choices(self) -> Mapping[str, Sequence[str]]:
        """Names that a request may give, by field (voice, language)."""
        ...

    def executor(self) -> Executor:
        """A new executor over the graph; no stage of it is open."""
        ...


class Served:
    """One deployment under its name. Its engines are opened by the first request.

    Attributes:
        fault: why its engines did not open.
    """

    def __init__(self, name: str, deployment: Deployment, *, limits: Limits, metrics: Metrics) -> None:
        self.name = name
        self.deployment = deployment
        self.limits = limits
        self.fault: Exception | None = None
        self._metrics = metrics
        self._opening: asyncio.Task[None] | None = None
        self._executor: Executor | None = None
        self._live: Live | None = None
        self._rows = 1
        self._number = 0
        self._draining = False
        self._mean_s = 1.0  # of the last requests

    @property
    def graph(self) -> Graph:
        return self.deployment.graph

    @property
    def opening(self) -> bool:
        """Whether its engines are being loaded now."""
        return self._opening is not None and not self._opening.done()

    @property
    def under_way(self) -> int:
        """Requests that have not ended, waiting ones among them."""
        return 0 if self._live is None else self._live.load

    async def open(self) -> None:
        """Wait until the engines are open. Raises what they raised when they did not open."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)  # who waits may leave; the others need it still

    async def _open(self) -> None:
        try:
            executor = self._executor = self.deployment.executor()
            broken = await asyncio.to_thread(executor.open, [stage.id for stage in self.graph.stages])
            if broken:
                raise opening_error(broken)
        except Exception as error:
            LOG.error("%s did not open: %s", self.name, error)
            self.fault = error
            raise
        self._rows = executor.policy.size
        self._live = Live(executor)
        self._metrics.watch(self.name, self._rows, lambda: self.under_way)

    def next_number(self) -> int:
        """A number for a request that nobody else has."""
        self._number += 1
        return self._number

    async def submit(self, requests: Sequence[Request]) -> list[Flight]:
        """Start requests that belong together. Raises what is wrong with them, or Refused when there is no room."""
        problems = [problem for request in requests[:1] for problem in self.deployment.problems(request)]
        if problems:
            raise MultistageError(problems)
        if self._draining:
            raise stopping()
        if self.under_way + len(requests) > self._rows + self.limits.queue and self._live is not None:
            got = f"{max(0, self.under_way - self._rows)} requests waiting"
            seconds = max(1, round(self._mean_s * self.under_way / self._rows))
            problem = Problem(where="queue", got=got, expected=f"at most {self.limits.queue}", hint="come again later")
            raise Refused(problem, status=429, code="queue_full", headers={"Retry-After": str(seconds)})
        await self.open()
        return [self._submit(request) for request in requests]

    def _submit(self, request: Request) -> Flight:
        live = self._live
        assert live is not None
        flight = Flight(request, unread=self.limits.unread, cancel=live.cancel)

        def listen(event: Event) -> None:
            if isinstance(event, Chunk):
                flight.push(event.value)
                return
            result = complete(event.result)
            self._mean_s += 0.1 * (result.wall_s - self._mean_s)
            self._metrics.ended(self.name, flight, result)
            flight.end(result)

        try:
            flight.ticket = live.submit(request, listen)
        except RuntimeError as error:
            if self._draining:
                raise stopping() from None
            self.fault = error
            raise
        return flight

    def drain(self) -> None:
        """Take no more requests; those that are there run to their end."""
        self._draining = True
        if self._live is not None:
            self._live.drain(timeout=0)

    async def close(self) -> None:
        """Let the engines go. What has not ended is given up."""
        self.drain()
        if self.opening and self._opening is not None:
            await asyncio.wait([self._opening])
        if self._live is not None:
            await asyncio.to_thread(self._live.close)
        if self._executor is not None:
            self._executor.close()


def stopping() -> Refused:
    problem = Problem(where="server", got="a request while it stops", expected="another server, or a later time")
    return Refused(problem, status=503, code="shutting_down", headers={"Retry-After": "5"})


@attrs.define
class House:
    """All deployments of a server, by name; the first is the one that is meant where a client names none."""

    served: Mapping[str, Served]

    def __getitem__(self, name: str) -> Served:
        """Raises Refused for a name that is none of them."""
        found = self.served.get(name)
        if found is None:
            hint = nearest(name, self.served)
            problem = Problem(where="model", got=repr(name), expected="a deployment that is served here", hint=hint)
            raise Refused(problem, status=404, code="model_not_found")
        return found

    @property
    def first(self) -> Served:
        return next(iter(self.served.values()))

    def drain(self) -> None:
        for served in self.served.values():
            served.drain()

    async def close(self) -> None:
        for served in self.served.values():
            await served.close()
