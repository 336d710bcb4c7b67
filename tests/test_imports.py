"""Imports go one way: cli -> build, execution -> engines, graph -> attrs; models -> framework, never back."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
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


RULES = [
    Rule(name="the framework knows no model", room="framework/", banned=("models",)),
    Rule(name="only the commands know Hydra", room="", outside=("framework/cli/", "tests/"), banned=("hydra",)),
    Rule(name="no torch outside tests", room="", outside=("tests/",), banned=("torch", "transformers")),
    Rule(
        name="graph stands on attrs alone",
        room="framework/graph/",
        banned=("framework", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "numpy", "omegaconf"),
        allowed=("framework.graph", "framework.errors", "framework.schema", "framework.parsing"),
    ),
    Rule(
        name="engines know neither execution nor build nor commands",
        room="framework/engines/",
        banned=("framework.execution", "framework.build", "framework.cli"),
    ),
    Rule(
        name="execution knows neither build nor commands",
        room="framework/execution/",
        banned=("framework.build", "framework.cli"),
    ),
    Rule(
        name="execution loads no backend",
        room="framework/execution/",
        banned=("framework.engines.onnxruntime", "framework.engines.tensorrt", "onnxruntime", "tensorrt", "cuda"),
        deferred_too=False,
    ),
    Rule(name="build knows no commands", room="framework/build/", banned=("framework.cli",)),
    Rule(name="imports are absolute", room="", banned=("", ".", "..")),
]


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
        ("framework/build/a.py", "from hydra.utils import instantiate", "only the commands know Hydra"),
        ("models/llm/a.py", "import hydra", "only the commands know Hydra"),
        ("models/llm/a.py", "import torch.nn as nn", "no torch outside tests"),
        ("framework/graph/a.py", "from framework.execution import request", "graph stands on attrs alone"),
        ("framework/graph/a.py", "from framework import io", "graph stands on attrs alone"),
        (
            "framework/engines/a.py",
            "import framework.build.family",
            "engines know neither execution nor build nor commands",
        ),
        ("framework/execution/a.py", "from framework.engines import onnxruntime", "execution loads no backend"),
        ("framework/execution/a.py", "import framework.cli", "execution knows neither build nor commands"),
        ("framework/build/a.py", "import framework.cli.main", "build knows no commands"),
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
        ("framework/execution/a.py", "def f():\n    from framework.engines.onnxruntime import Ort"),
        (
            "framework/execution/a.py",
            "if TYPE_CHECKING:\n    from framework.engines.tensorrt import Trt",
        ),
        ("framework/nn/a.py", "import modelsmith, torchlike, hydrant"),
    ],
)
def test_what_keeps_the_rules_is_let_through(file: str, source: str) -> None:
    assert [rule.name for rule in RULES if rule.broken_by(file, source)] == []
