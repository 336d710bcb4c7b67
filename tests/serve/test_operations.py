"""What an operator relies on: queues, slow and leaving clients, keys, limits, numbers, stopping."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from framework.errors import ConfigError
from framework.serve.server import listen
from framework.serve.settings import Limits, read_keys
from tests.serve.deployments import ASSISTANT, TEXT, VOICE, Fake, Running, running, wait_until
from tests.serve.test_chat import say, wav

LONG = " ".join(["word"] * 2000)


def client_of(server: Running, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", **{"api_key": "none", "max_retries": 0, **options})


def chat(server: Running, text: str = "one two", model: str = "text", **options: Any) -> httpx.Response:
    body = {"model": model, "messages": say(text), **options}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def posted(body: bytes) -> bytes:
    """A request as it stands on the wire."""
    head = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body


# --- what is there -------------------------------------------------------------------------------------------------


def test_models_health_and_graph() -> None:
    with running({"assistant": Fake(ASSISTANT), "voice": Fake(VOICE)}) as server:
        client = client_of(server)
        assert [model.id for model in client.models.list()] == ["assistant", "voice"]
        found: Any = client.models.retrieve("assistant").to_dict()
        assert found["reads"] == ["audio", "messages", "voice"] and found["gives"] == ["audio", "text"]
        with pytest.raises(openai.NotFoundError, match="did you mean 'voice'"):
            client.models.retrieve("voic")
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert "asr" in httpx.get(f"{server.url}/graph").text
        assert "asr" not in httpx.get(f"{server.url}/graph", params={"model": "voice"}).text


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/v1/chat/completion", 404, "did you mean '/v1/chat/completions'"),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("GET", "/assets/../../settings.py", 404, "not_found"),
        ("GET", "/assets/secret", 404, "not_found"),
    ],
)
def test_a_wrong_path_is_told_with_the_right_one(method: str, path: str, status: int, word: str) -> None:
    with running({"text": Fake(TEXT)}) as server:
        answer = httpx.request(method, server.url + path)
        assert answer.status_code == status and word in answer.text


def test_engines_are_opened_by_the_first_request_and_closed_at_the_end() -> None:
    first, second = Fake(TEXT), Fake(VOICE)
    with running({"text": first, "voice": second}) as server:
        assert (first.opened, second.opened) == (0, 0)
        assert chat(server).status_code == 200
        assert chat(server).status_code == 200
        assert (first.opened, second.opened) == (1, 0)
    assert (first.closed, second.closed) == (1, 0)


def test_engines_that_do_not_open_are_the_answer_and_ready_says_so() -> None:
    from framework.errors import Problem

    fault = ConfigError(Problem(where="engine", got="none", expected="one"))
    with running({"text": Fake(TEXT, fault=fault)}) as server:
        assert chat(server).status_code == 400
        answer = httpx.get(f"{server.url}/ready")
        assert answer.status_code == 503 and answer.json()["broken"] == ["text"]


def test_numbers_for_prometheus() -> None:
    with running({"assistant": Fake(ASSISTANT)}) as server:
        chat(server, "one two three", model="assistant", modalities=["text", "audio"])
        chat(server, "fail", model="assistant")
        text = httpx.get(f"{server.url}/metrics").text
    assert 'multistage_requests_total{end="ok",model="assistant"} 1.0' in text
    assert 'multistage_requests_total{end="failed",model="assistant"} 1.0' in text
    assert 'multistage_tokens_total{kind="generated",model="assistant"} 3.0' in text
    assert 'multistage_sound_seconds_total{model="assistant"} 0.3' in text
    assert 'multistage_first_token_seconds_count{model="assistant"} 1.0' in text
    assert 'multistage_first_sound_seconds_count{model="assistant"} 1.0' in text
    assert 'multistage_rows{model="assistant"} 4.0' in text
    assert 'multistage_stage_steps_total{model="assistant",stage="thinker"}' in text
    assert 'multistage_answers_total{path="/v1/chat/completions",status="200"} 1.0' in text


# --- many requests -------------------------------------------------------------------------------------------------


def test_requests_join_and_leave_a_running_batch() -> None:
    """A short request that comes late ends long before the long ones that run."""
    deployment = Fake(TEXT, pause=0.005)
    with running({"text": deployment}) as server, ThreadPoolExecutor(4) as pool:
        long = [pool.submit(chat, server, " ".join(["word"] * 200)) for _ in range(3)]
        wait_until(lambda: deployment.held == 3)
        assert chat(server, "one two").json()["choices"][0]["message"]["content"] == "one two"
        assert not any(one.done() for one in long)
        assert all(one.result().json()["usage"]["completion_tokens"] == 200 for one in long)


def test_a_full_queue_says_when_to_come_again() -> None:
    deployment = Fake(TEXT, rows=1, pause=0.005)
    with running({"text": deployment}, limits=Limits(queue=1)) as server, ThreadPoolExecutor(4) as pool:
        first = pool.submit(chat, server, " ".join(["word"] * 100))
        wait_until(lambda: deployment.held == 1)
        second = pool.submit(chat, server, "one")
        wait_until(lambda: server.house["text"].under_way == 2)
        third = chat(server)
        assert third.status_code == 429 and int(third.headers["retry-after"]) >= 1
        assert third.json()["error"]["code"] == "queue_full"
        assert first.result().status_code == second.result().status_code == 200


def test_a_deadline_ends_a_request() -> None:
    deployment = Fake(TEXT, pause=0.005)
    with running({"text": deployment}) as server:
        answer = chat(server, LONG, deadline_s=0.2)
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline_exceeded"
        assert deployment.held == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_row(stream: bool) -> None:
    deployment = Fake(TEXT, pause=0.002)
    with running({"text": deployment}) as server:
        body = json.dumps({"model": "text", "messages": say(LONG), "stream": stream}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(posted(body))
            wait_until(lambda: deployment.held == 1)
        wait_until(lambda: deployment.held == 0, 2.0)
        assert chat(server).status_code == 200


def test_a_client_that_reads_nothing_loses_its_own_request_and_no_other() -> None:
    deployment = Fake(TEXT)
    limits = Limits(unread=200, send_s=1.0)
    with running({"text": deployment}, limits=limits) as server:
        text = " ".join(["word" * 200] * 20_000)
        body = json.dumps(
            {
                "model": "text",
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": text[n : n + 100_000]} for n in range(0, 1_600_000, 100_000)
                        ],
                    }
                ],
                "stream": True,
            }
        ).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(posted(body))
            wait_until(lambda: deployment.runners["thinker"].steps > 100)  # type: ignore[attr-defined]
            assert chat(server).status_code == 200
            wait_until(lambda: server.house["text"].under_way == 0)
        assert chat(server).status_code == 200


def test_random_disconnects_leave_nothing_behind() -> None:
    deployment = Fake(TEXT, pause=0.0005)
    random = np.random.default_rng(0)
    with running({"text": deployment}, limits=Limits(queue=500)) as server:
        body = json.dumps({"model": "text", "messages": say(" ".join(["word"] * 50)), "stream": True}).encode()
        whole = posted(body)

        def leave(cut: int, wait: float) -> None:
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(whole[:cut])
                time.sleep(wait)

        with ThreadPoolExecutor(16) as pool:
            cuts = random.integers(1, 2 * len(whole), 200).tolist()
            list(pool.map(leave, cuts, random.uniform(0, 0.05, 200).tolist()))
        wait_until(lambda: deployment.held == 0 and server.house["text"].under_way == 0)
        assert chat(server).status_code == 200


# --- keys and limits -----------------------------------------------------------------------------------------------


def test_a_key() -> None:
    with running({"text": Fake(TEXT)}, keys=("right", "also right")) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert httpx.get(f"{server.url}/").status_code == 200
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        with pytest.raises(openai.AuthenticationError):
            client_of(server, api_key="wrong").models.list()
        assert len(client_of(server, api_key="also right").models.list().data) == 1


def test_keys_of_a_file_and_of_the_environment(tmp_path: Path) -> None:
    assert not read_keys(None, {})
    assert read_keys(None, {"MULTISTAGE_API_KEY": "one\n"}).accept("one")
    file = tmp_path / "keys"
    file.write_text("# of the page\n one \n\ntwo\n")
    keys = read_keys(file, {})
    assert keys.accept("one") and keys.accept("two") and not keys.accept("") and not keys.accept("# of the page")
    file.write_text("\n")
    with pytest.raises(ConfigError, match="without a key"):
        read_keys(file, {})
    with pytest.raises(ConfigError, match="api_key_file"):
        read_keys(tmp_path / "none", {})


@pytest.mark.parametrize("known", [True, False])
def test_a_body_that_is_too_large_is_not_read_to_its_end(known: bool) -> None:
    with running({"text": Fake(TEXT)}, limits=Limits(body_mb=0.1)) as server:
        sent = 0

        def body() -> Iterator[bytes]:
            nonlocal sent
            yield b'{"model": "'
            for _ in range(10_000):
                sent += 100_000
                yield b"x" * 100_000

        headers = {"Content-Type": "application/json"} | ({"Content-Length": "1000000011"} if known else {})
        try:
            answer = httpx.post(f"{server.url}/v1/chat/completions", content=body(), headers=headers)
            assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"
        except httpx.HTTPError:
            pass  # the server closed the connection while the client still wrote
        assert sent < 100_000_000
        assert chat(server).status_code == 200


def sound_part(content: bytes) -> list[Any]:
    return [{"type": "input_audio", "input_audio": {"data": base64.b64encode(content).decode(), "format": "wav"}}]


def test_sound_that_unpacks_to_hours_is_refused() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8000 * 3600, np.float32), 8000, format="FLAC")
    assert len(file.getvalue()) < 200_000
    with running({"assistant": Fake(ASSISTANT)}) as server:
        answer = chat(server, sound_part(file.getvalue()), model="assistant")  # type: ignore[arg-type]
        assert answer.status_code == 400 and "more than 600 s" in answer.text
        assert chat(server, sound_part(wav(1)), model="assistant").status_code == 200  # type: ignore[arg-type]


def test_a_picture_of_50000_pixels_a_side_is_refused_unread() -> None:
    pytest.importorskip("PIL")
    import struct
    import zlib

    def piece(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    image = (
        b"\x89PNG\r\n\x1a\n" + piece(b"IHDR", head) + piece(b"IDAT", zlib.compress(b"\0" * 1000)) + piece(b"IEND", b"")
    )
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(image).decode()}}
    with running({"text": Fake(TEXT)}) as server:
        answer = chat(server, [part])  # type: ignore[arg-type]
        assert answer.status_code == 400 and "pixels" in answer.text


def test_files_of_media_are_removed_with_their_request() -> None:
    import tempfile

    with running({"assistant": Fake(ASSISTANT)}) as server:
        before = set(Path(tempfile.gettempdir()).glob("multistage-request-*"))
        assert chat(server, sound_part(wav(1)), model="assistant").status_code == 200  # type: ignore[arg-type]
        assert chat(server, sound_part(b"no sound"), model="assistant").status_code == 400  # type: ignore[arg-type]
        assert set(Path(tempfile.gettempdir()).glob("multistage-request-*")) <= before


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b"null", b'{"a": NaN', b"\xff\xfe", b"[" * 100_000])
def test_malformed_json(body: bytes) -> None:
    with running({"text": Fake(TEXT)}) as server:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 400 and answer.json()["error"]["message"], answer.text
        assert "Traceback" not in answer.text


@pytest.mark.parametrize("body", [b'{"seed": ' + b"9" * 6000 + b"}", b"[" * 100_000, b'{"model": "\xff"}'])
def test_json_that_no_reader_takes_is_told_what_is_taken(body: bytes) -> None:
    with running({"text": Fake(TEXT)}) as server:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert "JSON in UTF-8, its integers of at most 4,300 digits" in answer.json()["error"]["message"]


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port}, where another program listens"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="an address of this machine"):
        listen("192.0.2.1", 0)


def test_threads_end_with_the_server() -> None:
    before = threading.active_count()
    with running({"text": Fake(TEXT)}) as server:
        chat(server)
    wait_until(lambda: threading.active_count() <= before + 1)
