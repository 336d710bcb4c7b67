"""Engine folders appear whole or not at all; a checkpoint is named by its content."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from framework.engines.folder import building, claimed, digest
from framework.errors import ConfigError


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def build(folder: Path, text: str, seconds: float = 0, **options: bool) -> None:
    with building(folder, **options) as temporary:
        (temporary / "engine.json").write_text(text)
        time.sleep(seconds)
        (temporary / "second").write_text(text)


def test_a_build_appears_when_it_is_done(tmp_path: Path) -> None:
    with building(tmp_path / "deep" / "engine") as temporary:
        (temporary / "engine.json").write_text("new")
        assert not (tmp_path / "deep" / "engine").exists()
    assert names(tmp_path) == {"deep", "deep/engine", "deep/engine/engine.json"}


def test_an_older_build_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    (folder / "audio").mkdir(parents=True)
    (folder / "stale").write_text("old")
    (folder / "engine.json").write_text("old")
    build(folder, "new")
    assert names(tmp_path) == {"engine", "engine/engine.json", "engine/second"}


def test_a_symlink_to_the_folder_keeps_pointing_and_its_target_is_built(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "engines"
    link.symlink_to("disk")
    for _ in range(2):
        build(link, "new")
    assert link.is_symlink()
    assert names(tmp_path) == {"disk", "disk/engine.json", "disk/second", "engines"}


def test_subfolders_are_kept_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    (folder / "audio" / "sub").mkdir(parents=True)
    (folder / "audio" / "sub" / "model").write_text("audio")
    (folder / "stale").write_text("old")
    (folder / "engine.json").write_text("old")
    build(folder, "new", keep_subfolders=True)
    assert names(folder) == {"engine.json", "second", "audio", "audio/sub", "audio/sub/model"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_build_leaves_everything_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    build(tmp_path / "engine", "old")
    with pytest.raises(error), building(tmp_path / "engine") as temporary:
        (temporary / "engine.json").write_text("half")
        raise error
    assert names(tmp_path) == {"engine", "engine/engine.json", "engine/second"}
    assert (tmp_path / "engine" / "engine.json").read_text() == "old"


def test_a_full_disk_says_how_much_is_free(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"engine: got [\d,]+ bytes free on its disk, expected room for"),
        building(tmp_path / "engine"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == set()


def test_a_disk_too_small_is_found_before_the_work(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"expected 1,000,000,000,000,000 bytes for the build"),
        building(tmp_path / "engine", needed=10**15),
    ):
        pytest.fail("the work was started")
    assert names(tmp_path) == set()


def test_other_errors_of_the_system_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), building(tmp_path / "engine"):
        raise PermissionError(errno.EACCES, "denied")


def test_a_disk_that_fills_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="bytes free"):
        build(tmp_path / "engine", "new")
    assert names(tmp_path) == set()


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    builders = [context.Process(target=build, args=(tmp_path / "engine", str(n), 0.2)) for n in range(3)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(120)
    assert [builder.exitcode for builder in builders] == [0, 0, 0]
    assert names(tmp_path) == {"engine", "engine/engine.json", "engine/second"}
    assert (tmp_path / "engine" / "engine.json").read_text() == (tmp_path / "engine" / "second").read_text()


def test_who_has_a_folder_is_told_though_it_was_slow_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def told_and_free(who: str) -> None:
        told.append(who)
        fcntl.flock(holder, fcntl.LOCK_UN)

    with (tmp_path / ".engines.claim").open("wb", buffering=0) as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        monkeypatch.setattr(time, "sleep", lambda _: holder.write(b"process 7"))  # while the other waits for it
        with claimed(tmp_path / "engines", waiting=told_and_free):
            pass
    assert told == ["process 7"]


def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    builder = multiprocessing.get_context("fork").Process(target=build, args=(tmp_path / "engine", "half", 60))
    builder.start()
    while not (tmp_path / ".engine.building" / "engine.json").exists():
        assert builder.is_alive()
        time.sleep(0.01)
    os.kill(builder.pid or 0, signal.SIGKILL)
    builder.join(120)
    assert not (tmp_path / "engine").exists()
    build(tmp_path / "engine", "new")
    assert names(tmp_path) == {"engine", "engine/engine.json", "engine/second"}


def test_an_old_build_comes_back_when_a_builder_died_while_replacing_it(tmp_path: Path) -> None:
    build(tmp_path / ".engine.old", "old")
    with pytest.raises(ValueError), building(tmp_path / "engine"):
        raise ValueError
    assert (tmp_path / "engine" / "engine.json").read_text() == "old"


def test_a_digest_names_the_content(tmp_path: Path) -> None:
    path, content = tmp_path / "weights", bytes(4_000_000)
    path.write_bytes(content)
    first = digest(path)
    os.utime(path, (0, 0))
    assert digest(path) == first
    for changed in (content[:-1], b"\1" + content[1:], content[:-1] + b"\1", content + b"\0"):
        path.write_bytes(changed)
        assert digest(path) != first


def test_the_digest_of_a_large_file_reads_a_sample_of_it(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    start = time.perf_counter()
    digest(path)
    assert time.perf_counter() - start < 10, "all of it takes minutes"


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"a folder with 'thesis.txt' in it"), building(tmp_path):
        raise AssertionError("nothing may be built")
    with pytest.raises(ConfigError, match="got a file, expected a folder"), building(tmp_path / "thesis.txt"):
        raise AssertionError("nothing may be built")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
