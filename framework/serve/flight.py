"""One request under way, between the thread that runs the engines and the event loop that serves its client."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from framework.errors import Problem, StageError
from framework.execution.policies import Ticket
from framework.execution.request import Request, Result


class Flight:
    """What a request makes, in order, while it makes it.

    The engines' thread calls `push` and `end`, which never wait; everything else belongs to the event loop. A client
    that reads more slowly than the engines write leaves chunks unread; past `unread` of them its request is given up,
    and no other is touched.

    Attributes:
        begin: `time.perf_counter()` when the request came.
        first: by payload type, seconds from `begin` to the first chunk.
        result: None until the last event.
        ticket: once it is submitted.
    """

    def __init__(self, request: Request, *, unread: int, cancel: Callable[[Ticket], object]) -> None:
        self.request = request
        self.begin = time.perf_counter()
        self.first: dict[type, float] = {}
        self.result: Result | None = None
        self.ticket: Ticket | None = None
        self._unread = unread
        self._cancel = cancel
        self._lost = False
        self._chunks: deque[Any] = deque()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._told = False  # the loop has been woken and has not looked yet

    def push(self, value: Any) -> None:
        if self._lost:
            return
        self.first.setdefault(type(value), time.perf_counter() - self.begin)
        self._chunks.append(value)
        if len(self._chunks) > self._unread:
            self._lost = True
            self._chunks.clear()
            self.cancel()
        self._wake()

    def end(self, result: Result) -> None:
        self.result = result
        self._wake()

    def _wake(self) -> None:
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: the server has stopped
                self._loop.call_soon_threadsafe(self._changed.set)

    def cancel(self) -> None:
        """Give the request up, when it has not ended."""
        if self.result is None and self.ticket is not None:
            self._cancel(self.ticket)

    async def chunks(self) -> AsyncIterator[Any]:
        """Chunks as they are made. When they end, `result` is there.

        Raises StageError when the client was too slow; the error of a request that failed is in its result. A
        consumer that stops early, or is cancelled, cancels the request.
        """
        try:
            while True:
                self._told = False
                self._changed.clear()
                ended = self.result is not None
                while self._chunks:
                    yield self._chunks.popleft()
                if self._lost:
                    got = f"more than {self._unread} chunks that the client has not read"
                    raise StageError(Problem(where="client", got=got, expected="a client that reads its reply"))
                if ended:
                    return
                await self._changed.wait()
        finally:
            self.cancel()
