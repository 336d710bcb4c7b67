"""What a graph can be asked for: read from its stages, never from a model's name."""

from __future__ import annotations

import attrs

from framework.errors import Problem
from framework.graph.model import Graph, Stage
from framework.serve.faults import Refused

MESSAGES, SOUND = "messages", "audio"  # request fields


@attrs.frozen(kw_only=True)
class Saying:
    """How a graph says a given text.

    Attributes:
        terminal: the output that is the sound.
        brings: the output whose place the text takes; "" where the text goes in as a message.
    """

    terminal: str
    brings: str


def offered(graph: Graph) -> dict[str, str]:
    """Payload kinds that the graph returns, and the stage that gives each."""
    ports = [
        (terminal.owner, stage.port(terminal.name))
        for terminal in graph.terminals
        if (stage := graph.stage(terminal.owner))
    ]
    return {port.kind: owner for owner, port in ports if port is not None}


def reads(graph: Graph, field: str) -> bool:
    """Whether a stage reads this field of a request."""
    return any(
        item.source.from_request and item.source.name == field for stage in graph.stages for item in stage.inputs
    )


def check_modalities(graph: Graph, kinds: frozenset[str]) -> None:
    """Raises Refused for a kind of reply that the graph does not give."""
    gives = offered(graph)
    problems = [
        Problem(where="modalities", got=repr(kind), expected=f"what this deployment gives: {', '.join(sorted(gives))}")
        for kind in sorted(kinds)
        if kind not in gives
    ]
    if problems:
        raise Refused(problems, code="unsupported_modality")


def saying(graph: Graph) -> Saying:
    """Raises Refused for a graph whose sound is not made from text alone."""
    for terminal in graph.terminals:
        stage = graph.stage(terminal.owner)
        port = None if stage is None else stage.port(terminal.name)
        if stage is not None and port is not None and port.kind == SOUND:
            brings = _text_before(graph, stage)
            if brings is None:
                got = f"sound that {stage.id} makes from the states of a stage that writes the text itself"
                expected = "a deployment that says a given text"
                hint = 'POST /v1/chat/completions with "modalities": ["text", "audio"]'
                raise Refused(Problem(where="model", got=got, expected=expected, hint=hint), code="unsupported")
            return Saying(terminal=str(terminal), brings=brings)
    gives = ", ".join(sorted(offered(graph)))
    raise Refused(
        Problem(where="model", got=f"a deployment that gives {gives}", expected="one that speaks"), code="unsupported"
    )


def _text_before(graph: Graph, stage: Stage) -> str | None:
    """The output that a voice says, "" for the request's messages; None where a stage in between writes text too."""
    for item in stage.inputs:
        if item.source.from_request:
            if item.source.name == MESSAGES:
                return None if any(port.kind == "text" for port in stage.emits) else ""
            continue
        owner = graph.stage(item.source.owner)
        port = None if owner is None else owner.port(item.source.name)
        if owner is None or port is None:
            continue
        if port.kind == "text":
            return str(item.source)
        if (found := _text_before(graph, owner)) is not None:
            return found
    return None


def transcript(graph: Graph) -> str:
    """The output that writes down what is said in a recording, whoever reads it. Raises Refused where there is none."""
    for stage in graph.stages:
        fields = {item.source.name for item in stage.inputs if item.source.from_request}
        text = next((port.id for port in stage.emits if port.kind == "text"), None)
        if SOUND in fields and MESSAGES not in fields and text is not None:
            return f"{stage.id}:{text}"
    got, expected = "a deployment without a stage that writes down speech", "one that has such a stage"
    raise Refused(Problem(where="model", got=got, expected=expected), code="unsupported")
