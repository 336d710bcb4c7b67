"""Small videos, made by PyAV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def moving(count: int, height: int = 48, width: int = 64) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Frames of a bright square on a gradient, elsewhere in each: uint8 [count, height, width, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    frames = np.zeros((count, height, width, 3), np.uint8)
    frames[..., 0], frames[..., 1] = 200 * y // height, 200 * x // width
    for number, frame in enumerate(frames):
        left = number * 5 % (width - 12)
        frame[10:22, left : left + 12] = 255
    return frames


def write_video(
    path: Path, frames: np.ndarray[Any, Any], fps: int = 10, *, sound: np.ndarray[Any, Any] | None = None
) -> Path:
    """`sound` is float32 [samples] at 16 kHz."""
    import av

    codec = "gif" if path.suffix == ".gif" else "mpeg4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        heard = container.add_stream("aac", rate=16_000, layout="mono") if sound is not None else None
        container.start_encoding()
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
        if heard is not None and sound is not None:
            for start in range(0, len(sound), 1024):
                block = av.AudioFrame.from_ndarray(sound[None, start : start + 1024], format="fltp", layout="mono")
                block.sample_rate, block.pts = 16_000, start
                container.mux(heard.encode(block))
            container.mux(heard.encode())
    return path
