"""The application: OpenAI's endpoints, what operators ask, and the page."""

from __future__ import annotations

import logging
import time
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response

from framework.errors import MultistageError, Problem, nearest
from framework.graph.render import mermaid
from framework.serve import chatting, metrics, reading, realtime, sounding
from framework.serve.faults import ErrorBody, Refused, body, from_validation, refused
from framework.serve.gate import LEFT, Gate
from framework.serve.metrics import Metrics
from framework.serve.served import House
from framework.serve.settings import Keys, Limits

LOG = logging.getLogger("multistage.serve")
_PLAIN: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
_ASSETS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def create_app(house: House, *, keys: Keys, limits: Limits, measured: Metrics, log: bool = True) -> FastAPI:
    """The application of a server. Its engines are opened by `house`, not here."""
    errors: dict[int | str, Any] = {status: {"model": ErrorBody} for status in ("4XX", "5XX")}
    app = FastAPI(title="multistage", docs_url=None, redoc_url=None, responses=errors)
    _describe(app)
    app.state.house = house
    app.state.draining = False
    app.state.conversations = set()
    created = int(time.time())
    app.include_router(chatting.router)
    app.include_router(sounding.router)
    app.include_router(realtime.router)
    _tell_errors(app)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The deployments that are served."""
        return {"object": "list", "data": [_model(name, created) for name in house.served]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One deployment; what it gives is beside OpenAI's fields."""
        graph = house[name].graph
        fields = {item.source.name for stage in graph.stages for item in stage.inputs if item.source.from_request}
        return {**_model(name, created), "reads": sorted(fields), "gives": sorted(reading.offered(graph))}

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process is there."""
        return {"status": "ok"}

    @app.get(
        "/ready", response_model=None, responses={503: {"description": "Not now", "content": {"application/json": {}}}}
    )
    async def ready() -> Response:
        """Whether a request would be served: 503 while engines are opened, and while the server stops."""
        waiting = [name for name, one in house.served.items() if one.opening]
        broken = [name for name, one in house.served.items() if one.fault is not None]
        state = "stopping" if app.state.draining else "broken" if broken else "opening" if waiting else "ready"
        return JSONResponse({"status": state, "opening": waiting, "broken": broken}, 200 if state == "ready" else 503)

    @app.get("/metrics", response_model=None, responses=_PLAIN)
    async def numbers() -> Response:
        """For Prometheus."""
        return Response(measured.text(), media_type=metrics.MEDIA_TYPE)

    @app.get("/graph", response_model=None, responses=_PLAIN)
    async def graph(model: str | None = None) -> Response:
        """The stages of a deployment as a Mermaid flowchart."""
        served = house.first if model is None else house[model]
        return PlainTextResponse(mermaid(served.graph))

    @app.get("/", response_model=None, include_in_schema=False)
    async def page() -> Response:
        return _asset("page.html")

    @app.get("/assets/{name}", response_model=None, include_in_schema=False)
    async def asset(name: str) -> Response:
        return _asset(name)

    app.add_middleware(Gate, keys=keys, limits=limits, metrics=measured, log=log)
    return app


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "multistage"}


def _asset(name: str) -> Response:
    folder = resources.files(__package__) / "assets"
    names = {entry.name for entry in folder.iterdir()}
    suffix = name[name.rfind(".") :]
    if name not in names or suffix not in _ASSETS:
        problem = Problem(where="path", got=f"/assets/{name}", expected="a file of the page", hint=nearest(name, names))
        raise Refused(problem, status=404, code="not_found")
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": "default-src 'self'; media-src 'self' blob:; img-src 'self' data:",
        "X-Content-Type-Options": "nosniff",
    }
    return Response((folder / name).read_bytes(), media_type=f"{_ASSETS[suffix]}; charset=utf-8", headers=headers)


def _describe(app: FastAPI) -> None:
    """The OpenAPI document, without FastAPI's own error, which this server never gives."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        document = own()
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document.get("components", {}).get("schemas", {}).pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _tell_errors(app: FastAPI) -> None:
    """Every error in one form."""

    def answer(request: Request, error: Exception) -> Response:
        told = refused(error)
        chatting.note(request, error=str(told))
        if told.status >= 500 and told.code == "internal_error":
            LOG.error("request failed", exc_info=error)
        return JSONResponse(body(told), told.status, told.headers)

    @app.exception_handler(MultistageError)
    async def ours(request: Request, error: MultistageError) -> Response:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, from_validation(error.errors(), _body_model(request)))

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=LEFT)

    @app.exception_handler(HTTPException)
    async def starlettes(request: Request, error: HTTPException) -> Response:
        return answer(request, _http(app, request, error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return answer(request, error)


def _http(app: FastAPI, request: Request, status: int, detail: str) -> Refused:
    path, method = request.url.path, request.method
    routes = {place: [name.upper() for name in methods] for place, methods in app.openapi()["paths"].items()}
    if status == 404:
        problem = Problem(where="path", got=path, expected="an endpoint of this server", hint=nearest(path, routes))
        return Refused(problem, status=404, code="not_found")
    if status == 405:
        methods = ", ".join(sorted(routes.get(path, ())))
        problem = Problem(where="method", got=f"{method} {path}", expected=methods or "another method")
        return Refused(problem, status=405, code="method_not_allowed", headers={"Allow": methods} if methods else {})
    expected = "a request that can be read"
    if status == 400:  # FastAPI tells why a body is malformed JSON, but not what it is when it is more than that
        expected = "JSON in UTF-8, its integers of at most 4,300 digits, its lists and objects not nested too deeply"
    return Refused(Problem(where="body", got=detail, expected=expected), status=status)


def _body_model(request: Request) -> type[BaseModel] | None:
    """The class of the body that the endpoint of a request takes."""
    endpoint = request.scope.get("endpoint")
    from typing import get_type_hints

    hints = get_type_hints(endpoint) if endpoint is not None else {}
    return next((hint for hint in hints.values() if isinstance(hint, type) and issubclass(hint, BaseModel)), None)
