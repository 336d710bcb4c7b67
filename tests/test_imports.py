"""Imports go one way: commands, server -> deployment -> compile, execution, io -> engines, graph; never in a circle."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for room in ("framework", "models", "conf", "tests")
    for path in sorted((ROOT / room).rglob("*.py"))
}


@attrs.frozen(kw_only=True)
class Import:
    """One imported module; `deferred` when it happens inside a function or for type checkers alone."""

    module: str
    line: int
    deferred: bool


@functools.cache
def imports(source: str) -> tuple[Import, ...]:
    """All imports of a file. `from a import b` counts as `a.b`, since b may be a module."""

    def walk(node: ast.AST, deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(module=name.name, line=child.lineno, deferred=deferred) for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                for name in child.names:
                    yield Import(module=f"{base}.{name.name}", line=child.lineno, deferred=deferred)
            elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                yield from walk(child, True)
            else:
                inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(child, deferred or inside)

    return tuple(walk(ast.parse(source), False))


def below(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@attrs.frozen(kw_only=True)
class Rule:
    """Files below `room`, but not below `outside`, import nothing of `banned` (only `allowed` where that is given)."""

    name: str
    room: str
    banned: tuple[str, ...]
    outside: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    deferred_too: bool = True

    def broken_by(self, file: str, source: str) -> list[str]:
        if not file.startswith(self.room) or file.startswith(self.outside or ("\0",)):
            return []
        return [
            f"{file}:{found.line} imports {found.module}"
            for found in imports(source)
            if below(found.module, *self.banned)
            and not below(found.module, *self.allowed)
            and (self.deferred_too or not found.deferred)
        ]


BACKENDS = ("ort", "cuda", "tensorrt")  # a folder of framework/engines each
RULES = [
    Rule(name="the framework knows no model", room="framework/", banned=("models",)),
    Rule(name="only the commands know Hydra", room="", outside=("framework/cli/", "tests/"), banned=("hydra",)),
    Rule(
        name="what is private in Hydra is used in one file",
        room="",
        outside=("framework/cli/hydra_private.py",),
        banned=("hydra._internal",),
    ),
    Rule(name="no torch outside tests", room="", outside=("tests/",), banned=("torch", "transformers")),
    Rule(
        name="graph stands on attrs alone",
        room="framework/graph/",
        banned=("onnx", "onnx_ir", "onnxscript", "onnxruntime", "numpy", "omegaconf"),
    ),
    Rule(
        name="execution loads no backend",
        room="framework/execution/",
        banned=("onnxruntime", "tensorrt", "cuda"),
        deferred_too=False,
    ),
    Rule(
        name="only conf names a backend",
        room="",
        outside=("tests/", *(f"framework/engines/{name}/" for name in BACKENDS)),
        banned=tuple(f"framework.engines.{name}" for name in BACKENDS),
    ),
    Rule(name="imports are absolute", room="", banned=("", ".", "..")),
]

# What each room of framework/ may import of the others. Everything may import the first four.
BASE = {"errors", "schema", "parsing", "writing"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "schema": set(),
    "parsing": set(),
    "writing": set(),
    "graph": set(),
    "engines": set(),
    "execution": {"graph", "engines"},
    "nn": {"engines"},
    "io": {"execution", "graph"},
    "checkpoints": {"engines", "io"},
    "decoding": {"execution", "engines", "graph", "io"},
    "compile": {"checkpoints", "engines", "graph"},
    "deployment": {"compile", "checkpoints", "execution", "io", "engines", "graph"},
    "sweeps": {"io", "execution", "graph"},
    "serve": {"deployment", "execution", "io", "graph"},
    "cli": {"serve", "deployment", "sweeps", "compile", "checkpoints", "execution", "io", "engines", "graph"},
    "api": {"cli", "deployment", "execution", "io", "graph"},
}


def room_of(module: str) -> str:
    """`framework.graph.model` -> `graph`; empty for what is no room of the framework."""
    head, _, rest = module.partition(".")
    return rest.partition(".")[0] if head == "framework" else ""


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    allowed = {room} | BASE | ROOMS[room]
    files = [file for file in FILES if file.startswith((f"framework/{room}/", f"framework/{room}.py"))]
    found = [
        f"{file}:{one.line} imports {one.module}"
        for file in files
        for one in imports(FILES[file])
        if room_of(one.module) in ROOMS and room_of(one.module) not in allowed
    ]
    assert found == []


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {Path(file).parts[1].removesuffix(".py") for file in FILES if file.startswith("framework/")}
    assert rooms - {"__init__"} <= ROOMS.keys()


def test_no_files_import_each_other_in_a_circle() -> None:
    names = {module_name(file): file for file in FILES if file.startswith(("framework/", "models/"))}
    below = {
        name: {found for one in imports(FILES[file]) if (found := target(one.module, names)) and found != name}
        for name, file in names.items()
    }
    circles = [sorted(circle) for circle in circles_of(below)]
    assert circles == []


def families() -> list[str]:
    """Folders of models/ that the families table names."""
    import yaml

    tables = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf" / "families").glob("*.yaml"))]
    return sorted({row["_target_"].split(".")[1] for table in tables for row in table.values()})


FOLDERS = sorted({Path(file).parts[1] for file in FILES if file.startswith("models/") and file.count("/") > 1})


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_of_models_imports_a_family(folder: str) -> None:
    """What two families use lies in a folder that is none."""
    others = [f"models.{family}" for family in families() if family != folder]
    rule = Rule(name="no family but its own", room=f"models/{folder}/", banned=tuple(others))
    assert [fault for file in FILES for fault in rule.broken_by(file, FILES[file])] == []


def test_the_families_are_known() -> None:
    assert {"llm", "qwen3_omni", "qwen3_tts", "whisper", "hibari"} <= set(families())


def module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def target(module: str, names: Collection[str]) -> str | None:
    """The file that an import of `module` reads: the module itself, or the one that has the name in it."""
    return next((name for name in (module, module.rpartition(".")[0]) if name in names), None)


def circles_of(below: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of names that reach each other."""

    def reach(name: str) -> set[str]:
        seen: set[str] = set()
        left = [name]
        while left:
            for one in below[left.pop()] - seen:
                seen.add(one)
                left.append(one)
        return seen

    reached = {name: reach(name) for name in below}
    inside = {name: frozenset(o for o in reached[name] if name in reached[o]) for name in below}
    return [set(circle) for circle in {circle for circle in inside.values() if circle}]


