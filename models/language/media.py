"""What a backbone needs from a family whose prompts hold sounds and pictures.

A reader turns each part of a message into features, then a prompt with one placeholder a part into one with a token a
feature, where every token has a rotary position. The config.json beside an engine says which reader it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from framework.errors import Problem, StageError
from framework.parsing import read_object

# `model_type` of config.json -> module and class that read its media.
READERS = {"qwen3_omni_moe": "models.qwen3_encoders.processing:Reader"}
ENCODERS = {"audio": "audio", "image": "visual", "video": "visual"}  # the folder of the engine that reads a kind

Part = Mapping[str, Any]
Float32 = np.ndarray[Any, np.dtype[np.float32]]


@attrs.frozen(kw_only=True, eq=False)
class MediaPrompt:
    """A prompt as the backbone reads it.

    Attributes:
        ids: int64 [tokens].
        positions: float32 [3, tokens], in time, height and width.
        following: rotary position of the first token behind the prompt, in all three.
        is_feature: bool [tokens], tokens whose embedding is replaced.
        features: float32 [features, hidden], one for each of these, in order.
        deepstack: float32 [levels, features, hidden], zero where a level adds nothing; None without levels.
    """

    ids: np.ndarray[Any, np.dtype[np.int64]]
    positions: Float32
    following: float
    is_feature: np.ndarray[Any, np.dtype[np.bool_]]
    features: Float32
    deepstack: Float32 | None

    @classmethod
    def plain(cls, ids: Sequence[int]) -> MediaPrompt:
        """Text alone."""
        count = len(ids)
        positions = np.broadcast_to(np.arange(count, dtype=np.float32), (3, count))
        return cls(
            ids=np.array(ids, np.int64),
            positions=positions,
            following=float(count),
            is_feature=np.zeros(count, np.bool_),
            features=np.zeros((0, 0), np.float32),
            deepstack=None,
        )


class MediaReader(Protocol):
    """Made as `cls(config, folders, backend)`: config.json's content, the folder of each encoder that was built
    (audio, visual), and the backend to open them with when they are first needed."""

    def perceive(self, part: Part) -> Any:
        """Features of a part of a message. Raises StageError for one that cannot be read."""

    def arrange(self, ids: Sequence[int], found: Sequence[Any]) -> MediaPrompt:
        """The prompt with everything `perceive` found, in order, in the places of its placeholders. Raises StageError
        unless there is a placeholder for each."""

    def close(self) -> None:
        """Free engines."""


def encoder_folders(artifact: Path, folder: str) -> dict[str, Path]:
    """The encoders' engines that are there: below the artifact's `folder` ("" is the artifact) or its `multimodal`."""
    from framework.engines import manifest

    places = [artifact / folder, artifact / folder / "multimodal"]
    found = {}
    for encoder in sorted(set(ENCODERS.values())):
        candidates = [place / encoder for place in places if (place / encoder / manifest.FILE_NAME).is_file()]
        if candidates:
            found[encoder] = candidates[0]
    return found


def open_reader(artifact: Path, folders: Mapping[str, Path], backend: Any) -> MediaReader | None:
    """The reader of what the artifact's config.json names; None for a model of text alone."""
    path = artifact / "config.json"
    config = read_object(path) if path.exists() else {}
    named = READERS.get(str(config.get("model_type", "")))
    if named is None:
        return None
    module, _, name = named.partition(":")
    reader: MediaReader = getattr(import_module(module), name)(config, folders, backend)
    return reader


def media_parts(messages: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The parts that are no text, in order."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if not isinstance(content, str) for part in content or ()]
    return [part for part in parts if part.get("type") != "text"]


def check_kinds(messages: Sequence[Mapping[str, Any]], readable: Collection[str], *, buildable: bool) -> None:
    """Raises StageError naming every part of a kind that cannot be read here; a template might drop it, or write a
    placeholder that means nothing. `buildable`: a build with more components could read more."""
    problems = []
    for number, message in enumerate(messages):
        content = message.get("content")
        for part in () if isinstance(content, str) else content or ():
            kind = part.get("type")
            if kind != "text" and kind not in readable:
                built = " or ".join(["text", *readable])
                expected = f"{built}, which is all this model takes"
                hint = f"build the component {ENCODERS[kind]!r} too" if buildable and kind in ENCODERS else ""
                where = f"messages[{number}].content"
                problems.append(Problem(where=where, got=f"a part of type {kind!r}", expected=expected, hint=hint))
    if problems:
        raise StageError(problems)
