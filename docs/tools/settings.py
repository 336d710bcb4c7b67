"""Writes settings.md: every setting, from the comments in `conf/` and the attrs classes that check the values.

    python docs/tools/settings.py

A test compares the page with what this would write.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import yaml

from framework.cli.composition import Composer, values_of
from framework.deployment import config
from framework.deployment.instances import class_of, runner_classes
from framework.execution.sampling import Sampling
from framework.graph import model
from framework.serve.settings import ServeConfig

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
PAGE = ROOT / "docs" / "settings.md"
TARGET = "_target_"

COMMANDS = {
    "inference": config.InferenceConfig,
    "build": config.BuildConfig,
    "fetch": config.FetchConfig,
    "report": config.ReportConfig,
    "serve": ServeConfig,
    "bench": config.BenchConfig,
}
# Groups whose files are one class each; those of `backend` and `batching` name theirs.
GROUPS = {
    "deployment/none": config.Preset,
    "build/default": config.BuildNode,
    "sampling/default": Sampling,
    "style/default": None,
    "report/default": config.ReportOptions,
    "paths/default": config.Paths,
}
WORDS = {str: "text", int: "integer", float: "number", bool: "true, false", Path: "path", types.NoneType: "null"}
KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_]\w*):(?P<value>(?: [^#\n]*?)?)(?:\s+# (?P<comment>.*))?")
INTRODUCTION = """\
# Settings

A setting is written `key=value` on the command line; `group=name` chooses a file of settings. This page is generated
from `conf/` and from the classes that check the values, by `python docs/tools/settings.py`.

