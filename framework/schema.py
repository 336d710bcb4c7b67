"""Plain data (JSON, YAML, composed settings) to attrs classes and back, strictly and with every fault at once.

What a class may declare, apart from its types, defaults and validators:

    metadata={"key": "from"}    the field's spelling in files, when it is not its name
    metadata={"by": "id"}       a tuple of classes that may also stand as a mapping by that field
    metadata={"always": True}   written also when it has its default
    form: ClassVar[str]         the class is one string, read by its `parse` (ValueError) and written by `str`;
                                `form` says what it looks like

Nothing is coerced except an integer to a number, a string to a path, and the string keys that JSON demands to
integers. A validator of one's own raises ValueError; its message is taken as what was expected.
"""

from __future__ import annotations

import functools
import json
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs

from framework.errors import ConfigError, Problem, at, closest, nearest

T = TypeVar("T")

_BAD: Any = object()  # stands for a value that could not be read; its fault is already noted
_LISTS: dict[Any, Any] = {tuple: tuple, list: list, Sequence: tuple, frozenset: frozenset, set: set}
_WORDS = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    Path: ("a path", "paths"),
    NoneType: ("null", "null"),
}


def structure(cls: type[T], data: Any, *, where: str) -> T:
    """`data` as a `cls`.

    Args:
        cls: an attrs class.
        data: a mapping of plain values; an instance of `cls` is returned as it is.
        where: path of `data`, in front of every fault's own path; `file.json:` puts a file in front.

    Raises:
        ConfigError: with every fault in `data`.
    """
    value, problems = attempt(cls, data, where=where)
    if problems or value is None:
        raise ConfigError(problems)
    return value


def attempt(cls: type[T], data: Any, *, where: str) -> tuple[T | None, list[Problem]]:
    """Like `structure`, for a caller that goes on checking: what could be read, and the faults.

    A faulty field has its default in the value; a faulty item is left out of its list; a required string is "".
    """
    problems: list[Problem] = []
    value = _read_class(cls, data, where, problems)
    return (None if value is _BAD else value), problems


def unstructure(obj: Any, *, defaults: bool = True, keyed: bool = False) -> Any:
    """`obj` as data that JSON and YAML can carry.

    Args:
        defaults: False leaves out fields that have their default.
        keyed: write tuples declared with `by` as mappings by that field, where its values are unique.

    Raises:
        TypeError: `obj` holds something that no file can carry.
    """
    again = functools.partial(unstructure, defaults=defaults, keyed=keyed)
    if attrs.has(type(obj)):
        return str(obj) if hasattr(obj, "form") else _write_class(obj, again, defaults, keyed)
    if isinstance(obj, Mapping):
        return {str(key): again(value) for key, value in obj.items()}
    if isinstance(obj, (set, frozenset)):
        return sorted(again(value) for value in obj)
    if isinstance(obj, (list, tuple)):
        return [again(value) for value in obj]
    if isinstance(obj, Path):
        return str(obj)
    if obj is None or isinstance(obj, (str, bool, int, float)):
        return obj
    raise TypeError(f"{obj!r} of type {type(obj).__name__} cannot be written to a file")


def show(value: Any, limit: int = 60) -> str:
    """`value` as a user would write it, on one short line."""
    plain = functools.partial(json.dumps, ensure_ascii=False)
    text = plain(value, default=lambda item: dict(item) if isinstance(item, Mapping) else str(item))
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


# --- writing ---------------------------------------------------------------------------------------------------


def _write_class(obj: Any, again: Any, defaults: bool, keyed: bool) -> dict[str, Any]:
    written = {}
    for field in attrs.fields(type(obj)):
        value = getattr(obj, field.name)
        if defaults or field.metadata.get("always") or value != _default(field, obj):
            items = again(value)
            by = field.metadata.get("by")
            if keyed and by and len({item[by] for item in items}) == len(items):
                items = {item.pop(by): item for item in items}
            written[_key(field)] = items
    return written


def _key(field: attrs.Attribute[Any]) -> str:
    return str(field.metadata.get("key", field.alias))


def _default(field: attrs.Attribute[Any], instance: Any) -> Any:
    """The field's default as the instance would hold it; NOTHING when it is required."""
    value: Any = field.default
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        value = value.factory(instance) if value.takes_self else value.factory()
    return value if value is attrs.NOTHING else _converted(field, value)


def _converted(field: attrs.Attribute[Any], value: Any) -> Any:
    convert: Any = field.converter
    return convert(value) if convert else value


# --- reading ---------------------------------------------------------------------------------------------------


