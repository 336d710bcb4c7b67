"""What was said is heard once, by one model, and kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.errors import Problem, StageError
from framework.execution.request import Request, Result, StageReport
from framework.sweeps.collect import collect
from framework.sweeps.transcripts import missing, transcribe
from tests.sweeps.folders import entry, job, spoken


def ended(request: Request, *, text: str | None = None, reason: str = "end-of-sequence") -> Result:
    """Of an ASR stage; without a text it has failed."""
    details = {"finish_reason": reason, **({} if text is None else {"transcript": f" {text}"})}
    stage = StageReport(start_s=0, first_output_s=None, end_s=1, busy_s=1, steps=1, details=details)
    error = None if text else StageError(Problem(where="audio", got="nothing", expected="speech"))
    return Result(
        request=request, ok=error is None, error=error, cancelled=False, outputs={}, stages={"asr": stage}, wall_s=1.0
    )


class Ears:
    """Hears the same in everything, last request first; keeps what it was given."""

    def __init__(self, text: str | None = "one two three four", reason: str = "end-of-sequence") -> None:
        self.text, self.reason = text, reason
        self.heard: list[Any] = []

    def __call__(self, requests: Iterable[Request]) -> Iterator[Result]:
        for request in reversed([*requests]):
            self.heard.append(request.fields["audio"])
            yield ended(request, text=self.text, reason=self.reason)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job(tmp_path / "0", spoken(tmp_path / "0"), entry(1))
    job(tmp_path / "1", spoken(tmp_path / "1", text="one two"))
    return tmp_path


def test_every_cell_with_sound_is_heard_once(folder: Path) -> None:
    ears = Ears()
    assert [cell.key for cell in missing(collect(folder), "asr")] == ["0/0", "1/0"]
    transcribe(collect(folder), "asr", ears)
    assert len(ears.heard) == 2
    assert [point.numbers["wer"] for point in collect(folder).points] == [0.0, 1.0]
    assert missing(collect(folder), "asr") == []


def test_only_what_is_new_is_heard_again(folder: Path) -> None:
    transcribe(collect(folder), "asr", Ears())
    job(folder / "2", spoken(folder / "2"))
    later = Ears("one")
    transcribe(collect(folder), "asr", later)
    assert len(later.heard) == 1
    assert [point.numbers["wer"] for point in collect(folder).points] == [0.0, 1.0, 0.75]


def test_another_model_hears_for_itself(folder: Path) -> None:
    transcribe(collect(folder), "asr", Ears())
    assert len(missing(collect(folder), "other")) == 2
    transcribe(collect(folder), "other", Ears("two"))
    assert json.loads((folder / "transcripts.json").read_text())["deployment"] == "other"


def test_no_speech_is_heard_as_nothing_and_a_failure_not_at_all(folder: Path) -> None:
    transcribe(collect(folder), "asr", Ears(None, "no-speech"))
    assert [point.numbers["wer"] for point in collect(folder).points] == [1.0, 1.0]
    transcribe(collect(folder), "other", Ears(None))
    assert ["wer" in point.numbers for point in collect(folder).points] == [False, False]
