"""The time line of a request: what is drawn, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import ConfigError
from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Request, Result, StageReport
from framework.io import picture

RATE = 8000


def tone(hertz: float, seconds: float = 0.5) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE).astype(np.float32)


def result(**outputs: tuple[Any, ...]) -> Result:
    report = StageReport(start_s=0.1, first_output_s=0.4, end_s=1.0, busy_s=0.7, steps=3, details={})
    request = Request(index=0, fields={})
    return Result(
        request=request,
        ok=True,
        error=None,
        cancelled=False,
        outputs={f"{stage}:out": chunks for stage, chunks in outputs.items()},
        stages={stage: report for stage in outputs},
        wall_s=1.0,
    )


def test_a_tone_is_loudest_in_its_own_band() -> None:
    bands = [int(picture.log_mel(tone(hertz), RATE).mean(axis=1).argmax()) for hertz in (200, 400, 800, 1600, 3200)]
    assert bands == sorted(set(bands))
    level = picture.log_mel(tone(800), RATE)
    assert level.shape[0] == picture.MELS and level.max() == 0.0
    assert level[bands[2]].mean() - level[bands[4]].mean() > 40.0


@pytest.mark.parametrize(
    "samples",
    [tone(440), np.stack([tone(440)] * 2, axis=1), tone(9, 1e-3), np.zeros(0, np.float32), np.zeros(9, np.float32)],
    ids=["a tone", "stereo", "a millisecond", "nothing", "silence"],
)
def test_any_length_of_speech_is_drawn(samples: np.ndarray[Any, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said = AudioChunk(samples=samples, sample_rate=RATE)
    picture.save_timeline(
        tmp_path / "new" / "a.svg", result(writes=(TextChunk(text="It costs $5 or $6."),), speaks=(said,))
    )
    assert "<svg" in (tmp_path / "new" / "a.svg").read_text()


@pytest.mark.filterwarnings("error")
def test_a_reply_may_be_in_any_script(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture.save_timeline(tmp_path / "a.png", result(writes=(TextChunk(text="你好 \x14 สวัสดี"),)))
    assert (tmp_path / "a.png").stat().st_size


def test_a_reply_without_speech_has_bars_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture.save_timeline(tmp_path / "a.svg", result(writes=(TextChunk(text="Paris."),)))
    assert "<image" not in (tmp_path / "a.svg").read_text()


def test_what_cannot_be_drawn_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        picture.check_picture(Path("a.bmp"), "out_timeline")
    first, second = map(str, raised.value.problems)
    assert first == "out_timeline: got 'a.bmp', expected a file name in .png, .svg, .pdf"
    assert "pip install 'multistage[picture]'" in second
