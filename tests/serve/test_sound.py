"""Speech in every format while it is made, transcriptions and voices, as OpenAI's own client reads them."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from framework.execution.payloads import AudioChunk
from framework.serve.encoding import encoded, encoder, wav_header
from tests.serve.deployments import ASSISTANT, RATE, TEXT, VOICE, Fake, Running, running
from tests.serve.test_chat import wav


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running({"assistant": Fake(ASSISTANT), "text": Fake(TEXT), "voice": Fake(VOICE)}) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def sine(seconds: float, rate: int = RATE) -> AudioChunk:
    samples = 0.5 * np.sin(np.arange(round(seconds * rate)) * 2 * np.pi * 440 / rate)
    return AudioChunk(samples=samples.astype(np.float32), sample_rate=rate)


def pieces(sound: AudioChunk, size: int = 3000) -> list[AudioChunk]:
    starts = range(0, len(sound.samples), size)
    return [AudioChunk(samples=sound.samples[n : n + size], sample_rate=sound.sample_rate) for n in starts]


# --- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wav", "mp3", "flac", "opus", "aac"])
def test_pieces_joined_are_one_file_of_the_same_sound(name: str) -> None:
    pytest.importorskip("av")
    from av import AudioResampler
    from av import open as open_media

    made, sound = encoder(name), sine(1.0)
    content = b"".join([*map(made.push, pieces(sound)), made.close()])
    with open_media(io.BytesIO(content)) as file:
        mono = AudioResampler(format="fltp", layout="mono", rate=RATE)
        frames = [part for frame in file.decode(audio=0) for part in mono.resample(frame)]
    heard = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    assert abs(len(heard) - RATE) < 0.1 * RATE
    middle = heard[RATE // 3 : RATE // 3 + 4800]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(spectrum.argmax() * RATE / len(middle) - 440) < 10
    assert abs(np.sqrt((middle**2).mean()) - 0.5 / np.sqrt(2)) < 0.05


@pytest.mark.parametrize("name", ["wav", "pcm"])
def test_what_loses_nothing_is_the_same_in_pieces_and_whole(name: str) -> None:
    made, sound = encoder(name), sine(0.5)
    content = b"".join([*map(made.push, pieces(sound)), made.close()])
    if name == "pcm":
        assert content == encoded("pcm", sound)
        return
    streamed, _ = soundfile.read(io.BytesIO(content), dtype="int16")
    whole, _ = soundfile.read(io.BytesIO(encoded(name, sound)), dtype="int16")
    np.testing.assert_array_equal(streamed, whole)


def test_a_streamed_wav_has_one_header_that_leaves_its_length_open() -> None:
    made = encoder("wav")
    content = b"".join([*map(made.push, pieces(sine(0.5))), made.close()])
    assert content.count(b"RIFF") == 1 and struct.unpack("<I", content[40:44]) == (0xFFFFFFFF,)
    assert encoded("wav", sine(0.5))[:44] == wav_header(RATE, 1, RATE)


def test_headerless_sound_has_the_rate_that_clients_play_it_at() -> None:
    content = encoded("pcm", sine(1.0, rate=8000))
    assert abs(len(content) // 2 - 24_000) < 24


def test_what_is_no_number_is_silence() -> None:
    sound = AudioChunk(samples=np.array([np.nan, np.inf, 2.0, -2.0], np.float32), sample_rate=RATE)
    assert np.frombuffer(encoded("pcm", sound), "<i2").tolist() == [0, 32767, 32767, -32767]


# --- speech --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["voice", "assistant"])
def test_a_text_is_said_by_a_voice_and_by_an_assistant_that_has_one(model: str, client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(model=model, voice="Ann", input="one two three", response_format="wav")
    samples, rate = soundfile.read(io.BytesIO(answer.content))
    assert (len(samples), rate) == (3 * RATE // 10, RATE)
    assert answer.response.headers["content-type"] == "audio/wav"


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "pcm"])
def test_speech_to_a_file_while_it_streams(name: Any, client: openai.OpenAI, tmp_path: Any) -> None:
    pytest.importorskip("av")
    speaking = client.audio.speech.with_streaming_response
    with speaking.create(model="voice", voice="default", input="one two", response_format=name) as answer:
        answer.stream_to_file(tmp_path / "speech")
    content = (tmp_path / "speech").read_bytes()
    begins = {"flac": b"fLaC", "opus": b"OggS"}
    assert content.startswith(begins.get(name, b""))
    assert len(content) == 2 * RATE // 10 * 2 if name == "pcm" else len(content) > 500


def test_speech_as_events(server: Running) -> None:
    body = {"model": "voice", "input": "one two", "voice": "Ann", "response_format": "pcm", "stream_format": "sse"}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert len(b"".join(base64.b64decode(event["audio"]) for event in events[:-1])) == 2 * RATE // 10 * 2
    assert events[-1]["type"] == "speech.audio.done" and "total_tokens" in events[-1]["usage"]


def test_speed_where_the_graph_has_it(client: openai.OpenAI) -> None:
    said: Any = {"model": "voice", "voice": "Ann", "input": "one", "response_format": "pcm"}
    assert len(client.audio.speech.create(**said, speed=2).content) == RATE // 10
    with pytest.raises(openai.BadRequestError, match="speed"):
        client.audio.speech.create(**{**said, "input": "one"}, speed=9)


@pytest.mark.parametrize(
    ("change", "where", "word"),
    [
        ({"model": "text"}, "model", "one that speaks"),
        ({"voice": "nobody"}, "voice", "one of Ann, Bob"),
        ({"instructions": "merrily"}, "request", "instruct"),
        ({"response_format": "midi"}, "response_format", "'wav'"),
        ({"input": ""}, "input", "1 character"),
        ({"input": "mute"}, "audio", "without audio"),
        ({"vioce": "Ann"}, "vioce", "did you mean 'voice'"),
    ],
)
def test_speech_that_cannot_be(change: Any, where: str, word: str, server: Running) -> None:
    answer = httpx.post(f"{server.url}/v1/audio/speech", json={"model": "voice", "input": "one", **change})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == where and word in error["message"], error


# --- transcriptions and voices -------------------------------------------------------------------------------------


def test_a_transcription_runs_the_stage_that_hears_alone(client: openai.OpenAI, server: Running) -> None:
    steps = server.house["assistant"].deployment.runners["thinker"].steps  # type: ignore[attr-defined]
    heard = client.audio.transcriptions.create(model="assistant", file=("a.wav", wav(1.5)))
    assert heard.text == "1.5 seconds"
    assert heard.usage is not None and heard.usage.to_dict() == {"type": "duration", "seconds": 1.5}
    assert server.house["assistant"].deployment.runners["thinker"].steps == steps  # type: ignore[attr-defined]


def test_transcriptions_as_text_and_as_events(client: openai.OpenAI) -> None:
    sound = ("a.wav", wav(1))
    assert client.audio.transcriptions.create(model="assistant", file=sound, response_format="text") == "1.0 seconds\n"
    events = list(client.audio.transcriptions.create(model="assistant", file=sound, stream=True))
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[-1].text == "1.0 seconds"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": "text"}, "a stage that writes down speech"),
        ({"language": "de"}, "language"),
        ({"prompt": "names"}, "prompt"),
        ({"response_format": "srt"}, "when words were said"),
        ({"file": ("a.wav", b"RIFF nothing")}, "file"),
        ({"file": ("a.wav", b"")}, "an empty file"),
    ],
)
def test_transcriptions_that_cannot_be(change: Any, word: str, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=word):
        client.audio.transcriptions.create(**{"model": "assistant", "file": ("a.wav", wav(1)), **change})


def test_translations_are_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="/v1/audio/transcriptions"):
        client.audio.translations.create(model="assistant", file=("a.wav", wav(1)))


def test_voices(server: Running) -> None:
    found = httpx.get(f"{server.url}/v1/audio/voices", params={"model": "voice"}).json()
    assert found["voices"] == ["default", "Ann", "Bob"]
    assert httpx.get(f"{server.url}/v1/audio/voices", params={"model": "text"}).json()["voices"] == []
