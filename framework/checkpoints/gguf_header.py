"""The header of a GGUF file: metadata, and where each tensor lies.

It is parsed here: the `gguf` library makes several arrays for every string of the vocabulary, which takes it seconds.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.checkpoints.tensor import Array
from framework.errors import ConfigError, Problem

_ALIGNMENT = 32
# struct codes of the value types; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Types whose bytes are the numbers themselves, with the numpy name.
PLAIN = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
}


@attrs.frozen
class Entry:
    """A tensor: ggml type, shape with rows first, offset in the file and length in bytes."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Metadata by key, and the tensors. Raises ConfigError with every fault."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            magic, version = data[:4], int.from_bytes(data[4:8], "little")
            if magic != b"GGUF" or version not in (2, 3):
                got = f"version {version}" if magic == b"GGUF" else f"first bytes {magic!r}"
                expected = "a little-endian GGUF file, version 2 or 3"
                raise ConfigError(Problem(where=str(path), got=got, expected=expected))
            return _Cursor(data, 8).header(path)
    except (struct.error, IndexError) as error:
        got = "a header that runs past its end"
        problem = Problem(where=str(path), got=got, expected="a whole GGUF file", hint="is it truncated?")
        raise ConfigError(problem) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(Problem(where=str(path), got=str(error), expected="a GGUF file")) from error


class _Cursor:
    """Reads the header's values one after the other; struct.error or IndexError past the end."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self.data, self.position = data, position

    def header(self, path: Path) -> tuple[dict[str, Any], list[Entry]]:
        tensor_count, value_count = self.numbers("Q", 2)
        metadata = {self.string(): self.value(*self.numbers("I", 1)) for _ in range(value_count)}
        raw = [self.tensor_info() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment {alignment!r}")
        start = -(-self.position // alignment) * alignment
        entries: list[Entry] = []
        problems: list[Problem] = []
        for name, dims, kind, offset in raw:
            entry = _entry(path, name, dims, kind, start + offset)
            (entries if isinstance(entry, Entry) else problems).append(entry)  # type: ignore[arg-type]
        problems += _cut_short(path, entries, len(self.data))
        if problems:
            raise ConfigError(problems)
        return metadata, entries

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{code}") * count
        if self.position + size > len(self.data):
            raise IndexError
        values = struct.unpack_from(f"<{count}{code}", self.data, self.position)
        self.position += size
        return values

    def string(self) -> str:
        (length,) = self.numbers("Q", 1)
        end = self.position + length
        if end > len(self.data):
            raise IndexError
        text = self.data[self.position : end].decode()
        self.position = end
        return text

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.numbers(_scalar(kind), 1)[0]
        (inner,) = self.numbers("I", 1)
        (count,) = self.numbers("Q", 1)
        if inner in (_STRING, _ARRAY):
            return [self.value(inner) for _ in range(count)]
        return list(self.numbers(_scalar(inner), count))

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        dims = self.numbers("Q", *self.numbers("I", 1))
        return name, dims, self.numbers("I", 1)[0], self.numbers("Q", 1)[0]


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"metadata value of unknown type {kind}")
    return _SCALARS[kind]


def _entry(path: Path, name: str, dims: tuple[int, ...], kind: int, offset: int) -> Entry | Problem:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    where = f"{path}: {name}"
    try:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        form = GGMLQuantizationType(kind).name
        if form not in PLAIN:
            dequantize_blocks(np.zeros((1, block_bytes), np.uint8), form)
    except (ValueError, KeyError, NotImplementedError):
        return Problem(where=where, got=f"ggml type {kind}", expected="a type that can be dequantised")
    if not dims or dims[0] % block:
        return Problem(where=where, got=f"rows of {dims[:1]}", expected=f"a multiple of {form}'s block of {block}")
    nbytes = math.prod(dims) // block * block_bytes
    return Entry(name, form, tuple(reversed(dims)), offset, nbytes)


def _cut_short(path: Path, entries: list[Entry], size: int) -> list[Problem]:
    """One problem for all tensors whose data runs past the end of the file."""
    outside = [entry for entry in entries if entry.offset + entry.nbytes > size]
    if not outside:
        return []
    got = f"{size} bytes, without the data of {len(outside)} of its {len(entries)} tensors"
    needed = max(entry.offset + entry.nbytes for entry in outside)
    return [Problem(where=str(path), got=got, expected=f"{needed} bytes", hint="is it truncated?")]


def dequantize_blocks(rows: Array, form: str) -> Array:
    """Rows of bytes of a quantised type as float32. Raises NotImplementedError for a type that cannot be."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    return dequantize(rows, GGMLQuantizationType[form])
