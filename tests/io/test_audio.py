"""Sound files: 16 bits, nothing clipped around, nothing rounded by a library."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from framework.errors import ConfigError
from framework.execution.payloads import AudioChunk
from framework.io.audio import load_audio, read_audio, to_mono, write_wav


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


def tone(rate: int, channels: int = 1) -> np.ndarray:
    samples = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    return np.stack([samples, *[0 * samples] * (channels - 1)], axis=1).astype(np.float32)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (44100, 2), (8000, 1)])
def test_any_file_becomes_one_channel_at_the_rate(tmp_path: Path, name: str, rate: int, channels: int) -> None:
    soundfile.write(tmp_path / name, tone(rate, channels), rate)
    samples = load_audio(tmp_path / name, 16000)
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert len(samples) == pytest.approx(16000, abs=2500 if name == "a.mp3" else 2)  # mp3 has whole frames
    middle = samples[4000:12000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * 16000 / len(middle) == pytest.approx(440, abs=2)
    assert middle.std() == pytest.approx(0.5**0.5 * 0.5 / channels, rel=0.08), "channels are averaged"


def test_blocks_of_a_file_join_without_a_seam(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = (0.1 * rng.standard_normal(5 * 48000)).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", noise, 48000, subtype="FLOAT")
    whole = to_mono(AudioChunk(samples=noise, sample_rate=48000), 16000)
    np.testing.assert_allclose(load_audio(tmp_path / "a.wav", 16000), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got an empty file, expected a sound file"),
        (b"words", "expected a sound file"),
        (None, "expected a file that exists"),
    ],
    ids=["empty", "text", "missing"],
)
def test_files_without_sound_are_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"a.wav: .*{message}"):
        load_audio(tmp_path / "a.wav", 16000)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "got no samples"),
        ([0.0, float("nan")], "got 1 samples that are no numbers"),
        ([0.5, -1e30], r"got samples of up to 1e\+30, expected full scale at 1"),
    ],
)
def test_samples_without_sound_are_refused(tmp_path: Path, samples: list[float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        to_mono(chunk(*samples), 24000)
    soundfile.write(tmp_path / "a.wav", np.array(samples, np.float32), 24000, subtype="FLOAT")
    with pytest.raises(ConfigError, match=message):
        load_audio(tmp_path / "a.wav", 24000)
