"""Requests made from the OpenAPI document, right ones and wrong ones: no answer is undeclared or the server's fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from framework.serve.app import create_app
from framework.serve.metrics import Metrics
from framework.serve.served import House
from framework.serve.settings import Keys, Limits
from tests.serve.deployments import ASSISTANT, TEXT, VOICE, Fake, Running, running

MODELS = ("assistant", "text", "voice")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
DOCUMENT: Any = create_app(House({}), keys=Keys(()), limits=Limits(), measured=Metrics()).openapi()
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running({"assistant": Fake(ASSISTANT), "text": Fake(TEXT), "voice": Fake(VOICE)}) as found:
        yield found


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
@pytest.mark.parametrize("right", [True, False])
def test_every_endpoint(right: bool, path: str, method: str, server: Running) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS as known
    from schemathesis.checks import load_all_checks

    load_all_checks()
    watched = known.get_by_names([*CHECKS])
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method.upper()]
    mode = GenerationMode.POSITIVE if right else GenerationMode.NEGATIVE

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        # A model that is there, so that more than its name is looked at.
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = MODELS[len(case.body["model"]) % len(MODELS)]
        answer = case.call(base_url=server.url, timeout=60)
        assert b"Traceback" not in answer.content
        case.validate_response(answer, checks=watched)

    try:
        ask()
    except Exception as error:
        if type(error).__name__ in ("Unsatisfiable", "SkipTest"):
            pytest.skip("nothing about it can be wrong")
        raise
