"""What was heard and seen, in the places of a prompt's placeholders, and where every token stands in time and space.

Reference: transformers' Qwen3OmniMoeProcessor, which expands placeholders, and `get_rope_index` of its model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.errors import Problem, StageError
from models.language.media import Float32, MediaPrompt
from models.qwen3_encoders.config import MediaTokens
from models.qwen3_encoders.perception import Percept, Perception


@attrs.frozen(kw_only=True, eq=False)
class _Piece:
    """Tokens in a row, positions as `MediaPrompt` has them; `end` is where the text behind it goes on."""

    ids: np.ndarray[Any, np.dtype[np.int64]]
    positions: Float32
    end: float
    features: Float32 | None = None
    deepstack: Float32 | None = None
    is_feature: np.ndarray[Any, np.dtype[np.bool_]] = attrs.field()

    @is_feature.default
    def _all(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.full(len(self.ids), self.features is not None)


class Reader:
    """See `models.language.media.MediaReader`."""

    def __init__(self, config: Mapping[str, Any], folders: Mapping[str, Path], backend: Any) -> None:
        self._config = MediaTokens.from_checkpoint(config)
        self._perception = Perception(folders.get("audio"), folders.get("visual"), backend)

    def perceive(self, part: Mapping[str, Any]) -> Percept:
        return self._perception.perceive(part)

    def arrange(self, ids: Sequence[int], found: Sequence[Percept]) -> MediaPrompt:
        return arrange(self._config, ids, found)

    def close(self) -> None:
        self._perception.close()


def arrange(config: MediaTokens, ids: Sequence[int], found: Sequence[Percept]) -> MediaPrompt:
    """A prompt of one placeholder a medium, with everything that was heard and seen.

    Args:
        found: in the order of the messages.

    Raises:
        StageError: not as many placeholders of a kind as there are media of it.
    """
    kinds = {config.audio: "audio", config.image: "image", config.video: "video"}
    places = [place for place, token in enumerate(ids) if token in kinds]
    _check_counts(Counter(kinds[ids[place]] for place in places), Counter(percept.kind for percept in found))
    waiting = {kind: iter([p for p in found if p.kind == kind]) for kind in kinds.values()}
    pieces: list[_Piece] = []
    at, start = 0.0, 0
    for place in places:
        pieces.append(_text(ids[start:place], at))
        pieces.append(_medium(config, next(waiting[kinds[ids[place]]]), pieces[-1].end))
        at, start = pieces[-1].end, place + 1
    pieces.append(_text(ids[start:], at))
    positions = np.concatenate([piece.positions for piece in pieces], axis=1)
    features = [piece.features for piece in pieces if piece.features is not None]
    return MediaPrompt(
        ids=np.concatenate([piece.ids for piece in pieces]),
        positions=positions,
        following=float(positions.max(initial=-1.0)) + 1.0,
        is_feature=np.concatenate([piece.is_feature for piece in pieces]),
        features=np.concatenate(features) if features else np.zeros((0, config.width), np.float32),
        deepstack=_deepstack(config, pieces),
    )


def _check_counts(places: Mapping[str, int], found: Mapping[str, int]) -> None:
    problems = [
        Problem(
            where="messages",
            got=f"{found.get(kind, 0)} of kind {kind}, and {places.get(kind, 0)} placeholders in the prompt",
            expected="a placeholder for each",
            hint="the chat template writes them; apply_chat_template=false leaves them to the text",
        )
        for kind in sorted({*places, *found})
        if places.get(kind, 0) != found.get(kind, 0)
    ]
    if problems:
        raise StageError(problems)


def _text(ids: Sequence[int], at: float) -> _Piece:
    return _Piece(ids=np.array(ids, np.int64), positions=_line(len(ids), at), end=at + len(ids))


def _medium(config: MediaTokens, percept: Percept, at: float) -> _Piece:
    if percept.kind == "audio":
        count = len(percept.values)
        ids = np.full(count, config.audio, np.int64)
        return _Piece(ids=ids, positions=_line(count, at), end=at + count, features=percept.values)
    if percept.audio is not None:
        return _video_with_sound(config, percept, percept.audio, at)
    positions = _grid(config, percept) + np.float32(at)
    return _Piece(
        ids=np.full(len(percept.values), config.image if percept.kind == "image" else config.video, np.int64),
        positions=positions,
        end=float(positions.max()) + 1.0,
        features=percept.values,
        deepstack=percept.deepstack,
    )


def _video_with_sound(config: MediaTokens, percept: Percept, sound: Percept, at: float) -> _Piece:
    """Tokens of both in the order of time, those of the video first where they meet, between marks of sound."""
    seen = _grid(config, percept)
    heard = _line(len(sound.values), 0.0)
    order = np.argsort(np.concatenate([seen[0], heard[0]]), kind="stable")
    is_seen = order < seen.shape[1]
    inner = np.concatenate([seen, heard], axis=1)[:, order] + np.float32(at + 1)
    # What follows is counted from the tokens left when one of the two has ended, though a picture may reach further.
    tail = np.flatnonzero(is_seen != is_seen[-1])
    end = float(inner[:, tail[-1] + 1 if len(tail) else 0 :].max()) + 1.0
    values = np.concatenate([percept.values, sound.values])[order]
    deepstack = None
    if percept.deepstack is not None:
        silent = np.zeros((len(percept.deepstack), *sound.values.shape), np.float32)
        deepstack = np.concatenate([percept.deepstack, silent], axis=1)[:, order]
    marks = np.zeros(len(order) + 2, np.bool_)
    marks[1:-1] = True
    return _Piece(
        ids=np.array(
            [config.audio_start, *np.where(is_seen, config.video, config.audio).tolist(), config.audio_end], np.int64
        ),
        positions=np.concatenate([_line(1, at), inner, _line(1, end)], axis=1),
        end=end + 1.0,
        features=values,
        deepstack=deepstack,
        is_feature=marks,
    )


def _grid(config: MediaTokens, percept: Percept) -> Float32:
    """Positions of a picture's or video's tokens from its first on, float32 [3, tokens]."""
    assert percept.grid is not None, "it was seen"
    frames, height, width = percept.grid
    height, width = height // config.merge, width // config.merge
    time = np.arange(frames, dtype=np.float32)
    if percept.seconds_per_grid is not None:
        time = time * np.float32(percept.seconds_per_grid)
    axes = (time * np.float32(config.positions_per_second), np.arange(height), np.arange(width))
    return np.stack([axis.astype(np.float32).ravel() for axis in np.meshgrid(*axes, indexing="ij")])


def _line(count: int, at: float) -> Float32:
    """Positions of tokens in a row, the same in all three directions."""
    line: Float32 = np.arange(count, dtype=np.float32) + np.float32(at)
    return np.broadcast_to(line, (3, count))


def _deepstack(config: MediaTokens, pieces: Sequence[_Piece]) -> Float32 | None:
    levels, hidden = config.deepstack, config.width
    if not any(piece.deepstack is not None for piece in pieces):
        return None
    parts = [
        np.zeros((levels, len(piece.features), hidden), np.float32) if piece.deepstack is None else piece.deepstack
        for piece in pieces
        if piece.features is not None
    ]
    return np.concatenate(parts, axis=1)
