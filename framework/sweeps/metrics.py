"""Numbers of one request, and of a point of a sweep: what its text and its speech are like, and what they cost.

`measure` reads an entry of a predictions file, `summary` puts the requests of a point together. A number that does not
apply (audio of a text model) is absent.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import attrs
import numpy as np

from framework.errors import ConfigError
from framework.execution.payloads import AudioChunk

FRAME_S = 0.02
SILENT_DBFS = -50.0  # RMS of a frame; 0 dBFS is a full-scale square wave
CLIPPED = 32_766.5 / 32_768  # what a 16-bit file holds of a sample that went beyond full scale is 32,767
LONGEST_PHRASE = 40  # words that are looked at as one phrase said again

Samples = np.ndarray[Any, np.dtype[np.float32]]


@attrs.frozen(kw_only=True)
class Metric:
    """How a number is named, shown and put together.

    Attributes:
        of: the output it is measured on, "text" or "audio"; "" for the run as a whole.
        label: as short as a column's heading must be.
        unit: "" for a plain number; "share" is from 0 to 1.
        better: "high", "low" or "": what a reader looks for.
        about: one line.
        joined: of several requests, from their values (those that have one); None where `summary` has its own way.
    """

    name: str
    of: str = ""
    label: str
    unit: str = ""
    better: str = ""
    about: str
    joined: Callable[[Sequence[float]], float] | None = None


def _metric(name: str, of: str, label: str, unit: str, better: str, about: str, joined: Any = None) -> Metric:
    return Metric(name=name, of=of, label=label, unit=unit, better=better, about=about, joined=joined)


# In the order of the table.
METRICS: tuple[Metric, ...] = (
    _metric("tokens", "text", "tokens", "", "", "text tokens written", sum),
    _metric("tokens_per_s", "text", "tok/s", "", "high", "text tokens a second, without the time to open engines"),
    _metric("audio_s", "audio", "audio s", "s", "", "seconds of speech", sum),
    _metric("rtf", "audio", "rtf", "", "low", "real-time factor: seconds of work for a second of speech"),
    _metric("speedup", "audio", "speedup", "", "high", "seconds of speech for a second of work: 1 / rtf"),
    _metric("first_token_s", "text", "1st text s", "s", "low", "seconds until the first text (median)", median),
    _metric("first_audio_s", "audio", "1st audio s", "s", "low", "seconds until the first sound (median)", median),
    _metric("distinct_2", "text", "distinct", "share", "high", "neighbouring words that are a new pair (mean)", fmean),
    _metric("repeated_words", "text", "repeated", "", "low", "most words that repeat what stands before them", max),
    _metric("silent_share", "audio", "silent", "share", "low", "frames of 20 ms of speech below -50 dBFS"),
    _metric("longest_silence_s", "audio", "silence s", "s", "low", "longest stretch of such frames, in seconds", max),
    _metric("clipped_share", "audio", "clipped", "share", "low", "samples at full scale"),
    _metric("wer", "audio", "wer", "share", "low", "word error rate of what was heard in the speech"),
    _metric("load_s", "", "load s", "s", "", "seconds to open engines; none where they were still open"),
    _metric("run_s", "", "run s", "s", "low", "seconds for the requests, without opening engines"),
    _metric("wall_s", "", "wall s", "s", "low", "seconds for everything"),
)
NAMES = tuple(metric.name for metric in METRICS)


def measure(entry: Mapping[str, Any], stages: Mapping[str, str] | None, folder: Path) -> dict[str, Any]:
    """Numbers of one entry of a predictions file, with its `index`, whether it is `ok`, and its `finish_reason`.

    Args:
        stages: which stage gives `text` and which `audio`, as the record of the job says; None makes the usual guess
            (the last stage that wrote tokens, the last stage).
        folder: of the job; the sound file is looked for where the entry says, and then inside it.
    """
    given = entry.get("stages")
    reports = {name: report for name, report in (given or {}).items() if isinstance(report, Mapping)}
    found: dict[str, Any] = {
        "index": entry.get("request_idx", 0),
        "ok": entry.get("ok") is True,
        "finish_reason": entry.get("finish_reason"),
        **text_measures(str(entry.get("output_text") or "")),
    }
    writer = reports.get((stages or {}).get("text") or _writer(reports))
    if writer is not None:
        found |= _times(writer)
    path = find(entry.get("audio_file"), folder)
    seconds, work = _audio_seconds(entry), _number(entry.get("wall_s"))
    if path is not None and (sound := _sound(path)) is not None:
        seconds = len(sound.samples) / sound.sample_rate
        found |= speech_measures(sound)
    if seconds is not None:
        found["audio_s"] = round(seconds, 4)
        found |= _factors(work, seconds)
        speaker = reports.get((stages or {}).get("audio") or next(reversed(reports), ""), {})
        first = _number(speaker.get("first_output_s"))
        found |= {} if first is None else {"first_audio_s": first}
    if work is not None:
        found["wall_s"] = work
    return found


def summary(requests: Sequence[Mapping[str, Any]], timings: Mapping[str, float]) -> dict[str, float | str]:
    """Numbers of a point of a sweep from those of its requests; `timings` are `load_s`, `run_s`, `wall_s`."""
    found: dict[str, float | str] = {}
    for metric in METRICS:
        values = [value for request in requests if (value := _number(request.get(metric.name))) is not None]
        if metric.joined is not None and values:
            found[metric.name] = metric.joined(values)
    work = timings.get("run_s") or sum(_number(request.get("wall_s")) or 0.0 for request in requests)
    audio = [request for request in requests if _number(request.get("audio_s"))]
    if found.get("tokens") and work:
        found["tokens_per_s"] = float(found["tokens"]) / work
    if audio:
        seconds = [float(request["audio_s"]) for request in audio]
        found |= _factors(work, sum(seconds))
        for name in ("silent_share", "clipped_share"):
            shares = [float(request.get(name) or 0.0) for request in audio]
            found[name] = float(np.average(shares, weights=seconds))
    heard = [request for request in requests if request.get("words")]
    if heard:
        found["wer"] = sum(request["word_errors"] for request in heard) / sum(request["words"] for request in heard)
    found |= {name: float(timings[name]) for name in ("load_s", "run_s", "wall_s") if name in timings}
    reasons = Counter(str(request["finish_reason"]) for request in requests if request.get("finish_reason"))
    found["finish_reasons"] = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    ordered = {name: found[name] for name in (*NAMES, "finish_reasons") if name in found}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in ordered.items()}


# --- text ----------------------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Words as they are compared: small letters and digits, apostrophes kept inside."""
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower().replace("’", "'"))


