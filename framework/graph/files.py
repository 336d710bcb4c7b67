"""A graph as a file: JSON or YAML by suffix, read and written without loss.

Files of the original system also say how it moves data between stages: `stream_lane` of a stage, `transport` of a port.
Every port is a stream of chunks here, so these two keys are read past and not written.

JSON is written with lists, as the builder's `multistage_config.json` has them; YAML with mappings by id or name, whose
parts can be named and overridden. Both readers take either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from framework import parsing, schema
from framework.errors import ConfigError, GraphError, Problem, at, nearest
from framework.graph.model import FILE_NAME, Graph, Stage
from framework.writing import write_text

_YAML = (".yaml", ".yml")


def load(path: str | Path) -> Graph:
    """The graph in a file, or in the engine folder that holds `multistage_config.json`.

    Raises:
        ConfigError: there is no such file, or it is no text.
        GraphError: with every fault of the text and of its structure. Whether it fits its runners, and itself, is
            `validate`'s to say.
    """
    graph, problems = attempt(path)
    if problems or graph is None:
        raise GraphError([in_file(problem, file_of(path)) for problem in problems])
    return graph


def attempt(path: str | Path) -> tuple[Graph | None, list[Problem]]:
    """Like `load`, for a caller that goes on checking: what could be read, and the faults, by path inside."""
    file = file_of(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(Problem(where=str(file), got=f"bytes that are no UTF-8 ({error})", expected="text")) from None
    except OSError as error:
        expected = f"a graph file, or the engine folder that holds {FILE_NAME}"
        raise ConfigError(Problem(where=str(file), got=str(error.strerror).lower(), expected=expected)) from None
    return _attempt_text(text, file.suffix)


def loads(text: str, *, suffix: str = ".json", where: str = FILE_NAME) -> Graph:
    """The graph in a text; `suffix` says in which form. Raises GraphError like `load`."""
    graph, problems = _attempt_text(text, suffix)
    if problems or graph is None:
        raise GraphError([in_file(problem, where) for problem in problems])
    return graph


def dumps(graph: Graph, *, suffix: str = ".json") -> str:
    """The text of a graph; values that are the default are left out, apart from those that a reader looks for."""
    if _is_yaml(suffix):
        return parsing.dump_yaml(schema.unstructure(graph, defaults=False, keyed=True))
    return parsing.dump_json(schema.unstructure(graph, defaults=False))


def save(graph: Graph, path: str | Path) -> None:
    """Write `graph` to a file, or into an engine folder; an existing file is replaced in one move."""
    file = file_of(path)
    text = dumps(graph, suffix=file.suffix)
    write_text(file, [text])


def overlay(graph: Graph, stages: Mapping[str, Any], *, where: str = "stages") -> Graph:
    """`graph` with the given settings of its stages in place of its own.

    Args:
        stages: stage id -> the settings to change: `{"talker": {"max_batch": 8, "config": {"speaker": "ethan"}}}`.
            Mappings are merged, at any depth, anything else replaces; `inputs` and `emits` merge by name and id.
        where: path of `stages`, for the errors.

    Raises:
        ConfigError: with every unknown stage, unknown key and value of a wrong type.
    """
    graph, problems = attempt_overlay(graph, stages, where=where)
    if problems:
        raise ConfigError(problems)
    return graph


def attempt_overlay(graph: Graph, stages: Mapping[str, Any], *, where: str) -> tuple[Graph, list[Problem]]:
    """Like `overlay`, for a caller that goes on checking: a faulty setting leaves its stage as it was."""
    ids = [stage.id for stage in graph.stages]
    problems = [
        Problem(
            where=at(where, str(name)),
            got=f"unknown stage {schema.show(name)}",
            expected="a stage of the graph",
            hint=nearest(str(name), ids),
        )
        for name in stages
        if name not in ids
    ]
    changed = []
    for stage in graph.stages:
        patch, path = stages.get(stage.id, {}), at(where, stage.id)
        value, found = schema.attempt(Stage, merged(schema.unstructure(stage, keyed=True), patch), where=path)
        if isinstance(patch, Mapping) and patch.get("id", stage.id) != stage.id:
            expected = f"{schema.show(stage.id)}: a stage keeps its name, which other stages read"
            found.append(Problem(where=at(path, "id"), got=schema.show(patch["id"]), expected=expected))
        problems.extend(found)
        changed.append(stage if found or value is None else value)
    return Graph(schema_version=graph.schema_version, terminals=graph.terminals, stages=tuple(changed)), problems


def merged(base: Any, over: Any) -> Any:
    """Mappings of both, merged at any depth; where one of the two is none, `over`."""
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    return {**base, **{key: merged(base[key], value) if key in base else value for key, value in over.items()}}


def file_of(path: str | Path) -> Path:
    """The graph file that `path` means: itself, or the one inside when it is a folder."""
    return Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)


def in_file(problem: Problem, file: str | Path) -> Problem:
    """The problem, its path led by the file it is in."""
    # Line and column belong to the file's name, a path inside it stands after a colon.
    where = f"{file}{problem.where}" if problem.where.startswith(",") else f"{file}: {problem.where}".rstrip(": ")
    return Problem(where=where, got=problem.got, expected=problem.expected, hint=problem.hint)


def _attempt_text(text: str, suffix: str) -> tuple[Graph | None, list[Problem]]:
    data, problems = parsing.attempt(text, where="", yaml=_is_yaml(suffix))
    if problems and data is None:
        return None, problems
    graph, found = schema.attempt(Graph, _without_movement(data), where="")
    return graph, problems + found


def _without_movement(data: Any) -> Any:
    """The data of a graph file without the keys that say how the original moves it; any shape, since unchecked."""

    def stage(node: Any) -> Any:
        if not isinstance(node, Mapping) or not {"stream_lane", "emits"} & node.keys():
            return node
        kept = {key: value for key, value in node.items() if key != "stream_lane"}
        return {**kept, "emits": _each(kept["emits"], port)} if "emits" in kept else kept

    def port(node: Any) -> Any:
        return {k: v for k, v in node.items() if k != "transport"} if isinstance(node, Mapping) else node

    if not isinstance(data, Mapping) or "stages" not in data:
        return data
    return {**data, "stages": _each(data["stages"], stage)}


def _each(nodes: Any, change: Callable[[Any], Any]) -> Any:
    """Every element of a list, or value of a mapping, changed; anything else as it is."""
    if isinstance(nodes, list):
        return [change(node) for node in nodes]
    return {key: change(node) for key, node in nodes.items()} if isinstance(nodes, Mapping) else nodes


def _is_yaml(suffix: str) -> bool:
    if suffix not in (".json", *_YAML):
        raise ConfigError(Problem(where="graph file", got=f"the suffix {suffix!r}", expected=".json, .yaml or .yml"))
    return suffix in _YAML
