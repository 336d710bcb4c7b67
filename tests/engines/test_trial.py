"""A new engine is run once, smallest and largest, where this machine can."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from framework.engines import manifest, trial
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.tensorrt.backend import TensorRT
from framework.engines.trial import run_once
from framework.errors import ConfigError
from tests.engines import tiny
from tests.engines.tiny import CPU, built

PAIRS = """(float[batch, n] x) => (float[half, 2] y) <int64[2] shape = {-1, 2}> { y = Reshape(x, shape) }"""
BEST = """(float[batch, n] x, int64[1] best) => (float[batch, best] y)
{ y, place = TopK<axis = 1>(x, best) }"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, int]]:
    """Dimensions of the calls that are made."""
    calls: list[Mapping[str, int]] = []
    original = trial._run
    monkeypatch.setattr(trial, "_run", lambda engine, dims: (calls.append(dims), original(engine, dims)))
    return calls


def test_the_smallest_and_the_largest_call_are_made(tmp_path: Path, ran: list[Any]) -> None:
    folder = built(tmp_path / "engine", tiny.SCALE)
    assert run_once(folder, CPU, most={"n": 3}) is None
    assert [(dims["batch"], dims["n"]) for dims in ran] == [(1, 1), (4, 3)]


def test_states_are_part_of_it(tmp_path: Path, ran: list[Any]) -> None:
    folder = built(tmp_path / "engine", tiny.CACHE, states={"cache": "cache_out"})
    assert run_once(folder, CPU) is None
    assert [dims["batch"] for dims in ran] == [1, 4]


def test_dimensions_are_halved_until_the_call_is_short(
    tmp_path: Path, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built(tmp_path / "engine", tiny.SCALE)
    monkeypatch.setattr(trial, "LONGEST", 0.0)
    assert run_once(folder, CPU, least={"n": 2}) is None
    assert [(dims["batch"], dims["n"]) for dims in ran] == [(1, 2), (1, 2)]


def test_a_count_has_the_size_of_its_dimension(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    caps = {"batch": 2, "n": 4, "best": 4}
    tiny.compile_engine(tiny.network(BEST), folder, CPU, states={}, caps=caps)
    assert run_once(folder, CPU, least={"n": 4}) is None


def test_what_does_not_run_is_told_in_the_kernels_words(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    tiny.compile_engine(tiny.network(PAIRS), folder, CPU, states={}, caps={"batch": 4, "n": 4, "half": 8})
    with pytest.raises(ConfigError, match=r"engine \(cpu\): got .*Reshape.*expected an engine that runs"):
        run_once(folder, CPU)  # one element is no pair


def test_an_engine_larger_than_the_memory_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = built(tmp_path / "engine", tiny.SCALE)
    monkeypatch.setattr(type(CPU), "free_memory", lambda backend: 1000)
    monkeypatch.setattr(trial, "open_engine", lambda *_: pytest.fail("opened"))
    assert "this machine has 1,000" in str(run_once(folder, CPU))


def test_a_backend_says_that_its_gpu_is_not_here(tmp_path: Path) -> None:
    record = manifest.read(built(tmp_path / "engine", tiny.SCALE))
    for backend in (OnnxRuntimeCuda(device=99), TensorRT(module="tensorrt_rtx", device=99)):
        assert "is needed" in str(backend.unable(record))
    assert CPU.unable(record) is None
