"""The Python of docs/server.md runs as written, against a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT, blocks
from tests.serve.deployments import Fake, running


def test_python_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks(ROOT / "docs" / "server.md", "python"))
    with running({"voice_assistant": Fake()}) as server:
        program = program.replace("http://127.0.0.1:8000", server.url)
        exec(compile(program, "docs/server.md", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert said.startswith("What is the capital of France?") and said.strip().endswith("seconds")
