"""A voice to clone: sound to the codec's frames and to the speaker's vector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from framework.errors import Problem, StageError
from framework.io.mel import slaney_filters
from models.qwen3_codec.config import FFT, FMAX, FRAME, HOP, MELS, SAMPLE_RATE

Float32 = np.ndarray[Any, np.dtype[np.float32]]

SHORTEST = SAMPLE_RATE // 10  # samples; the speaker encoder's widest convolution sees 9 steps of a mel spectrogram


class VoiceEncoder:
    """The engines `speech_tokenizer_encoder` and `speaker_encoder`; a context manager.

    Attributes:
        longest: samples of the longest voice they take, 40 s.
    """

    def __init__(self, codec: Path, speaker: Path, backend: Any) -> None:
        from framework.engines.backend import open_engine

        self._codec = open_engine(codec, backend)
        self._speaker = open_engine(speaker, backend)
        self.longest = self._codec.spec.caps["frames"] * FRAME

    def codes(self, samples: Float32, where: str = "ref_audio") -> np.ndarray[Any, np.dtype[np.int32]]:
        """float32 [samples] at 24 kHz -> int32 [frames, 16]; a last frame that is not full counts.

        Raises StageError for sound shorter than 0.1 s or longer than `longest`.
        """
        self._check(samples, where)
        frames = -(-len(samples) // FRAME)
        padded = np.zeros((1, frames, FRAME), np.float32)
        padded.reshape(-1)[: len(samples)] = samples
        codes = self._codec.run({"samples": padded, "lengths": np.array([len(samples)], np.int64)})["codes"]
        return codes[0].astype(np.int32)

    def speaker(self, samples: Float32, where: str = "ref_audio") -> Float32:
        """float32 [samples] at 24 kHz -> float32 [width of the talker]. Raises StageError as `codes`."""
        self._check(samples, where)
        vector: Float32 = self._speaker.run({"mel": log_mel(samples)[None]})["speaker"][0]
        return vector

    def close(self) -> None:
        self._codec.close()
        self._speaker.close()

    def __enter__(self) -> VoiceEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, samples: Float32, where: str) -> None:
        if not SHORTEST <= len(samples) <= self.longest:
            got = f"{len(samples) / SAMPLE_RATE:.2f} s"
            expected = f"{SHORTEST / SAMPLE_RATE:.1f} to {self.longest // SAMPLE_RATE} s of a voice"
            raise StageError(Problem(where=where, got=got, expected=expected))


def log_mel(samples: Float32) -> Float32:
    """float32 [samples] at 24 kHz -> float32 [128, samples / 256], natural logarithms of magnitudes."""
    around = (FFT - HOP) // 2
    padded = np.pad(samples, around, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP]
    hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(FFT) / FFT)
    spectrum = np.fft.rfft(windows * hann.astype(np.float32), axis=1)  # [steps, bins]
    magnitude = np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9).astype(np.float32)
    mel = slaney_filters(SAMPLE_RATE, FFT, MELS, FMAX) @ magnitude.T
    result: Float32 = np.log(np.maximum(mel, 1e-5))
    return result