def test_a_circle_is_found() -> None:
    assert circles_of({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule(rule: Rule) -> None:
    watched = [file for file in FILES if file.startswith(rule.room)]
    assert watched, f"no file below {rule.room}"
    assert [fault for file in watched for fault in rule.broken_by(file, FILES[file])] == []


@pytest.mark.parametrize(
    ("file", "source", "broken"),
    [
        ("framework/nn/a.py", "import models.llm", "the framework knows no model"),
        ("framework/nn/a.py", "def f():\n    from models import llm", "the framework knows no model"),
        ("framework/compile/a.py", "from hydra.utils import instantiate", "only the commands know Hydra"),
        ("framework/graph/a.py", "import numpy", "graph stands on attrs alone"),
        ("models/llm/a.py", "import hydra", "only the commands know Hydra"),
        ("models/llm/a.py", "import torch.nn as nn", "no torch outside tests"),
        (
            "framework/cli/a.py",
            "from hydra._internal.hydra import Hydra",
            "what is private in Hydra is used in one file",
        ),
        ("framework/execution/a.py", "import onnxruntime", "execution loads no backend"),
        ("framework/execution/a.py", "from framework.engines.ort import engine", "only conf names a backend"),
        (
            "framework/engines/a.py",
            "def f():\n    from framework.engines.cuda import backend",
            "only conf names a backend",
        ),
        ("framework/nn/a.py", "from . import layers", "imports are absolute"),
        ("framework/nn/a.py", "from ..nn.layers import Linear", "imports are absolute"),
    ],
)
def test_what_breaks_a_rule_is_seen(file: str, source: str, broken: str) -> None:
    assert [rule.name for rule in RULES if rule.broken_by(file, source)] == [broken]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("framework/cli/a.py", "import hydra"),
        ("tests/a.py", "import torch"),
        ("framework/graph/a.py", "from framework import parsing, schema"),
        ("framework/execution/a.py", "def f():\n    import onnxruntime"),
        ("framework/engines/tensorrt/a.py", "from framework.engines.cuda.memory import DeviceMemory"),
        ("framework/nn/a.py", "import modelsmith, torchlike, hydrant"),
    ],
)
def test_what_keeps_the_rules_is_let_through(file: str, source: str) -> None:
    assert [rule.name for rule in RULES if rule.broken_by(file, source)] == []