def _read(kind: Any, data: Any, where: str, problems: list[Problem], by: str | None = None) -> Any:
    """`data` as a `kind`, or _BAD after noting why not."""
    origin = get_origin(kind)
    if kind is Any or kind is object:
        return data
    if origin in (Union, UnionType):
        return _read_union(kind, data, where, problems)
    if attrs.has(kind):
        return _read_class(kind, data, where, problems)
    if origin in _LISTS:
        return _read_list(kind, data, where, problems, by)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_mapping(kind, data, where, problems)
    value = _literal(kind, data) if origin is Literal else _scalar(kind, data)
    if value is _BAD:
        hint = closest(data, map(str, get_args(kind))) if origin is Literal and isinstance(data, str) else None
        problems.append(_problem(where, data, describe(kind), f"did you mean {hint!r}?" if hint else ""))
    return value


def _literal(kind: Any, data: Any) -> Any:
    return data if any(type(data) is type(value) and data == value for value in get_args(kind)) else _BAD


def _scalar(kind: Any, data: Any) -> Any:
    if kind not in _WORDS:
        raise TypeError(f"{kind!r} cannot be read from a file")
    if kind is Path:
        # Path("") would be the folder one happens to stand in: what an unset variable of a shell leaves.
        return Path(data) if isinstance(data, (str, Path)) and data != "" else _BAD
    if kind is float and type(data) in (int, float):
        try:
            return float(data) if math.isfinite(data) else _BAD
        except OverflowError:
            return _BAD
    return data if type(data) is kind else _BAD


def _read_union(kind: Any, data: Any, where: str, problems: list[Problem]) -> Any:
    members = [member for member in get_args(kind) if member is not NoneType]
    if data is None and len(members) < len(get_args(kind)):
        return None
    noted: list[Problem] = []
    for member in members:
        noted = []
        value = _read(member, data, where, noted)
        if not noted:
            return value
    # One member explains the fault best itself; of several, none can be said to be the one that was meant.
    problems.extend(noted if len(members) == 1 else [_problem(where, data, describe(kind))])
    return _BAD


def _read_list(kind: Any, data: Any, where: str, problems: list[Problem], by: str | None) -> Any:
    if isinstance(data, (str, bytes)) or not isinstance(data, (Sequence, set, frozenset, Mapping if by else Sequence)):
        problems.append(_problem(where, data, f"{describe(kind)}, or a mapping by {by}" if by else describe(kind)))
        return _BAD
    args = get_args(kind)
    fixed = get_origin(kind) is tuple and args[-1] is not Ellipsis
    if fixed and len(data) != len(args):
        problems.append(_problem(where, data, f"a list of {len(args)} items"))
        return _BAD
    items = list(_items(data, where, problems, by))
    kinds = args if fixed else args[:1] * len(items)
    values = [_read(member, item, path, problems) for member, (path, item) in zip(kinds, items, strict=True)]
    if fixed and _BAD in values:
        return _BAD
    return _LISTS[get_origin(kind)](value for value in values if value is not _BAD)


def _items(data: Any, where: str, problems: list[Problem], by: str | None) -> Iterator[tuple[str, Any]]:
    """(path, item) of a list, or of a mapping by the item's field `by`, which is then filled in."""
    if isinstance(data, Mapping) and by:
        for key, item in data.items():
            path = at(where, str(key))
            if isinstance(item, Mapping):
                if item.get(by, key) != key:
                    problems.append(_problem(at(path, by), item[by], f"{show(key)}, as its key says"))
                item = {**item, by: key}
            yield path, item
        return
    for index, item in enumerate(data):
        label = item.get(by) if by and isinstance(item, Mapping) else None
        yield at(where, label if label and isinstance(label, str) else index), item


def _read_mapping(kind: Any, data: Any, where: str, problems: list[Problem]) -> Any:
    if not isinstance(data, Mapping):
        problems.append(_problem(where, data, describe(kind)))
        return _BAD
    key_kind, value_kind = get_args(kind)
    read = {}
    for key, item in data.items():
        path = at(where, str(key))
        if key_kind is int and isinstance(key, str) and re.fullmatch(r"0|-?[1-9][0-9]*", key):
            key = int(key)
        noted: list[Problem] = []
        if _read(key_kind, key, path, noted) is _BAD:
            problems.append(Problem(where=path, got=f"the key {show(key)}", expected=f"{describe(key_kind)} as key"))
        value = _read(value_kind, item, path, problems)
        if value is not _BAD and not noted:
            read[key] = value
    return read


