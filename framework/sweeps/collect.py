"""A folder of a sweep, or of one run, as rows: what each point was given, how it went, and its numbers.

Works on any folder that this project has written jobs into, also while they run, after a crash, from other machines
and from older versions: what is not there is absent from the row, what is broken is told in it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from framework.errors import ConfigError, Problem
from framework.parsing import attempt
from framework.sweeps import metrics, predicted
from framework.sweeps.record import FILE_NAME, MARK

TRANSCRIPTS = "transcripts.json"
_SHARD = "shard.index"  # jobs that differ in nothing else are one point


@attrs.frozen(kw_only=True)
class Cell:
    """One request of one point.

    Attributes:
        key: `<job>/<index>`, its name in `transcripts.json`.
        index: position in the request file.
        prompt: what the user said last.
        audio: the sound file, None when there is none (any more).
        heard: what an ASR model understood of the audio; None when none was asked.
        numbers: see `metrics.METRICS`.
        entry: of the predictions file, for what only some readers need.
    """

    key: str
    index: int
    ok: bool
    text: str
    error: str
    finish_reason: str
    prompt: str
    audio: Path | None
    heard: str | None
    numbers: Mapping[str, float]
    entry: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Point:
    """One point of a sweep: a job, or the shards of one.

    Attributes:
        name: its folder, relative to the sweep; "." for a single run.
        overrides: by key, numbers as numbers.
        status: ok, failed (a request failed), error (the job could not run), interrupted, or unfinished (it left no
            record: it runs still, or was killed).
        error: what went wrong, a fault a line.
        numbers: see `metrics.summary`.
        started: ISO 8601, "" when it left no record.
    """

    name: str
    folder: Path
    overrides: Mapping[str, Any]
    status: str
    error: str
    cells: tuple[Cell, ...]
    numbers: Mapping[str, float | str]
    started: str = ""


@attrs.frozen(kw_only=True)
class Sweep:
    """
    Attributes:
        parameters: keys in which the points differ, in the order in which they were given.
        fixed: what all points were given.
        started: time of the first job, ISO 8601; "" when no record says.
        missing: jobs that were to come and have left nothing: it runs still, or was killed.
    """

    folder: Path
    points: tuple[Point, ...]
    parameters: tuple[str, ...]
    fixed: Mapping[str, Any]
    started: str = ""
    missing: int = 0

    @property
    def ok(self) -> bool:
        return not self.missing and all(point.status == "ok" for point in self.points)

    @property
    def metrics(self) -> tuple[metrics.Metric, ...]:
        """Those that some point has."""
        return tuple(metric for metric in metrics.METRICS if any(metric.name in p.numbers for p in self.points))


def collect(folder: Path) -> Sweep:
    """All jobs below `folder`, which may be one itself. Reads only; the same files give the same value.

    Raises ConfigError when there is no job.
    """
    folder = folder.absolute()
    jobs = sorted(_jobs(folder), key=lambda job: _natural(str(job.relative_to(folder))))
    if not jobs:
        got = "a folder without a run in it" if folder.is_dir() else "no such folder"
        hint = "a folder below outputs/sweeps or outputs/runs"
        raise ConfigError(Problem(where=str(folder), got=got, expected="a sweep, or a run", hint=hint))
    heard = _json(folder / TRANSCRIPTS)[0]
    said = heard.get("said", {}) if isinstance(heard, dict) else {}
    points = _merged([_point(job, folder, said) for job in jobs])
    keys = dict.fromkeys(key for point in points for key in point.overrides)
    varying = [key for key in keys if len({repr(point.overrides.get(key, ...)) for point in points}) > 1]
    fixed = {key: points[0].overrides[key] for key in keys if key not in varying}
    return Sweep(
        folder=folder,
        points=tuple(points),
        parameters=tuple(varying),
        fixed=fixed,
        started=_started(points),
        missing=_missing(folder, len(jobs)),
    )


def _missing(folder: Path, jobs: int) -> int:
    mark = _json(folder / MARK)[0]
    planned = mark.get("jobs") if isinstance(mark, dict) else None
    return max(0, planned - jobs) if isinstance(planned, int) else 0


def _started(points: Sequence[Point]) -> str:
    return min((point.started for point in points if point.started), default="")


def is_job(folder: Path) -> bool:
    """Whether a run has left something in this very folder."""
    marks = (FILE_NAME, ".hydra/overrides.yaml", predicted.NAME, predicted.NAME + predicted.JOURNAL)
    return any((folder / mark).is_file() for mark in marks)


# --- jobs ----------------------------------------------------------------------------------------------------------


def _jobs(folder: Path) -> Iterator[Path]:
    if is_job(folder):
        yield folder
        return
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.name.startswith(".") and not path.is_symlink():
            yield from _jobs(path)


def _point(folder: Path, sweep: Path, said: Mapping[str, Any]) -> Point:
    record, fault = _json(folder / FILE_NAME)
    problems = [] if fault is None else [f"{FILE_NAME}: {fault}"]
    if not isinstance(record, dict):
        problems += [] if fault or record is None else [f"{FILE_NAME}: no object"]
        record = {}
    problems += [_told(fault) for fault in _list(record.get("error"))]
    entries, unreadable = _entries(record, folder)
    problems += unreadable
    status = record.get("status") if isinstance(record.get("status"), str) else _status(entries, folder, bool(problems))
    name = os.fspath(folder.relative_to(sweep))
    cells = _cells(record, entries, folder, name, said)
    problems += [f"request {cell.index}: {cell.error}" for cell in cells if cell.error]
    timings = {
        key: float(value)
        for key, value in (record.get("timings") or {}).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    } if isinstance(record.get("timings"), dict) else {}  # fmt: skip
    return Point(
        name=name,
        folder=folder,
        overrides=_overrides(record, folder),
        status=str(status),
        error="\n".join(problems),
        cells=cells,
        numbers=metrics.summary([{**cell.numbers, "finish_reason": cell.finish_reason} for cell in cells], timings),
        started=str(record.get("started") or ""),
    )


def _status(entries: Sequence[Mapping[str, Any]], folder: Path, broken: bool) -> str:
    """Of a job without a readable record: an older version's, or one that did not end."""
    if broken or not predicted.path_in(folder).is_file():
        return "unfinished"
    return "ok" if all(entry.get("ok") is True for entry in entries) else "failed"


