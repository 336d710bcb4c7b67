"""The table as CSV, Parquet and text."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from framework.cli.text import columns
from framework.sweeps import table
from framework.sweeps.collect import Sweep, collect
from tests.sweeps.folders import entry, job


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    job(tmp_path / "0", entry(0), entry(1), overrides=["sampling=greedy", "sampling.top_k=5"], timings={"run_s": 4.0})
    job(
        tmp_path / "1",
        entry(0),
        entry(1, ok=False),
        overrides=["sampling=greedy", "sampling.top_k=50"],
        status="failed",
    )
    job(tmp_path / "2", overrides=["sampling=greedy", "sampling.top_k=x"], status="error")
    return collect(tmp_path)


def test_csv_has_a_row_a_point(sweep: Sweep, tmp_path: Path) -> None:
    table.save_csv(sweep, tmp_path / "table.csv")
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [(row["point"], row["status"], row["ok"], row["failed"]) for row in rows] == [
        ("0", "ok", "2", "0"),
        ("1", "failed", "1", "1"),
        ("2", "error", "0", "0"),
    ]
    assert [row["sampling.top_k"] for row in rows] == ["5", "50", "x"]
    assert "sampling" not in rows[0], "what all points share is no column"
    assert (rows[0]["tokens"], rows[0]["tokens_per_s"], rows[2]["tokens"]) == ("20", "5.0", "")


def test_parquet_has_the_same_rows(sweep: Sweep, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    assert table.save_parquet(sweep, tmp_path / "table.parquet") is None
    read = pq.read_table(tmp_path / "table.parquet")
    assert read.column_names == list(table.rows(sweep)[0])
    assert read["tokens"].to_pylist() == [20, 20, None]
    assert read["sampling.top_k"].to_pylist() == ["5", "50", "x"], "numbers and a word have text in common"
    assert read.schema.metadata[b"fixed"] == b'{"sampling": "greedy"}'


def test_without_pyarrow_it_says_how_to_get_it(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    said = table.save_parquet(sweep, tmp_path / "table.parquet")
    assert said == "no table.parquet: it needs pyarrow (pip install 'multistage[report]')"
    assert not (tmp_path / "table.parquet").exists()


def test_text_for_a_terminal(sweep: Sweep) -> None:
    lines = columns(table.text(sweep)).splitlines()
    assert lines[0].split()[:3] == ["point", "top_k", "ok"]
    assert lines[2].split()[:5] == ["0", "5", "2/2", "20", "5"]
    assert lines[4].split()[:4] == ["2", "x", "0/0", "error"]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["sampling.temperature"], ["temperature"]),
        (["sampling.thinker.seed", "sampling.talker.seed"], ["thinker.seed", "talker.seed"]),
        (["seed", "sampling.seed"], ["seed", "sampling.seed"]),
    ],
)
def test_parameters_have_the_shortest_name_that_tells_them_apart(keys: list[str], names: list[str]) -> None:
    assert list(table.short_names(keys).values()) == names
