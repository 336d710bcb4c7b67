"""What every request passes before an endpoint sees it: its id, its key, the size of its body; its line in the log."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from framework.errors import Problem
from framework.serve.faults import Refused, body
from framework.serve.metrics import Metrics
from framework.serve.settings import Keys, Limits

LOG = logging.getLogger("multistage.requests")
OPEN = ("/health", "/ready")  # no key: a balancer asks
PAGE = ("/", "/assets/")  # no key: the page asks for one
PROTOCOL_KEY = "openai-insecure-api-key."  # OpenAI's own name for it
LEFT = 499  # in the log, as other servers write it: the client left before its answer


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, keys: Keys, limits: Limits, metrics: Metrics, log: bool) -> None:
        self._app = app
        self._keys = keys
        self._most = int(limits.body_mb * 1e6)
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, number = time.perf_counter(), uuid.uuid4().hex[:16]
        notes: dict[str, Any] = {}
        scope.setdefault("state", {})["notes"] = notes
        status = read = 0
        fault: Refused | None = None

        async def counted() -> Message:
            nonlocal read, fault
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                fault = self._too_large(f"more than {self._most} bytes")
                raise fault  # the application may take it for a body that cannot be read: its answer is not sent
            return message

        async def told(message: Message) -> None:
            nonlocal status
            if fault is not None and not status:
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", number.encode())]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, counted, told)
            if fault is not None:
                raise fault
        except Refused as error:
            notes["error"], fault = str(error), None
            if not status:
                await JSONResponse(body(error), error.status, error.headers)(scope, receive, told)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.answers.labels(route, str(status or LEFT)).inc()
            if self._log and not scope["path"].startswith(OPEN):
                line = {
                    "time": round(time.time(), 3),
                    "id": number,
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status or LEFT,
                    "seconds": round(time.perf_counter() - begin, 4),
                    **notes,
                }
                LOG.info(json.dumps(line, ensure_ascii=False))

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A websocket, when its key is right and no page of another server has opened it."""
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        origin, host = headers.get(b"origin"), headers.get(b"host", "")
        try:
            if origin is not None and urlsplit(origin).netloc != host:
                problem = Problem(where="Origin", got=origin, expected=f"the page of {host}")
                raise Refused(problem, status=403, code="foreign_origin")
            if self._keys:
                check_key(self._keys, {**headers, **_from_protocol(headers)})
        except Refused as error:
            LOG.warning(json.dumps({"time": round(time.time(), 3), "path": scope["path"], "error": str(error)}))
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        free = scope["path"] in (*OPEN, PAGE[0]) or scope["path"].startswith(PAGE[1])
        if self._keys and not free:
            check_key(self._keys, headers)
        length = headers.get(b"content-length", "")
        if length.isdecimal() and int(length) > self._most:
            raise self._too_large(f"{length} bytes")

    def _too_large(self, got: str) -> Refused:
        problem = Problem(where="body", got=got, expected=f"at most {self._most}", hint="the setting limits.body_mb")
        return Refused(problem, status=413, code="body_too_large", headers={"Connection": "close"})


def _from_protocol(headers: Mapping[bytes, str]) -> dict[bytes, str]:
    """The key as browsers send it: they set no headers of a websocket, but name its protocols."""
    names = map(str.strip, headers.get(b"sec-websocket-protocol", "").split(","))
    key = next((name.removeprefix(PROTOCOL_KEY) for name in names if name.startswith(PROTOCOL_KEY)), None)
    return {} if key is None else {b"authorization": f"Bearer {key}"}


def check_key(keys: Keys, headers: Mapping[bytes, str]) -> None:
    """Raises Refused without a key that is right."""
    kind, _, key = headers.get(b"authorization", "").partition(" ")
    if kind.lower() != "bearer" or not keys.accept(key.strip()):
        got = "a wrong key" if key else "none"
        problem = Problem(where="Authorization", got=got, expected="Bearer and a key of this server")
        raise Refused(problem, status=401, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
