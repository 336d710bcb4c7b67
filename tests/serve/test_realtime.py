"""A spoken conversation over a websocket, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import websockets

from framework.io.audio import load_audio
from framework.serve.activity import RATE, Activity
from framework.serve.realtime import Item
from tests.serve.deployments import Fake, Running, running, wait_until

STORY = Path(__file__).parents[1] / "data" / "story.ogg"


@pytest.fixture(scope="module")
def speech() -> bytes:
    """Two seconds of a voice, 16-bit samples at 24 kHz."""
    samples = load_audio(STORY, 24_000)[24_000 : 3 * 24_000]
    return (samples * 32767).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running({"assistant": Fake(), "slow": Fake(pause=0.02)}) as found:
        yield found


def silence(seconds: float) -> bytes:
    return bytes(2 * round(24_000 * seconds))


async def append(connection: Any, sound: bytes) -> None:
    """In pieces of 40 ms, as a microphone gives them."""
    for start in range(0, len(sound), 1920):
        await connection.input_audio_buffer.append(audio=base64.b64encode(sound[start : start + 1920]).decode())


async def until(connection: Any, kind: str) -> list[Any]:
    """Events up to the first of this kind, that included."""
    found = []
    async with asyncio.timeout(20):
        async for event in connection:
            found.append(event)
            assert event.type != "error" or kind == "error", event
            if event.type == kind:
                return found
    raise AssertionError(f"no {kind}")


def talk(server: Running, model: str, conversation: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        async with client.realtime.connect(model=model) as connection:
            await conversation(connection)

    asyncio.run(main())


def kinds(events: list[Any]) -> list[str]:
    return [event.type for event in events]


# --- speech begins and ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 960, 7001])
def test_speech_begins_and_ends_wherever_the_sound_is_cut(size: int, speech: bytes) -> None:
    samples = np.frombuffer(silence(1.0) + speech + silence(1.5), "<i2")
    listening = Activity(24_000)
    turns = [turn for n in range(0, len(samples), size) for turn in listening.push(samples[n : n + size])]
    assert [turn.kind for turn in turns] == ["start", "stop"]
    assert 900 <= turns[0].at_ms <= 1400 and 2600 <= turns[1].at_ms <= 3300


def test_silence_and_clicks_are_no_speech() -> None:
    samples = np.zeros(RATE * 3, np.int16)
    samples[RATE :: RATE // 2] = 20_000
    assert Activity(RATE).push(samples) == []


def test_what_was_not_heard_of_a_reply_is_cut_between_words() -> None:
    item = Item("item", "assistant", [], text="one two three four", sound_ms=4000)
    item.cut(2000)
    assert (item.text, item.sound_ms) == ("one two", 2000)
    item.cut(9000)
    assert item.text == "one two"


# --- a conversation ------------------------------------------------------------------------------------------------


def test_the_server_hears_when_a_turn_ends_and_answers_by_voice(server: Running, speech: bytes) -> None:
    async def conversation(connection: Any) -> None:
        [created] = await until(connection, "session.created")
        assert created.session.output_modalities == ["audio"]
        await append(connection, silence(0.6) + speech + silence(1.0))
        found = await until(connection, "response.done")
        order = [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "response.created",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.output_item.done",
            "conversation.item.input_audio_transcription.completed",
            "response.done",
        ]
        assert [kind for kind in kinds(found) if kind in order] == order
        transcript = "".join(e.delta for e in found if e.type == "response.output_audio_transcript.delta")
        heard = next(e for e in found if e.type == "conversation.item.input_audio_transcription.completed")
        assert transcript == heard.transcript and transcript.endswith("seconds")
        assert 1.5 <= float(transcript.split()[0]) <= 3.2, "the speech and a little around it, not the silence"
        pcm = b"".join(base64.b64decode(e.delta) for e in found if e.type == "response.output_audio.delta")
        assert len(pcm) == 2 * 2 * 2400, "two words"
        assert found[-1].response.status == "completed"

    talk(server, "assistant", conversation)


def test_text_without_turns(server: Running) -> None:
    async def conversation(connection: Any) -> None:
        session: Any = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
        await connection.session.update(session=session)
        await until(connection, "session.updated")
        item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one two"}]}
        await connection.conversation.item.create(item=item)
        await connection.response.create()
        found = await until(connection, "response.done")
        assert "".join(e.delta for e in found if e.type == "response.output_text.delta") == "one two"
        assert not any("audio" in kind for kind in kinds(found))
        assert found[-1].response.output[0].content[0].text == "one two"

    talk(server, "assistant", conversation)


def test_sound_that_the_client_commits(server: Running, speech: bytes) -> None:
    async def conversation(connection: Any) -> None:
        session: Any = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        await connection.session.update(session=session)
        await append(connection, speech)
        await connection.input_audio_buffer.commit()
        found = await until(connection, "conversation.item.done")
        assert "input_audio_buffer.committed" in kinds(found)
        await connection.response.create()
        found = await until(connection, "response.done")
        assert found[-1].response.output[0].content[0].transcript == "2.0 seconds"

    talk(server, "assistant", conversation)


def test_speech_cancels_the_reply_at_once_and_what_was_not_heard_is_forgotten(server: Running, speech: bytes) -> None:
    deployment: Any = server.house["slow"].deployment

    async def conversation(connection: Any) -> None:
        words = " ".join(f"word{n}" for n in range(400))
        item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]}
        await connection.conversation.item.create(item=item)
        await connection.response.create()
        await until(connection, "response.output_audio.delta")
        await asyncio.sleep(0.5)
        await append(connection, speech)
        found = await until(connection, "response.done")
        assert "input_audio_buffer.speech_started" in kinds(found)
        done = found[-1].response
        assert (done.status, done.status_details.reason) == ("cancelled", "turn_detected")
        cut = next(event for event in found if event.type == "conversation.item.truncated")
        kept = next(e for e in found if e.type == "response.output_audio_transcript.done").transcript
        assert 0 < cut.audio_end_ms < 5000 and 0 < len(kept.split()) < 60
        assert words.startswith(kept)
        started = kinds(found).index("input_audio_buffer.speech_started")
        assert "response.output_audio.delta" not in kinds(found)[started + 2 :]

    talk(server, "slow", conversation)
    wait_until(lambda: deployment.held == 0)


def test_a_client_that_leaves_cancels_its_reply(server: Running) -> None:
    deployment: Any = server.house["slow"].deployment

    async def conversation(connection: Any) -> None:
        item: Any = {
            "type": "message", "role": "user", "content": [{"type": "input_text", "text": " ".join(["word"] * 900)}]
        }  # fmt: skip
        await connection.conversation.item.create(item=item)
        await connection.response.create()
        await until(connection, "response.output_audio.delta")
        assert deployment.held == 1

    talk(server, "slow", conversation)
    wait_until(lambda: deployment.held == 0)


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("{", "no JSON"),
        ("[]", "an event"),
        (b"bytes", "text"),
        ('{"type": "response.creat"}', "did you mean 'response.create'"),
        ('{"type": "input_audio_buffer.append", "audio": "x!"}', "base64"),
        ('{"type": "input_audio_buffer.append", "audio": "AAAA", "adio": 1}', "did you mean 'audio'"),
        ('{"type": "input_audio_buffer.append", "audio": "AA=="}', "an even number"),
        ('{"type": "input_audio_buffer.commit"}', "100 or more"),
        ('{"type": "response.cancel"}', "no reply under way"),
        ('{"type": "response.create"}', "messages"),
        ('{"type": "conversation.item.truncate", "item_id": "x", "audio_end_ms": 1}', "an item of this conversation"),
        ('{"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"threshold": 7}}}}}', "1"),
        ('{"type": "session.update", "session": {"output_modalities": ["video"]}}', "'text'"),
    ],
)
def test_a_wrong_event_is_told_and_the_conversation_goes_on(message: Any, word: str, server: Running) -> None:
    async def main() -> None:
        url = server.url.replace("http", "ws")
        async with websockets.connect(f"{url}/v1/realtime?model=assistant") as socket:
            assert json.loads(await socket.recv())["type"] == "session.created"
            await socket.send(message)
            told = json.loads(await socket.recv())
            assert told["type"] == "error" and word in told["error"]["message"], told
            await socket.send('{"type": "input_audio_buffer.clear"}')
            assert json.loads(await socket.recv())["type"] == "input_audio_buffer.cleared"

    asyncio.run(main())


def test_who_may_open_one() -> None:
    async def opened(url: str, **options: Any) -> bool:
        try:
            async with websockets.connect(url, **options) as socket:
                return bool(json.loads(await socket.recv())["type"] == "session.created")
        except websockets.InvalidStatus:
            return False

    with running({"assistant": Fake()}, keys=("right",)) as server:
        url = server.url.replace("http", "ws") + "/v1/realtime"
        key = {"Authorization": "Bearer right"}
        protocols: Any = ["realtime", "openai-insecure-api-key.right"]
        assert not asyncio.run(opened(url))
        assert asyncio.run(opened(url, additional_headers=key))
        assert asyncio.run(opened(url, subprotocols=protocols))
        assert not asyncio.run(opened(url, additional_headers=key, origin="http://elsewhere.example"))
        assert asyncio.run(opened(url, additional_headers=key, origin=server.url))


def test_a_model_that_is_not_there(server: Running) -> None:
    async def main() -> None:
        async with websockets.connect(server.url.replace("http", "ws") + "/v1/realtime?model=asistant") as socket:
            assert "did you mean 'assistant'" in json.loads(await socket.recv())["error"]["message"]

    asyncio.run(main())
