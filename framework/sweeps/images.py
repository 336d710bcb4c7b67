"""Small pictures for the page, made of numbers alone: the shape of a sound, its spectrum, frames of a video."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

from framework.io.picture import RANGE, log_mel

Array = np.ndarray[Any, Any]
COLUMNS = 360  # of a waveform and of a spectrogram, at most
_LEVELS = 48  # shades of a spectrogram
# From quiet to loud: the page's own ramp, dark blue over violet and orange to a pale yellow.
_RAMP = ((13, 14, 32), (44, 26, 86), (112, 31, 112), (186, 54, 92), (239, 108, 58), (251, 178, 77), (253, 240, 184))


def waveform(samples: Array) -> list[int]:
    """Lowest and highest sample of at most COLUMNS equal pieces, from -100 to 100, one after the other."""
    if not len(samples):
        return []
    edges = np.unique(np.linspace(0, len(samples), min(len(samples), COLUMNS), endpoint=False).astype(np.int64))
    pairs = np.stack([np.minimum.reduceat(samples, edges), np.maximum.reduceat(samples, edges)], axis=1)
    return [int(value) for value in np.clip(np.rint(pairs * 100), -100, 100).ravel()]


def spectrogram(samples: Array, rate: int) -> bytes:
    """A PNG of the mel spectrogram, low tones at the bottom, at most COLUMNS wide."""
    levels = log_mel(samples, rate)
    if levels.shape[1] > COLUMNS:  # the loudest of the frames that share a column
        edges = np.linspace(0, levels.shape[1], COLUMNS, endpoint=False).astype(np.int64)
        levels = np.maximum.reduceat(levels, edges, axis=1)
    shades = np.clip((levels + RANGE) / RANGE * (_LEVELS - 1), 0, _LEVELS - 1).astype(np.uint8)
    return png(shades[::-1], _palette())


def png(pixels: Array, palette: Array | None = None) -> bytes:
    """uint8 [height, width] (grey, or indices into uint8 [colours, 3]) or [height, width, 3] (RGB) as a PNG file."""
    height, width = pixels.shape[:2]
    color = 3 if palette is not None else 2 if pixels.ndim == 3 else 0
    lines = np.ascontiguousarray(pixels, dtype=np.uint8).reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = [(b"IHDR", header), *([(b"PLTE", palette.astype(np.uint8).tobytes())] if palette is not None else [])]
    chunks += [(b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _palette() -> Array:
    stops = np.linspace(0, _LEVELS - 1, len(_RAMP))
    levels = np.arange(_LEVELS)
    return np.stack([np.interp(levels, stops, [color[part] for color in _RAMP]) for part in range(3)], axis=1).round()


def _chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, content = chunk
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
