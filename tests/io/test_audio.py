"""Sound files: 16 bits, nothing clipped around, nothing rounded by a library."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from framework.errors import ConfigError
from framework.execution.payloads import AudioChunk
from framework.io.audio import read_audio, write_wav


def chunk(*samples: float | list[float], rate: int = 24000) -> AudioChunk:
    return AudioChunk(samples=np.array(samples, np.float32), sample_rate=rate)


def test_samples_are_clamped_and_cut_towards_zero(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", chunk(0.0, 1.0, -1.0, 3.0, -3.0, 0.5, -0.5))
    data = (tmp_path / "a.wav").read_bytes()[44:]
    assert struct.unpack("<7h", data) == (0, 32767, -32767, 32767, -32767, 16383, -16383)


def test_the_header_says_what_it_is(tmp_path: Path) -> None:
    write_wav(tmp_path / "new" / "a.wav", chunk([0.1, 0.2], [0.3, 0.4], rate=32000))
    header = (tmp_path / "new" / "a.wav").read_bytes()[:44]
    riff, size, wave, _, length, form, channels, rate, bytes_a_second, frame, bits, data, data_size = struct.unpack(
        "<4sI4s4sIHHIIHH4sI", header
    )
    assert (riff, wave, data) == (b"RIFF", b"WAVE", b"data")
    assert (size, length, data_size) == (36 + 8, 16, 8)
    assert (form, channels, rate, bytes_a_second, frame, bits) == (1, 2, 32000, 128000, 4, 16)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    samples = np.linspace(-1, 1, 50, dtype=np.float32)
    write_wav(tmp_path / "a.wav", AudioChunk(samples=samples, sample_rate=16000))
    read = read_audio(tmp_path / "a.wav")
    assert read.sample_rate == 16000
    np.testing.assert_allclose(read.samples, samples, atol=2 / 32768)


def test_samples_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a.wav: 2 samples are not finite"):
        write_wav(tmp_path / "a.wav", chunk(0.0, float("nan"), float("inf")))


def test_a_file_that_is_no_sound(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("words")
    with pytest.raises(ConfigError, match=r"a.wav: got .*, expected a sound file"):
        read_audio(tmp_path / "a.wav")
    with pytest.raises(ConfigError, match=r"b.wav: got .*, expected a file that exists"):
        read_audio(tmp_path / "b.wav")
