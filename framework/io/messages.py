"""The conversation of a request: checked, in one spelling, with the media it names found on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from framework.errors import Problem
from framework.io import fields as f
from framework.io.images import SUFFIXES as PICTURES

ROLES = f.one_of("system", "user", "assistant")
MAX_MESSAGES, MAX_PARTS, MAX_TEXT = 64, 18, 128 * 1024  # the last in bytes of UTF-8
SHORT_FORMS = {"system": f.TEXT, "image": f.PATHS, "audio": f.PATHS, "video": f.PATHS, "prompt": f.TEXT}
# What holds for every video of a request that does not say otherwise.
VIDEO_SETTINGS = {"fps": f.POSITIVE, "use_audio_in_video": f.FLAG}

# Keys of each part beside `type`; it cannot do without those that its kind names.
_PARTS: Mapping[str, Mapping[str, f.Kind]] = {
    "text": {"text": f.TEXT},
    "image": {"image": f.TEXT, "do_resize": f.FLAG},
    "audio": {"audio": f.TEXT},
    "video": {"video": f.TEXT, "frames": f.TEXTS, **VIDEO_SETTINGS, "do_resize": f.FLAG},
}
_SOURCES: Mapping[str, tuple[str, ...]] = {"video": ("video", "frames")}  # exactly one; of others it is their kind
_PART_TYPE = f.one_of(*_PARTS)
_MESSAGE = {"role": ROLES, "content": f.Kind("text, or a list of parts", lambda v: isinstance(v, (str, list)))}


@attrs.define
class Conversation:
    """The messages of one request.

    Attributes:
        messages: each `{"role": ..., "content": [part, ...]}`; content is a list of parts however it was written.
        media: files named in them by kind (audio, image, video), in order; a kind that is not used is absent.
        problems: everything that is wrong.
    """

    messages: list[dict[str, Any]] = attrs.field(factory=list)
    media: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    problems: list[Problem] = attrs.field(factory=list)

    def complete(self, settings: Mapping[str, Any], where: str) -> None:
        """Give the request's settings to its videos."""
        problems = [VIDEO_SETTINGS[key].problem(f"{where}.{key}", value) for key, value in settings.items()]
        self.problems += filter(None, problems)
        videos = [part for message in self.messages for part in message["content"] if part["type"] == "video"]
        if settings and not videos and not self.problems:
            got = f"{', '.join(settings)} and no video"
            self.problems.append(Problem(where=where, got=got, expected="a video that it is for"))
        for part in videos:
            part.update({key: value for key, value in settings.items() if key not in part})
            if "frames" in part and part.get("use_audio_in_video"):
                got = "use_audio_in_video, and frames"
                self.problems.append(Problem(where=where, got=got, expected="a video file: frames have no sound"))


def read_conversation(request: Mapping[str, Any], where: str, folder: Path) -> Conversation:
    """`messages` of a request, or its short form (system, prompt, audio, image, video).

    Args:
        folder: what relative paths of media start from.
    """
    found = Conversation()
    short = [key for key in SHORT_FORMS if key in request]
    if "messages" in request:
        if short:
            got = f"messages and {', '.join(short)}"
            found.problems.append(Problem(where=where, got=got, expected="messages or the short form, not both"))
        _read_messages(found, request["messages"], f"{where}.messages", folder)
    elif short:
        _read_short_form(found, {key: request[key] for key in short}, where, folder)
    else:
        hint = '{"messages": [{"role": "user", "content": "Hello"}]}'
        found.problems.append(Problem(where=f"{where}.messages", got="nothing", expected="messages", hint=hint))
    found.complete({key: request[key] for key in VIDEO_SETTINGS if key in request}, where)
    parts = [part for message in found.messages if message["role"] != "system" for part in message["content"]]
    if not found.problems and not any(part["type"] != "text" or part["text"].strip() for part in parts):
        found.problems.append(Problem(where=where, got="an empty prompt", expected="text, or a picture or sound"))
    return found


def _read_short_form(found: Conversation, given: Mapping[str, Any], where: str, folder: Path) -> None:
    problems = [SHORT_FORMS[key].problem(f"{where}.{key}", value) for key, value in given.items()]
    found.problems += [problem for problem in problems if problem is not None]
    if found.problems:
        return
    for role in ("system", "user"):
        keys = [key for key in given if (key == "system") == (role == "system")]
        parts = [(_Place(where, key), part) for key in keys for part in _short_parts(key, given[key])]
        if parts:
            found.messages.append({"role": role, "content": _read_parts(found, parts, folder)})


