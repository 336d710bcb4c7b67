"""The predictions file: the original's fields, and `ok`, `error` and `stages`, written safely as requests end."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import attrs

from framework.errors import ConfigError, Problem
from framework.execution.payloads import AudioChunk
from framework.execution.request import Result
from framework.execution.results import chunks_of
from framework.io.kinds import KINDS, PayloadKind
from framework.io.requests import Rejected
from framework.io.responses import Entries, differences, document, read
from framework.writing import naming, not_a_file, write_bytes, write_text

# What a backbone reports that the original has beside the text, not among the stage's details.
_PROMOTED = ("batch_idx", "finish_reason", "formatted_system_prompt", "formatted_complete_request")
# What the files of one request are named like in the folder that they are written to.
FOLDER_FILES = "*_req*"
_UNTIMED = frozenset({"details"})
# What a stage that makes or reads codec frames reports: int32 [frames, codes], for a file of its own.
_CODES = "rvq_codes"


def entry_of(
    result: Result, folders: Mapping[str, Path] | None = None, kinds: Mapping[str, PayloadKind] = KINDS
) -> dict[str, Any]:
    """One entry of `responses`.

    Args:
        folders: by payload kind, where its outputs are written, each as `<kind>_req<i>` and the kind's suffix; the
            codec frames behind speech lie beside it, as `rvq_req<i>.safetensors`.
        kinds: of payload, by name.
    """
    reported: dict[str, Any] = {}
    for report in result.stages.values():
        reported |= {key: value for key, value in report.details.items() if key in _PROMOTED and key not in reported}
    ending = "cancelled" if result.cancelled else "error" if not result.ok else reported.get("finish_reason")
    index, folders = result.request.index, folders or {}
    entry: dict[str, Any] = {
        "request_idx": index,
        "batch_idx": reported.get("batch_idx", 0),
        "ok": result.ok,
        "error": None if result.error is None else str(result.error),
        "finish_reason": ending,
        "messages": result.request.fields.get("messages", []),
    }
    entry |= {key: reported[key] for key in _PROMOTED[2:] if key in reported}
    for kind in kinds.values():
        _, chunks = chunks_of(result, kind.name) or ("", ())
        try:
            entry |= kind.entry(chunks)
            if chunks and kind.write is not None and kind.name in folders:
                path = folders[kind.name] / kind.file_name(index)
                written = kind.write(path, chunks)
                entry |= {f"{kind.name}_file": str(path), **written}
        except ValueError as error:  # what cannot be put together or written: a fault of this request alone
            entry |= {"ok": False, "error": entry["error"] or str(error), "finish_reason": "error"}
    codes = next((report.details[_CODES] for report in result.stages.values() if _CODES in report.details), None)
    if codes is not None and AudioChunk.kind in folders:
        entry["rvq_file"] = _write_codes(folders[AudioChunk.kind] / f"rvq_req{index}.safetensors", codes)
    entry["wall_s"] = _seconds(result.wall_s)
    entry["stages"] = {stage: _stage(report) for stage, report in result.stages.items()}
    return entry


def rejected_entry(rejected: Rejected) -> dict[str, Any]:
    """The entry of a request that could not be run as it was written."""
    messages = rejected.raw.get("messages", []) if isinstance(rejected.raw, dict) else []
    return {
        "request_idx": rejected.index,
        "batch_idx": 0,
        "ok": False,
        "error": str(rejected.error),
        "output_text": "",
        "finish_reason": "error",
        "messages": messages,
        "wall_s": 0.0,
        "stages": {},
    }


class Predictions:
    """A predictions file in the making; a context manager.

    Entries come in any order and go at once to a journal beside the file, one a line, so that nothing finished is lost
    even when the process is killed. Leaving the block, also by an exception, writes the file in order of the requests:
    a whole JSON document, put in place in one step. A journal that is there is that of an unfinished run: it is removed
    when the block ends well.

    Args:
        input_file: as the user wrote it.
        requests: number of requests in it.
        record: what decides the answers (`digest` of the requests, `requests`, `shard`, `settings`); None when nobody
            will go on with this file.
        resume: None when there shall be no unfinished run, True to go on with what is there, False to start over.

    Attributes:
        done, failed: number of entries, and of those that are not ok.
    """

    def __init__(
        self,
        path: Path,
        input_file: str,
        *,
        requests: int = 1,
        record: Mapping[str, Any] | None = None,
        resume: bool | None = False,
    ) -> None:
        self.path = path
        self.journal = path.with_name(path.name + ".journal")
        self.done = self.failed = 0
        self._head: dict[str, Any] = {"input_file": input_file, **({} if record is None else {"record": record})}
        self._resume = resume
        self._offsets = array("q", [-1]) * requests  # of the journal's lines, by request
        self._size = 0
        self._file: FileIO | None = None

    def __enter__(self) -> Predictions:
        """Raises ConfigError: another run writes the file, or what is there is no file, or not what to go on with."""
        if problems := [*filter(None, (not_a_file(path, str(path)) for path in (self.path, self.journal)))]:
            raise ConfigError(problems)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._locked()
        unfinished = os.fstat(self._file.fileno()).st_size > 0
        try:
            self._begin(unfinished)
        except BaseException:
            if not unfinished:
                self.journal.unlink()
            self._file.close()
            raise
        return self

    def has(self, index: int) -> bool:
        """Whether the request of this index has its entry."""
        return self._offsets[index] >= 0

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep one entry (with its `request_idx`)."""
        self._note(entry, self._append(entry))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._file is not None
        with self._file:
            if kind is None:
                write_text(self.path, document(self._head, self._entries()))
            elif self.done:
                with suppress(OSError):  # what ended the block is told; the journal has everything
                    write_text(self.path, document(self._head, self._entries()))
            if kind is None or not self.done:
                self.journal.unlink()

    def _locked(self) -> FileIO:
        """The journal, for this run alone."""
        import fcntl

        while True:
            file = FileIO(os.open(self.journal, os.O_RDWR | os.O_CREAT, 0o666), "r+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.journal)):
                    return file
            except FileNotFoundError:  # its last run has removed it since it was opened
                pass
            except BlockingIOError as error:
                file.close()
                got = "a file that another run is writing"
                problem = Problem(where=str(self.path), got=got, expected="an output_file of its own")
                raise ConfigError(problem) from error
            file.close()

    def _begin(self, unfinished: bool) -> None:
        assert self._file is not None
        if unfinished and self._resume is None:
            hint = "resume=true goes on with it, resume=false starts over"
            raise ConfigError(Problem(where=str(self.path), got="an unfinished run", expected="none", hint=hint))
        if unfinished and self._resume and self._restore():
            return
        finished: Entries = iter(())
        if self._resume and self.path.exists():
            head, finished = read(self.path)
            self._check(head)
        self._file.truncate(0)
        self._append(self._head)
        for entry in finished:
            self.add(entry)

    def _restore(self) -> bool:
        """Take up the journal, but for a last line that was never written to its end. False when there is no line."""
        assert self._file is not None
        with self.journal.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    found = json.loads(line)
                    self._note(found, self._size) if number > 1 else self._check(found)
                except (ValueError, LookupError, TypeError) as error:
                    where, hint = f"{self.journal}, line {number}", "resume=false starts over"
                    problem = Problem(where=where, got="a damaged line", expected="a result", hint=hint)
                    raise ConfigError(problem) from error
                self._size += len(line)
        self._file.truncate(self._size)
        return self._size > 0

    def _check(self, head: Mapping[str, Any]) -> None:
        if problems := differences(head.get("record"), self._head.get("record"), str(self.path)):
            raise ConfigError(problems)

    def _append(self, content: Mapping[str, Any]) -> int:
        """Write one line; returns its offset."""
        assert self._file is not None
        # Half a surrogate pair is no UTF-8; with a backslash it is JSON's own escape of it.
        line = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        offset = self._file.seek(self._size)
        try:
            with naming(self.journal):
                written = 0
                while written < len(line):
                    written += self._file.write(line[written:]) or 0
        except OSError:
            self._file.truncate(offset)  # whole lines only
            raise
        self._size += len(line)
        return offset

    def _note(self, entry: Mapping[str, Any], offset: int) -> None:
        self._offsets[entry["request_idx"]] = offset
        self.done += 1
        self.failed += not entry.get("ok", True)

    def _entries(self) -> Entries:
        with self.journal.open("rb") as lines:
            for offset in self._offsets:
                if offset >= 0:
                    lines.seek(offset)
                    yield json.loads(lines.readline())


def _write_codes(path: Path, codes: Any) -> str:
    from safetensors.numpy import save

    write_bytes(path, save({_CODES: codes}))
    return str(path)


def _stage(report: Any) -> dict[str, Any]:
    times = {key: _seconds(value) for key, value in attrs.asdict(report, recurse=False).items() if key not in _UNTIMED}
    elsewhere = {*_PROMOTED[2:], _CODES}
    return {**times, **{key: value for key, value in report.details.items() if key not in elsewhere}}


def _seconds(value: Any) -> Any:
    """Microseconds are enough."""
    return round(value, 6) if isinstance(value, float) else value
