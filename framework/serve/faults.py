"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`; each fault in `problems`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from pydantic import BaseModel

from framework.errors import ConfigError, GraphError, MultistageError, Problem, nearest
from framework.schema import show

_REQUEST = re.compile(r"^request(?: \d+)?(?:, stage \w+)?(?:: |\.|$)")


class Fault(BaseModel):
    """One fault: see `framework.errors.Problem`."""

    where: str
    got: str
    expected: str
    hint: str = ""


class ErrorDetail(BaseModel):
    """What OpenAI's clients read, and every fault at once."""

    message: str
    type: str
    param: str | None
    code: str | None
    problems: list[Fault]


class ErrorBody(BaseModel):
    """Body of every answer that is an error."""

    error: ErrorDetail


class Refused(MultistageError):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        code: a word that a program can compare.
        headers: of the answer.
    """

    def __init__(
        self,
        problems: Problem | Sequence[Problem],
        *,
        status: int = 400,
        code: str = "invalid_value",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problems)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


def refused(error: Exception) -> Refused:
    """Any error as the one that the client is told. What is not ours is not shown: it may name others' data."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, GraphError):
        return Refused(error.problems, status=500, code="graph_error")
    if isinstance(error, MultistageError):
        broken = not isinstance(error, ConfigError) and error.__cause__ is not None and not _ours(error.__cause__)
        if not broken:
            return Refused([_without_request(problem) for problem in error.problems])
    problem = Problem(where="server", got="an error of its own", expected="a reply", hint="the server's log says more")
    return Refused(problem, status=500, code="internal_error")


def _ours(cause: BaseException) -> bool:
    return isinstance(cause, MultistageError | ValueError)


def _without_request(problem: Problem) -> Problem:
    """A client has one request: its number on the server says nothing to it."""
    return attrs.evolve(problem, where=_REQUEST.sub("", problem.where) or "request")


def body(error: Refused) -> dict[str, Any]:
    """What the client gets as JSON."""
    problems = [attrs.asdict(problem) for problem in error.problems]
    return {
        "error": {
            "message": str(error),
            "type": _type(error.status),
            "param": error.problems[0].where,
            "code": error.code,
            "problems": problems,
        }
    }


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def from_validation(errors: Sequence[Mapping[str, Any]], model: type[BaseModel] | None) -> Refused:
    """Pydantic's faults of a body, each with its place, what stood there and the nearest right name."""
    problems = []
    for error in errors:
        place = [part for part in error["loc"] if part != "body" and not _branch(part)]
        where = _path(place) or "body"
        kind = error["type"]
        if kind == "extra_forbidden":
            valid = _fields_at(model, place[:-1])
            hint = nearest(str(place[-1]), valid) if valid else ""
            problems.append(Problem(where=where, got="an unknown field", expected="a known field", hint=hint))
        elif kind == "missing":
            problems.append(Problem(where=where, got="nothing", expected="a value: it is required"))
        elif kind == "json_invalid":
            at = error["loc"][-1]
            got = f"no JSON: {error.get('ctx', {}).get('error', error['msg']).removesuffix(' at')}"
            problems.append(Problem(where=f"body, character {at}", got=got, expected="a JSON object"))
        else:
            problems.append(Problem(where=where, got=show(error.get("input")), expected=_expected(error["msg"])))
    code = "unknown_parameter" if all(e["type"] == "extra_forbidden" for e in errors) else "invalid_value"
    return Refused(list(dict.fromkeys(problems)), code=code)


def _branch(part: object) -> bool:
    """Names that pydantic gives to the members of a union are no part of a place in the body."""
    return isinstance(part, str) and (
        part in ("str", "int", "float", "bool") or part.startswith(("list[", "function-", "tagged-")) or "[" in part
    )


def _path(place: Sequence[Any]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _expected(message: str) -> str:
    """Pydantic's "Input should be ..." without its subject."""
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message.removeprefix("Input should be ").removeprefix("a valid ")


def _fields_at(model: type[BaseModel] | None, place: Sequence[Any]) -> list[str]:
    """Names of the fields of the object at a place of the body; empty where it is not known."""
    for part in place:
        if isinstance(part, int):
            continue  # an item of a list, whose class is known already
        if model is None:
            return []
        field = model.model_fields.get(part)
        inner = (
            [t for t in _types(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)] if field else []
        )
        model = inner[0] if len(inner) == 1 else None
    return list(model.model_fields) if model else []


def _types(annotation: Any) -> list[Any]:
    """A type and those that it is made of."""
    return [annotation, *(inner for part in getattr(annotation, "__args__", ()) for inner in _types(part))]
