"""Safetensors: an 8-byte header length, a JSON header, the bytes of every tensor one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.checkpoints.tensor import Tensor, numpy_dtype
from framework.errors import ConfigError, Problem, nearest
from framework.parsing import parse_object

_LENGTH = 8
_MAX_HEADER = 100_000_000  # the limit of the format's own library
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Tensors of one file by name; only the header is read.

    Raises ConfigError with every fault of the file: header or data shorter than declared, offsets that overlap, leave
    a gap or do not fit the shape, unsupported dtypes.
    """
    header, start, size = _read_header(path)
    problems: list[Problem] = []
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor = _tensor(path, name, entry, start)
        if isinstance(tensor, Problem):
            problems.append(tensor)
        else:
            tensors[name] = tensor
    problems += _layout_problems(path, tensors, start, size) if not problems else []
    if problems:
        raise ConfigError(problems)
    return tensors


def _read_header(path: Path) -> tuple[Mapping[str, Any], int, int]:
    """Header, offset of the data, size of the file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(_LENGTH), "little")
            if size < _LENGTH or length > min(size - _LENGTH, _MAX_HEADER):
                got = f"{size} bytes" if size < _LENGTH else f"a header of {length} bytes in a file of {size}"
                raise ConfigError(
                    Problem(where=str(path), got=got, expected="a whole safetensors file", hint="is it truncated?")
                )
            text = file.read(length)
    except OSError as error:
        raise ConfigError(
            Problem(where=str(path), got=error.strerror or str(error), expected="a safetensors file")
        ) from error
    return parse_object(text, f"{path}: header"), _LENGTH + length, size


def _tensor(path: Path, name: str, entry: Any, start: int) -> Tensor | Problem:
    where = f"{path}: {name}"
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        expected = "an object with dtype, shape and data_offsets [begin, end]"
        return Problem(where=where, got=str(entry), expected=expected)
    if dtype not in _DTYPES:
        return Problem(where=where, got=f"dtype {dtype}", expected="a supported dtype", hint=nearest(dtype, _DTYPES))
    nbytes = math.prod(shape) * numpy_dtype(_DTYPES[dtype]).itemsize
    if end - begin != nbytes:
        got = f"offsets {begin} to {end}"
        return Problem(where=where, got=got, expected=f"{nbytes} bytes for {dtype} {list(shape)}")
    return Tensor(name=name, dtype=_DTYPES[dtype], shape=shape, file=path, offset=start + begin, nbytes=nbytes)


def _layout_problems(path: Path, tensors: Mapping[str, Tensor], start: int, size: int) -> list[Problem]:
    """Tensors must follow one another without gap or overlap, up to the end of the file."""
    problems = []
    position = start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != position:
            fault = "overlaps the tensor before it" if tensor.offset < position else "leaves a gap before it"
            got = f"offset {tensor.offset - start}, which {fault}"
            problems.append(Problem(where=f"{path}: {tensor.name}", got=got, expected=f"offset {position - start}"))
        position = max(position, tensor.offset + tensor.nbytes)
    if position != size and not problems:
        hint = "is it truncated?" if size < position else ""
        got = f"{size - start} bytes of data"
        problems.append(Problem(where=str(path), got=got, expected=f"{position - start} bytes", hint=hint))
    return problems
