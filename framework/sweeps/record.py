"""`result.json`: how one job went, also when it failed. Written around the job, read by `collect`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from framework.errors import MultistageError
from framework.writing import Unwritten, after_requests, write_text

FILE_NAME = "result.json"
MARK = "sweep.json"  # in the folder of a sweep: when it began, with which command, and how many jobs it has
STATUS = {0: "ok", 1: "failed", 2: "error", 130: "interrupted", 143: "interrupted"}


@attrs.define(kw_only=True)
class Record:
    """What a job says of itself.

    Attributes:
        exit_status: see `framework.cli.app`.
        notes: what the command adds: `predictions` (a path), `stages` (which of them gives text, which audio),
            `timings` in seconds.
    """

    exit_status: int = 0
    notes: dict[str, Any] = attrs.field(factory=dict)


@contextmanager
def recording(folder: Path, overrides: Sequence[str], *, measured: bool) -> Iterator[Record]:
    """Write `result.json` into `folder` when the block ends, however it ends; what it raises goes on.

    Args:
        measured: also keep the numbers of each request (`framework.sweeps.metrics`), so that a table needs no more
            than these records.
    """
    record, begin, started = Record(), time.perf_counter(), datetime.now(UTC)
    faults: list[dict[str, str]] = []
    writing: AbstractContextManager[None] = after_requests()
    try:
        yield record
    except BaseException as error:
        record.exit_status, faults = _status_of(error), faults_of(error)
        writing = suppress(OSError)  # what ended the block is told
        raise
    finally:
        wall = time.perf_counter() - begin
        predictions = record.notes.pop("predictions", None)
        written: dict[str, Any] = {
            "format": 1,
            "status": STATUS.get(record.exit_status, "failed"),
            "exit_status": record.exit_status,
            "error": faults,
            "overrides": list(overrides),
            "started": started.isoformat(timespec="milliseconds"),
            "timings": {**record.notes.pop("timings", {}), "wall_s": round(wall, 6)},
            **record.notes,
        }
        if predictions is not None:
            written["predictions"] = inside(Path(predictions), folder)
            if measured:
                from framework.sweeps import metrics, predicted

                entries = predicted.entries(Path(predictions))
                written["requests"] = [metrics.measure(entry, written.get("stages"), folder) for entry in entries]
        with writing:
            write(folder / FILE_NAME, written)


def faults_of(error: BaseException) -> list[dict[str, str]]:
    """Each fault of an error as where, got, expected, hint."""
    if isinstance(error, MultistageError):
        return [attrs.asdict(problem) for problem in error.problems]
    where, got = type(error).__name__, str(error)
    if isinstance(error, OSError):
        where, got = str(error.filename or where), error.strerror or got
    return [{"where": where, "got": got, "expected": "the job to run to its end", "hint": ""}]


def inside(path: Path, folder: Path) -> str:
    """`path` relative to `folder` where it lies in it, so that the folder can be moved; else absolute."""
    path, folder = path.absolute(), folder.absolute()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def write(path: Path, data: Mapping[str, Any]) -> None:
    """A JSON file that is there whole or not at all."""
    write_text(path, [json.dumps(data, ensure_ascii=False, indent=1), "\n"])


def _status_of(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    wrong = isinstance(error, (MultistageError, OSError)) and not isinstance(error, Unwritten)
    return 2 if wrong else 1
