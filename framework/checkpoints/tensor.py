"""One weight of a checkpoint, read from its file only when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np

Array = np.ndarray[Any, Any]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype called `name`, with bfloat16 and the 8-bit floats that numpy itself lacks."""
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name, name))
    return dtype


@attrs.frozen(kw_only=True, eq=False)
class Blocks:
    """A weight quantised in blocks of 32 along its last axis, as the file has it.

    Attributes:
        format: `Q4_0`: w = (q - 8) * scale; `Q4_1`: w = q * scale + min; `Q8_0`: w = q * scale.
        quants: [..., in]; uint8 in 0..15, one value a byte, for the 4-bit formats, int8 for Q8_0.
        scales: float16 [..., in / 32].
        mins: float16 [..., in / 32] for Q4_1, else None.
    """

    format: str
    quants: Array
    scales: Array
    mins: Array | None = None


@attrs.frozen(kw_only=True, eq=False)
class Tensor:
    """A weight whose bytes lie in `file` as they are used: row-major, little-endian.

    Attributes:
        name: name in the official checkpoint, e.g. `model.layers.0.mlp.up_proj.weight`.
        dtype: numpy (or ml_dtypes) name of what `array()` gives.
        shape: of what `array()` gives; a linear weight is [out, in].
        file, offset, nbytes: where its bytes lie.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    def raw(self) -> Array:
        """Its bytes, uint8 [nbytes], memory-mapped."""
        if not self.nbytes:
            return np.empty(0, np.uint8)
        return np.asarray(np.memmap(self.file, np.uint8, "r", self.offset, (self.nbytes,)))

    def array(self) -> Array:
        """The weight; read-only and memory-mapped where the file has it in this form."""
        return self.raw().view(numpy_dtype(self.dtype)).reshape(self.shape)

    @property
    def block_format(self) -> str:
        """Format of the blocks that `blocks()` gives, "" where it gives none; nothing is read."""
        return ""

    @property
    def in_file(self) -> bool:
        """Whether the file has the weight as `array()` gives it, so that a part of it costs no more than the part."""
        return True

    def blocks(self) -> Blocks | None:
        """The quantised blocks, or None for a weight that is not quantised (or in a format without a carry-over)."""
        return None
