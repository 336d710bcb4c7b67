"""Frames by number, the right way up; the sound of a video; pictures in a folder in the order of their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import ConfigError
from framework.io.audio import load_audio
from framework.io.video import frame_files, read_frames, video_info
from tests.io.videos import moving, write_video

av: Any = pytest.importorskip("av")
TONE = (0.3 * np.sin(2 * np.pi * 440 / 16_000 * np.arange(16_000))).astype(np.float32)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".gif", ".avi"])
def test_a_file_says_what_is_in_it(tmp_path: Path, suffix: str) -> None:
    info = video_info(write_video(tmp_path / f"a{suffix}", moving(7), fps=10))
    assert (info.frames, info.fps, info.sound) == (7, pytest.approx(10), False)


def test_frames_come_by_their_number(tmp_path: Path) -> None:
    path, frames = write_video(tmp_path / "a.mp4", moving(9)), moving(9)
    every = list(read_frames(path, range(9)))
    assert np.abs(np.stack(every).astype(int) - frames).mean() < 10  # the codec loses something
    chosen = list(read_frames(path, [0, 3, 8]))
    np.testing.assert_array_equal(np.stack(chosen), np.stack(every)[[0, 3, 8]])
    assert (chosen[0] != chosen[1]).any()


def test_a_telephone_held_upright(tmp_path: Path) -> None:
    path, turned = write_video(tmp_path / "a.mp4", moving(2)), tmp_path / "turned.mp4"
    # The matrix that turns a picture by a quarter, in the header of the track: 16.16 fixed point.
    unit, quarter = (
        b"".join(value.to_bytes(4, "big", signed=True) for value in row)
        for row in ([65536, 0, 0, 0, 65536], [0, 65536, 0, -65536, 0])
    )
    data = path.read_bytes()
    place = data.index(unit, data.index(b"tkhd"))
    turned.write_bytes(data[:place] + quarter + data[place + len(unit) :])
    (before,), (after,) = list(read_frames(path, [0])), list(read_frames(turned, [0]))
    np.testing.assert_array_equal(after, np.rot90(before, -1))  # clockwise


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_the_sound_of_a_video(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / f"a{suffix}", moving(10), sound=TONE)
    assert video_info(path).sound
    heard = load_audio(path, 16_000)
    assert len(heard) == pytest.approx(len(TONE), abs=2500)
    spectrum = np.abs(np.fft.rfft(heard[2000:10000]))
    assert spectrum.argmax() * 16_000 / 8000 == pytest.approx(440, abs=3)
    assert len(load_audio(path, 8_000)) == pytest.approx(len(heard) / 2, abs=2)


def test_a_video_without_sound(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving(3))
    with pytest.raises(ConfigError, match="no sound in it"):
        load_audio(path, 16_000)


def test_pictures_in_a_folder(tmp_path: Path) -> None:
    for name in ("f10.png", "f9.PNG", "f100.jpg", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in frame_files(tmp_path)] == ["f9.PNG", "f10.png", "f100.jpg"]


def broken(path: Path, kind: str) -> Path:
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("not a video" * 100)
    elif kind == "sound":
        import soundfile

        soundfile.write(path, TONE, 16_000)
    elif kind == "no frames":
        write_video(path, moving(1)[:0], sound=TONE)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("a.mp4", "missing", "a file that exists"),
        ("a.mp4", "empty", "an empty file"),
        ("a.mp4", "text", "expected a video"),
        ("a.wav", "sound", "no pictures in it"),
        ("a.mkv", "no frames", "a video without frames"),
    ],
)
def test_what_is_no_video(tmp_path: Path, name: str, kind: str, said: str) -> None:
    path = broken(tmp_path / name, kind)
    with pytest.raises(ConfigError) as error:
        video_info(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_a_damaged_video_is_what_comes_before_the_damage(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", moving(30))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    assert 5 < len(list(read_frames(path, range(30)))) < 30
    with pytest.raises(ConfigError, match="no frame that can be decoded"):
        list(read_frames(path, [29]))
