"""A picture of one request: when each stage worked, and the sound that came of it, over one time line."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from framework.errors import ConfigError, Problem
from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Result
from framework.execution.results import speech_of, text_of
from framework.writing import write_bytes

FORMATS = (".png", ".svg", ".pdf")
WINDOW, HOP, MELS = 1024, 256, 80  # samples, samples, bands of the spectrogram
RANGE = 80.0  # dB shown below the loudest
_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#e45756")
_INK, _PALE = "#333333", 0.3


def check_picture(path: Path, where: str) -> None:
    """Raise ConfigError when `save_timeline` could not write a picture of this name."""
    problems = []
    if path.suffix.lower() not in FORMATS:
        problems.append(Problem(where=where, got=f"'{path}'", expected=f"a file name in {', '.join(FORMATS)}"))
    if find_spec("matplotlib") is None:
        hint = "pip install 'multistage[picture]'"
        problems.append(Problem(where=where, got="no package matplotlib", expected="what draws it", hint=hint))
    if problems:
        raise ConfigError(problems)


def save_timeline(path: Path, result: Result) -> None:
    """Draw the stages of a result as bars and, above them, its speech: waveform and mel spectrogram.

    All share one axis, seconds since the request came; speech lies where a listener hears it who starts with its first
    chunk. A bar is pale until the stage's first output. The folder is made; the format is that of the name.
    """
    from matplotlib.figure import Figure

    speech = speech_of(result)
    if speech is not None and not len(speech[1].samples):
        speech = None
    heights = [1.2, 2.4] if speech else []
    height = 1.0 + 1.1 * sum(heights) + 0.42 * len(result.stages)
    figure = Figure(figsize=(10, height), dpi=130, layout="constrained")
    ratios = [*heights, 0.5 * len(result.stages)]
    *upper, bars = figure.subplots(len(ratios), sharex=True, height_ratios=ratios, squeeze=False)[:, 0]
    if speech is not None:
        stage, sound = speech
        start = result.stages[stage].first_output_s or 0.0
        wave, mel = upper
        _draw_sound(wave, mel, start, sound)
    _draw_stages(bars, result)
    replies = [chunks for chunks in result.outputs.values() if chunks and isinstance(chunks[0], TextChunk)]
    if replies:
        text = fill(" ".join(text_of(replies[0]).split()), width=130, max_lines=3, placeholder=" …")
        figure.suptitle(text.replace("$", r"\$"), fontsize=10, color=_INK, x=0.01, ha="left")
    file = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a reply may be in any script: a box where the font ends
        figure.savefig(file, format=path.suffix.lower().removeprefix("."))
    write_bytes(path, file.getvalue())


def _draw_sound(wave: Any, mel: Any, start: float, sound: AudioChunk) -> None:
    samples = sound.samples if sound.samples.ndim == 1 else sound.samples.mean(axis=1)
    seconds = len(samples) / sound.sample_rate
    # Lowest and highest sample of each of at most 2,000 pieces: what a plot of every sample shows, and as quick for an
    # hour as for a second.
    edges = np.unique(np.linspace(0, len(samples), min(len(samples), 2000), endpoint=False).astype(np.int64))
    times = start + edges / sound.sample_rate
    low, high = np.minimum.reduceat(samples, edges), np.maximum.reduceat(samples, edges)
    wave.fill_between(times, low, high, color=_INK, linewidth=0.4)
    wave.set_ylim(-1.05 * np.abs(samples).max() - 1e-6, 1.05 * np.abs(samples).max() + 1e-6)
    wave.set_ylabel("waveform")
    nyquist = sound.sample_rate / 2
    mel.imshow(
        log_mel(samples, sound.sample_rate),
        origin="lower",
        aspect="auto",
        cmap="magma",
        vmin=-RANGE,
        vmax=0.0,
        extent=(start, start + seconds, 0.0, _mel(nyquist)),
    )
    ticks = [hertz for hertz in (250, 500, 1000, 2000, 4000, 8000) if hertz < nyquist]
    mel.set_yticks([_mel(hertz) for hertz in ticks], [f"{hertz:,}" for hertz in ticks])
    mel.set_ylabel("Hz, mel scale")
    for axes in (wave, mel):
        _plain(axes)


def _draw_stages(axes: Any, result: Result) -> None:
    for row, report in enumerate(result.stages.values()):
        color = _COLORS[row % len(_COLORS)]
        first = report.end_s if report.first_output_s is None else report.first_output_s
        axes.barh(row, first - report.start_s, left=report.start_s, color=color, alpha=_PALE, height=0.6)
        axes.barh(row, report.end_s - first, left=first, color=color, height=0.6)
        label = f"  {report.busy_s:.2f} s of work"
        axes.text(report.end_s, row, label, va="center", fontsize=8, color=_INK)
    axes.set_yticks(range(len(result.stages)), list(result.stages))
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.margins(x=0.12)
    axes.autoscale_view(scaley=False)
    axes.set_xlabel("seconds since the request (pale: before the stage's first output)")
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=_INK)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def log_mel(samples: np.ndarray[Any, Any], rate: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Power in dB below the loudest, of MELS bands up to half of `rate`: float32 [MELS, frames] of HOP samples."""
    padded = np.pad(samples.astype(np.float32), WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW).astype(np.float32), axis=1)) ** 2
    # Triangles between neighbouring centres, equally far on the mel scale.
    centres = np.linspace(0.0, _mel(rate / 2), MELS + 2)
    bins = _mel(np.fft.rfftfreq(WINDOW, 1 / rate))
    rise = (bins[:, None] - centres[None, :-2]) / (centres[1:-1] - centres[:-2])
    fall = (centres[None, 2:] - bins[:, None]) / (centres[2:] - centres[1:-1])
    bands = np.clip(np.minimum(rise, fall), 0.0, None)
    # A band narrower than a bin takes the value at its centre.
    bands[np.abs(bins[:, None] - centres[None, 1:-1]).argmin(axis=0), np.arange(MELS)] += 1e-3
    level = 10.0 * np.log10(power @ (bands / bands.sum(axis=0)) + 1e-12)
    return (level - level.max()).T.astype(np.float32)


def _mel(hertz: Any) -> Any:
    return 2595.0 * np.log10(1.0 + np.asarray(hertz) / 700.0)
