"""The rules a graph must keep, all checked in one pass, without loading an engine."""

from __future__ import annotations

import graphlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, get_args

from framework import schema
from framework.errors import GraphError, Problem, at, closest, nearest
from framework.graph import files
from framework.graph.model import (
    FILE_NAME,
    Graph,
    Input,
    InputDecl,
    OnMissing,
    Port,
    RunnerDecl,
    Source,
    Stage,
)
from framework.schema import show

Runners = Mapping[str, RunnerDecl]
Faults = Iterator[Problem]


def load_checked(path: str | Path, runners: Runners, *, stages: Mapping[str, Any] | None = None) -> Graph:
    """The graph of a deployment: its file, overlaid by `stages` (see `files.overlay`), fit to run.

    Args:
        path: graph file, or the engine folder that holds it.
        runners: row of the runners table -> what that runner declares.
        stages: settings of a preset or the command line.

    Raises:
        ConfigError: the file cannot be opened.
        GraphError: with every fault of the text, the structure, the overlay and the rules.
    """
    file = files.file_of(path)
    graph, found = files.attempt(path)
    problems = [files.in_file(problem, file) for problem in found]
    if graph is not None:
        merged, overlay_faults = files.attempt_overlay(graph, stages or {}, where="stages")
        problems += overlay_faults
        known = [problem.where for problem in found + overlay_faults]
        own = set(validate(graph, runners, where=""))
        for problem in validate(merged, runners, where=""):
            # What could not be read was replaced by its default, which would only give a second fault there.
            if not any(_same_place(problem.where, path) for path in known):
                problems.append(files.in_file(problem, file) if problem in own else problem)
        problems += _outside(merged, runners, file.parent)
    if problems or graph is None:
        raise GraphError(problems)
    return merged


def _outside(graph: Graph, runners: Runners, folder: Path) -> Faults:
    """What a run would read from outside the engine folder: through a link, or a setting that names a folder.

    The folder may be a link itself, and links inside it may lead to other places inside it.
    """
    root = os.path.realpath(folder)

    def inside(path: str) -> bool:
        return PurePath(os.path.realpath(path)).is_relative_to(root)

    for index, stage in enumerate(graph.stages):
        decl = runners.get(stage.runner)
        for setting, start in decl.folders.items() if decl else ():
            name = stage.config.get(setting)
            if isinstance(name, str) and not inside(os.path.join(root, stage.artifact, start, name)):
                where = at(at(_path(stage, index), "config"), setting)
                yield Problem(where=where, got=show(name), expected=f"a folder inside {folder}")
    if not any(stage.artifact for stage in graph.stages):
        return
    for parent, folders, names in os.walk(root):
        for name in sorted([*folders, *names]):
            path = os.path.join(parent, name)
            if os.path.islink(path) and not inside(path):
                where = os.path.join(folder, os.path.relpath(path, root))
                got = f"a link to {os.path.realpath(path)}"
                yield Problem(where=where, got=got, expected=f"a link that stays inside {folder}, or what it leads to")


def check(graph: Graph, runners: Runners, *, where: str = FILE_NAME) -> None:
    """Raise GraphError with everything that `validate` finds."""
    problems = validate(graph, runners, where=where)
    if problems:
        raise GraphError(problems)


def validate(graph: Graph, runners: Runners, *, where: str = FILE_NAME) -> list[Problem]:
    """Every fault of `graph`, in file order; empty when it is sound.

    Args:
        runners: row of the runners table -> what that runner declares.
        where: file that the graph came from, in front of each path; "" leaves the bare path.
    """
    found = [*_document(graph), *_stages(graph, runners), *_cycles(graph), *_terminals(graph), *_dead_ends(graph)]
    return [files.in_file(problem, where) for problem in found] if where else found


# --- the document ------------------------------------------------------------------------------------------------


