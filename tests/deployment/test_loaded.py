"""Executors that stay open between jobs: under which key, how many, and when they are given up."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.deployment.loaded import Loaded, Opened, opened_with, weight
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.execution.executor import Executor
from framework.graph.files import loads
from framework.graph.model import Graph
from tests.cli.fakes import ECHO, Beep, Echo

CLASSES: Mapping[str, type[Any]] = {"test.echo": Echo, "test.beep": Beep}
GRAPH = {"schema_version": 1, "terminals": ["echo:text"], "stages": [{**ECHO, "artifact": "llm"}]}


class FakeExecutor:
    """Closing is all that matters here."""

    def __init__(self) -> None:
        self.closed = False
        self.broken: frozenset[str] = frozenset()

    def close(self) -> None:
        self.closed = True


def graph(**stage: Any) -> Graph:
    return loads(json.dumps({**GRAPH, "stages": [{**ECHO, "artifact": "llm", **stage}]}))


def engine(folder: Path, size: int = 1000) -> Path:
    """A folder with the record of an engine of so many bytes and a state of 400 bytes a row."""
    state = {"input": {"name": "past", "dtype": "float32", "shape": ["batch", "capacity"]}, "output": "present"}
    record = {
        "backend": "cpu",
        "spec": {"inputs": [], "outputs": [], "states": [state], "caps": {"batch": 4, "capacity": 100}},
        "in_place": {},
        "checkpoint": "",
        "options": {},
        "versions": {},
        "files": {"model.onnx": {"bytes": size, "digest": ""}},
    }
    (folder / "llm").mkdir(parents=True, exist_ok=True)
    (folder / "llm" / "engine.json").write_text(json.dumps(record))
    return folder


def key(folder: Path, *, rows: int = 1, backend: Any = None, **stage: Any) -> Opened:
    return opened_with(folder, graph(**stage), CLASSES, [backend or OnnxRuntimeCpu()], rows)


def use(loaded: Loaded, opened: Opened) -> FakeExecutor:
    with loaded.use(opened, FakeExecutor) as executor:  # type: ignore[arg-type]
        assert isinstance(executor, FakeExecutor)
        return executor


def test_the_next_job_with_the_same_engines_gets_them(tmp_path: Path) -> None:
    folder, loaded = engine(tmp_path / "e"), Loaded()
    first = use(loaded, key(folder))
    assert use(loaded, key(folder)) is first
    assert not first.closed
    loaded.close()
    assert first.closed
    assert len(loaded) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 2},
        {"backend": OnnxRuntimeCpu(threads=1)},
        {"config": {"shout": True}},
        {"max_batch": 2},
    ],
    ids=["rows", "backend", "stage setting", "stage size"],
)
def test_what_the_engines_are_opened_with_is_another_key(change: dict[str, Any], tmp_path: Path) -> None:
    folder = engine(tmp_path / "e")
    assert key(folder) != key(folder, **change)
    assert key(folder, **change) == key(folder, **change)


def test_a_new_build_is_another_key(tmp_path: Path) -> None:
    folder = engine(tmp_path / "e")
    before = key(folder)
    record = folder / "llm" / "engine.json"
    os.utime(record, ns=(1, record.stat().st_mtime_ns + 1))
    assert key(folder) != before


def test_the_same_folder_by_another_path_is_the_same(tmp_path: Path) -> None:
    folder = engine(tmp_path / "e")
    (tmp_path / "link").symlink_to(folder)
    assert key(tmp_path / "link") == key(folder)


def test_the_least_recently_used_is_given_up_before_the_next_is_opened(tmp_path: Path) -> None:
    keys = [key(engine(tmp_path / name)) for name in "abc"]
    loaded = Loaded(number=2)
    a, b = use(loaded, keys[0]), use(loaded, keys[1])
    use(loaded, keys[0])
    with loaded.use(keys[2], FakeExecutor):  # type: ignore[arg-type]
        assert (a.closed, b.closed, len(loaded)) == (False, True, 2)


def test_weight_is_files_and_states_of_all_rows(tmp_path: Path) -> None:
    assert weight(key(engine(tmp_path / "e", size=1000), rows=3)) == 1000 + 3 * 400


@pytest.mark.parametrize(("limit", "left"), [(0, 3), (4200, 3), (4199, 2), (100, 1)])
def test_a_budget_of_bytes(limit: int, left: int, tmp_path: Path) -> None:
    loaded = Loaded(number=9, limit=limit)
    for name in "abc":
        use(loaded, key(engine(tmp_path / name)))
    assert len(loaded) == left


def test_none_is_kept_when_none_shall_be(tmp_path: Path) -> None:
    loaded = Loaded(number=0)
    assert use(loaded, key(engine(tmp_path / "e"))).closed
    assert len(loaded) == 0


def test_after_a_job_that_broke_the_next_begins_anew(tmp_path: Path) -> None:
    opened, loaded = key(engine(tmp_path / "e")), Loaded()
    with pytest.raises(RuntimeError), loaded.use(opened, FakeExecutor) as first:  # type: ignore[arg-type]
        raise RuntimeError
    assert first.closed  # type: ignore[attr-defined]
    with loaded.use(opened, FakeExecutor) as second:  # type: ignore[arg-type]
        second.broken = frozenset({"echo"})  # type: ignore[misc]
    assert second.closed  # type: ignore[attr-defined]
    assert len(loaded) == 0


def test_the_executor_has_what_the_cache_asks_of_it() -> None:
    assert {"broken", "close", "policy", "stream_capacity"} <= {*dir(Executor), *Executor.__init__.__annotations__}
    assert attrs.has(Opened)
