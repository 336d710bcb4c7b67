"""Predictions files of shards become the file of one run."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.io.predictions import Predictions
from framework.io.responses import document, merge_predictions, read

SETTINGS = {"sampling": {"top_k": 5}}


def write(path: Path, index: int = 0, count: int = 1, *, requests: int = 7, upto: int = 7, top_k: int = 5) -> Path:
    """What a run of this shard writes, when it is stopped before the request `upto`."""
    settings = {"sampling": {"top_k": top_k}}
    record = {"digest": "d", "requests": requests, "shard": {"index": index, "count": count}, "settings": settings}
    with Predictions(path, "in.json", requests=requests, record=record) as predictions:
        for request in range(index, min(upto, requests), count):
            predictions.add({"request_idx": request, "ok": request % 3 != 1, "output_text": f"é {request}"})
    return path


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9])
def test_shards_become_the_file_of_one_run(count: int, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{index}.json", index, count) for index in range(count)]
    assert merge_predictions(paths[::-1], tmp_path / "new" / "all.json") == 2
    assert (tmp_path / "new" / "all.json").read_text() == write(tmp_path / "one.json").read_text()


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([], "merge: got no file"),
        ([{"index": 0, "count": 2}], "shard 1 of 2: got no file, expected one"),
        ([{"index": 0, "count": 2}] * 2, r"shard 0 of 2: got \S+0\.json and \S+1\.json, expected one"),
        ([{"index": 0, "count": 2}, {"index": 1, "count": 3}], "shard.count: got 2, expected 3, as in"),
        ([{"index": 0, "count": 2}, {"index": 1, "count": 2, "top_k": 6}], "sampling.top_k: got 5, expected 6, as in"),
        ([{"index": 0, "count": 2}, {"index": 1, "count": 2, "upto": 5}], r"1\.json: got no response to request 5"),
    ],
    ids=["none", "missing", "twice", "other count", "other run", "unfinished"],
)
def test_what_cannot_be_merged(shards: list[Any], message: str, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.json", **shard) for number, shard in enumerate(shards)]
    (tmp_path / "all.json").write_text("older")
    with pytest.raises(ConfigError, match=message):
        merge_predictions(paths, tmp_path / "all.json")
    assert (tmp_path / "all.json").read_text() == "older"
    assert not list(tmp_path.glob("*.part"))


def test_a_shard_is_never_written_over(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{index}.json", index, 2) for index in range(2)]
    before = paths[0].read_text()
    with pytest.raises(ConfigError, match=r"0\.json as a shard too, expected a file of its own"):
        merge_predictions(paths, tmp_path / "0.json")
    assert paths[0].read_text() == before


def test_a_fifo_is_no_place_to_merge_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "merged.json")
    with pytest.raises(ConfigError, match=r"merged\.json', which is a FIFO, expected a regular file"):
        merge_predictions([tmp_path / "shard.json"], tmp_path / "merged.json")


def test_a_file_that_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"input_file": "in.json", "responses": []}')
    (tmp_path / "b.json").write_text('{"answers": []}')
    with pytest.raises(ConfigError, match="responses of a run that it does not describe"):
        merge_predictions([tmp_path / "a.json"], tmp_path / "all.json")
    with pytest.raises(ConfigError, match="got no responses, expected a predictions file"):
        merge_predictions([tmp_path / "b.json"], tmp_path / "all.json")
    with pytest.raises(ConfigError, match="No such file"):
        merge_predictions([tmp_path / "c.json"], tmp_path / "all.json")


def test_reading_gives_what_was_written() -> None:
    entries = [{"request_idx": 0, "text": 'é\n"'}, {"request_idx": 1, "stages": {"a": [1, {"b": None}]}}]
    text = "".join(document({"input_file": "in", "record": {"a": 1}}, entries))
    assert json.loads(text) == {"input_file": "in", "record": {"a": 1}, "responses": entries}


def test_memory_is_flat(tmp_path: Path) -> None:
    entries = ({"request_idx": index, "text": "x" * 2000} for index in range(5000))
    with (tmp_path / "p.json").open("w") as file:
        file.writelines(document({"input_file": "in"}, entries))
    tracemalloc.start()
    _, found = read(tmp_path / "p.json")
    assert sum(len(entry["text"]) for entry in found) == 10_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
