"""The process of a server: its socket, its signals, its log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import uvicorn
from fastapi import FastAPI

from framework.errors import ConfigError, Problem
from framework.serve.app import create_app
from framework.serve.metrics import Metrics
from framework.serve.served import Deployment, House, Served
from framework.serve.settings import Keys, Limits

LOG = logging.getLogger("multistage.serve")
_LOGGERS = ("multistage.serve", "multistage.requests")


def listen(host: str, port: int) -> socket.socket:
    """A socket that is taken at once, before anything is loaded. Raises ConfigError where it cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(2048)  # of connections that wait to be accepted; also what a second server on this port fails at
    except (OSError, OverflowError) as error:
        made.close()
        code = getattr(error, "errno", None)
        if code == errno.EADDRINUSE:
            problem = Problem(
                where="port",
                got=f"{port}, where another program listens on {host}",
                expected="a free port",
                hint=f"port={port + 1 if port < 65535 else 8000}, or port=0 for any",
            )
        else:
            got = f"{host}:{port}: {getattr(error, 'strerror', None) or error}"
            problem = Problem(where="host and port", got=got, expected="an address of this machine that is free to us")
        raise ConfigError(problem) from error
    return made


class Server(uvicorn.Server):
    """Uvicorn that on SIGTERM or SIGINT answers what it has, refuses what is new with 503, and ends with status 0.

    A second signal gives up what still runs.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], None], idle: Callable[[], bool], grace_s: float
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._idle = idle
        self._grace_s = grace_s
        self._stopping: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        if self._stopping is not None:
            self.should_exit = self.force_exit = True
            return
        LOG.info("stopping: requests under way are answered, new ones refused")
        self._drain()
        self._stopping = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                while not self._idle():
                    await asyncio.sleep(0.05)
        self.should_exit = True


def serve(
    deployments: Mapping[str, Deployment],
    *,
    sock: socket.socket,
    keys: Keys,
    limits: Limits,
    grace_s: float,
    log_requests: bool = True,
    said: Callable[[str], None] = lambda address: None,
) -> int:
    """Serve until a signal says stop; the exit status.

    Args:
        deployments: by the name that clients give as `model`. Engines of the first are opened at once, of the others
            by their first request.
        grace_s: seconds that requests under way have to end when the server stops.
        said: told the address once requests are accepted.
    """
    _log_to_stderr()
    return asyncio.run(_serve(deployments, sock, keys, limits, grace_s, log_requests, said))


async def _serve(
    deployments: Mapping[str, Deployment],
    sock: socket.socket,
    keys: Keys,
    limits: Limits,
    grace_s: float,
    log_requests: bool,
    said: Callable[[str], None],
) -> int:
    measured = Metrics()
    house = House({n: Served(n, d, limits=limits, metrics=measured) for n, d in deployments.items()})
    app = create_app(house, keys=keys, limits=limits, measured=measured, log=log_requests)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.create_task(house.first.open())
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # `Served.fault` tells it
        host, port = sock.getsockname()[:2]
        said(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        yield
        await house.close()

    app.router.lifespan_context = lifespan

    def drain() -> None:
        app.state.draining = True
        house.drain()
        for conversation in [*app.state.conversations]:
            conversation.drain()

    def idle() -> bool:
        return not any(served.under_way for served in house.served.values()) and not server.server_state.tasks

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(grace_s)),
        ws_max_size=min(16_000_000, int(limits.body_mb * 1e6)),
    )
    server = Server(config, drain, idle, grace_s)
    await server.serve(sockets=[sock])
    if server.force_exit:
        await house.close()  # uvicorn leaves it out; a process that ends in the middle of an engine's call aborts
    fault = house.first.fault
    return 0 if fault is None else 2


def _log_to_stderr() -> None:
    """The log of the server and of uvicorn's faults, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in (*_LOGGERS, "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name in _LOGGERS else logging.WARNING)