def text_measures(text: str) -> dict[str, float]:
    """`distinct_2` (two words or more) and `repeated_words`; {} for a text without words."""
    said = words(text)
    if not said:
        return {}
    pairs = [*pairwise(said)]
    distinct = {"distinct_2": round(len({*pairs}) / len(pairs), 4)} if pairs else {}
    return {**distinct, "repeated_words": repeated(said)}


def repeated(said: Sequence[str]) -> int:
    """Most words in a row that only say again what stands right before them: 2 in `no no no`, 0 without repetition."""
    longest = 0
    for phrase in range(1, min(LONGEST_PHRASE, len(said) // 2) + 1):
        run = 0
        for index in range(phrase, len(said)):
            run = run + 1 if said[index] == said[index - phrase] else 0
            if run >= phrase:  # less is a word that happens to come again
                longest = max(longest, run)
    return longest


def word_errors(reference: str, heard: str) -> tuple[int, int]:
    """(fewest insertions, deletions and substitutions that turn one into the other, words of the reference)."""
    wanted, got = words(reference), words(heard)
    row = list(range(len(got) + 1))
    for number, word in enumerate(wanted, 1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(got, 1):
            cost = min(row[place] + 1, row[place - 1] + 1, diagonal + (word != other))
            diagonal, row[place] = row[place], cost
    return row[-1], len(wanted)


# --- speech --------------------------------------------------------------------------------------------------------


def speech_measures(sound: AudioChunk) -> dict[str, float]:
    """`silent_share`, `longest_silence_s`, `clipped_share`; {} without samples. A part of a frame at the end is one."""
    samples = mono(sound.samples)
    if not len(samples):
        return {}
    size = max(1, round(FRAME_S * sound.sample_rate))
    starts = np.arange(0, len(samples), size)
    power = np.add.reduceat(np.square(samples, dtype=np.float64), starts) / np.diff([*starts, len(samples)])
    quiet = power < 10 ** (SILENT_DBFS / 10)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]])))
    runs = edges[1::2] - edges[::2]
    return {
        "silent_share": round(float(quiet.mean()), 4),
        "longest_silence_s": round(int(runs.max(initial=0)) * size / sound.sample_rate, 3),
        "clipped_share": round(float((np.abs(sound.samples) >= CLIPPED).mean()), 6),
    }


def mono(samples: Samples) -> Samples:
    """float32 [samples] of [samples] or [samples, channels]."""
    return samples if samples.ndim == 1 else samples.mean(axis=1)


# --- reading an entry ----------------------------------------------------------------------------------------------


def find(name: Any, folder: Path) -> Path | None:
    """A file that a job wrote: where it says, or, when its folder was moved, inside it; None when it is not there."""
    if not isinstance(name, str) or not name:
        return None
    path = Path(name)
    inner = (folder.joinpath(*path.parts[-count:]) for count in range(min(3, len(path.parts)), 0, -1))
    candidates: Iterable[Path] = [path, *inner] if path.is_absolute() else [folder / path, path, *inner]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _sound(path: Path) -> AudioChunk | None:
    """None for a file that is broken: the other numbers stand."""
    from framework.io.audio import read_audio

    try:
        return read_audio(path)
    except ConfigError:
        return None


def _writer(reports: Mapping[str, Mapping[str, Any]]) -> str:
    writers = [name for name, report in reports.items() if "generated_tokens" in report]
    return next((name for name in reversed(writers) if "transcript" not in reports[name]), (writers or [""])[-1])


def _times(report: Mapping[str, Any]) -> dict[str, float]:
    """`tokens`, `tokens_per_s` while the stage ran, `first_token_s`."""
    found: dict[str, float] = {}
    tokens, first = _number(report.get("generated_tokens")), _number(report.get("first_output_s"))
    start, end = _number(report.get("start_s")), _number(report.get("end_s"))
    if tokens is not None:
        found["tokens"] = tokens
        if start is not None and end is not None and end > start:
            found["tokens_per_s"] = round(tokens / (end - start), 3)
    if first is not None:
        found["first_token_s"] = first
    return found


def _factors(work: float | None, seconds: float) -> dict[str, float]:
    return {"rtf": round(work / seconds, 5), "speedup": round(seconds / work, 4)} if work and seconds else {}


def _audio_seconds(entry: Mapping[str, Any]) -> float | None:
    """What the entry says, for a sound file that is no longer there."""
    samples, rate = _number(entry.get("audio_samples")), _number(entry.get("audio_sample_rate"))
    return samples / rate if samples is not None and rate else None


def _number(value: Any) -> float | None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if plain and math.isfinite(value) else None
