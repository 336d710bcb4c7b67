"""README and docs: links lead somewhere, Python runs as written, commands name what exists."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from hydra.types import RunMode

from framework.cli.arguments import prepare
from framework.cli.composition import Composer, values_of
from framework.deployment.config import BuildConfig, InferenceConfig
from framework.io.requests import Rejected, load_requests
from framework.schema import structure
from framework.serve.settings import ServeConfig
from tests.models import published

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```(?P<kind>\S*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
ELSEWHERE = ("docs/server.md",)  # its Python needs a server: tests/serve/test_docs.py runs it


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, kind: str) -> list[str]:
    return [match["text"] for match in FENCE.finditer(page.read_text("utf-8")) if match["kind"] == kind]


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub and MyST make them."""
    text = FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text("utf-8")))
    lost = []
    for match in LINK.finditer(text):
        file, _, anchor = match["target"].partition("#")
        if "://" in file:
            continue
        target = (page.parent / file).resolve() if file else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            lost.append(match["target"])
    assert lost == []


def test_a_lost_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One title\n[a](#one-title) [b](page.md) [c](#other) [d](none.md)\n")
    with pytest.raises(AssertionError, match=r"'#other', 'none.md'"):
        test_links_lead_to_files_and_headings(page)


def test_every_page_of_docs_is_in_the_contents() -> None:
    index = ROOT / "docs"
    listed = {line for page in index.rglob("index.md") for block in blocks(page, "{toctree}")
              for line in ((page.parent / entry).relative_to(index).as_posix() for entry in block.splitlines()
                           if entry and not entry.startswith(":"))}  # fmt: skip
    pages = {page.relative_to(index).with_suffix("").as_posix() for page in index.rglob("*.md")} - {"index"}
    assert pages == listed


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the weights of the user's own and no engines."""
    folder = tmp_path_factory.mktemp("cache")
    own = os.environ.get("MULTISTAGE_CACHE") or Path.home() / ".cache" / "multistage"
    (folder / "weights").symlink_to(Path(own) / "weights")
    return folder


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and name_of(page) not in ELSEWHERE], ids=name_of
)
def test_python_runs_as_written(
    page: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page in order, as one program. A comment behind `print` shows what it prints, in part."""
    program = "\n".join(blocks(page, "python"))
    for preset in set(re.findall(r'Deployment\.open\("(\w+)".*build_if_missing', program)):
        published.weights(preset)
    monkeypatch.setenv("MULTISTAGE_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    exec(compile(program, name_of(page), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    shown = [
        part for line in re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE) for part in line.split(" ... ")
    ]
    assert [part for part in shown if part not in printed] == []


def commands(command: str) -> list[tuple[str, str]]:
    """Page and arguments of each use of a command, with continued lines joined and comments dropped."""
    return sorted(
        {
            (name_of(page), " ".join(match[1].split()))
            for page in PAGES
            for block in blocks(page, "bash")
            for line in block.replace("\\\n", " ").splitlines()
            if (match := re.search(rf"multistage-{command}\b(.*)", re.sub(r"\s# .*", "", line)))
        }
    )


@pytest.mark.parametrize(("page", "line"), commands("inference"))
def test_settings_of_a_run_are_there(page: str, line: str) -> None:
    arguments = shlex.split(line)
    overrides = prepare(arguments)
    with Composer("inference", [override for override in overrides if override != "-m"]) as composer:
        composer.mode = RunMode.MULTIRUN if "-m" in arguments else RunMode.RUN
        structure(InferenceConfig, values_of(composer.compose()), where="")


@pytest.mark.parametrize("command", ["build", "serve"])
def test_settings_of_other_commands_are_there(command: str) -> None:
    for _, line in commands(command):
        with Composer(command, prepare(shlex.split(line))) as composer:
            structure({"build": BuildConfig, "serve": ServeConfig}[command], values_of(composer.compose()), where="")


def test_the_command_names_are_those_of_the_package() -> None:
    scripts = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"])
    named = {name for page in PAGES for block in blocks(page, "bash") for name in re.findall(r"multistage-\w+", block)}
    assert named and named <= scripts


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.json*")), ids=name_of)
def test_a_request_file_has_no_fault(file: Path) -> None:
    requests = [*load_requests(file).entries]
    assert requests and not [request for request in requests if isinstance(request, Rejected)]
