"""Mel filters, and the spectrogram that Whisper and its descendants read."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

RATE = 16_000
HOP, FFT = 160, 400  # samples: 10 ms, 25 ms

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


def log_mel(samples: np.ndarray[Any, np.dtype[np.float32]], mels: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Spectrogram of a sound as long as it is, as transformers' WhisperFeatureExtractor makes it.

    Args:
        samples: float32 [n] at 16 kHz, more than half of `FFT`.

    Returns:
        float32 [mels, n / HOP]: at most 80 dB below the loudest, in units of 40 dB.
    """
    padded = np.pad(samples, FFT // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP][: len(samples) // HOP]
    hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(FFT) / FFT)
    spectrum = np.fft.rfft(windows * hann.astype(np.float32), axis=1)  # [frames, bins]
    power = spectrum.real**2 + spectrum.imag**2
    logs = np.log10(np.maximum(slaney_filters(RATE, FFT, mels, RATE / 2) @ power.T, 1e-10))
    result: np.ndarray[Any, np.dtype[np.float32]] = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return result
