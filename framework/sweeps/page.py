"""The page of a sweep: one HTML file that needs nothing but a browser.

Its script, style and data stand inside it. Sound does too, as FLAC (which loses nothing), up to a limit; above it the
page names the files beside it, and is worth nothing without them.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator, Mapping
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import numpy as np

from framework.errors import ConfigError
from framework.io.audio import read_audio
from framework.sweeps import images, metrics
from framework.sweeps.collect import Cell, Point, Sweep, spoken
from framework.sweeps.table import short_names
from framework.writing import write_text

NAME = "index.html"
_SCRIPTS = ("state", "plot", "table", "compare", "sound", "start")
_FRAMES, _FRAME_HEIGHT = 6, 96  # thumbnails of a video


def save_page(sweep: Sweep, path: Path, *, embed_mb: float = 24.0) -> None:
    """Write the page to `path`, in or near the sweep's folder.

    Args:
        embed_mb: sound stands in the page when all sound files have no more than so many MB (10^6 bytes) together.
    """
    sounds = [cell.audio for point in sweep.points for cell in point.cells if cell.audio is not None]
    inside = sum(sound.stat().st_size for sound in sounds) <= embed_mb * 1e6
    content: list[str] = []
    data = _data(sweep, path.parent, content if inside else None)
    if sounds:
        where = "in this page, as FLAC" if inside else "in files beside this page, which must stay where they are"
        data["sounds"] = f"Sound is {where}."
    assets = resources.files(__package__) / "assets"
    script = "\n".join((assets / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    filled = {
        "TITLE": escape(data["title"]),
        "STYLE": (assets / "page.css").read_text("utf-8"),
        # No text can end the element it stands in: `<` is written as JSON's own escape of it.
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "SOUNDS": "\n".join(content),
        "SCRIPT": script,
    }
    pieces = (assets / "page.html").read_text("utf-8").split("@")
    write_text(path, (filled.get(piece, piece) for piece in pieces))


def _data(sweep: Sweep, folder: Path, content: list[str] | None) -> dict[str, Any]:
    short = short_names(sweep.parameters)
    subject = sweep.fixed.get("experiment") or sweep.fixed.get("deployment") or sweep.folder.name
    return {
        "title": " · ".join([str(subject), *([" × ".join(short.values())] if short else [])]),
        "folder": str(sweep.folder),
        "when": sweep.started[:16].replace("T", " "),
        "sounds": "",
        "fixed": {key: _plain(value) for key, value in sweep.fixed.items()},
        "parameters": [{"key": key, "short": name} for key, name in short.items()],
        "metrics": [
            {key: value for key, value in attrs.asdict(metric).items() if key != "joined"} for metric in sweep.metrics
        ],
        "points": [_point(point, sweep) for point in sweep.points],
        "cells": [
            _cell(cell, number, point.folder, folder, content)
            for number, point in enumerate(sweep.points)
            for cell in point.cells
        ],
    }


def _point(point: Point, sweep: Sweep) -> dict[str, Any]:
    return {
        "name": point.name,
        "status": point.status,
        "error": point.error,
        "values": {key: _plain(point.overrides.get(key)) for key in sweep.parameters},
        "numbers": {key: value for key, value in point.numbers.items() if key in metrics.NAMES},
        "finish": point.numbers.get("finish_reasons", ""),
    }


def _cell(cell: Cell, point: int, job: Path, folder: Path, content: list[str] | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "point": point,
        "index": cell.index,
        "ok": cell.ok,
        "prompt": cell.prompt,
        "text": cell.text,
        "error": cell.error,
        "finish": cell.finish_reason,
        "numbers": dict(cell.numbers),
    }
    if cell.heard is not None:
        shown |= {"heard": cell.heard, "spoken": spoken(cell.entry)}
    sound = None if cell.audio is None else _sound(cell.audio, folder, content)
    frames = [images.data_uri(image, "image/png") for image in thumbnails(cell.entry, job)]
    return {**shown, **({"sound": sound} if sound else {}), **({"frames": frames} if frames else {})}


def _sound(path: Path, folder: Path, content: list[str] | None) -> dict[str, Any] | None:
    """What its player needs; None for a file that is broken or empty. Embedded sound is added to `content`."""
    import soundfile

    try:
        sound = read_audio(path)
    except ConfigError:
        return None
    samples = metrics.mono(sound.samples)
    if not len(samples):
        return None
    player: dict[str, Any] = {
        "seconds": round(len(samples) / sound.sample_rate, 3),
        "wave": images.waveform(samples),
        "mel": images.data_uri(images.spectrogram(samples, sound.sample_rate), "image/png"),
        "file_name": path.name,
    }
    if content is None:
        return {**player, "file": quote(os.path.relpath(path, folder))}
    target = io.BytesIO()
    soundfile.write(target, sound.samples, sound.sample_rate, format="FLAC", subtype="PCM_16")
    name = f"sound-{len(content)}"
    text = base64.b64encode(target.getvalue()).decode()
    content.append(f'<script type="text/plain" id="{name}">{text}</script>')
    return {**player, "inside": name}


def thumbnails(entry: Mapping[str, Any], folder: Path) -> Iterator[bytes]:
    """PNG files of a few frames of an entry's video, evenly from the first to the last.

    The video is raw 8-bit RGB in `video_file`, of `video_frames` frames of `video_height` x `video_width` pixels.
    """
    path = metrics.find(entry.get("video_file"), folder)
    shape = [entry.get(f"video_{name}") for name in ("frames", "height", "width")]
    if path is None or not all(isinstance(size, int) and size > 0 for size in shape):
        return
    frames, height, width = (int(size) for size in shape if size is not None)
    if path.stat().st_size != frames * height * width * 3:
        return
    video = np.memmap(path, np.uint8, "r", shape=(frames, height, width, 3))
    step = max(1, -(-height // _FRAME_HEIGHT))
    for number in np.unique(np.linspace(0, frames - 1, min(_FRAMES, frames)).round().astype(int)):
        yield images.png(video[number, ::step, ::step])


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
