"""Media that a client sends: bytes checked against the limits, and kept in files for as long as their request runs.

Nothing that a client names is opened: no path, no URL.
"""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from framework.errors import ConfigError, Problem, nearest
from framework.io.audio import seconds_of
from framework.serve.settings import Limits

_DATA = re.compile(r"data:(?P<type>[\w.+-]*/?[\w.+-]*)(?:;[\w=.+-]+)*;base64,", re.ASCII)
_SUFFIX = re.compile(r"[a-z0-9]{1,8}")

# By the `type` of a part: the kind of media that it is, the object that has it, and the key of its data in there.
PARTS: Mapping[str, tuple[str, str]] = {
    "input_audio": ("audio", "data"),
    "audio_url": ("audio", "url"),
    "image_url": ("image", "url"),
    "video_url": ("video", "url"),
}


class Media:
    """The media of one request. A context manager: leaving it removes the files."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._folder: TemporaryDirectory[str] | None = None
        self._count = 0

    def __enter__(self) -> Media:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def part(self, part: Mapping[str, Any], where: str) -> dict[str, Any]:
        """One part of a message's content, as request files spell it. Raises ConfigError for what is wrong with it."""
        kind = part.get("type")
        if kind == "text":
            _only(part, ("type", "text"), where)
            text = part.get("text")
            if not isinstance(text, str):
                raise ConfigError(Problem(where=f"{where}.text", got=_shown(text), expected="text"))
            return {"type": "text", "text": text}
        if not isinstance(kind, str) or kind not in PARTS:
            expected = f"one of text, {', '.join(PARTS)}"
            hint = nearest(kind, ("text", *PARTS)) if isinstance(kind, str) else ""
            raise ConfigError(Problem(where=f"{where}.type", got=_shown(kind), expected=expected, hint=hint))
        _only(part, ("type", kind), where)
        media, key = PARTS[kind]
        held, place = part.get(kind), f"{where}.{kind}"
        if not isinstance(held, Mapping):
            raise ConfigError(Problem(where=place, got=_shown(held), expected=f'an object: {{"{key}": ...}}'))
        _only(held, (key, "format", "detail"), place)
        data = held.get(key)
        if not isinstance(data, str):
            raise ConfigError(Problem(where=f"{place}.{key}", got=_shown(data), expected="base64 text"))
        content = decoded(data, f"{place}.{key}", url=key == "url")
        named = held.get("format", "")
        return {"type": media, media: str(self.keep(media, content, f"{place}.{key}", suffix=str(named)))}

    def keep(self, media: str, content: bytes, where: str, suffix: str = "") -> Path:
        """Write the bytes to a file of their own, when they are within the limits. Raises ConfigError."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="multistage-request-")
        ending = f".{suffix.lower()}" if _SUFFIX.fullmatch(suffix.lower()) else ""
        path = Path(self._folder.name) / f"{media}{self._count}{ending}"
        self._count += 1
        path.write_bytes(content)
        try:
            _CHECKS[media](path, content, self._limits)
        except ConfigError as error:
            # The place in the body says more to the client than a file of ours.
            said = [
                Problem(where=where, got=p.got.replace(str(path), media), expected=p.expected) for p in error.problems
            ]
            raise ConfigError(said) from error
        return path


def decoded(text: str, where: str, *, url: bool) -> bytes:
    """The bytes of base64 text, or of a `data:` URL. Raises ConfigError; no other URL is followed."""
    match = _DATA.match(text)
    if url and match is None:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        hint = "the server opens no URL and no path of a client"
        raise ConfigError(Problem(where=where, got=repr(shown), expected="data:<type>;base64,<data>", hint=hint))
    try:
        content = base64.b64decode(text[match.end() :] if match else text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(Problem(where=where, got=f"no base64: {error}", expected="base64 text")) from error
    if not content:
        raise ConfigError(Problem(where=where, got="no bytes", expected="a file in base64"))
    return content


def _check_sound(path: Path, content: bytes, limits: Limits) -> None:
    seconds_of(path, limits.sound_s)


def _check_picture(path: Path, content: bytes, limits: Limits) -> None:
    """From its head alone: what a picture unpacks to is not unpacked here."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        hint = "pip install 'multistage[media]'"
        problem = Problem(where="image", got="no package pillow", expected="the extra 'media'", hint=hint)
        raise ConfigError(problem) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(BytesIO(content)) as image:
                width, height = image.size
    except Image.DecompressionBombError as error:
        raise ConfigError(Problem(where="image", got=str(error), expected=_pixels(limits))) from error
    except Exception as error:  # its decoders raise what they like for a file that is damaged
        raise ConfigError(
            Problem(where="image", got="no picture", expected="a picture (png, jpg, webp ...)")
        ) from error
    if width * height > limits.pixels:
        raise ConfigError(Problem(where="image", got=f"{width} x {height} pixels", expected=_pixels(limits)))


def _check_video(path: Path, content: bytes, limits: Limits) -> None:
    from framework.io.video import video_info

    info = video_info(path)
    if info.width * info.height > limits.pixels:
        got = f"{info.width} x {info.height} pixels"
        raise ConfigError(Problem(where="video", got=got, expected=_pixels(limits)))
    if info.frames / info.fps > limits.sound_s:
        got, expected = f"{info.frames / info.fps:.0f} s", f"at most {limits.sound_s:g} s"
        raise ConfigError(Problem(where="video", got=got, expected=expected))


_CHECKS = {"audio": _check_sound, "image": _check_picture, "video": _check_video}


def _pixels(limits: Limits) -> str:
    return f"at most {limits.pixels:,} pixels"


def _only(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    problems = [
        Problem(where=f"{where}.{key}", got="an unknown field", expected="a known field", hint=nearest(str(key), known))
        for key in given
        if key not in known
    ]
    if problems:
        raise ConfigError(problems)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