def _entries(record: Mapping[str, Any], folder: Path) -> tuple[list[Mapping[str, Any]], list[str]]:
    named = record.get("predictions")
    path = folder / named if isinstance(named, str) else predicted.path_in(folder)
    try:
        return predicted.entries(path), []
    except (OSError, ValueError) as error:
        return [], [f"{path.name}: {error}"]


def _cells(
    record: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    folder: Path,
    name: str,
    said: Mapping[str, Any],
) -> tuple[Cell, ...]:
    stages = record.get("stages") if isinstance(record.get("stages"), dict) else None
    measured = {row["index"]: row for row in _list(record.get("requests")) if isinstance(row, dict) and "index" in row}
    cells = []
    for entry in entries:
        index = entry.get("request_idx", 0)
        row = measured.get(index) or metrics.measure(entry, stages, folder)
        text, heard = str(entry.get("output_text") or ""), said.get(f"{name}/{index}")
        numbers = {key: value for key, value in row.items() if key in metrics.NAMES}
        if isinstance(heard, str):
            numbers["word_errors"], numbers["words"] = metrics.word_errors(spoken(entry), heard)
            if numbers["words"]:
                numbers["wer"] = round(numbers["word_errors"] / numbers["words"], 4)
        cells.append(
            Cell(
                key=f"{name}/{index}",
                index=int(index),
                ok=entry.get("ok") is True,
                text=text,
                error=str(entry.get("error") or ""),
                finish_reason=str(entry.get("finish_reason") or ""),
                prompt=prompt_of(entry),
                audio=metrics.find(entry.get("audio_file"), folder),
                heard=heard if isinstance(heard, str) else None,
                numbers=numbers,
                entry=entry,
            )
        )
    return tuple(cells)


