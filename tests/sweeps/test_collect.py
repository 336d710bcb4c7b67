"""Any folder that jobs were written into becomes rows, whatever state it is in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.sweeps.collect import collect, value_of
from tests.sweeps.folders import entry, job, spoken


def test_a_sweep(tmp_path: Path) -> None:
    for number, temperature in enumerate((0.2, 0.7, 1.0)):
        overrides = ["deployment=x", f"sampling.temperature={temperature}"]
        job(tmp_path / str(number), entry(0), entry(1), overrides=overrides, timings={"run_s": 2.0})
    sweep = collect(tmp_path)
    assert sweep.ok
    assert sweep.parameters == ("sampling.temperature",)
    assert sweep.fixed == {"deployment": "x"}
    assert [point.overrides["sampling.temperature"] for point in sweep.points] == [0.2, 0.7, 1.0]
    assert sweep.points[0].numbers["tokens_per_s"] == 10.0
    assert [cell.prompt for cell in sweep.points[0].cells] == ["question 0", "question 1"]
    assert collect(tmp_path) == sweep, "the same files give the same value"


def test_nothing_is_another_value_than_none_given(tmp_path: Path) -> None:
    job(tmp_path / "0", entry(), overrides=["deployment=x"])
    job(tmp_path / "1", entry(), overrides=["deployment=x", "sampling.top_k=null"])
    sweep = collect(tmp_path)
    assert (sweep.parameters, sweep.fixed) == (("sampling.top_k",), {"deployment": "x"})


def test_ten_comes_after_two(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        job(tmp_path / str(number), entry())
    assert [point.name for point in collect(tmp_path).points] == ["1", "2", "10"]


def test_a_single_run_is_a_sweep_of_one_point(tmp_path: Path) -> None:
    sweep = collect(job(tmp_path / "run", entry(0), entry(1), overrides=["input_file=r.json"]))
    assert [(point.name, len(point.cells)) for point in sweep.points] == [(".", 2)]
    assert sweep.parameters == ()


def test_an_older_sweep_without_records(tmp_path: Path) -> None:
    job(tmp_path / "0", entry(0), overrides=["sampling.top_k=5"], record=False)
    job(tmp_path / "1", entry(0), entry(1, ok=False), overrides=["sampling.top_k=9"], record=False)
    first, second = collect(tmp_path).points
    assert (first.status, first.overrides) == ("ok", {"sampling.top_k": 5})
    assert (second.status, second.error) == ("failed", "request 1: prompt: got 'fail', expected a word that works")


def test_a_job_that_could_not_run(tmp_path: Path) -> None:
    fault = {"where": "backend.threads", "got": "-1", "expected": "0 or more", "hint": "0 takes all"}
    job(tmp_path / "0", overrides=["backend.threads=-1"], status="error", error=[fault])
    job(tmp_path / "1", entry(), overrides=["backend.threads=1"])
    sweep = collect(tmp_path)
    assert not sweep.ok
    assert sweep.points[0].error == "backend.threads: got -1, expected 0 or more (0 takes all)"
    assert sweep.points[0].cells == ()
    assert "tokens" in sweep.points[1].numbers


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"status": 7, "overrides": 3, "timings": [], "requests": {}}'])
def test_a_broken_record_is_told_and_the_rest_read(content: str, tmp_path: Path) -> None:
    job(tmp_path / "0", entry(), overrides=["sampling.seed=1"])
    (tmp_path / "0" / "result.json").write_text(content)
    (point,) = collect(tmp_path).points
    assert point.overrides == {"sampling.seed": 1}
    assert point.cells[0].text == "one two three four"
    if content in ("{", "[]"):
        assert "result.json: " in point.error
        assert point.status == "unfinished"


def test_a_broken_predictions_file(tmp_path: Path) -> None:
    job(tmp_path / "0", entry())
    (tmp_path / "0" / "predictions.json").write_text('{"responses": 4}')
    (point,) = collect(tmp_path).points
    assert point.error == "predictions.json: no list of responses"


def test_a_job_that_still_writes_or_was_killed(tmp_path: Path) -> None:
    folder = job(tmp_path / "0", overrides=["sampling.seed=1"], record=False)
    lines = [json.dumps({"input_file": "r.json"}), json.dumps(entry(1)), json.dumps(entry(0)), '{"request_idx": 2, "o']
    (folder / "predictions.json.journal").write_text("\n".join(lines))
    (point,) = collect(tmp_path).points
    assert point.status == "unfinished"
    assert [cell.index for cell in point.cells] == [0, 1]


def test_a_run_that_was_resumed_counts_what_its_journal_has(tmp_path: Path) -> None:
    folder = job(tmp_path / "0", entry(0), record=False)
    (folder / "predictions.json.journal").write_text(f"{json.dumps(entry(0))}\n{json.dumps(entry(1))}\n")
    assert len(collect(tmp_path).points[0].cells) == 2


def test_shards_of_one_run_are_one_point(tmp_path: Path) -> None:
    for seed in (1, 2):
        for shard in (0, 1):
            overrides = [f"sampling.seed={seed}", f"shard.index={shard}", "shard.count=2"]
            timings = {"run_s": 1.0 + shard}
            folder = tmp_path / f"machine{shard}" / str(seed)
            job(folder, entry(shard), entry(shard + 2), overrides=overrides, timings=timings)
    sweep = collect(tmp_path)
    assert sweep.parameters == ("sampling.seed",)
    assert [[cell.index for cell in point.cells] for point in sweep.points] == [[0, 1, 2, 3]] * 2
    assert [point.numbers["run_s"] for point in sweep.points] == [2.0, 2.0], "they ran side by side"


def test_sound_is_found_after_the_folder_was_moved(tmp_path: Path) -> None:
    old = tmp_path / "old"
    job(old / "0", spoken(old / "0"))
    shutil.move(old, tmp_path / "new")
    (point,) = collect(tmp_path / "new").points
    assert point.cells[0].audio == tmp_path / "new" / "0" / "audio" / "audio_req0.wav"
    assert point.numbers["audio_s"] == 2.0


def test_what_was_heard_gives_a_word_error_rate(tmp_path: Path) -> None:
    job(tmp_path / "0", spoken(tmp_path / "0", 0), spoken(tmp_path / "0", 1))
    said = {"0/0": "one two free four", "0/1": "one, two, three, four."}
    (tmp_path / "transcripts.json").write_text(json.dumps({"deployment": "asr", "said": said}))
    (point,) = collect(tmp_path).points
    assert [cell.numbers["wer"] for cell in point.cells] == [0.25, 0.0]
    assert point.numbers["wer"] == 0.125


def test_a_model_that_only_speaks_is_held_to_the_text_it_was_given(tmp_path: Path) -> None:
    made = {**spoken(tmp_path / "0"), "output_text": ""}
    job(tmp_path / "0", made)
    (tmp_path / "transcripts.json").write_text(json.dumps({"deployment": "asr", "said": {"0/0": "Question zero"}}))
    assert collect(tmp_path).points[0].numbers["wer"] == 0.5


@pytest.mark.parametrize("make", [False, True], ids=["no folder", "nothing in it"])
def test_no_run(make: bool, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    if make:
        (folder / "sub").mkdir(parents=True)
    with pytest.raises(ConfigError, match="expected a sweep, or a run"):
        collect(folder)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-0.5", -0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("null", None),
        ("greedy", "greedy"),
        ("'a, b'", "a, b"),
        (r"it\ is\ so\,\ he\ said", "it is so, he said"),
        (r"'it\'s'", "it's"),
        ("1e999", "1e999"),
    ],
)
def test_values_of_overrides(text: str, value: Any) -> None:
    found = value_of(text)
    assert (found, type(found)) == (value, type(value))


def test_a_shard_that_was_killed(tmp_path: Path) -> None:
    folder = job(tmp_path / "0", overrides=["shard.index=1", "shard.count=2"], record=False)
    (folder / "predictions.shard-1-of-2.json.journal").write_text(f"{json.dumps(entry(1))}\n")
    (point,) = collect(tmp_path).points
    assert (point.status, [cell.index for cell in point.cells]) == ("unfinished", [1])
