"""A published config.json, read key by key."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from framework import schema
from framework.errors import ConfigError, Problem, at
from framework.io.fields import FLAG, OBJECT, POSITIVE, TEXT, Kind, is_whole, whole
from framework.schema import show

T = TypeVar("T")

IDS = Kind(
    "an object of names and ids", lambda v: isinstance(v, dict) and all(is_whole(i) and i >= 0 for i in v.values())
)


class Keys:
    """An object of a published config. Null is the same as no key; keys that nobody asks for may hold anything.

    A key without a default is required. A fault is noted, and something of the right type returned instead, so that
    reading goes on; `checked` tells all faults at once.

    Attributes:
        given: the object; what is added here is read as if it stood there.
        problems: of the whole config.
    """

    def __init__(self, data: Mapping[str, Any], where: str, problems: list[Problem] | None = None) -> None:
        """`where`: the file and a colon, or the path of the object."""
        self.given = dict(data)
        self.problems = [] if problems is None else problems
        self._where = where

    def get(self, key: str, kind: Kind, default: Any = None, instead: Any = None) -> Any:
        """The value of a key, `instead` of one that is no `kind`."""
        value = self.given.get(key)
        if value is None and default is not None:
            return default
        if value is not None and kind.accepts(value):
            return value
        self.fault(key, "nothing" if value is None else show(value), kind.expected)
        return instead

    def size(self, key: str, default: int | None = None) -> int:
        return cast(int, self.get(key, whole(1), default, 1))

    def id(self, key: str, default: int | None = None) -> int:
        return cast(int, self.get(key, whole(0), default, 0))

    def number(self, key: str, default: float | None = None) -> float:
        return cast(float, self.get(key, POSITIVE, default, 1.0))

    def flag(self, key: str, default: bool = False) -> bool:
        return cast(bool, self.get(key, FLAG, default, False))

    def text(self, key: str, default: str | None = None) -> str:
        return cast(str, self.get(key, TEXT, default, ""))

    def ids(self, key: str, kind: Kind = IDS) -> dict[str, int]:
        """By name in lower case."""
        return {name.lower(): value for name, value in self.get(key, kind, instead={}).items()}

    def either(self, *keys: str) -> str:
        """The first of these keys that is given, of a setting with several names; the first where none is."""
        return next((key for key in keys if self.given.get(key) is not None), keys[0])

    def part(self, key: str, default: Mapping[str, Any] | None = None) -> Keys:
        """The object under a key; of one that is required and missing, nothing more is told than that."""
        value = self.get(key, OBJECT, default)
        return Keys(value or {}, at(self._where, key), [] if value is None else self.problems)

    def fields(self, cls: type[T]) -> T:
        """The object as a `cls`, whose fields have the names of keys; None where it cannot be one."""
        kinds = get_type_hints(cls)
        known = {
            key: value
            for key, value in self.given.items()
            if key in kinds and (value is not None or NoneType in get_args(kinds[key]))
        }
        value, problems = schema.attempt(cls, known, where=self._where)
        self.problems += problems
        return cast(T, value)

    def only(self, **supported: Any) -> None:
        """Keys of which no other value is supported; one that is not given has it."""
        for key, value in supported.items():
            if self.given.get(key) not in (value, None):
                self.fault(key, show(self.given[key]), show(value))

    def fault(self, key: str, got: str, expected: str) -> None:
        problem = Problem(where=at(self._where, key), got=got, expected=expected)
        if problem not in self.problems:  # a key may be read twice
            self.problems.append(problem)

    def checked(self, value: T) -> T:
        """`value`, which was read here. Raises ConfigError with every fault of the config."""
        if self.problems:
            raise ConfigError(self.problems)
        return value