def spoken(entry: Mapping[str, Any]) -> str:
    """What its speech should say: the reply, or for a model that only speaks the text it was given."""
    return str(entry.get("output_text") or "") or prompt_of(entry)


def prompt_of(entry: Mapping[str, Any]) -> str:
    """The text of its last user message; "" for sound alone."""
    messages = [message for message in _list(entry.get("messages")) if isinstance(message, dict)]
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == "user"), "")
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in _list(content) if isinstance(part, dict)).strip()


def _merged(points: Sequence[Point]) -> list[Point]:
    """Shards of one run as one point."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        shared = {key: value for key, value in point.overrides.items() if key != _SHARD}
        key = json.dumps(shared, sort_keys=True, default=str) if _SHARD in point.overrides else point.name
        groups.setdefault(key, []).append(point)
    return [group[0] if len(group) == 1 and _SHARD not in group[0].overrides else _joined(group)
            for group in groups.values()]  # fmt: skip


def _joined(shards: Sequence[Point]) -> Point:
    worst = ("interrupted", "unfinished", "error", "failed")
    statuses = {shard.status for shard in shards}
    cells = sorted((cell for shard in shards for cell in shard.cells), key=lambda cell: cell.index)
    # Shards run at the same time, each on a machine of its own: together they take as long as the longest.
    times = {key: max(float(shard.numbers.get(key, 0.0)) for shard in shards) for key in ("load_s", "run_s", "wall_s")}
    return Point(
        name="+".join(shard.name for shard in shards),
        folder=shards[0].folder.parent if len(shards) > 1 else shards[0].folder,
        overrides={key: value for key, value in shards[0].overrides.items() if key != _SHARD},
        status=next((status for status in worst if status in statuses), "ok"),
        error="\n".join(f"{shard.name}: {shard.error}" for shard in shards if shard.error),
        cells=tuple(cells),
        numbers=metrics.summary(
            [{**cell.numbers, "finish_reason": cell.finish_reason} for cell in cells],
            {key: value for key, value in times.items() if value},
        ),
        started=_started(shards),
    )


# --- reading -------------------------------------------------------------------------------------------------------


def _overrides(record: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    given = record.get("overrides")
    if not isinstance(given, list):
        path = folder / ".hydra" / "overrides.yaml"
        try:
            given = attempt(path.read_text("utf-8"), where=str(path), yaml=True)[0]
        except (OSError, UnicodeDecodeError):
            given = []
    return dict(_override(str(item)) for item in given if "=" in str(item)) if isinstance(given, list) else {}


def _override(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    return key.lstrip("+~"), value_of(value)


def value_of(text: str) -> Any:
    """The value of an override: a number, true, false, null, or text without the quotes around it."""
    quoted = re.fullmatch(r"""(['"])(.*)\1""", text, re.DOTALL)
    if quoted:
        return re.sub(r"\\(['\"\\])", r"\1", quoted[2]).replace("\\${", "${")
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.?\d+)([eE][-+]?\d+)?", text):
        value = float(text)
        return value if math.isfinite(value) else text
    # Hydra puts a backslash before what its grammar would read otherwise.
    return {"true": True, "false": False, "null": None}.get(text, re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", text))


def _json(path: Path) -> tuple[Any, str | None]:
    """(content, fault); (None, None) for a file that is not there."""
    try:
        return json.loads(path.read_text("utf-8")), None
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as error:
        return None, str(error)


def _told(fault: Any) -> str:
    if not isinstance(fault, dict):
        return str(fault)
    text = f"{fault.get('where')}: got {fault.get('got')}, expected {fault.get('expected')}"
    return f"{text} ({fault['hint']})" if fault.get("hint") else text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _natural(name: str) -> list[Any]:
    """2 before 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
