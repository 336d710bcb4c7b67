"""Answers that are sent while they are made, and clients that go away in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class Stream(Response):
    """A body that is sent piece by piece.

    When the client leaves, or takes longer than `send_s` to accept a piece, the pieces are closed, which cancels the
    request behind them. An error in the middle breaks the connection off, so that no client takes a part for the whole.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        *,
        media_type: str,
        send_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._pieces = pieces
        self._send_s = send_s

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        self.body = b""
        super().init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send(send))
        listener = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            for task in (sender, listener):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
            await _closed(self._pieces)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            if piece:
                async with asyncio.timeout(self._send_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same pieces, the first of them made: what goes wrong before it is still told by the status."""
    try:
        first = await anext(pieces, b"")
    except BaseException:
        await _closed(pieces)
        raise

    async def all_pieces() -> AsyncIterator[bytes]:
        try:
            yield first
            async for piece in pieces:
                yield piece
        finally:
            await _closed(pieces)

    return all_pieces()


async def until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientDisconnect then."""
    task = asyncio.create_task(work)
    listener = asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait({task, listener}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for one in (task, listener):
            if not one.done():
                one.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await one


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _closed(pieces: AsyncIterator[bytes]) -> None:
    if (close := getattr(pieces, "aclose", None)) is not None:
        with suppress(Exception):
            await close()
