"""docs/settings.md is generated: it is current, and it tells every setting."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import yaml

from framework.deployment import config

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
COMMANDS = {
    "inference": config.InferenceConfig,
    "build": config.BuildConfig,
    "fetch": config.FetchConfig,
    "report": config.ReportConfig,
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_settings", ROOT / "docs" / "tools" / "settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(tool: ModuleType) -> str:
    return str(tool.page())


def test_the_page_is_current(tool: ModuleType, page: str) -> None:
    assert tool.PAGE.read_text("utf-8") == page, "run: python docs/tools/settings.py"


def keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        if key in ("defaults", "_target_"):
            continue
        if isinstance(value, Mapping) and value:
            yield from keys(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key)


@pytest.mark.parametrize(
    "file",
    [*CONF.glob("*.yaml"), *(CONF / "backend").glob("*.yaml"), *(CONF / "batching").glob("*.yaml"),
     *(CONF / group / "default.yaml" for group in ("build", "sampling", "style", "report", "paths")),
     CONF / "deployment" / "none.yaml"],
    ids=lambda path: path.relative_to(CONF).as_posix(),
)  # fmt: skip
def test_every_key_of_conf_is_on_the_page_with_its_meaning(file: Path, page: str) -> None:
    prefix = "" if file.parent == CONF else f"{file.parent.name}."
    rows = {line.split("`")[1]: line for line in page.splitlines()[::-1] if line.startswith("| `")}
    for key in keys(yaml.safe_load(file.read_text("utf-8"))):
        *owner, last = f"{prefix}{key}".split(".")
        row = rows.get(".".join([*owner, last])) or rows.get(".".join(owner))  # sampling.talker stands for all in it
        assert row is not None, key
        assert not row.endswith("|  |"), f"{file.name}: {key} has no comment"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_of_a_command_is_on_the_page(command: str, page: str) -> None:
    section = page.partition(f"## multistage-{command}\n")[2].partition("\n## ")[0]
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    fields = {field.name for field in attrs.fields(COMMANDS[command])} - groups
    assert not [name for name in fields if f"| `{name}" not in section]


def test_comments_are_found_above_and_behind_a_key(tool: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "group.yaml"
    file.write_text("# What it is.\n\nfirst: 1 # behind\n# above\nsecond:\n  third: null # inside\n")
    found = {one.key: one.meaning for one in tool.settings(file, "group.", None)}
    assert found == {"group.first": "behind", "group.second.third": "inside"}
