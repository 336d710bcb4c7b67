"""Predictions files: the original's fields, valid JSON whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from framework.errors import ConfigError, Problem, StageError
from framework.execution.payloads import AudioChunk, Logprob, TextChunk
from framework.execution.request import Request, Result, StageReport
from framework.io.predictions import Predictions, entry_of, rejected_entry
from framework.io.requests import Rejected

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
DETAILS = {
    "finish_reason": "max-length",
    "batch_idx": 2,
    "formatted_system_prompt": "<s>",
    "formatted_complete_request": "<s>Hi",
    "prompt_tokens": 3,
}


def result(*chunks: Any, error: Exception | None = None, cancelled: bool = False, **outputs: Any) -> Result:
    report = StageReport(start_s=0.1, first_output_s=0.2, end_s=0.3, busy_s=0.0500000004, steps=4, details=DETAILS)
    return Result(
        request=Request(index=7, fields={"messages": MESSAGES}),
        ok=error is None and not cancelled,
        error=error,
        cancelled=cancelled,
        outputs={"llm:text": chunks, **outputs},
        stages={"llm": report},
        wall_s=0.5,
    )


def test_the_fields_of_the_original_and_ours() -> None:
    assert entry_of(result(TextChunk(text="Hel"), TextChunk(text="lo"))) == {
        "request_idx": 7,
        "batch_idx": 2,
        "ok": True,
        "error": None,
        "output_text": "Hello",
        "finish_reason": "max-length",
        "messages": MESSAGES,
        "formatted_system_prompt": "<s>",
        "formatted_complete_request": "<s>Hi",
        "wall_s": 0.5,
        "stages": {
            "llm": {
                "start_s": 0.1,
                "first_output_s": 0.2,
                "end_s": 0.3,
                "busy_s": 0.05,
                "steps": 4,
                "finish_reason": "max-length",
                "batch_idx": 2,
                "prompt_tokens": 3,
            }
        },
    }


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"error": StageError(Problem(where="llm", got="a", expected="b"))}, "error"), ({"cancelled": True}, "cancelled")],
    ids=["failed", "cancelled"],
)
def test_a_request_that_did_not_end_well_keeps_what_it_said(how: Any, reason: str) -> None:
    entry = entry_of(result(TextChunk(text="Hel"), **how))
    assert (entry["ok"], entry["finish_reason"], entry["output_text"]) == (False, reason, "Hel")


def test_logprobs_are_steps_of_candidates() -> None:
    best = Logprob(token_id=5, token="a", bytes=(97,), logprob=-0.5)
    entry = entry_of(
        result(TextChunk(text="a", ids=(5,), logprobs=((best,),)), TextChunk(text="b", logprobs=((best,),)))
    )
    candidate = {"token_id": 5, "token": "a", "bytes": (97,), "logprob": -0.5}
    assert entry["logprobs"] == [[candidate], [candidate]]


def test_speech_goes_beside_with_its_fields(tmp_path: Path) -> None:
    chunk = AudioChunk(samples=np.zeros(1200, np.float32), sample_rate=24000)
    entry = entry_of(result(**{"code2wav:audio": (chunk, chunk)}), tmp_path)
    path = tmp_path / "audio_req7.wav"
    audio = {key: entry[key] for key in entry if key.startswith("audio")}
    assert audio == {
        "audio_file": str(path),
        "audio_samples": 2400,
        "audio_sample_rate": 24000,
        "audio_duration_ms": 100,
    }
    assert soundfile.info(path).frames == 2400


def test_a_rejected_request_has_an_entry() -> None:
    error = ConfigError(Problem(where="requests[1].role", got="x", expected="y"))
    entry = rejected_entry(Rejected(index=1, error=error, raw={"messages": MESSAGES}))
    assert (entry["request_idx"], entry["ok"], entry["finish_reason"]) == (1, False, "error")
    assert entry["error"] == "requests[1].role: got x, expected y"
    assert entry["messages"] == MESSAGES


def entry(index: int, text: str = "x") -> dict[str, Any]:
    return {"request_idx": index, "output_text": text}


def test_the_file_is_in_order_of_the_requests(tmp_path: Path) -> None:
    with Predictions(tmp_path / "new" / "p.json", "in.json") as predictions:
        for index in (2, 0, 1):
            predictions.add(entry(index, 'é "q"\n\ud800'))
    document = json.loads((tmp_path / "new" / "p.json").read_text())
    assert document["input_file"] == "in.json"
    assert [found["request_idx"] for found in document["responses"]] == [0, 1, 2]
    assert document["responses"][0]["output_text"] == 'é "q"\n\ud800'
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["p.json"]


def test_nothing_answered_is_valid_too(tmp_path: Path) -> None:
    with Predictions(tmp_path / "p.json", "in.json"):
        pass
    assert json.loads((tmp_path / "p.json").read_text()) == {"input_file": "in.json", "responses": []}


def test_what_is_finished_survives_an_interrupt(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("an older file")
    with pytest.raises(KeyboardInterrupt), Predictions(path, "in.json") as predictions:
        predictions.add(entry(0))
        assert path.read_text() == "an older file", "it is replaced in one step, at the end"
        raise KeyboardInterrupt
    assert len(json.loads(path.read_text())["responses"]) == 1


def test_each_entry_is_on_disk_as_soon_as_it_is_added(tmp_path: Path) -> None:
    with Predictions(tmp_path / "p.json", "in.json") as predictions:
        for index in range(3):
            predictions.add(entry(index))
            lines = predictions.journal.read_text().splitlines()
            assert [json.loads(line)["request_idx"] for line in lines] == list(range(index + 1))
