"""Chats and completions, as OpenAI's own client reads them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from tests.serve.deployments import ASSISTANT, RATE, TEXT, VOICE, Fake, Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running({"assistant": Fake(ASSISTANT), "text": Fake(TEXT), "voice": Fake(VOICE)}) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def say(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


def wav(seconds: float) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(round(seconds * 8000), np.float32), 8000, format="WAV")
    return file.getvalue()


def test_a_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="text", messages=say("the sea is calm"))
    assert reply.id.startswith("chatcmpl-") and reply.object == "chat.completion" and reply.model == "text"
    [choice] = reply.choices
    assert choice.message.role == "assistant" and choice.message.content == "the sea is calm"
    assert choice.finish_reason == "stop"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (4, 4, 8)


def test_a_streamed_chat_is_the_same_text(client: openai.OpenAI) -> None:
    events = list(
        client.chat.completions.create(
            model="text", messages=say("the sea is calm"), stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({event.id for event in events}) == 1
    assert events[0].choices[0].delta.role == "assistant"
    texts = [event.choices[0].delta.content for event in events if event.choices]
    assert [text for text in texts if text] == ["the ", "sea ", "is ", "calm"]
    assert events[-2].choices[0].finish_reason == "stop"
    assert events[-1].choices == [] and events[-1].usage is not None and events[-1].usage.completion_tokens == 4


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_reply_is_cut_at_its_limit(name: str, client: openai.OpenAI) -> None:
    limit: Any = {name: 2}
    reply = client.chat.completions.create(model="text", messages=say("one two three"), **limit)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("one two", "length")


def test_a_stop_string_ends_a_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="text", messages=say("one two three"), stop="two")
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("one ", "stop")


def test_choices_have_seeds_of_their_own(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="text", messages=say("seed"), n=3, seed=7)
    assert [choice.message.content for choice in reply.choices] == ["7", "8", "9"]
    assert reply.usage is not None and reply.usage.completion_tokens == 3 and reply.usage.prompt_tokens == 1
    streamed: dict[int, str] = {}
    for event in client.chat.completions.create(model="text", messages=say("seed"), n=3, seed=7, stream=True):
        for choice in event.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == {0: "7", 1: "8", 2: "9"}


def test_without_a_seed_each_reply_has_another(client: openai.OpenAI) -> None:
    replies = [client.chat.completions.create(model="text", messages=say("seed")) for _ in range(3)]
    assert len({reply.choices[0].message.content for reply in replies}) == 3


def test_log_probabilities(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="text", messages=say("one two"), logprobs=True, top_logprobs=2)
    found = reply.choices[0].logprobs
    assert found is not None and found.content is not None
    assert [item.token for item in found.content] == ["one ", "two"]
    assert [item.logprob for item in found.content] == [-0.5, -0.5]
    assert [[best.logprob for best in item.top_logprobs] for item in found.content] == [[-0.5, -1.5]] * 2
    assert found.content[0].bytes == list(b"one ")
    events = client.chat.completions.create(model="text", messages=say("one two"), logprobs=True, stream=True)
    streamed = [e.choices[0].logprobs.content for e in events if e.choices and e.choices[0].logprobs]
    assert [item.token for items in streamed if items for item in items] == ["one ", "two"]


def test_a_token_that_is_not_the_best_has_its_own_log_probability(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="text", messages=say("first third"), logprobs=True)
    found = reply.choices[0].logprobs
    assert found is not None and found.content is not None
    assert [item.logprob for item in found.content] == [-0.5, -2.5]
    assert [item.top_logprobs for item in found.content] == [[], []]
    completed = client.completions.create(model="text", prompt="first third", logprobs=0).choices[0].logprobs
    assert completed is not None and completed.token_logprobs == [-0.5, -2.5]


def test_a_spoken_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="assistant",
        messages=say("one two three"),
        modalities=["text", "audio"],
        audio={"voice": "Ann", "format": "wav"},
    )
    message = reply.choices[0].message
    assert message.content is None and message.audio is not None
    assert message.audio.transcript == "one two three" and message.audio.id.startswith("audio_")
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(message.audio.data)))
    assert (len(samples), rate) == (3 * RATE // 10, RATE)


def test_a_spoken_reply_while_it_is_made(client: openai.OpenAI) -> None:
    events = client.chat.completions.create(
        model="assistant",
        messages=say("one two three"),
        modalities=["text", "audio"],
        audio={"voice": "Ann", "format": "pcm16"},
        stream=True,
    )
    deltas = [event.choices[0].delta.to_dict() for event in events if event.choices]
    heard: list[Any] = [delta["audio"] for delta in deltas if "audio" in delta]
    assert "".join(one.get("transcript", "") for one in heard) == "one two three"
    pcm = b"".join(base64.b64decode(one["data"]) for one in heard if "data" in one)
    assert len(pcm) == 2 * 3 * RATE // 10
    assert len({one["id"] for one in heard}) == 1


def test_sound_that_is_sent(client: openai.OpenAI) -> None:
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(2)).decode(), "format": "wav"}}
    content = [{"type": "text", "text": "heard"}, part]
    reply = client.chat.completions.create(model="assistant", messages=say(content), extra_body={"stages": True})
    assert reply.choices[0].message.content == "2.0 seconds heard"
    extra = reply.model_extra or {}
    assert list(extra["stages"]) == ["asr", "thinker"]
    assert extra["transcripts"] == {"asr": "2.0 seconds"}


def test_an_earlier_spoken_reply_is_what_it_said(client: openai.OpenAI) -> None:
    spoken: Any = {"modalities": ["text", "audio"]}
    first = client.chat.completions.create(model="assistant", messages=say("one two"), **spoken)
    turns = [*say("one two"), first.choices[0].message, *say("and three")]
    reply = client.chat.completions.create(model="assistant", messages=turns)
    assert reply.usage is not None and reply.usage.prompt_tokens == 2 + 2 + 2


def test_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="text", prompt=["one two", "three"], echo=True, logprobs=1)
    assert reply.object == "text_completion"
    assert [choice.text for choice in reply.choices] == ["one twoone two", "threethree"]
    found = reply.choices[0].logprobs
    assert found is not None and found.tokens == ["one ", "two"] and found.text_offset == [7, 11]
    events = list(client.completions.create(model="text", prompt="one two", stream=True))
    assert "".join(event.choices[0].text for event in events) == "one two"
    assert events[-1].choices[0].finish_reason == "stop"


def test_a_voice_alone_gives_sound_alone(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="voice", messages=say("one two"))
    assert reply.choices[0].message.audio is not None
    with pytest.raises(openai.BadRequestError, match="what this deployment gives: audio") as caught:
        client.chat.completions.create(model="voice", messages=say("one"), modalities=["text"])
    assert caught.value.code == "unsupported_modality"


def part_of(**part: Any) -> dict[str, Any]:
    return {"messages": say([part])}


@pytest.mark.parametrize(
    ("change", "where", "word"),
    [
        ({"model": "txt"}, "model", "did you mean 'text'"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"n": 99}, "n", "8"),
        ({"seed": -1}, "seed", "0"),
        ({"messages": []}, "messages", "1"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role", "user"),
        ({"messages": [{"role": "user", "content": "x", "nme": 1}]}, "messages[0].nme", "did you mean 'name'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "nothing"),
        ({"messages": [{"role": "user", "content": ""}]}, "request", "empty prompt"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "schema"),
        ({"tools": [{"type": "function"}]}, "tools", "nothing"),
        ({"modalities": ["audio"]}, "modalities", "what this deployment gives: text"),
        ({"frequency_penalty": 1}, "body", "repetition_penalty"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
        ({"style": {"speed": 2}}, "style.speed", "no stage of this graph reads a style"),
        ({"language": "de"}, "request", "language"),
        ({"sampling": {"talker": {"top_j": 1}}}, "sampling.talker.top_j", "top_p"),
        (part_of(type="txt", text="x"), "messages[0].content[0].type", "did you mean 'text'"),
        (part_of(type="audio", audio="/etc/passwd"), "messages[0].content[0].type", "input_audio"),
        (
            part_of(type="image_url", image_url={"url": "file:///etc/passwd"}),
            "messages[0].content[0].image_url.url",
            "opens no URL",
        ),
        (
            part_of(type="input_audio", input_audio={"data": "no base64!"}),
            "messages[0].content[0].input_audio.data",
            "base64",
        ),
        (
            part_of(type="input_audio", input_audio={"data": "AAAA"}),
            "messages[0].content[0].input_audio.data",
            "a sound file",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(change: Any, where: str, word: str, server: Running) -> None:
    body = {"model": "text", "messages": say("one"), **change}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert error["param"] == where and word in error["message"], error
    assert error["type"] == "invalid_request_error"


def test_every_fault_is_told_at_once(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="text", messages=say("x"), temperature=9, top_p=9, n=99)
    body: Any = caught.value.body
    assert [problem["where"] for problem in body["problems"]] == ["temperature", "top_p", "n"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_says_why_and_no_more(stream: bool, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt: got 'fail'") as caught:
        client.chat.completions.create(model="text", messages=say("fail"), stream=stream)
    assert "request " not in str(caught.value)
    with pytest.raises(openai.InternalServerError) as hidden:
        client.chat.completions.create(model="text", messages=say("break"), stream=stream)
    assert "secret" not in str(hidden.value)


def test_a_stream_that_fails_in_the_middle_raises_in_the_client(client: openai.OpenAI) -> None:
    said = []
    with pytest.raises(openai.APIError, match="got 'fail'"):
        for event in client.chat.completions.create(model="text", messages=say("one fail"), stream=True):
            said.append(event.choices[0].delta.content)
    assert "one " in said
