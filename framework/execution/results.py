"""Chunks of a terminal put together again, and what a caller asks of a result."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from framework.errors import Problem, StageError
from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Result


def text_of(chunks: Iterable[TextChunk]) -> str:
    """The whole text; "" for no chunks."""
    return "".join(chunk.text for chunk in chunks)


def audio_of(chunks: Iterable[AudioChunk]) -> AudioChunk | None:
    """All samples as one chunk; None for no chunks. ValueError when their sample rates differ."""
    chunks = list(chunks)
    if not chunks:
        return None
    rates = sorted({chunk.sample_rate for chunk in chunks})
    if len(rates) > 1:
        raise ValueError(f"chunks of one stream have different sample rates: {rates}")
    return AudioChunk(samples=np.concatenate([chunk.samples for chunk in chunks]), sample_rate=rates[0])


def speech_of(result: Result) -> tuple[str, AudioChunk] | None:
    """Id of the stage that speaks and all it said; None when nothing was said."""
    for terminal, chunks in result.outputs.items():
        if chunks and isinstance(chunks[0], AudioChunk):
            sound = audio_of(chunks)
            assert sound is not None
            return terminal.partition(":")[0], sound
    return None


def heard(result: Result) -> Result:
    """The result; failed when speech was asked for, all went well and nothing was said. What was written stays."""
    if not result.ok or "audio" not in result.request.kinds or speech_of(result) is not None:
        return result
    ends = {stage: report.details.get("finish_reason") for stage, report in result.stages.items()}
    got = ", ".join(["a reply without a sound", *(f"{stage} ended with {end}" for stage, end in ends.items() if end)])
    error = StageError(Problem(where=f"request {result.request.index}: audio", got=got, expected="speech"))
    return attrs.evolve(result, ok=False, error=error)
