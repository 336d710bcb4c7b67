"""Spectrogram against transformers, windows cut in pauses, tokens split at timestamps."""

from __future__ import annotations

import numpy as np
import pytest

from models.whisper import processing
from models.whisper.processing import Segment, audible, clock, compression, log_mel, quietest, resume, segments, speaks
from tests.models.whisper.tiny import RATE, chirps

FIRST = 1000  # id of <|0.00|>


def hiss(seconds: float, level: float) -> processing.Float32:
    return (level * np.random.default_rng(3).standard_normal(round(seconds * RATE))).astype(np.float32)


SOUNDS = {
    "chirps": chirps(7.3),
    "hiss": hiss(12.0, 0.1),
    "a full window": np.tile(chirps(10.0), 3),
    "50 ms": chirps(0.05),
    "one sample": np.ones(1, np.float32),
    "silence": np.zeros(RATE, np.float32),
    "a click in silence": np.eye(1, 3 * RATE, 40000, dtype=np.float32)[0],
}


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("name", SOUNDS)
def test_spectrogram_is_that_of_transformers(name: str, mels: int) -> None:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=mels)
    expected = extractor(SOUNDS[name], sampling_rate=RATE, return_tensors="np").input_features[0]
    found = log_mel(SOUNDS[name], mels, 3000)
    assert (found.shape, found.dtype) == ((mels, 3000), np.float32)
    np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("mels", [80, 128])
def test_mel_filters_are_those_of_transformers(mels: int) -> None:
    from transformers import WhisperFeatureExtractor

    expected = WhisperFeatureExtractor(feature_size=mels).mel_filters.T
    np.testing.assert_allclose(processing.mel_filters(mels), expected, atol=1e-8)


@pytest.mark.parametrize("pause", [26.0, 27.5, 29.0])
def test_a_full_window_ends_in_its_pause(pause: float) -> None:
    samples = hiss(30.0, 0.1)
    samples[round(pause * RATE) : round((pause + 0.3) * RATE)] *= 0.01
    assert pause <= quietest(samples, 25 * RATE, 30 * RATE) / RATE <= pause + 0.3


def test_a_window_goes_on_in_the_pause_near_a_timestamp() -> None:
    samples = hiss(10.0, 0.1)
    samples[round(5.05 * RATE) : round(5.27 * RATE)] *= 0.01
    assert 5.05 <= resume(samples, 4.9) / RATE <= 5.27
    assert resume(samples, 10.0) <= len(samples)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [(hiss(2.0, 0.1), True), (hiss(0.3, 0.1), False), (hiss(2.0, 0.002), False), (np.zeros(0, np.float32), False)],
    ids=["two seconds as loud", "too short for a word", "much softer", "nothing"],
)
def test_speech_behind_the_last_timestamp_is_told_by_its_level(rest: processing.Float32, expected: bool) -> None:
    before = hiss(5.0, 0.1)
    assert speaks(np.concatenate([before, rest]), len(before)) is expected


TIME = np.arange(5 * RATE) / RATE
NO_SPEECH = {
    "nothing": np.zeros(0, np.float32),
    "silence": np.zeros(5 * RATE, np.float32),
    "faint hiss": hiss(5.0, 0.0005),
    "hiss": hiss(5.0, 0.1),
    "30 s of hiss": hiss(30.0, 0.05),
    "tone": (0.2 * np.sin(2 * np.pi * 440 * TIME)).astype(np.float32),
    "hum": (0.1 * np.sin(2 * np.pi * 50 * TIME)).astype(np.float32),
    "a click in silence": SOUNDS["a click in silence"],
    "50 ms": SOUNDS["50 ms"],
    "one sample": SOUNDS["one sample"],
}


@pytest.mark.parametrize("name", NO_SPEECH)
def test_what_cannot_be_speech_is_not_listened_to(name: str) -> None:
    assert audible(NO_SPEECH[name], -60.0) is False


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_a_short_word_in_a_long_noise_is_listened_to(noise: float) -> None:
    samples = hiss(30.0, noise)
    samples[RATE : RATE + RATE // 2] += chirps(0.5)
    assert audible(samples, -60.0) is True


def stamp(seconds: float) -> int:
    return FIRST + round(seconds / processing.TICK_SECONDS)


@pytest.mark.parametrize(
    ("tokens", "found", "rest"),
    [
        ([], [], None),
        ([stamp(0)], [], None),
        ([stamp(0), 5, 6, stamp(2)], [(0, 2, (5, 6))], None),
        ([stamp(0.5), 5, stamp(2), stamp(2.5), 6, stamp(4)], [(0.5, 2, (5,)), (2.5, 4, (6,))], None),
        ([stamp(0), 5, stamp(2), stamp(2), 6, 7], [(0, 2, (5,))], (2, 10, (6, 7))),
        ([5, 6], [], (0, 10, (5, 6))),
        ([stamp(0), 5, stamp(28)], [(0, 10, (5,))], None),
    ],
    ids=["none", "no text", "one", "a gap between two", "unfinished", "without timestamps", "beyond the window"],
)
def test_tokens_are_split_at_timestamps(
    tokens: list[int],
    found: list[tuple[float, float, tuple[int, ...]]],
    rest: tuple[float, float, tuple[int, ...]] | None,
) -> None:
    def made(parts: tuple[float, float, tuple[int, ...]]) -> Segment:
        return Segment(start=parts[0], end=parts[1], ids=parts[2])

    assert segments(tokens, FIRST, 10.0) == ([made(parts) for parts in found], made(rest) if rest else None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00.000"), (61.5, "01:01.500"), (3599.9996, "01:00:00.000"), (3725.04, "01:02:05.040")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_loop_compresses_better_than_language() -> None:
    assert compression("") == 0.0
    assert compression("The keeper climbed two hundred steps to light the lamp.") < 1.5
    assert compression("and then " * 40) > 2.4
