"""Which stages one request needs, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from framework.errors import Problem, StageError, nearest
from framework.graph.model import Graph, Input, Source, Stage


@attrs.frozen(kw_only=True)
class Route:
    """The part of a graph that one request runs. Requests with equal routes and fields may run as one cohort.

    Attributes:
        stages: ids in topological order.
        terminals: outputs that go back to the caller, in file order.
    """

    stages: tuple[str, ...]
    terminals: tuple[Source, ...]


def route(
    graph: Graph,
    fields: Collection[str],
    kinds: Collection[str],
    *,
    terminals: Collection[str] = (),
    given: Collection[str] = (),
) -> Route:
    """The route of a request.

    A stage runs when the request supplies its inputs (those with `on_missing: skip` may lack) and its output reaches a
    requested terminal. Requested are the terminals of the given payload kinds; a graph without a text output always
    runs them all.

    Args:
        graph: a validated graph.
        fields: names of the request's fields.
        kinds: payload kinds that the caller wants.
        terminals: outputs that the caller wants, each `<stage>:<port>`; empty for those of `kinds`.
        given: outputs that the request brings itself, each `<stage>:<port>`: they count as made.

    Raises:
        StageError: an output of a wanted kind does not exist, or needs something that the request lacks.
    """
    requested = _named(graph, terminals) if terminals else _requested(graph, kinds)
    brought = frozenset(map(Source.parse, given))
    order = topological(graph)
    runs: dict[str, bool] = {}
    for stage in order:
        runs[stage.id] = all(_given(item, fields, runs, brought) for item in stage.inputs if item.on_missing != "skip")

    by_id = {stage.id: stage for stage in order}
    blocked = [terminal for terminal in requested if not runs[terminal.owner]]
    if blocked:
        raise StageError(_lacking(by_id, blocked, fields, runs, brought))

    needed: set[str] = set()
    waiting = [terminal.owner for terminal in requested]
    while waiting:
        stage = by_id[waiting.pop()]
        if stage.id not in needed:
            needed.add(stage.id)
            sources = (item.source for item in stage.inputs if item.source not in brought)
            waiting += [source.owner for source in sources if not source.from_request and runs[source.owner]]
    return Route(stages=tuple(stage.id for stage in order if stage.id in needed), terminals=requested)


def topological(graph: Graph) -> tuple[Stage, ...]:
    """Stages so that each stands after those it reads, otherwise in file order. The graph has no cycle."""
    waiting, placed = list(graph.stages), set[str]()
    order: list[Stage] = []
    while waiting:
        ready = (
            stage
            for stage in waiting
            if all(item.source.from_request or item.source.owner in placed for item in stage.inputs)
        )
        stage = next(ready, None)
        if stage is None:
            raise ValueError("the graph has a cycle or an unknown source: validate it first")
        waiting.remove(stage)
        placed.add(stage.id)
        order.append(stage)
    return tuple(order)


def consumers(graph: Graph, source: Source) -> tuple[tuple[Stage, Input], ...]:
    """The inputs that read `source`, each with its stage, in file order."""
    return tuple((stage, item) for stage in graph.stages for item in stage.inputs if item.source == source)


def unread_fields(graph: Graph, fields: Collection[str]) -> tuple[str, ...]:
    """Those request fields that no stage of the graph reads, e.g. an image sent to a text model."""
    read = {item.source.name for stage in graph.stages for item in stage.inputs if item.source.from_request}
    return tuple(field for field in fields if field not in read)


def _requested(graph: Graph, kinds: Collection[str]) -> tuple[Source, ...]:
    by_terminal = {terminal: _kind(graph, terminal) for terminal in graph.terminals}
    offered = set(by_terminal.values())
    speech_only = "text" not in offered
    # Text is what is asked for when nothing is said, so it does not count against a graph that only speaks.
    absent = sorted(set(kinds) - offered - ({"text"} if speech_only else set()))
    requested = tuple(terminal for terminal in graph.terminals if speech_only or by_terminal[terminal] in kinds)
    if absent or not requested:
        has = ", ".join(f"{kind} ({terminal})" for terminal, kind in by_terminal.items()) or "none"
        got = f"a request for {' and '.join(absent) or 'no'} output"
        raise StageError(Problem(where="terminals", got=got, expected=f"outputs that the graph has: {has}"))
    return requested


def _kind(graph: Graph, terminal: Source) -> str:
    stage = graph.stage(terminal.owner)
    port = stage.port(terminal.name) if stage else None
    if port is None:
        raise ValueError(f"terminal {terminal} has no port: validate the graph first")
    return port.kind


def _named(graph: Graph, terminals: Collection[str]) -> tuple[Source, ...]:
    """Outputs by name, whether or not the graph returns them by itself."""
    ports = {f"{stage.id}:{port.id}" for stage in graph.stages for port in stage.emits}
    problems = [
        Problem(where="terminals", got=repr(name), expected="an output of the graph", hint=nearest(name, ports))
        for name in terminals
        if name not in ports
    ]
    if problems:
        raise StageError(problems)
    return tuple(map(Source.parse, terminals))


def _given(item: Input, fields: Collection[str], runs: Mapping[str, bool], brought: Collection[Source]) -> bool:
    if item.source.from_request:
        return item.source.name in fields
    return item.source in brought or runs[item.source.owner]


def _lacking(
    stages: Mapping[str, Stage],
    blocked: list[Source],
    fields: Collection[str],
    runs: Mapping[str, bool],
    brought: Collection[Source],
) -> list[Problem]:
    """One problem for each request field whose absence leaves out a stage that a requested terminal needs."""
    needed_by: dict[tuple[str, str, Source], list[str]] = {}
    for terminal in blocked:
        waiting, seen = [terminal.owner], set[str]()
        while waiting:
            stage = stages[waiting.pop()]
            if stage.id in seen:
                continue
            seen.add(stage.id)
            for item in stage.inputs:
                if item.on_missing == "skip" or _given(item, fields, runs, brought):
                    continue
                if item.source.from_request:
                    needed_by.setdefault((stage.id, item.name, item.source), []).append(str(terminal))
                else:
                    waiting.append(item.source.owner)
    return [
        Problem(
            where=f"stages.{stage}.inputs.{name}",
            got=f"a request without {source.name!r}",
            expected=f"{source}: without stage {stage!r} there is no {' and no '.join(terminals)}, which was asked for",
        )
        for (stage, name, source), terminals in needed_by.items()
    ]
