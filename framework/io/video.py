"""Video files: frames one after the other, and their sound."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.errors import ConfigError, Problem
from framework.io.images import SUFFIXES, Pixels

_EXPECTED = "a video (mp4, mkv, webm, mov, gif ...)"


@attrs.frozen(kw_only=True)
class VideoInfo:
    """What a file says of itself.

    Attributes:
        frames: how many there are.
        fps: frames a second, on average.
        width, height: of a frame, in pixels.
        sound: whether there is any.
    """

    frames: int
    fps: float
    width: int
    height: int
    sound: bool


def video_info(path: Path) -> VideoInfo:
    """Raises ConfigError when the file is missing, no video, or has no frames."""
    with _opened(path) as container:
        if not container.streams.video:
            raise ConfigError(Problem(where=str(path), got="no pictures in it", expected=_EXPECTED))
        stream = container.streams.video[0]
        rate = stream.average_rate or stream.guessed_rate
        # Some containers do not say how many frames they hold.
        frames = stream.frames or sum(1 for packet in container.demux(stream) if packet.size)
        if not frames:
            raise ConfigError(Problem(where=str(path), got="a video without frames", expected=_EXPECTED))
        return VideoInfo(
            frames=frames,
            fps=float(rate or 1.0),
            width=stream.width,
            height=stream.height,
            sound=bool(container.streams.audio),
        )


def read_frames(path: Path, indices: Sequence[int]) -> Iterator[Pixels]:
    """Frames by number, in rising order, the right way up: uint8 [height, width, 3] each.

    Raises ConfigError when the file is damaged so that none can be decoded; what follows a damage is left out.
    """
    wanted, found = set(indices), 0
    last = max(wanted, default=-1)
    with _opened(path) as container:
        container.streams.video[0].thread_type = "AUTO"
        for number, frame in enumerate(_decoded(container, path)):
            if number in wanted:
                found += 1
                yield np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90)))
            if number >= last:
                break
    if not found:
        raise ConfigError(Problem(where=str(path), got="no frame that can be decoded", expected=_EXPECTED))


@contextmanager
def open_sound(path: Path, expected: str) -> Iterator[tuple[int, Iterator[np.ndarray[Any, np.dtype[np.float32]]]]]:
    """Rate and blocks, channels averaged (float32 [samples]), of the first sound in a file.

    Raises ConfigError, also from the blocks, when there is none, or it cannot be decoded.
    """
    with _opened(path, expected) as container:
        if not container.streams.audio:
            raise ConfigError(Problem(where=str(path), got="no sound in it", expected=expected))
        stream = container.streams.audio[0]
        yield stream.rate, _sound(container, stream)


def _sound(container: Any, stream: Any) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    import av

    planes = av.AudioResampler(format="fltp", rate=stream.rate)  # floats, a row a channel
    for frame in container.decode(stream):
        for part in planes.resample(frame):
            yield part.to_ndarray().mean(axis=0, dtype=np.float32)


def frame_files(folder: Path) -> list[Path]:
    """The pictures in a folder in the order of their numbers (2 before 10). Raises ConfigError when there are none."""
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    if not found:
        raise ConfigError(Problem(where=str(folder), got="no pictures in it", expected="a video's frames"))
    return sorted(found, key=lambda path: [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", path.name)])


@contextmanager
def _opened(path: Path, expected: str = _EXPECTED) -> Iterator[Any]:
    try:
        import av
    except ModuleNotFoundError:
        hint = "pip install 'multistage[media]'"
        raise ConfigError(
            Problem(where="video", got="no package av", expected="the extra 'media'", hint=hint)
        ) from None
    if path.is_file() and not path.stat().st_size:
        raise ConfigError(Problem(where=str(path), got="an empty file", expected=expected))
    try:
        with av.open(str(path)) as container:
            yield container
    except (av.FFmpegError, OSError) as error:
        expected = expected if path.exists() else "a file that exists"
        got = getattr(error, "strerror", None) or str(error)
        raise ConfigError(Problem(where=str(path), got=got, expected=expected)) from error


def _decoded(container: Any, path: Path) -> Iterator[Any]:
    """Frames up to the first that cannot be decoded."""
    import av

    try:
        yield from container.decode(video=0)
    except av.FFmpegError:
        return
