"""Pictures and frames to patches: sizes, order, places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from framework.errors import ConfigError, Problem
from framework.io.images import Pixels
from models.qwen3_encoders.config import PixelConfig, VideoConfig

Array = np.ndarray[Any, Any]
LONGEST = 200  # times its other side


def fit(height: int, width: int, config: PixelConfig, where: str) -> tuple[int, int]:
    """Height and width to resize to: whole blocks, about the same shape, within the limits on pixels.

    Raises ConfigError for a strip. The published `smart_resize`.
    """
    block = config.block
    if max(height, width) > LONGEST * min(height, width):
        got = f"a picture of {width} x {height} pixels"
        raise ConfigError(Problem(where=where, got=got, expected=f"one side at most {LONGEST} times the other"))
    rows, columns = round(height / block), round(width / block)
    pixels = rows * columns * block**2
    if pixels > config.max_pixels:
        shrink = math.sqrt(height * width / config.max_pixels)
        rows, columns = (max(1, math.floor(side / shrink / block)) for side in (height, width))
    elif pixels < config.min_pixels:
        grow = math.sqrt(config.min_pixels / (height * width))
        rows, columns = (math.ceil(side * grow / block) for side in (height, width))
    return rows * block, columns * block


def patches(frames: Sequence[Pixels], config: PixelConfig) -> Array:
    """Normalised patches of frames that have whole blocks; the last is repeated to fill its patch in time.

    Returns:
        float32 [grids, tokens, merge², 3 * temporal * patch²], the patches of a token side by side.
    """
    size, merge, depth = config.patch_size, config.merge_size, config.temporal_patch_size
    stacked = np.stack([*frames, *[frames[-1]] * (-len(frames) % depth)])  # [frames, height, width, 3]
    count, height, width, _ = stacked.shape
    split = stacked.reshape(
        count // depth, depth, height // size // merge, merge, size, width // size // merge, merge, size, 3
    )
    # [grids, rows, columns, merge, merge, 3, depth, size, size]
    ordered = split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    scale = 1.0 / (255.0 * np.array(config.image_std))
    shift = np.array(config.image_mean) / np.array(config.image_std)
    values = ordered.reshape(-1, 3, depth * size**2) * scale.astype(np.float32)[:, None]
    values -= shift.astype(np.float32)[:, None]
    return values.reshape(count // depth, -1, merge**2, 3 * depth * size**2)


def sampled(total: int, rate: float, fps: float, config: VideoConfig) -> list[int]:
    """Numbers of the frames to look at, of a video of `total` frames that runs at `rate` a second.

    The published `sample_frames`: `fps` a second, not less than the least and not more than the most, in whole patches.
    A video of a single frame is that frame.
    """
    depth = config.pixels.temporal_patch_size
    most = min(config.max_frames, total) // depth * depth
    count = math.floor(min(max(total / rate * fps, config.min_frames), most, total) / depth) * depth
    if not count:
        return list(range(total))
    # In fp32, as published: that decides which of two frames a whole number falls on.
    return [int(np.float32(number * (total / count))) for number in range(count)]


@lru_cache(maxsize=16)
def places(height: int, width: int, merge: int, side: int) -> tuple[Array, Array, Array]:
    """Where the patches of a grid [height, width] lie, token by token.

    Args:
        side: learned position embeddings in a row; they are spread over the grid, corner on corner.

    Returns:
        int64 [tokens, merge², 2], row and column; int64 [tokens, merge², 4], the learned embeddings around; float32 of
        the same shape, the share of each (bilinear).
    """
    row, column = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    positions = np.stack([row, column], axis=-1).reshape(height // merge, merge, width // merge, merge, 2)
    positions = positions.transpose(0, 2, 1, 3, 4).reshape(-1, merge**2, 2)
    (top, low), (left, right) = (_between(positions[..., axis], n, side) for axis, n in ((0, height), (1, width)))
    pairs = [(vertical, horizontal) for vertical in (top, low) for horizontal in (left, right)]
    taps = np.stack([v[0] * side + h[0] for v, h in pairs], axis=-1)
    shares = np.stack([v[1] * h[1] for v, h in pairs], axis=-1)
    return positions.astype(np.int64), taps.astype(np.int64), shares.astype(np.float32)


def _between(index: Array, count: int, side: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The two learned places around each of `count`, and their shares."""
    place = index.astype(np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    first = np.floor(place)
    share = place - first
    return (first, 1 - share), (np.minimum(first + 1, side - 1), share)
