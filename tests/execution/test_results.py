from __future__ import annotations

import numpy as np
import pytest

from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.results import audio_of, text_of


def audio(*shape: int, sample_rate: int = 24000) -> AudioChunk:
    return AudioChunk(samples=np.full(shape, 0.5, np.float32), sample_rate=sample_rate)


def test_text_is_the_chunks_joined() -> None:
    assert text_of([TextChunk(text="Par"), TextChunk(text=""), TextChunk(text="is")]) == "Paris"
    assert text_of([]) == ""


@pytest.mark.parametrize("channels", [(), (2,)], ids=["mono", "stereo"])
def test_audio_is_the_chunks_joined(channels: tuple[int, ...]) -> None:
    whole = audio_of([audio(3, *channels), audio(4, *channels)])
    assert whole is not None
    assert whole.samples.shape == (7, *channels) and whole.samples.dtype == np.float32
    assert whole.sample_rate == 24000
    assert audio_of([]) is None


def test_audio_of_different_rates_is_not_joined() -> None:
    with pytest.raises(ValueError, match=r"\[16000, 24000\]"):
        audio_of([audio(3), audio(3, sample_rate=16000)])
