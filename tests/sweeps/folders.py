"""Folders as runs leave them, made by hand: what `collect` may meet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framework.execution.payloads import AudioChunk
from framework.io.audio import write_wav

RATE = 8000


def entry(index: int = 0, text: str = "one two three four", *, ok: bool = True, **more: Any) -> dict[str, Any]:
    """An entry of a predictions file: a text of ten tokens in a second, first of them after 0.2 s."""
    thinker = {"start_s": 0.1, "first_output_s": 0.2, "end_s": 1.1, "busy_s": 1.0, "steps": 10, "generated_tokens": 10}
    return {
        "request_idx": index,
        "ok": ok,
        "error": None if ok else "prompt: got 'fail', expected a word that works",
        "output_text": text if ok else "",
        "finish_reason": "end-of-sequence" if ok else "error",
        "messages": [{"role": "user", "content": f"question {index}"}],
        "wall_s": 1.5,
        "stages": {"thinker": thinker},
        **more,
    }


def spoken(job: Path, index: int = 0, text: str = "one two three four", *, seconds: float = 2.0) -> dict[str, Any]:
    """An entry with speech: a tone in the first half of it, nothing in the second."""
    path = job / "audio" / f"audio_req{index}.wav"
    samples = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * RATE)) / RATE)
    samples[len(samples) // 2 :] = 0.0
    write_wav(path, AudioChunk(samples=samples.astype(np.float32), sample_rate=RATE))
    made = entry(index, text, audio_file=str(path))
    made["stages"]["tts"] = {"start_s": 0.3, "first_output_s": 0.4, "end_s": 1.5, "busy_s": 1.0, "steps": 1}
    return made


def job(
    folder: Path,
    *entries: Mapping[str, Any],
    overrides: Sequence[str] = (),
    status: str = "ok",
    record: bool = True,
    **more: Any,
) -> Path:
    """The folder of a job that has ended; without a `record` as an older version left it."""
    (folder / ".hydra").mkdir(parents=True)
    lines = "\n".join(f"- {json.dumps(override)}" for override in overrides)
    (folder / ".hydra" / "overrides.yaml").write_text(f"{lines or '[]'}\n")
    if entries:
        document = {"input_file": "requests.json", "responses": [*entries]}
        (folder / "predictions.json").write_text(json.dumps(document))
    if record:
        result = {"format": 1, "status": status, "exit_status": 0, "error": [], "overrides": [*overrides], **more}
        (folder / "result.json").write_text(json.dumps(result))
    return folder