def _document(graph: Graph) -> Faults:
    if graph.schema_version != 1:
        yield Problem(where="schema_version", got=str(graph.schema_version), expected="1, the only version there is")
    if not graph.stages:
        example = '{"id": "writer", "runner": "my_family.decoder", "kind": "autoregressive", ...}'
        yield Problem(where="stages", got="none", expected="at least one stage", hint=f"e.g. {example}")


def _cycles(graph: Graph) -> Faults:
    ids = [stage.id for stage in graph.stages]
    reads: dict[str, dict[str, None]] = {}  # stage -> stages it reads, in order; one that reads itself is told apart
    for stage in graph.stages:
        owners = {item.source.owner: None for item in stage.inputs if item.source.owner in ids}
        reads.setdefault(stage.id, {}).update(owners)
        reads[stage.id].pop(stage.id, None)
    while True:
        try:
            return graphlib.TopologicalSorter(reads).prepare()
        except graphlib.CycleError as error:
            path: list[str] = error.args[1][:-1]  # each is read by the next
            del reads[path[1]][path[0]]
            first = min(range(len(path)), key=lambda index: ids.index(path[index]))
            path = path[first:] + path[: first + 1]
            yield Problem(
                where="stages", got=f"the cycle {' -> '.join(path)}", expected="stages that only feed later ones"
            )


def _terminals(graph: Graph) -> Faults:
    marked = [(stage, port) for stage in graph.stages for port in stage.emits if port.terminal]
    if graph.stages and not graph.terminals and not marked:
        yield Problem(where="terminals", got="none", expected="at least one output", hint='e.g. ["writer:text"]')
    for index, terminal in enumerate(graph.terminals):
        path = at("terminals", index)
        if terminal in graph.terminals[:index]:
            yield Problem(where=path, got=f"{terminal} twice", expected="each terminal once")
            continue
        if terminal.from_request:
            yield Problem(where=path, got=str(terminal), expected="an output of a stage, <stage>:<port>")
            continue
        yield from _source(graph, terminal, path)
        port = _port(graph, terminal)
        if port and not port.terminal:
            yield Problem(
                where=path,
                got=f"{terminal}, a port not marked as terminal",
                expected='a port with "terminal": true',
                hint=f'e.g. {{"id": "{port.id}", "kind": "{port.kind}", "terminal": true}}',
            )
    # A misspelt entry of the list is one fault, not also a port that is not listed.
    misspelt = [str(terminal) for terminal in graph.terminals if _port(graph, terminal) is None]
    for stage, port in marked:
        output = f"{stage.id}:{port.id}"
        if Source(stage.id, port.id) not in graph.terminals and not closest(output, misspelt):
            yield Problem(
                where=f"stages.{stage.id}.emits.{port.id}.terminal",
                got="true, but not listed",
                expected="every terminal port in the graph's terminals",
                hint=f'e.g. "terminals": ["{output}", ...]',
            )


def _dead_ends(graph: Graph) -> Faults:
    """Stages whose work nobody gets. A misspelt source counts for the stage it is nearest to."""
    ids = {stage.id for stage in graph.stages}
    waiting = [stage.id for stage in graph.stages if any(port.terminal for port in stage.emits)]
    waiting += [closest(terminal.owner, ids) or "" for terminal in graph.terminals]
    if not waiting:
        return
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            stages = [stage for stage in graph.stages if stage.id == name]
            waiting += [closest(item.source.owner, ids) or "" for stage in stages for item in stage.inputs]
    for index, stage in enumerate(graph.stages):
        if stage.id not in reached:
            yield Problem(
                where=_path(stage, index),
                got="a stage that reaches no terminal",
                expected="an output that is a terminal, or read by a stage that reaches one",
            )


# --- one stage ---------------------------------------------------------------------------------------------------


