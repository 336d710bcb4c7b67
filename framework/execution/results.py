"""Chunks of a terminal put together again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from framework.execution.payloads import AudioChunk, TextChunk


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
