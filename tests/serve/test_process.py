"""A server as a process: what it does with signals, and what it writes to its log."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.serve.test_chat import say


@contextlib.contextmanager
def process(pause: float = 0.01, grace_s: float = 30.0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.serve.process", str(pause), str(grace_s)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        yield running, running.stdout.readline().strip()
    finally:
        running.kill()
        running.communicate()


def lines(running: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The lines of JSON in its log, once it has ended."""
    _, text = running.communicate(timeout=20)
    assert "Traceback" not in text, text
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_what_it_has_and_refuses_what_is_new(number: int) -> None:
    with process() as (running, address):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        words = " ".join(["word"] * 100)
        events = iter(client.chat.completions.create(model="assistant", messages=say(words), stream=True))
        said = [next(events).choices[0].delta.content for _ in range(5)]
        running.send_signal(number)
        time.sleep(0.2)
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(model="assistant", messages=say("one"))
        assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"]
        assert httpx.get(f"{address}/ready").json()["status"] == "stopping"
        said += [event.choices[0].delta.content for event in events]
        assert "".join(text or "" for text in said) == words
        found = lines(running)
        assert running.returncode == 0
    assert sorted(line["status"] for line in found) == [200, 503]
    first = next(line for line in found if line["status"] == 200)
    assert first["path"] == "/v1/chat/completions" and first["completion_tokens"] == 100 and len(first["id"]) == 16
    assert 0 < first["first_s"] < first["seconds"]


def test_a_conversation_without_a_reply_under_way_is_closed() -> None:
    with process() as (running, address), connect(address.replace("http", "ws") + "/v1/realtime") as socket:
        assert json.loads(socket.recv())["type"] == "session.created"
        running.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        assert running.wait(10) == 0


def test_what_does_not_end_in_time_is_given_up() -> None:
    with process(grace_s=0.5) as (running, address), ThreadPoolExecutor() as pool:
        body = {"model": "assistant", "messages": say(" ".join(["word"] * 3000))}
        asked = pool.submit(httpx.post, f"{address}/v1/chat/completions", json=body, timeout=30)
        time.sleep(0.5)
        begin = time.perf_counter()
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        assert time.perf_counter() - begin < 8
        assert isinstance(asked.exception(), httpx.HTTPError) or asked.result().status_code >= 400


def test_a_second_signal_gives_up_what_runs_and_closes_the_engines() -> None:
    with process() as (running, address), ThreadPoolExecutor() as pool:
        body = {"model": "assistant", "messages": say(" ".join(["word"] * 3000))}
        asked = pool.submit(httpx.post, f"{address}/v1/chat/completions", json=body, timeout=30)
        time.sleep(0.5)
        running.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        running.send_signal(signal.SIGTERM)
        assert running.wait(8) == 0
        assert isinstance(asked.exception(), httpx.HTTPError) or asked.result().status_code >= 400


def test_each_answer_has_the_id_of_its_line_in_the_log() -> None:
    with process(pause=0) as (running, address):
        good = httpx.post(f"{address}/v1/chat/completions", json={"model": "assistant", "messages": say("one")})
        bad = httpx.post(f"{address}/v1/chat/completions", json={"model": "assistent", "messages": say("one")})
        running.send_signal(signal.SIGTERM)
        found = {line["id"]: line for line in lines(running)}
    assert found[good.headers["x-request-id"]]["model"] == "assistant"
    assert "did you mean 'assistant'" in found[bad.headers["x-request-id"]]["error"]
