"""Parts of messages that name media, and their short forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.execution.request import message_text
from framework.io.messages import Conversation, read_conversation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.wav", "b.wav", "a.jpg", "b.png", "a.mp4", "b.webm"):
        (tmp_path / name).touch()
    (tmp_path / "frames").mkdir()
    return tmp_path


def read(request: dict[str, Any], folder: Path) -> Conversation:
    return read_conversation(request, "request", folder)


def parts(request: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    found = read(request, folder)
    assert not found.problems
    (message,) = found.messages
    return [{k: _names(v, folder) for k, v in part.items()} for part in message["content"]]


def _names(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_names(item, folder) for item in value]
    return value.removeprefix(f"{folder}/") if isinstance(value, str) else value


def user(*content: Any, **settings: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], **settings}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"video": "a.mp4"}, [{"video": "a.mp4"}]),
        ({"video": ["a.mp4", "b.webm"]}, [{"video": "a.mp4"}, {"video": "b.webm"}]),
        ({"video": "frames"}, [{"video": "frames"}]),
        ({"video": ["a.jpg", "b.png"]}, [{"frames": ["a.jpg", "b.png"]}]),
        ({"video": "a.mp4", "fps": 1.0}, [{"video": "a.mp4", "fps": 1.0}]),
        ({"video": "a.mp4", "use_audio_in_video": True}, [{"video": "a.mp4", "use_audio_in_video": True}]),
    ],
    ids=["a file", "files", "a folder", "pictures are frames", "rate", "sound"],
)
def test_short_forms_of_a_video(folder: Path, given: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    text = {"type": "text", "text": "What is it?"}
    assert parts({**given, "prompt": text["text"]}, folder) == [*({"type": "video", **p} for p in expected), text]


def test_short_forms_of_several_media(folder: Path) -> None:
    found = parts({"image": ["a.jpg", "b.png"], "audio": ["a.wav", "b.wav"], "video": "a.mp4"}, folder)
    expected = [("image", "a.jpg"), ("image", "b.png"), ("audio", "a.wav"), ("audio", "b.wav"), ("video", "a.mp4")]
    assert [(part["type"], part[part["type"]]) for part in found] == expected


def test_media_by_kind(folder: Path) -> None:
    found = read({"video": ["a.mp4", "b.webm"], "image": "a.jpg"}, folder)
    assert found.media == {"image": (f"{folder}/a.jpg",), "video": (f"{folder}/a.mp4", f"{folder}/b.webm")}


def test_a_part_wins_over_its_request(folder: Path) -> None:
    one, other = {"type": "video", "video": "a.mp4", "fps": 4.0}, {"type": "video", "video": "b.webm"}
    assert [part["fps"] for part in parts(user(one, other, fps=1.0), folder)] == [4.0, 1.0]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (user({"type": "video"}), "content[0].video: got nothing, expected text"),
        (user({"type": "video", "video": "a.mp4", "frames": ["a.jpg"]}), "got video and frames, expected one of"),
        (user({"type": "video", "video": "c.mp4"}), "content[0].video: got 'c.mp4', expected a file that exists"),
        (user({"type": "video", "video": ["a.mp4"]}), 'content[0].video: got ["a.mp4"], expected text'),
        (user({"type": "video", "video": "a.mp4", "fps": 0}), "content[0].fps: got 0, expected a number above 0"),
        (
            user({"type": "video", "video": "a.mp4", "use_audio_in_vide": True}),
            "unknown key \"use_audio_in_vide\", expected a known key (did you mean 'use_audio_in_video'?)",
        ),
        (user({"type": "video", "frames": ["a.jpg"], "use_audio_in_video": True}), "frames have no sound"),
        ({"video": ["a.jpg", "b.png"], "use_audio_in_video": True}, "frames have no sound"),
        ({"prompt": "Hello", "fps": 2.0}, "got fps and no video"),
        ({"video": "a.mp4", "fps": "two"}, 'request.fps: got "two", expected a number above 0'),
    ],
)
def test_what_cannot_be_a_video(folder: Path, request_: dict[str, Any], said: str) -> None:
    assert said in "\n".join(map(str, read(request_, folder).problems))


@pytest.mark.parametrize(
    ("content", "between", "text"),
    [
        ("plain", "", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "image", "image": "p.png"}, {"type": "text", "text": "b"}], "", "ab"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "\n", "a\nb"),
        ([{"type": "audio", "audio": "a.wav"}], "", ""),
    ],
    ids=["plain", "parts", "joined", "sound"],
)
def test_the_text_of_a_message_is_that_of_its_text_parts(content: Any, between: str, text: str) -> None:
    assert message_text({"role": "user", "content": content}, between) == text
