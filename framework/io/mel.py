"""Mel filters."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

_LINEAR = 200.0 / 3  # Hz a mel below 1 kHz
_LOG = math.log(6.4) / 27.0  # of the frequency, a mel above it


@lru_cache
def slaney_filters(rate: int, fft: int, mels: int, highest: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Triangles on Slaney's mel scale (linear to 1 kHz, logarithmic above), of equal area, from 0 to `highest` Hz.

    float32 [mels, fft / 2 + 1]; equal to librosa's `filters.mel` with its defaults.
    """
    edges = _hertz(np.linspace(0.0, _mel(highest), mels + 2))
    bins = np.linspace(0.0, rate / 2, fft // 2 + 1)
    slopes = edges[:, None] - bins[None]  # [mels + 2, bins]
    widths = np.diff(edges)[:, None]
    triangles = np.maximum(0.0, np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]))
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def _mel(hertz: float) -> float:
    return hertz / _LINEAR if hertz < 1000.0 else 15.0 + math.log(hertz / 1000.0) / _LOG


def _hertz(mels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(mels < 15.0, mels * _LINEAR, 1000.0 * np.exp((mels - 15.0) * _LOG))
