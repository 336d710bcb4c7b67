"""The spectrogram of a sound as long as it is, against transformers."""

from __future__ import annotations

import numpy as np
import pytest

from framework.io.mel import RATE, log_mel


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("samples", [201, 320, 1600, 15_999, 16_000, 16_001, 50_123])
def test_it_is_that_of_transformers(samples: int, mels: int) -> None:
    from transformers import WhisperFeatureExtractor

    sound = (0.2 * np.random.default_rng(5).standard_normal(samples) * np.linspace(0, 1, samples)).astype(np.float32)
    extractor = WhisperFeatureExtractor(feature_size=mels)
    expected = extractor(
        sound, sampling_rate=RATE, padding=True, truncation=False, return_attention_mask=True, return_tensors="np"
    )
    found = log_mel(sound, mels)
    assert (found.shape, found.dtype) == ((mels, samples // 160), np.float32)
    assert expected.attention_mask.sum() == found.shape[1]
    np.testing.assert_allclose(found, expected.input_features[0][:, : found.shape[1]], atol=1e-4)


def test_silence_is_level() -> None:
    np.testing.assert_allclose(log_mel(np.zeros(RATE, np.float32), 128), -1.5, atol=1e-6)
