"""Sound files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from framework.errors import ConfigError, Problem
from framework.execution.payloads import AudioChunk


def write_wav(path: Path, audio: AudioChunk) -> None:
    """Write a 16-bit PCM wav file; samples beyond [-1, 1] are clamped. The folder is made.

    Raises ValueError for samples that are no numbers (NaN): they would be noise in the file.
    """
    import soundfile

    if not np.isfinite(audio.samples).all():
        raise ValueError(f"{path.name}: {int((~np.isfinite(audio.samples)).sum())} samples are not finite")
    # Scaled here, towards zero as the original does it, since libraries differ in rounding and in the factor.
    samples = (np.clip(audio.samples, -1.0, 1.0) * 32767.0).astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, audio.sample_rate, subtype="PCM_16", format="WAV")


def read_audio(path: Path) -> AudioChunk:
    """A sound file as it is: its own rate and channels (wav, flac, ogg, mp3).

    Raises ConfigError when it is missing or no sound file.
    """
    import soundfile

    try:
        samples, rate = soundfile.read(path, dtype="float32")
    except (OSError, soundfile.SoundFileError) as error:
        expected = "a sound file (wav, flac, ogg, mp3)" if path.exists() else "a file that exists"
        raise ConfigError(Problem(where=str(path), got=str(error), expected=expected)) from error
    return AudioChunk(samples=samples, sample_rate=rate)