def _read_class(cls: Any, data: Any, where: str, problems: list[Problem]) -> Any:
    if isinstance(data, cls):
        return data
    if hasattr(cls, "form"):
        try:
            return cls.parse(data) if isinstance(data, str) else _note(problems, where, data, cls.form)
        except ValueError:
            return _note(problems, where, data, cls.form)
    if not isinstance(data, Mapping):
        return _note(problems, where, data, "a mapping")

    before = len(problems)
    types = _types(cls)
    fields = {_key(field): field for field in attrs.fields(cls) if field.init}
    unknown = [str(key) for key in data if key not in fields]
    for key in unknown:
        got, hint = f"unknown key {show(key)}", nearest(key, fields)
        problems.append(Problem(where=at(where, key), got=got, expected="a known key", hint=hint))
    misspelt = {closest(key, fields) for key in unknown}  # one fault, not also a missing field
    values: dict[str, Any] = {}
    for key, field in fields.items():
        kind, path = types[field.name], at(where, key)
        if key in data:
            value = _read(kind, data[key], path, problems, field.metadata.get("by"))
            if value is not _BAD:
                values[field.name] = value
        elif field.default is attrs.NOTHING and key not in misspelt:
            problems.append(Problem(where=path, got="nothing", expected=f"{describe(kind)} (required)"))

    for key, field, error in _violations(cls, fields, values, sound=len(problems) == before):
        expected, hint = _expectation(types[field.name], field.validator, error, data[key])
        problems.append(_problem(at(where, key), data[key], expected, hint))
        del values[field.name]

    faulty = len(problems) > before
    for field in fields.values():
        if field.name not in values and field.default is attrs.NOTHING:
            if types[field.name] is not str:
                return _BAD
            values[field.name] = ""
    try:
        return cls(**{field.alias: values[field.name] for field in fields.values() if field.name in values})
    except ValueError as error:  # a rule over several fields
        return _BAD if faulty else _note(problems, where, data, str(error))


def _violations(
    cls: Any, fields: Mapping[str, attrs.Attribute[Any]], values: Mapping[str, Any], sound: bool
) -> list[tuple[str, attrs.Attribute[Any], Exception]]:
    """Run each validator on its own: attrs stops at the first, and runs none when a sibling could not be read."""
    probe = cls.__new__(cls)
    for field in fields.values():
        if field.name in values:
            object.__setattr__(probe, field.name, _converted(field, values[field.name]))
        elif field.default is not attrs.NOTHING:
            object.__setattr__(probe, field.name, _default(field, probe))
    found: list[tuple[str, attrs.Attribute[Any], Exception]] = []
    for key, field in fields.items():
        if field.name not in values or field.validator is None:
            continue
        try:
            field.validator(probe, field, getattr(probe, field.name))
        except (ValueError, TypeError) as error:
            found.append((key, field, error))
        except AttributeError:  # it looks at a field that could not be read
            if sound:
                raise
    return found


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


# --- words -----------------------------------------------------------------------------------------------------


def describe(kind: Any) -> str:
    """A type in words: `an integer`, `one of "fail", "skip", "prune"`, `a list of strings`, `a number or null`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"{'one of ' if len(args) > 1 else ''}{', '.join(map(show, args))}"
    if origin in (Union, UnionType):
        return " or ".join(describe(member) for member in args)
    if origin in _LISTS:
        return f"a list of {_WORDS[args[0]][1]}" if args[0] in _WORDS else "a list"
    if kind in _WORDS:
        return _WORDS[kind][0]
    return str(getattr(kind, "form", "a mapping"))


def _expectation(kind: Any, validator: Any, error: Exception, data: Any) -> tuple[str, str]:
    """(expected, hint) of a value that a validator refused."""
    checks = _flat(validator)
    options = [option for check in checks for option in getattr(check, "options", ())]
    if options:
        hint = closest(data, map(str, options)) if isinstance(data, str) else None
        return f"one of {', '.join(map(show, options))}", f"did you mean {hint!r}?" if hint else ""
    unit = "characters" if isinstance(data, str) else "entries"
    conditions = []
    for check in checks:
        if hasattr(check, "compare_op"):
            conditions.append(f"{check.compare_op} {check.bound}")
        elif hasattr(check, "max_length"):
            conditions.append(f"of at most {check.max_length} {unit}")
        elif hasattr(check, "min_length"):
            conditions.append(f"of at least {check.min_length} {unit}")
        elif hasattr(check, "pattern"):
            conditions.append(f"matching {check.pattern.pattern}")
        else:
            return str(error.args[0] if error.args else error), ""
    return f"{describe(kind)} {' and '.join(conditions)}", ""


def _flat(validator: Any) -> list[Any]:
    """The single validators behind attrs' `and_` and `optional`."""
    if hasattr(validator, "_validators"):
        return [check for part in validator._validators for check in _flat(part)]
    inner = getattr(validator, "validator", None)
    return [validator] if inner is None else _flat(inner)


def _problem(where: str, data: Any, expected: str, hint: str = "") -> Problem:
    return Problem(where=where.rstrip(":"), got=show(data), expected=expected, hint=hint)


def _note(problems: list[Problem], where: str, data: Any, expected: str) -> Any:
    problems.append(_problem(where, data, expected))
    return _BAD