`multistage-inference explain=true ...` prints the value that each setting has in a run, and the file or override that
it comes from. `null` means that the setting is not given.
"""


@attrs.frozen(kw_only=True)
class Setting:
    """One row of a table, as text."""

    key: str
    type: str
    default: str
    meaning: str

    def row(self) -> str:
        default = f"`{self.default}`" if self.default else ""
        cells = (f"`{self.key}`", self.type, default, self.meaning)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """The text of settings.md."""
    parts = [INTRODUCTION]
    for name, cls in COMMANDS.items():
        parts.append(_section(f"multistage-{name}", CONF / f"{name}.yaml", "", cls))
    parts.append("## Groups\n\nEach file below `conf/<group>/` may be chosen with `<group>=<file>`.\n")
    for path, cls in GROUPS.items():
        group = path.partition("/")[0]
        parts.append(_section(group, CONF / f"{path}.yaml", f"{group}.", cls, level=3))
    for group in ("backend", "batching"):
        for file in sorted((CONF / group).glob("*.yaml")):
            cls = class_of(yaml.safe_load(file.read_text("utf-8")), group)
            parts.append(_section(f"{group}={file.stem}", file, f"{group}.", cls, level=3))
    parts.append(_graph())
    parts.append(_runners())
    return "\n".join(parts)


def settings(path: Path, prefix: str, cls: type[Any] | None) -> Iterator[Setting]:
    """The settings of one file of `conf/`, in its order."""
    text = path.read_text("utf-8")
    told = _comments(text)
    for key in _rows_of(yaml.safe_load(text), told):
        default, meaning = told[key]
        yield Setting(key=prefix + key, type=_type_of(cls, key), default=default, meaning=meaning.replace("<", "\\<"))


def _section(title: str, path: Path, prefix: str, cls: type[Any] | None, level: int = 2) -> str:
    rows = [one.row() for one in settings(path, prefix, cls)]
    head = _header(path.read_text("utf-8"))
    return f"{'#' * level} {title}\n\n{head}\n\n{_table(rows)}"


def _table(rows: list[str]) -> str:
    return "\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def _rows_of(node: Any, told: Mapping[str, tuple[str, str]], prefix: str = "") -> Iterator[str]:
    """Dotted keys that have a row: a mapping has one for each key in it if any of them has a comment, else one."""
    for key, value in node.items():
        inside = f"{prefix}{key}."
        if key in ("defaults", TARGET):
            continue
        if isinstance(value, Mapping) and any(told[inside + name][1] for name in value if inside + name in told):
            yield from _rows_of(value, told, inside)
        else:
            yield prefix + key


def _comments(text: str) -> dict[str, tuple[str, str]]:
    """Dotted key -> its value as written and what the comment behind or above it says."""
    found: dict[str, tuple[str, str]] = {}
    stack: list[tuple[int, str]] = []
    above: list[str] = []
    for line in text.removeprefix(_raw_header(text)).splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.lstrip()[1:].strip())
        elif match := KEY.fullmatch(line.rstrip()):
            indent = len(match["indent"])
            stack = [(place, key) for place, key in stack if place < indent]
            stack.append((indent, match["key"]))
            meaning = match["comment"] or " ".join(above)
            found[".".join(key for _, key in stack)] = (match["value"].strip(), meaning)
            above = []
        else:
            above = []
    return found


def _raw_header(text: str) -> str:
    """The comment at the top of a file."""
    match = re.match(r"(?:#[^\n]*\n)+", text)
    return match[0] if match else ""


def _header(text: str) -> str:
    lines = [line.lstrip("#").strip() for line in _raw_header(text).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("@package"))


def _type_of(cls: type[Any] | None, key: str) -> str:
    """What a dotted key may be, in words; empty where the class does not say."""
    for part in key.split("."):
        if cls is None or not attrs.has(cls) or part not in (fields := attrs.fields_dict(attrs.resolve_types(cls))):
            return ""
        field = fields[part]
        cls = field.type
    return _words(field.type, field.validator)


def _words(kind: Any, validator: Any = None) -> str:
    limits = [*_limits(validator)]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if limits and isinstance(limits[0], tuple):  # `in_`: what is allowed
        return ", ".join(str(option) or '""' for option in limits[0])
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (types.UnionType, typing.Union):
        named = [_words(one) for one in inner if one is not types.NoneType]
        words = " or ".join(dict.fromkeys(named)) + (" or null" if types.NoneType in inner else "")
    elif origin in (tuple, list, frozenset):
        words = "list"
    elif attrs.has(kind) or origin is not None:
        words = "mapping"
    else:
        words = WORDS.get(kind, "")
    return ", ".join([words, *limits])


def _limits(validator: Any) -> Iterator[Any]:
    """`>= 0` and the like, or the tuple of what is allowed."""
    if hasattr(validator, "options"):
        yield (validator.options,) if isinstance(validator.options, str) else tuple(validator.options)
    elif hasattr(validator, "compare_op"):
        yield f"{validator.compare_op} {validator.bound}"
    for inner in getattr(validator, "_validators", [getattr(validator, "validator", None)]):
        if inner is not None:
            yield from _limits(inner)


# --- classes that are told by their docstrings -----------------------------------------------------------------------


def _graph() -> str:
    parts = ["## The graph file\n\nSee [the graph file](graph.md). `stages.ID.KEY=VALUE` changes a stage.\n"]
    for cls in (model.Graph, model.Stage, model.Input, model.Port):
        parts.append(f"### {cls.__name__}\n\n{_summary(cls)}\n\n{_table(_rows(cls, ''))}")
    return "\n".join(parts)


def _runners() -> str:
    with Composer("inference", []) as composer:
        classes = runner_classes(values_of(composer.compose())["runners"])
    parts = ["## Settings of runners\n\n`stages.ID.config.KEY=VALUE`, of each stage that has the runner named.\n"]
    for name in sorted(classes):
        decl = classes[name].decl
        for cls, key in ((decl.config, "config"), (decl.style, "style")):
            if cls is not None:
                start = "stages.ID.config." if key == "config" else "style."
                parts.append(f"### {name}: {key}\n\n{_summary(cls)}\n\n{_table(_rows(cls, start))}")
    return "\n".join(parts)


def _rows(cls: type[Any], prefix: str) -> list[str]:
    told = attributes(cls)
    return [
        Setting(
            key=prefix + str(field.metadata.get("key", field.alias)),
            type=_words(field.type, field.validator),
            default=_default(field),
            meaning=told.get(field.name, ""),
        ).row()
        for field in attrs.fields(attrs.resolve_types(cls))
    ]


def _default(field: attrs.Attribute[Any]) -> str:
    """As it would be written in YAML; empty where there is none."""
    value: Any = field.default
    if value is attrs.NOTHING:
        return ""
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        value = value.factory()
    value = [*value] if isinstance(value, (tuple, frozenset)) else value
    return value if value and isinstance(value, str) else json.dumps(value, default=dict)


def _summary(cls: type[Any]) -> str:
    """A docstring up to its attributes, as Markdown."""
    text = (cls.__doc__ or "").partition("Attributes:")[0]
    return " ".join(text.split())


def attributes(cls: type[Any]) -> dict[str, str]:
    """Field -> what the docstrings of a class and its bases say of it."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = (base.__doc__ or "").partition("Attributes:\n")[2]
        names: list[str] = []
        for line in section.splitlines():
            if match := re.fullmatch(r" {8}(\w+(?:, \w+)*): (.*)", line):
                names = match[1].split(", ")
                found.update(dict.fromkeys(names, match[2].strip()))
            elif line.startswith(" " * 12):
                found.update({name: f"{found[name]} {line.strip()}" for name in names})
            elif line.strip():
                break
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
