"""The predictions file: the original's fields, and `ok`, `error` and `stages`, written safely as requests end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import attrs

from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Result
from framework.execution.results import audio_of, text_of
from framework.io.audio import write_wav
from framework.io.requests import Rejected

# What a backbone reports that the original has beside the text, not among the stage's details.
_PROMOTED = ("batch_idx", "finish_reason", "formatted_system_prompt", "formatted_complete_request")
_UNTIMED = frozenset({"details"})
# What a stage that makes or reads codec frames reports: int32 [frames, codes], for a file of its own.
_CODES = "rvq_codes"


def entry_of(result: Result, audio_dir: Path | None = None) -> dict[str, Any]:
    """One entry of `responses`.

    Args:
        audio_dir: where its speech is written, as `audio_req<i>.wav`, and the codec frames behind it, as
            `rvq_req<i>.safetensors`; None writes none.
    """
    reported: dict[str, Any] = {}
    for report in result.stages.values():
        reported |= {key: value for key, value in report.details.items() if key in _PROMOTED and key not in reported}
    ending = "cancelled" if result.cancelled else "error" if not result.ok else reported.get("finish_reason")
    texts, sounds = _chunks(result, TextChunk), _chunks(result, AudioChunk)
    entry: dict[str, Any] = {
        "request_idx": result.request.index,
        "batch_idx": reported.get("batch_idx", 0),
        "ok": result.ok,
        "error": None if result.error is None else str(result.error),
        "output_text": text_of(texts),
        "finish_reason": ending,
        "messages": result.request.fields.get("messages", []),
    }
    entry |= {key: reported[key] for key in _PROMOTED[2:] if key in reported}
    if any(chunk.logprobs for chunk in texts):
        steps = [step for chunk in texts for step in chunk.logprobs]
        entry["logprobs"] = [[attrs.asdict(candidate) for candidate in step] for step in steps]
    sound = audio_of(sounds)
    if sound is not None and audio_dir is not None:
        entry |= _write_sound(audio_dir / f"audio_req{result.request.index}.wav", sound)
    codes = next((report.details[_CODES] for report in result.stages.values() if _CODES in report.details), None)
    if codes is not None and audio_dir is not None:
        entry["rvq_file"] = _write_codes(audio_dir / f"rvq_req{result.request.index}.safetensors", codes)
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
    a whole JSON document, put in place in one step.
    """

    def __init__(self, path: Path, input_file: str) -> None:
        self.path = path
        self.input_file = input_file
        self.journal = path.with_name(path.name + ".journal")
        self._places: dict[int, tuple[int, int]] = {}  # request index -> offset and length, in bytes
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Predictions:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.journal.open("w+b")
        return self

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep one entry (with its `request_idx`)."""
        assert self._file is not None
        # Half a surrogate pair is no UTF-8; with a backslash it is JSON's own escape of it.
        line = json.dumps(entry, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(line)
        self._file.flush()
        self._places[entry["request_idx"]] = (offset, len(line))

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        unfinished = self.path.with_name(self.path.name + ".part")
        with self._file, unfinished.open("w", encoding="utf-8", errors="backslashreplace") as out:
            out.writelines(self._document())
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(self.path)
        self.journal.unlink()

    def _document(self) -> Iterator[str]:
        assert self._file is not None
        yield f'{{\n    "input_file": {json.dumps(self.input_file, ensure_ascii=False)},\n    "responses": ['
        for number, index in enumerate(sorted(self._places)):
            offset, length = self._places[index]
            self._file.seek(offset)
            text = json.dumps(json.loads(self._file.read(length)), ensure_ascii=False, indent=4)
            yield ("," if number else "") + "\n        " + text.replace("\n", "\n        ")
        yield "\n    ]\n}\n" if self._places else "]\n}\n"


def _chunks(result: Result, kind: type[Any]) -> list[Any]:
    """Chunks of the first output of a kind: a graph has at most one text and one audio output that a caller reads."""
    return next((list(chunks) for chunks in result.outputs.values() if chunks and isinstance(chunks[0], kind)), [])


def _write_sound(path: Path, sound: AudioChunk) -> dict[str, Any]:
    write_wav(path, sound)
    samples = len(sound.samples)
    return {
        "audio_file": str(path),
        "audio_samples": samples,
        "audio_sample_rate": sound.sample_rate,
        "audio_duration_ms": samples * 1000 // sound.sample_rate,
    }


def _write_codes(path: Path, codes: Any) -> str:
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({_CODES: codes}, path)
    return str(path)


def _stage(report: Any) -> dict[str, Any]:
    times = {key: _seconds(value) for key, value in attrs.asdict(report, recurse=False).items() if key not in _UNTIMED}
    elsewhere = {*_PROMOTED[2:], _CODES}
    return {**times, **{key: value for key, value in report.details.items() if key not in elsewhere}}


def _seconds(value: Any) -> Any:
    """Microseconds are enough."""
    return round(value, 6) if isinstance(value, float) else value
