"""Sound as bytes of a format, piece by piece, with one header at the beginning."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from io import BytesIO, RawIOBase
from typing import Any, Protocol

import attrs
import numpy as np

from framework.errors import ConfigError, Problem
from framework.execution.payloads import AudioChunk

PCM_RATE = 24_000  # of headerless sound, as OpenAI's clients play it
MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm": f"audio/pcm;rate={PCM_RATE}",
    "pcm16": f"audio/pcm;rate={PCM_RATE}",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
UNKNOWN = 0xFFFFFFFF  # bytes in a wav file that are still to come


@attrs.frozen(kw_only=True)
class _Coded:
    """A format that PyAV writes: container, codec, and the rates that the codec takes (all when empty)."""

    container: str
    codec: str
    options: dict[str, str] = attrs.field(factory=dict)
    rates: tuple[int, ...] = ()
    bit_rate: int = 0


_CODED = {
    "mp3": _Coded(
        container="mp3",
        codec="libmp3lame",
        options={"write_xing": "0"},  # a frame that tells the length, which is not known
        rates=(8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
        bit_rate=96_000,
    ),
    "flac": _Coded(container="flac", codec="flac"),
    "opus": _Coded(container="ogg", codec="libopus", rates=(8000, 12000, 16000, 24000, 48000), bit_rate=64_000),
    "aac": _Coded(container="adts", codec="aac", bit_rate=96_000),
}


class Encoder(Protocol):
    """Takes sound of one rate and channel number; gives bytes that joined are one file."""

    def push(self, audio: AudioChunk) -> bytes: ...

    def close(self) -> bytes: ...


def encoder(name: str) -> Encoder:
    """Raises ConfigError for a format that needs a package that is not there."""
    if name == "wav":
        return Wav()
    if name in ("pcm", "pcm16"):
        return Pcm()
    if find_spec("av") is None:
        hint = "pip install 'multistage[media]'"
        raise ConfigError(Problem(where="response_format", got=repr(name), expected="wav or pcm", hint=hint))
    return Coded(_CODED[name])


def encoded(name: str, audio: AudioChunk) -> bytes:
    """A whole sound. A wav or flac file says how long it is."""
    if name == "wav":
        data = samples_16(audio.samples).tobytes()
        return wav_header(audio.sample_rate, _channels(audio), len(data)) + data
    if name == "flac":  # with its length in it
        import soundfile

        file = BytesIO()
        soundfile.write(file, samples_16(audio.samples), audio.sample_rate, format="FLAC", subtype="PCM_16")
        return file.getvalue()
    made = encoder(name)
    return made.push(audio) + made.close()


def samples_16(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Scaled as sound files of this project are; what is no number is silence, what is too loud is clamped."""
    return (np.clip(np.nan_to_num(samples), -1.0, 1.0) * 32767.0).astype("<i2")


def wav_header(rate: int, channels: int, size: int = UNKNOWN) -> bytes:
    """44 bytes before 16-bit samples; `size` in bytes of all of them."""
    whole = UNKNOWN if size == UNKNOWN else 36 + size
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * channels * 2, channels * 2, 16)
    return struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + struct.pack("<4sI", b"data", size)


def _channels(audio: AudioChunk) -> int:
    return 1 if audio.samples.ndim == 1 else int(audio.samples.shape[1])


class Wav:
    """16-bit samples behind one header."""

    def __init__(self) -> None:
        self._begun = False

    def push(self, audio: AudioChunk) -> bytes:
        data = samples_16(audio.samples).tobytes()
        head = b"" if self._begun else wav_header(audio.sample_rate, _channels(audio))
        self._begun = True
        return head + data

    def close(self) -> bytes:
        return b""


class Pcm:
    """16-bit samples of one channel at PCM_RATE, nothing else."""

    def __init__(self) -> None:
        self._resampler: Any = None

    def push(self, audio: AudioChunk) -> bytes:
        samples = np.asarray(audio.samples, np.float32)
        mono = samples if samples.ndim == 1 else samples.mean(axis=1)
        if audio.sample_rate != PCM_RATE:
            if self._resampler is None:
                import soxr

                self._resampler = soxr.ResampleStream(audio.sample_rate, PCM_RATE, 1, dtype="float32", quality="HQ")
            mono = self._resampler.resample_chunk(np.ascontiguousarray(mono))
        return samples_16(mono).tobytes()

    def close(self) -> bytes:
        if self._resampler is None:
            return b""
        return samples_16(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True)).tobytes()


class _Sink(RawIOBase):
    """What PyAV writes to: it cannot seek, so no header is ever written twice."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class Coded:
    """A compressed format."""

    def __init__(self, form: _Coded) -> None:
        self._form = form
        self._sink = _Sink()
        self._container: Any = None
        self._stream: Any = None
        self._resampler: Any = None

    def push(self, audio: AudioChunk) -> bytes:
        import av

        if self._container is None:
            self._open(audio)
        samples = np.atleast_2d(samples_16(audio.samples).T)
        packed = np.ascontiguousarray(samples.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=self._layout)
        frame.sample_rate = audio.sample_rate
        for part in self._resampler.resample(frame):
            self._container.mux(self._stream.encode(part))
        return self._sink.take()

    def close(self) -> bytes:
        if self._container is None:
            return b""
        for part in self._resampler.resample(None):
            self._container.mux(self._stream.encode(part))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        self._container = None
        return self._sink.take()

    def _open(self, audio: AudioChunk) -> None:
        import av

        form = self._form
        # The next higher rate that the codec takes, so that nothing of the sound is lost.
        higher = [rate for rate in form.rates if rate >= audio.sample_rate] or list(form.rates[-1:])
        rate = min(higher, default=audio.sample_rate)
        self._layout = "mono" if _channels(audio) == 1 else "stereo"
        self._container = av.open(self._sink, "w", format=form.container, options={"flush_packets": "1"})
        self._stream = self._container.add_stream(form.codec, rate=rate, layout=self._layout, options=form.options)
        if form.bit_rate:
            self._stream.bit_rate = form.bit_rate
        codec = self._stream.codec_context
        codec.open()
        self._resampler = av.AudioResampler(
            format=codec.format, layout=self._layout, rate=rate, frame_size=codec.frame_size or None
        )