def _stages(graph: Graph, runners: Runners) -> Faults:
    counts = Counter(stage.id for stage in graph.stages)
    for index, stage in enumerate(graph.stages):
        path = _path(stage, index)
        yield from _name(stage.id, at(path, "id"), "a stage")
        if stage.id == "request":
            yield Problem(where=at(path, "id"), got='"request"', expected="another name: it stands for the request")
        if counts.pop(stage.id, 1) > 1:
            yield Problem(where=at(path, "id"), got=f"{show(stage.id)} more than once", expected="an id of its own")
        decl = runners.get(stage.runner)
        if decl is None:
            expected = f"a row of the runners table: {', '.join(sorted(runners))}"
            near = closest(stage.runner, runners)
            hint = f"did you mean {near!r}?" if near else ""
            yield Problem(where=at(path, "runner"), got=show(stage.runner), expected=expected, hint=hint)
        elif stage.kind != decl.kind:
            expected = f"{show(decl.kind)}, as runner {stage.runner} has it"
            yield Problem(where=at(path, "kind"), got=show(stage.kind), expected=expected)
        yield from _artifact(stage, at(path, "artifact"))
        yield from _inputs(graph, runners, stage, decl, at(path, "inputs"))
        yield from _emits(stage, decl, at(path, "emits"))
        for key, least in (("max_batch", 1), ("max_seq", 0)):
            value = getattr(stage, key)
            if value < least:
                yield Problem(where=at(path, key), got=str(value), expected=f"an integer >= {least}")
        if decl:
            yield from _config(stage, decl, at(path, "config"))


def _artifact(stage: Stage, path: str) -> Faults:
    posix, windows = PurePosixPath(stage.artifact), PureWindowsPath(stage.artifact)
    if posix.is_absolute() or windows.anchor or ".." in windows.parts:
        expected = "a folder below the one that holds the graph file"
        yield Problem(where=path, got=show(stage.artifact), expected=expected, hint='e.g. "talker"')


def _config(stage: Stage, decl: RunnerDecl, path: str) -> Faults:
    if decl.config is not None:
        yield from schema.attempt(decl.config, stage.config, where=path)[1]
        return
    for key in stage.config:
        expected = f"no settings: runner {stage.runner} takes none"
        yield Problem(where=at(path, key), got=f"unknown key {show(key)}", expected=expected)


def _inputs(graph: Graph, runners: Runners, stage: Stage, decl: RunnerDecl | None, where: str) -> Faults:
    names = [item.name for item in stage.inputs]
    for index, item in enumerate(stage.inputs):
        path = at(where, item.name or index)
        if item.name in names[:index]:
            yield Problem(where=path, got="bound twice", expected="each input bound once")
        if item.on_missing not in get_args(OnMissing):
            yield Problem(where=at(path, "on_missing"), got=show(item.on_missing), expected=schema.describe(OnMissing))
        if item.source.owner == stage.id:
            expected = "a request field, or a port of another stage"
            yield Problem(where=at(path, "from"), got=f"{item.source}, the stage itself", expected=expected)
        elif not item.source.from_request:
            yield from _source(graph, item.source, at(path, "from"))
        if decl and item.name not in decl.inputs:
            expected = f"an input of runner {stage.runner}"
            hint = nearest(item.name, decl.inputs) or "it takes none"
            yield Problem(where=path, got=f"unknown input {show(item.name)}", expected=expected, hint=hint)
        elif decl:
            yield from _binding(graph, runners, stage, item, decl, path)
    if decl is None:
        return
    # A misspelt input is one fault, not also a missing one.
    meant = {closest(name, decl.inputs) if name not in decl.inputs else name for name in names}
    for name in sorted(decl.needed(meant) - meant):
        source = _example(graph, runners, stage, decl.inputs[name])
        yield Problem(
            where=where,
            got=f"no input {name!r}",
            expected=f"it bound: runner {stage.runner} cannot run without",
            hint=f'e.g. {{"name": "{name}", "from": "{source}"}}',
        )


