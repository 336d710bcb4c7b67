"""Sound to a log-mel spectrogram, tokens to segments of text, and where long audio may be cut."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

RATE = 16_000
HOP, FFT = 160, 400  # samples: 10 ms, 25 ms
LEAST_SECONDS = 1.0  # a window moves on by at least as much
NEAR_SECONDS = 0.6  # a timestamp may be off by as much
PAUSE_SECONDS = 0.4  # stretches compared to find the quietest; shorter ones find gaps within words
LOUD_DB = 35.0  # what is less far below the loudest moment still counts as sound
STEADY_DB = 4.0  # between soft and loud moments of what is no speech
WORD_SECONDS = 0.5  # in which something may be said
TICK_SECONDS = 0.02  # of one timestamp, and of one frame of the encoder

Float32 = np.ndarray[Any, np.dtype[np.float32]]


@lru_cache
def mel_filters(mels: int) -> Float32:
    """Triangles on Slaney's mel scale (linear to 1 kHz, logarithmic above), of equal area, 0 to 8 kHz.

    float32 [mels, FFT / 2 + 1]; equal to transformers' `mel_filter_bank(norm="slaney", mel_scale="slaney")`.
    """
    edges = _hertz(np.linspace(_mel(0.0), _mel(RATE / 2), mels + 2))
    bins = np.linspace(0.0, RATE / 2, FFT // 2 + 1)
    slopes = edges[:, None] - bins[None]  # [mels + 2, bins]
    widths = np.diff(edges)[:, None]
    triangles = np.maximum(0.0, np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]))
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


_LINEAR = 200.0 / 3  # Hz a mel below 1 kHz
_LOG = math.log(6.4) / 27.0  # octaves-like steps above it


def _mel(hertz: float) -> float:
    return hertz / _LINEAR if hertz < 1000.0 else 15.0 + math.log(hertz / 1000.0) / _LOG


def _hertz(mels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(mels < 15.0, mels * _LINEAR, 1000.0 * np.exp((mels - 15.0) * _LOG))


def log_mel(samples: Float32, mels: int, frames: int) -> Float32:
    """Spectrogram of one window, as transformers' WhisperFeatureExtractor makes it (to 1e-4, see the tests).

    Args:
        samples: float32 [n] at 16 kHz, n at most `frames * HOP`; silence is put behind them.
        frames: 3,000 for 30 s.

    Returns:
        float32 [mels, frames].
    """
    padded = np.zeros(frames * HOP + FFT, np.float32)
    middle = FFT // 2
    padded[middle : middle + len(samples)] = samples
    # Both ends are mirrored; behind the end that is silence unless the window is full.
    padded[:middle] = padded[2 * middle : middle : -1]
    padded[-middle:] = padded[-middle - 2 : -2 * middle - 2 : -1]
    heard = min(frames, (len(samples) + FFT) // HOP + 1)  # frames that are not silence throughout
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP][:heard]
    spectrum = np.fft.rfft(windows * _hann(), axis=1)  # [heard, bins]
    power = spectrum.real**2 + spectrum.imag**2
    logs = np.full((mels, frames), -10.0, np.float32)
    logs[:, :heard] = np.log10(np.maximum(mel_filters(mels) @ power.T, 1e-10))
    result: Float32 = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return result


@lru_cache
def _hann() -> Float32:
    return (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(FFT) / FFT)).astype(np.float32)


def audible(samples: Float32, floor: float) -> bool:
    """Whether a window can have speech in it, told by its level alone.

    It cannot when less than 0.1 s is near its loudest moment and above `floor` (dB of full scale): silence, or a
    click; nor when a second or more is all of one level: hiss, or hum. On such sound the network makes up words.
    """
    power = _power(samples)
    if not len(power):
        return False
    level = 10.0 * np.log10(power + 1e-12)
    if int((level > max(floor, float(level.max()) - LOUD_DB)).sum()) * HOP < 0.1 * RATE:
        return False
    low, high = np.percentile(level, (5, 99.8))  # a word is a third of a hundredth of 30 s
    return len(samples) < RATE or bool(high - low > STEADY_DB)


def quietest(samples: Float32, start: int, stop: int) -> int:
    """Sample between `start` and `stop` in the middle of the quietest 0.4 s: a place where no word is cut."""
    power = _power(samples[start:stop])
    width = min(round(PAUSE_SECONDS * RATE) // HOP, len(power))
    if not width:
        return stop
    smooth = np.convolve(power, np.ones(width), mode="valid")
    return start + (int(smooth.argmin()) + width // 2) * HOP


def _power(samples: Float32) -> Float32:
    """Mean square of 25 ms every 10 ms; of everything there is when that is less."""
    if len(samples) < FFT:
        return np.mean(np.square(samples), keepdims=True) if len(samples) else np.zeros(0, np.float32)
    return np.square(np.lib.stride_tricks.sliding_window_view(samples, FFT)[::HOP]).mean(axis=1)


def compression(text: str) -> float:
    """How many times smaller the text gets when it is compressed: 1 to 2 for language, more for a loop."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


@attrs.frozen(kw_only=True)
class Segment:
    """A piece of a window that was written whole.

    Attributes:
        start, end: seconds from the window's begin.
        ids: tokens of its text, without timestamps.
    """

    start: float
    end: float
    ids: tuple[int, ...]


def segments(tokens: Sequence[int], first_timestamp: int, length: float) -> tuple[list[Segment], Segment | None]:
    """Split a window's tokens, end token not among them, at the timestamps.

    Args:
        first_timestamp: id of `<|0.00|>`; ids from it on are timestamps.
        length: of the window in seconds.

    Returns:
        The segments that have an end, and the last one if it has none; those without text are left out.
    """
    found: list[Segment] = []
    ids: list[int] = []
    start = 0.0
    for token in tokens:
        if token < first_timestamp:
            ids.append(token)
            continue
        time = min((token - first_timestamp) * TICK_SECONDS, length)
        if ids:
            found.append(Segment(start=start, end=time, ids=tuple(ids)))
            ids = []
        start = time
    return found, Segment(start=start, end=length, ids=tuple(ids)) if ids else None


def resume(samples: Float32, end: float) -> int:
    """Sample at which to go on behind a segment that ended at `end` seconds: the quietest place near it, since
    timestamps are often rounded."""
    near = round(NEAR_SECONDS * RATE)
    middle = min(round(end * RATE), len(samples))
    return quietest(samples, max(0, middle - near), min(len(samples), middle + near))


def speaks(samples: Float32, start: int) -> bool:
    """Whether behind `start` there is sound of about the level of what was before it, for long enough for a word."""
    rest = samples[start:]
    if len(rest) < WORD_SECONDS * RATE:
        return False
    power = _power(rest)
    return int((power > 0.01 * float(_power(samples[:start]).max(initial=0.0))).sum()) * HOP > 0.5 * WORD_SECONDS * RATE


def clock(seconds: float) -> str:
    """`mm:ss.mmm`, with hours in front where there are any."""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes:02d}:{rest // 1000:02d}.{rest % 1000:03d}"
    return f"{hours:02d}:{text}" if hours else text
