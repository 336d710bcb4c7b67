"""Chunks of a terminal put together again, and what a caller asks of a result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


def chunks_of(result: Result, kind: str) -> tuple[str, tuple[Any, ...]] | None:
    """Id of the stage that gives the first output of a payload kind, and its chunks; None where there are none."""
    for terminal, chunks in result.outputs.items():
        if chunks and getattr(chunks[0], "kind", "") == kind:
            return terminal.partition(":")[0], chunks
    return None


def speech_of(result: Result) -> tuple[str, AudioChunk] | None:
    """Id of the stage that speaks and all it said; None when nothing was said."""
    found = chunks_of(result, AudioChunk.kind)
    sound = None if found is None else audio_of(found[1])
    return None if found is None or sound is None else (found[0], sound)


def complete(result: Result) -> Result:
    """The result; failed when all went well and an output that was asked for has nothing in it.

    A text may be empty. What was made of the others stays.
    """
    kinds = sorted(result.request.kinds - {TextChunk.kind}) if result.ok else []
    missing = next((kind for kind in kinds if chunks_of(result, kind) is None), None)
    if missing is None:
        return result
    ends = {stage: report.details.get("finish_reason") for stage, report in result.stages.items()}
    ended = [f"{stage} ended with {end}" for stage, end in ends.items() if end]
    where, got = f"request {result.request.index}: {missing}", ", ".join([f"a reply without {missing}", *ended])
    return attrs.evolve(result, ok=False, error=StageError(Problem(where=where, got=got, expected=missing)))
