"""README and docs: links lead somewhere, Python runs as written, commands name what exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```(?P<kind>\S*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
COMMANDS = ("inference", "build", "fetch", "report", "merge", "serve")
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


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and name_of(page) not in ELSEWHERE], ids=name_of
)
def test_python_runs_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page in order, as one program."""
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks(page, "python"))
    exec(compile(program, name_of(page), "exec"), {"__name__": "__main__"})


def commands() -> Iterator[tuple[str, str]]:
    """Page and command line, with continued lines joined and comments dropped."""
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.search(r"multistage-\w+.*", re.sub(r"\s# .*", "", line)):
                    yield name_of(page), " ".join(match[0].split())


@pytest.mark.parametrize(("page", "line"), sorted({*commands()}))
def test_commands_exist(page: str, line: str) -> None:
    assert line.split()[0] in {f"multistage-{name}" for name in COMMANDS}
