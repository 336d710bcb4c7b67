"""Sound files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from framework.errors import ConfigError, Problem
from framework.execution.payloads import AudioChunk
from framework.writing import write_bytes

CHANNELS = 8  # most of a sound that a stranger sends
LOUDEST = 1e12  # of a sample that is still sound; the power of louder ones is no number in 32 bits
_UNKNOWN_FORMAT = 1  # libsndfile's SF_ERR_UNRECOGNISED_FORMAT


def write_wav(path: Path, audio: AudioChunk) -> None:
    """Write a 16-bit PCM wav file; samples beyond [-1, 1] are clamped. The folder is made.

    Raises ValueError for samples that are no numbers (NaN): they would be noise in the file.
    """
    import soundfile

    if not np.isfinite(audio.samples).all():
        raise ValueError(f"{path.name}: {int((~np.isfinite(audio.samples)).sum())} samples are not finite")
    # Scaled here, towards zero as the original does it, since libraries differ in rounding and in the factor.
    samples = (np.clip(audio.samples, -1.0, 1.0) * 32767.0).astype(np.int16)
    file = BytesIO()  # libsndfile tells of a full disk in words of its own, or not at all
    soundfile.write(file, samples, audio.sample_rate, subtype="PCM_16", format="WAV")
    write_bytes(path, file.getvalue())


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


def load_audio(path: Path, rate: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A sound file, or a video's sound, as one channel at `rate`: channels are averaged, other rates resampled (soxr,
    high quality). What libsndfile does not know (mp4, m4a, webm) is read by PyAV where that is installed.

    Read in blocks, so that memory follows what is returned: float32 [samples].

    Raises ConfigError when it is missing, no sound file, cut short, empty, or has samples that are no numbers or more
    than LOUDEST.
    """
    expected = "a sound file (wav, flac, ogg, mp3)"
    if path.is_file() and not path.stat().st_size:
        raise ConfigError(Problem(where=str(path), got="an empty file", expected=expected))
    return _checked(list(_loaded(path, rate, expected)), str(path))


def _loaded(path: Path, rate: int, expected: str) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    with _opened(path, expected) as (found, blocks):
        yield from _resampled(blocks, found, rate)


@contextmanager
def _opened(path: Path, expected: str) -> Iterator[tuple[int, Iterator[np.ndarray[Any, np.dtype[np.float32]]]]]:
    """Rate and blocks, channels averaged (float32 [samples])."""
    import soundfile

    try:
        with soundfile.SoundFile(path) as file:
            blocks = file.blocks(1 << 16, dtype="float32", always_2d=True)
            yield file.samplerate, (block.mean(axis=1) for block in blocks)
    except (OSError, soundfile.SoundFileError) as error:
        if getattr(error, "code", None) != _UNKNOWN_FORMAT or find_spec("av") is None:
            expected = expected if path.exists() else "a file that exists"
            raise ConfigError(Problem(where=str(path), got=str(error), expected=expected)) from error
        from framework.io.video import open_sound

        with open_sound(path, f"{expected}, or a video with sound") as opened:
            yield opened


def seconds_of(path: Path, longest: float) -> float:
    """How long a sound file, or a video's sound, is: decoded in blocks and kept nowhere, for what a file says of its
    own length may be wrong. Stops at the first block beyond `longest` seconds.

    Raises ConfigError for a longer one, one of more than CHANNELS channels, and as `load_audio` does.
    """
    import soundfile

    expected = "a sound file (wav, flac, ogg, mp3)"
    if path.is_file() and not path.stat().st_size:
        raise ConfigError(Problem(where=str(path), got="an empty file", expected=expected))
    with suppress(soundfile.SoundFileError):  # none of libsndfile's formats, or no sound: told below
        if (channels := soundfile.info(path).channels) > CHANNELS:
            raise ConfigError(Problem(where=str(path), got=f"{channels} channels", expected=f"at most {CHANNELS}"))
    samples = 0
    with _opened(path, expected) as (rate, blocks):
        for block in blocks:
            samples += len(block)
            if samples > longest * rate:
                got, most = f"more than {longest:g} s", f"at most {longest:g} s"
                raise ConfigError(Problem(where=str(path), got=got, expected=most))
    if not samples:
        raise ConfigError(Problem(where=str(path), got="no samples", expected="sound"))
    return samples / rate


def to_mono(audio: AudioChunk, rate: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Samples in memory as one channel at `rate`; raises ConfigError when there are none, or some are no numbers."""
    samples = np.asarray(audio.samples, np.float32)
    mono = samples if samples.ndim == 1 else samples.mean(axis=1)
    return _checked(list(_resampled([mono], audio.sample_rate, rate)), "audio")


def _resampled(
    blocks: Iterable[np.ndarray[Any, np.dtype[np.float32]]], old: int, new: int
) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    if old == new:
        yield from blocks
        return
    import soxr

    stream = soxr.ResampleStream(old, new, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _checked(
    parts: Sequence[np.ndarray[Any, np.dtype[np.float32]]], where: str
) -> np.ndarray[Any, np.dtype[np.float32]]:
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not len(samples):
        raise ConfigError(Problem(where=where, got="no samples", expected="sound"))
    if not np.isfinite(samples).all():
        got = f"{int((~np.isfinite(samples)).sum())} samples that are no numbers"
        raise ConfigError(Problem(where=where, got=got, expected="sound"))
    loudest = max(float(samples.max()), -float(samples.min()))
    if loudest > LOUDEST:
        raise ConfigError(Problem(where=where, got=f"samples of up to {loudest:.3g}", expected="full scale at 1"))
    return samples
