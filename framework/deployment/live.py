"""An executor at work in a thread of its own, for callers in many: the Python API and the server stand on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from queue import SimpleQueue

from framework.execution.executor import Executor
from framework.execution.jobs import ended
from framework.execution.policies import Ticket
from framework.execution.request import Request
from framework.execution.session import Ended, Event, Session

Listener = Callable[[Event], object]


class Live:
    """One engine thread that drives one session; requests that come together run together, as the policy says.

    All methods may be called from any thread. A context manager: leaving it gives up what has not ended and waits for
    the thread; the executor stays the caller's, to close afterwards::

        with make_executor(config, system, None) as executor, Live(executor) as live:
            for event in live.events(request):     # or: async for event in live.aevents(request)
                ...

    A request ends with exactly one `Ended`, its last event; a failed one has its error in the result and touches no
    other. There is no limit on how many wait: who needs one asks `load` before `submit`. Events are never held back
    for a slow reader; they hold no more memory than the request's result does.

    Attributes:
        executor: not to be used by others meanwhile.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._session: Session = executor.session()
        self._lock = threading.Lock()  # of the two below
        self._listeners: dict[Ticket, tuple[Request, Listener]] = {}
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._drive, name="engines", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """Requests that have not ended, waiting ones among them."""
        return len(self._listeners)

    @property
    def alive(self) -> bool:
        """False once it takes no more requests and has nothing left to do, or has broken."""
        return self._thread.is_alive()

    def submit(self, request: Request, listener: Listener) -> Ticket:
        """Run a request.

        Args:
            listener: called in the engine thread with each event of the request, which every stage waits for: it should
                put the event somewhere and return. When it raises, its request is cancelled and it is called no more.

        Raises:
            RuntimeError: after `drain` or `close`, or when the engine thread has broken.
        """
        with self._lock:
            if self._failure is not None:
                raise RuntimeError("the engine thread has ended with an error") from self._failure
            ticket = self._session.submit(request)
            self._listeners[ticket] = request, listener
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Give a request up: it ends, cancelled, before the next step. One that has ended is ignored."""
        self._session.cancel(ticket)

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait for the end of those that are there.

        Args:
            timeout: seconds; None waits as long as it takes.

        Returns:
            whether all have ended.
        """
        self._session.drain()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Take no more requests, give up those that are there, and wait for the thread. May be called again."""
        self._session.drain()
        with self._lock:
            tickets = [*self._listeners]
        for ticket in tickets:
            self._session.cancel(ticket)
        self._thread.join()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def events(self, request: Request) -> Iterator[Event]:
        """Run a request from the first `next` on; the last event is its `Ended`. Leaving the loop cancels it."""
        inbox: SimpleQueue[Event] = SimpleQueue()
        ticket = self.submit(request, inbox.put)
        try:
            while True:
                event = inbox.get()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            self.cancel(ticket)

    async def aevents(self, request: Request) -> AsyncIterator[Event]:
        """As `events`, in the event loop of the caller; cancelling the caller's task cancels the request."""
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[Event]()
        ticket = self.submit(request, lambda event: loop.call_soon_threadsafe(inbox.put_nowait, event))
        try:
            while True:
                event = await inbox.get()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            self.cancel(ticket)

    # The engine thread

    def _drive(self) -> None:
        try:
            with self._session as session:
                while not session.done:
                    for event in session.poll():
                        self._tell(event)
        except BaseException as error:  # a bug of ours: nobody may wait for ever
            self._fail(error)

    def _tell(self, event: Event) -> None:
        with self._lock:
            entry = self._listeners.get(event.ticket)
            if isinstance(event, Ended):
                self._listeners.pop(event.ticket, None)
        if entry is None:  # its listener has raised
            return
        try:
            entry[1](event)
        except Exception:
            with self._lock:
                self._listeners.pop(event.ticket, None)
            self._session.cancel(event.ticket)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
            left, self._listeners = self._listeners, {}
        cause = error if isinstance(error, Exception) else RuntimeError(f"the engine thread has ended: {error!r}")
        for ticket, (request, listener) in left.items():
            try:
                listener(Ended(ticket=ticket, result=ended(request, cause)))
            except Exception:
                continue
