"""Predictions files: the original's fields, valid JSON whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    entry = entry_of(result(**{"code2wav:audio": (chunk, chunk)}), {"audio": tmp_path})
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
    with Predictions(tmp_path / "new" / "p.json", "in.json", requests=3) as predictions:
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
    with Predictions(tmp_path / "p.json", "in.json", requests=3) as predictions:
        for index in range(3):
            predictions.add(entry(index))
            head, *lines = predictions.journal.read_text().splitlines()
            assert json.loads(head) == {"input_file": "in.json"}
            assert [json.loads(line)["request_idx"] for line in lines] == list(range(index + 1))


# --- going on ------------------------------------------------------------------------------------------------------

RECORD = {"digest": "d", "requests": 4, "shard": {"index": 0, "count": 1}, "settings": {"sampling": {"top_k": 5}}}


def predictions_of(path: Path, resume: bool | None = True, **record: Any) -> Predictions:
    return Predictions(path, "in.json", requests=4, record={**RECORD, **record}, resume=resume)


def stopped(path: Path, *indices: int) -> None:
    """A run that is interrupted when it has these entries."""
    with pytest.raises(KeyboardInterrupt), predictions_of(path, resume=False) as predictions:
        for index in indices:
            predictions.add({**entry(index), "ok": index != 2})
        raise KeyboardInterrupt


def test_a_stopped_run_is_gone_on_with_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    path, whole = tmp_path / "p.json", tmp_path / "whole.json"
    stopped(path, 3, 0)
    with path.with_name("p.json.journal").open("ab") as journal:
        journal.write(b'{"request_idx": 1, "output_te')  # killed while it wrote
    with predictions_of(path) as predictions:
        assert [predictions.has(index) for index in range(4)] == [True, False, False, True]
        assert (predictions.done, predictions.failed) == (2, 0)
        for index in (1, 2):
            predictions.add({**entry(index), "ok": index != 2})
        assert (predictions.done, predictions.failed) == (4, 1)
    with predictions_of(whole, resume=None) as predictions:
        for index in range(4):
            predictions.add({**entry(index), "ok": index != 2})
    assert path.read_text() == whole.read_text()
    assert sorted(os.listdir(tmp_path)) == ["p.json", "whole.json"]


def test_going_on_with_what_is_finished_or_never_began(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with predictions_of(path) as predictions:
        assert predictions.done == 0
        for index in range(4):
            predictions.add(entry(index))
    before = path.read_text()
    with predictions_of(path) as predictions:
        assert predictions.done == 4
    assert path.read_text() == before


def test_an_unfinished_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    stopped(path, 0)
    with (
        pytest.raises(ConfigError, match=r"an unfinished run, expected none .resume=true goes on"),
        predictions_of(path, None),
    ):
        pass
    with predictions_of(path) as predictions:
        assert predictions.has(0)
    stopped(path, 0)
    with predictions_of(path, False) as predictions:
        assert not predictions.has(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"sampling": {"top_k": 6}}}, "sampling.top_k: got 6, expected 5, as in the run that"),
        ({"settings": {"sampling": {"top_k": 5, "seed": 1}}}, "sampling.seed: got 1, expected nothing, as in"),
        ({"settings": {}}, "sampling.top_k: got nothing, expected 5, as in"),
        ({"shard": {"index": 0, "count": 2}}, "shard.count: got 2, expected 1, as in"),
        ({"digest": "e"}, "input_file: got a request file that has changed, expected the requests that"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_run_is_told_what_has_changed(change: Any, message: str, finished: bool, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    stopped(path, 0)
    if finished:
        with predictions_of(path):
            pass
    kept = {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)}
    with pytest.raises(ConfigError, match=message), predictions_of(path, **change):
        pass
    assert {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)} == kept


def test_a_file_of_no_known_run_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"input_file": "in.json", "responses": []}')
    with pytest.raises(ConfigError, match="got responses of a run that it does not describe"), predictions_of(path):
        pass
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_damaged_journal_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    stopped(path, 0, 1)
    journal = path.with_name("p.json.journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"\0" * 9 + b"\n" + lines[2])
    with pytest.raises(ConfigError, match=r"p\.json\.journal, line 2: got a damaged line"), predictions_of(path):
        pass
    assert journal.exists()


def test_two_runs_at_once_on_one_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with predictions_of(path, None) as first:
        first.add(entry(0))
        for resume in (None, True, False):
            with pytest.raises(ConfigError, match="a file that another run is writing"), predictions_of(path, resume):
                pass
        first.add(entry(1))
    assert [found["request_idx"] for found in json.loads(path.read_text())["responses"]] == [0, 1]
    with predictions_of(path, None):
        pass


def test_a_run_that_did_nothing_leaves_an_older_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("an older file")
    stopped(path)
    assert path.read_text() == "an older file"
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_full_disk_is_named_and_keeps_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from framework.io.predictions import Predictions\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "try:\n"
        f"    with Predictions(Path({str(path)!r}), 'in.json', requests=4, record={RECORD!r}) as predictions:\n"
        "        for index in range(4): predictions.add({'request_idx': index, 'output_text': 'x' * 2000})\n"
        "except OSError as error: print(Path(error.filename).name, error.strerror)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "p.json.journal File too large\n"
    assert len(json.loads(path.read_text())["responses"]) == 2, "it just fits"
    assert sorted(os.listdir(tmp_path)) == ["p.json", "p.json.journal"]
    with predictions_of(path) as predictions:
        assert [predictions.has(index) for index in range(4)] == [True, True, False, False]


def test_sound_that_is_none_is_an_error_of_its_request(tmp_path: Path) -> None:
    chunk = AudioChunk(samples=np.full(10, np.nan, np.float32), sample_rate=24000)
    found = entry_of(result(**{"code2wav:audio": (chunk,)}), {"audio": tmp_path})
    assert (found["ok"], found["finish_reason"]) == (False, "error")
    assert found["error"] == "audio_req7.wav: 10 samples are not finite"
