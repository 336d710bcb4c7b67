"""From a `_target_` in the configuration to a class: the only place where a name becomes code.

`_target_` is read from `conf` alone, and only below the prefixes given here in code. Hydra's own check is a list of
what is forbidden, which cannot be complete; this one is a list of what is allowed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import attrs

from framework.errors import ConfigError, Problem, at, nearest
from framework.graph.model import RunnerDecl
from framework.schema import show, structure

PREFIXES = ("framework.", "models.")
TARGET = "_target_"

T = TypeVar("T")


def target_problems(node: Any, where: str, prefixes: tuple[str, ...] = PREFIXES) -> list[Problem]:
    """Every `_target_` at or below `node` that is no path below one of the prefixes."""
    if isinstance(node, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(node.items())
        target = node.get(TARGET)
        allowed = TARGET not in node or (isinstance(target, str) and target.startswith(prefixes))
        expected = f"a path below {' or '.join(prefix.rstrip('.') for prefix in prefixes)}"
        found = [] if allowed else [Problem(where=at(where, TARGET), got=show(target), expected=expected)]
    elif isinstance(node, (list, tuple)):
        items, found = iter(enumerate(node)), []
    else:
        return []
    return found + [problem for key, value in items for problem in target_problems(value, at(where, key), prefixes)]


def class_of(node: Mapping[str, Any], where: str, prefixes: tuple[str, ...] = PREFIXES) -> type[Any]:
    """The class a node names. Raises ConfigError: forbidden, unknown, or not importable."""
    problems = target_problems(node, where, prefixes)
    if TARGET not in node:
        problems.append(Problem(where=at(where, TARGET), got="nothing", expected="the path of a class"))
    if problems:
        raise ConfigError(problems)
    target, place = node[TARGET], at(where, TARGET)
    module, _, name = target.rpartition(".")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the module does when it is imported
        got = f"{target}: {_first_line(error)}"
        raise ConfigError(Problem(where=place, got=got, expected="a class that can be imported")) from error
    cls = getattr(found, name, None)
    # What a module only imports (`framework.cli.app.Path`) is not its own, and need not be allowed.
    if not isinstance(cls, type) or not cls.__module__.startswith(prefixes):
        own = [n for n, value in vars(found).items() if isinstance(value, type) and value.__module__ == module]
        got = target if cls is None else f"{target}, which is {show(str(cls))}"
        raise ConfigError(Problem(where=place, got=got, expected=f"a class of {module}", hint=nearest(name, own)))
    return cls


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def safe_instantiate(node: Mapping[str, Any], where: str, prefixes: tuple[str, ...] = PREFIXES) -> Any:
    """An object of the class a node names, with its other keys as settings, each of them checked.

    Args:
        where: path of the node, for the errors.
        prefixes: what a `_target_` may start with.

    Raises:
        ConfigError: a target that is not allowed or not there, and every setting that is wrong.
    """
    cls = class_of(node, where, prefixes)
    settings = {key: value for key, value in node.items() if key != TARGET}
    if attrs.has(cls):
        return structure(cls, settings, where=where)
    if settings:
        got = ", ".join(map(repr, settings))
        raise ConfigError(Problem(where=where, got=got, expected=f"no settings: {cls.__name__} takes none"))
    return cls()


class Table(Mapping[str, T], Generic[T]):
    """A config table whose rows name classes, each loaded when it is first asked for.

    Rows may be nested: `my_family: {decoder: {_target_: ...}}` is the row `my_family.decoder`.

    Args:
        make: from a row and its path to the value of the table.
    """

    def __init__(self, node: Mapping[str, Any], where: str, make: Callable[[Mapping[str, Any], str], T]) -> None:
        self._rows = dict(_rows(node, "", where))
        self._where = where
        self._make = make
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            self._made[name] = self._make(self._rows[name], at(self._where, name))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def runner_classes(node: Mapping[str, Any], prefixes: tuple[str, ...] = PREFIXES) -> Table[type[Any]]:
    """The runners table: name in a graph -> runner class."""
    return Table(node, "runners", lambda row, where: class_of(row, where, prefixes))


def runner_decls(classes: Mapping[str, type[Any]]) -> Mapping[str, RunnerDecl]:
    """What each runner of the table declares, as the graph's validation reads it."""
    return Table({name: {TARGET: name} for name in classes}, "", lambda row, where: classes[row[TARGET]].decl)


def families(node: Mapping[str, Any], prefixes: tuple[str, ...] = PREFIXES) -> Table[Any]:
    """The families table: checkpoint architecture -> object that builds it."""
    return Table(node, "families", lambda row, where: safe_instantiate(row, where, prefixes))


def _rows(node: Any, name: str, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(node, Mapping):
        hint = "my_family: {decoder: {_target_: models.my_family.runners.Decoder}}"
        raise ConfigError(Problem(where=at(where, name), got=show(node), expected="a row with a _target_", hint=hint))
    if TARGET in node:
        yield name, node
        return
    for key, value in node.items():
        yield from _rows(value, f"{name}.{key}" if name else str(key), where)
