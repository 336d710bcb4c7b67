"""`from framework import Deployment`: a deployment from Python."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import soundfile

from framework import AudioChunk, ConfigError, Deployment, StageError, TextChunk, api
from framework.deployment.system import deployed
from tests.cli.fakes import ALLOWED, BEEP, ECHO, ROWS, engines

GREETING = "good morning to you"


@pytest.fixture(autouse=True)
def fakes_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "deployed", partial(deployed, prefixes=ALLOWED))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return engines(tmp_path / "speaking", ECHO, BEEP)


@pytest.fixture
def speaking(folder: Path) -> Iterator[Deployment]:
    with Deployment.open(folder, overrides=ROWS) as deployment:
        yield deployment


def test_a_request_is_run_to_its_end(speaking: Deployment) -> None:
    reply = speaking.run(prompt=GREETING)
    assert reply.text.split() == GREETING.split()
    assert reply.audio is None and list(reply.stages) == ["echo"] and reply.wall_s > 0


def test_a_reply_is_spoken_when_that_is_asked_for(speaking: Deployment, tmp_path: Path) -> None:
    reply = speaking.run(prompt=GREETING, voice="ann", speak=True)
    assert reply.audio is not None and reply.audio.sample_rate == 8000
    assert list(reply.stages) == ["echo", "beep"]
    reply.save_audio(tmp_path / "reply.wav")
    samples, rate = soundfile.read(tmp_path / "reply.wav")
    assert (len(samples), rate) == (len(reply.audio.samples), 8000)


def test_a_reply_without_sound_cannot_be_saved_as_one(speaking: Deployment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speak=True"):
        speaking.run(prompt=GREETING).save_audio(tmp_path / "reply.wav")


def test_a_conversation_may_be_given_whole(speaking: Deployment) -> None:
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    assert speaking.run(messages=(*said, {"role": "user", "content": "bye"})).text.strip() == "bye"


def test_pieces_come_as_they_are_made(speaking: Deployment) -> None:
    pieces = list(speaking.stream(prompt=GREETING, speak=True))
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextChunk))
    assert text.split() == GREETING.split()
    assert any(isinstance(piece, AudioChunk) for piece in pieces)
    assert isinstance(pieces[0], TextChunk) and isinstance(pieces[-1], AudioChunk)


def test_from_asyncio(speaking: Deployment) -> None:
    async def main() -> tuple[list[str], str]:
        replies = await asyncio.gather(*(speaking.arun(prompt=f"number {n}") for n in range(5)))
        pieces = [piece async for piece in speaking.astream(prompt=GREETING)]
        return [reply.text for reply in replies], "".join(
            piece.text for piece in pieces if isinstance(piece, TextChunk)
        )

    replies, streamed = asyncio.run(main())
    assert [reply.split() for reply in replies] == [["number", str(n)] for n in range(5)]
    assert streamed.split() == GREETING.split()


def test_from_several_threads(speaking: Deployment) -> None:
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda n: speaking.run(prompt=f"number {n}").text.split(), range(24)))
    assert replies == [["number", str(n)] for n in range(24)]


# What is wrong


def test_a_stage_that_breaks_raises_its_error_and_touches_no_other_request(speaking: Deployment) -> None:
    with pytest.raises(StageError, match="got 'fail', expected a word that works"):
        speaking.run(prompt="please fail now")
    with pytest.raises(StageError, match="got 'fail', expected a word that works"):
        list(speaking.stream(prompt="please fail now"))
    with pytest.raises(StageError, match="got 'fail', expected a word that works"):
        asyncio.run(speaking.arun(prompt="please fail now"))
    assert speaking.run(prompt="hello").text.strip() == "hello"


def test_speech_without_a_sound_is_a_failed_request(speaking: Deployment) -> None:
    with pytest.raises(StageError, match="a reply without audio"):
        speaking.run(prompt="mute", speak=True)


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({}, ConfigError, "request.messages: got nothing"),
        ({"promt": "hi"}, ConfigError, "did you mean 'prompt'?"),
        ({"prompt": "hi", "sampling": {"temperature": -1}}, ConfigError, "temperature"),
        ({"prompt": "hi", "priority": "high"}, ConfigError, 'request.priority: got "high", expected an integer'),
        ({"prompt": "hi", "deadline_s": 0}, ConfigError, "request.deadline_s: got 0"),
        ({"prompt": "hi", "voice": "bob"}, StageError, "voice: got 'bob', expected ann"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_before_it_runs(
    speaking: Deployment, asked: Any, error: type[Exception], told: str
) -> None:
    for ask in (speaking.run, speaking.stream):
        with pytest.raises(error) as caught:
            ask(**asked)
        assert told in str(caught.value)


def test_a_request_out_of_time_raises(speaking: Deployment) -> None:
    with pytest.raises(StageError, match="deadline_s"):
        speaking.run(prompt="word " * 25_000, deadline_s=0.05)


def test_a_closed_deployment_takes_no_request(speaking: Deployment) -> None:
    speaking.close()
    with pytest.raises(RuntimeError, match="takes no more requests"):
        speaking.run(prompt="hello")


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("smollm", {}, "deployment: got 'smollm', expected a file of conf/deployment (did you mean 'smollm2'?)"),
        ("./nowhere", {}, "engine_dir: got 'nowhere', which is not there"),
        ("smollm2", {"backend": "gpu"}, "backend: got 'gpu'"),
        ("smollm2", {"overrides": ["prompt=hi", "dump_profile=true"]}, "prompt: got 'hi', expected nothing"),
        ("smollm2", {"overrides": ["sped=1"]}, "sped: got an unknown setting"),
    ],
)
def test_what_is_wrong_with_the_settings_is_told_before_anything_loads(name: str, settings: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Deployment.open(name, **settings)
    assert told in str(caught.value)


# Settings


def test_settings_hold_for_every_request_that_says_nothing_else(folder: Path) -> None:
    config = Deployment.open(folder, sampling={"temperature": 0.5, "seed": 3}, overrides=ROWS)
    with config as deployment:
        assert deployment.run(prompt="hello").stages["echo"].details["temperature"] == 0.5
        reply = deployment.run(prompt="hello", sampling={"temperature": 0.25})
        assert reply.stages["echo"].details["temperature"] == 0.25


def test_overrides_are_those_of_the_command_line(folder: Path) -> None:
    with Deployment.open(str(folder), overrides=[*ROWS, "stages.echo.config.shout=true"]) as deployment:
        assert deployment.run(prompt="hello").text.strip() == "HELLO"


def test_importing_the_framework_loads_next_to_nothing() -> None:
    heavy = "numpy, onnxruntime, hydra, omegaconf, framework.api"
    code = f"import sys, framework; print([n for n in '{heavy}'.split(', ') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import framework

    with pytest.raises(AttributeError, match="no attribute 'Deploymet'"):
        _ = framework.Deploymet  # type: ignore[attr-defined]