def _short_parts(key: str, value: Any) -> list[dict[str, Any]]:
    if key in ("system", "prompt"):
        return [{"type": "text", "text": value}]
    paths = [value] if isinstance(value, str) else value
    if key == "video" and all(Path(path).suffix.lower() in PICTURES for path in paths):
        return [{"type": "video", "frames": paths}]
    return [{"type": key, key: path} for path in paths]


def _read_messages(found: Conversation, value: Any, where: str, folder: Path) -> None:
    problem = f.LIST.problem(where, value)
    if problem is None and not 1 <= len(value) <= MAX_MESSAGES:
        problem = Problem(where=where, got=f"{len(value)} messages", expected=f"1 to {MAX_MESSAGES}")
    if problem:
        found.problems.append(problem)
        return
    for number, message in enumerate(value):
        place = f"{where}[{number}]"
        _check_keys(found, message, _MESSAGE, place, required=tuple(_MESSAGE))
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, (str, list)):
            continue
        if isinstance(content, list) and len(content) > MAX_PARTS:
            got = f"{len(content)} parts"
            found.problems.append(Problem(where=f"{place}.content", got=got, expected=f"at most {MAX_PARTS}"))
            continue
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        read = _read_parts(found, [(_Place(f"{place}.content[{n}]"), part) for n, part in enumerate(parts)], folder)
        found.messages.append({"role": message.get("role"), "content": read})


@attrs.frozen
class _Place:
    """Where a part stands; one of the short form is the value of the request's own key `spelled`."""

    where: str
    spelled: str = ""

    def of(self, key: str) -> str:
        return f"{self.where}.{self.spelled or key}"


def _read_parts(found: Conversation, parts: Iterable[tuple[_Place, Any]], folder: Path) -> list[dict[str, Any]]:
    """The parts, each given with its place."""
    read = []
    for spelled, part in parts:
        place = spelled.where
        problem = f.OBJECT.problem(place, part) or _PART_TYPE.problem(f"{place}.type", part.get("type"))
        if problem:
            found.problems.append(problem)
            continue
        kind = part["type"]
        keys = _PARTS[kind]
        sources = _SOURCES.get(kind, (kind,))
        given = [key for key in sources if key in part]
        if len(given) > 1:
            got = " and ".join(given)
            found.problems.append(Problem(where=place, got=got, expected=f"one of {', '.join(sources)}"))
        required = () if given else sources[:1]
        if _check_keys(found, part, {"type": _PART_TYPE, **keys}, place, required=required):
            read.append(_found_on_disk(found, part, kind, spelled, folder))
    return read


def _found_on_disk(found: Conversation, part: dict[str, Any], kind: str, place: _Place, folder: Path) -> dict[str, Any]:
    """The part with its paths made absolute; a text part as it is."""
    if kind == "text":
        size = len(part["text"].encode())
        if size > MAX_TEXT:
            problem = Problem(where=place.of("text"), got=f"{size} bytes", expected=f"at most {MAX_TEXT}")
            found.problems.append(problem)
        return dict(part)
    key = next(key for key in _SOURCES.get(kind, (kind,)) if key in part)
    named = part[key] if isinstance(part[key], list) else [part[key]]
    paths = [str((folder / name).absolute()) for name in named]
    for name, path in zip(named, paths, strict=True):
        if expected := _amiss(name, path, folder_too=key == "video"):  # a video may be a folder of frames
            found.problems.append(Problem(where=place.of(key), got=repr(name), expected=expected))
    found.media[kind] = (*found.media.get(kind, ()), *paths)
    return {**part, key: paths if isinstance(part[key], list) else paths[0]}


def _amiss(name: str, path: str, *, folder_too: bool) -> str:
    """What is expected of a file that is read more than once, where `path` is none; else empty."""
    if not name or not os.path.exists(path):
        return "a file that exists"
    if os.path.isdir(path):
        return "" if folder_too else "a file, not a folder"
    return "" if os.path.isfile(path) else "a regular file, not a pipe or device"


def _check_keys(
    found: Conversation, value: Any, kinds: Mapping[str, f.Kind], where: str, required: tuple[str, ...]
) -> bool:
    problem = f.OBJECT.problem(where, value)
    if problem:
        found.problems.append(problem)
        return False
    problems = [
        Problem(where=f"{where}.{key}", got="nothing", expected=kinds[key].expected)
        for key in required
        if key not in value
    ]
    for key, item in value.items():
        if key in kinds:
            problems += filter(None, [kinds[key].problem(f"{where}.{key}", item)])
        else:
            problems.append(f.unknown_key(where, key, kinds))
    found.problems += problems
    return not problems
