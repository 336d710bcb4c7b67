"""`multistage-bench`, with runners that need no engine; and the watch on engines that it stands on."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from framework.cli import app, bench
from framework.engines.backend import open_engine
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.engines.watch import Watch, watched
from tests.cli.fakes import ALLOWED, BEEP, ECHO, ROWS, engines
from tests.engines import tiny


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def measure(*arguments: str) -> int:
    return app.call("bench", partial(bench.task, prefixes=ALLOWED), [*ROWS, *arguments])


def test_stages_steps_and_the_copy_are_told_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    folder = engines(Path("engines/echo"), ECHO)
    assert measure(f"engine_dir={folder}", "prompt=one two three", "bench.rounds=3", "bench.json=figures.json") == 0
    found = json.loads(Path("figures.json").read_text())
    assert found["rounds"] == 3 and found["copy_bytes_per_s"] > 1e8 and found["wall_s"] > 0
    ((name, stage),) = found["stages"].items()
    assert stage["steps"] >= 3, "a word a step"
    assert found["engines"] == {}
    out = capsys.readouterr().out
    assert f"stage {name}: a step" in out and "median of 3" in out


def test_speech_has_a_real_time_factor_with_its_direction(capsys: pytest.CaptureFixture[str]) -> None:
    folder = engines(Path("engines/speech"), ECHO, BEEP)
    assert measure(f"engine_dir={folder}", "prompt=one two", "out_audio=reply.wav", "bench.rounds=2") == 0
    assert Path("reply.wav").stat().st_size > 44, "the last round's reply, behind its header"
    assert "seconds of work per second of sound: smaller is faster" in capsys.readouterr().out


def test_a_failed_request_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(f"engine_dir={engines(Path('engines/echo'), ECHO)}", "prompt=one fail") == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("wrong", ["bench.rounds=0", "bench.warmup=-1", "out_audio=reply.wav"])
def test_what_it_cannot_do_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(f"engine_dir={engines(Path('engines/echo'), ECHO)}", "prompt=one", wrong) == 2
    assert wrong.lstrip("+").partition("=")[0] in capsys.readouterr().err


def test_a_watched_engine_computes_the_same_and_counts_its_calls(tmp_path: Path) -> None:
    watch = Watch()
    backend = OnnxRuntimeCpu(threads=1)
    folder = tiny.built(tmp_path / "engine", tiny.ACCUMULATOR, backend, states={"total": "total_out"})
    with open_engine(folder, watched(backend, watch)) as engine:
        call = engine.bind({}, engine.new_states(2), rows=slice(0, 2))
        call.write("x", np.array([[1, 2, 3], [0, 0, 3]], np.float32))
        for times in (1, 2):
            call()
            np.testing.assert_allclose(call.read("mean"), np.array([2, 1]) * times)
    assert len(watch.calls[folder]) == 2 and min(watch.calls[folder]) > 0
    assert watch.weights[folder] > 0
    watch.clear()
    assert watch.calls[folder] == []