def _binding(graph: Graph, runners: Runners, stage: Stage, item: Input, decl: RunnerDecl, path: str) -> Faults:
    """Does what arrives suit the input?"""
    takes = decl.inputs[item.name]
    port = None if item.source.owner == stage.id else _port(graph, item.source)
    kind = "" if port is None else _kind(graph, runners, item.source, port)
    if (item.source.from_request and not takes.from_request) or (port and kind not in takes.kinds):
        got = f"{item.source} of kind {kind}" if port else str(item.source)
        allowed = [f"a port of kind {' or '.join(sorted(takes.kinds))}"] if takes.kinds else []
        allowed += ["a request field, request:<field>"] if takes.from_request else []
        yield Problem(where=at(path, "from"), got=got, expected=" or ".join(allowed))
    if item.name in decl.needed({other.name for other in stage.inputs}) and item.on_missing == "skip":
        expected = '"fail" or "prune": the runner cannot run without this input'
        yield Problem(where=at(path, "on_missing"), got='"skip"', expected=expected)


def _emits(stage: Stage, decl: RunnerDecl | None, where: str) -> Faults:
    ids = [port.id for port in stage.emits]
    for index, port in enumerate(stage.emits):
        path = at(where, port.id or index)
        yield from _name(port.id, at(path, "id"), "a port")
        if port.id in ids[:index]:
            yield Problem(where=at(path, "id"), got=f"{show(port.id)} twice", expected="each port of a stage once")
        if decl is None:
            continue
        if port.id not in decl.ports:
            hint = nearest(port.id, decl.ports) or "it has none"
            expected = f"a port of runner {stage.runner}"
            yield Problem(where=path, got=f"unknown port {show(port.id)}", expected=expected, hint=hint)
        elif port.kind != decl.ports[port.id]:
            expected = f"{show(decl.ports[port.id])}, as runner {stage.runner} has it"
            yield Problem(where=at(path, "kind"), got=show(port.kind), expected=expected)


# --- helpers -----------------------------------------------------------------------------------------------------


def _path(stage: Stage, index: int) -> str:
    return at("stages", stage.id or index)


def _name(name: str, path: str, what: str) -> Faults:
    if not name or ":" in name:
        expected = "a name without ':', which parts a stage from its port in <stage>:<port>"
        yield Problem(where=path, got=show(name), expected=expected if name else f"a name for {what}")


def _source(graph: Graph, source: Source, path: str) -> Faults:
    """Does the port exist?"""
    owner = graph.stage(source.owner)
    if owner is None:
        hint = nearest(source.owner, {stage.id for stage in graph.stages} | {"request"})
        yield Problem(where=path, got=f"{source}, an unknown stage", expected=Source.form, hint=hint)
    elif owner.port(source.name) is None:
        hint = nearest(source.name, [port.id for port in owner.emits]) or "it emits nothing"
        expected = f"a port of stage {source.owner!r}"
        yield Problem(where=path, got=f"{source}, an unknown port", expected=expected, hint=hint)


def _port(graph: Graph, source: Source) -> Port | None:
    owner = graph.stage(source.owner)
    return owner.port(source.name) if owner else None


def _kind(graph: Graph, runners: Runners, source: Source, port: Port) -> str:
    """Kind of a port as its runner has it: a wrong one in the file is a fault of that line, not of its readers."""
    owner = graph.stage(source.owner)
    decl = runners.get(owner.runner) if owner else None
    return decl.ports.get(port.id, port.kind) if decl else port.kind


def _example(graph: Graph, runners: Runners, reader: Stage, takes: InputDecl) -> str:
    """A source of this graph that the input could read."""
    for stage in graph.stages:
        for port in stage.emits:
            source = Source(stage.id, port.id)
            if stage is not reader and _kind(graph, runners, source, port) in takes.kinds:
                return str(source)
    return "request:<field>" if takes.from_request else "<stage>:<port>"


def _same_place(one: str, other: str) -> bool:
    """Is one path the other, or inside it?"""
    short, long = sorted((one, other), key=len)
    return long == short or (bool(short) and long.startswith((f"{short}.", f"{short}[")))
