"""Reading safetensors: bytes as they are, and every fault of a file at once."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from framework.checkpoints.safetensors import read_safetensors
from framework.errors import ConfigError

RNG = np.random.default_rng(0)
ARRAYS = {
    "matrix": RNG.standard_normal((3, 5)).astype(np.float32),
    "half": RNG.standard_normal(7).astype(np.float16),
    "brain": RNG.standard_normal((2, 2)).astype(ml_dtypes.bfloat16),
    "ids": np.arange(4, dtype=np.int64),
    "flags": np.array([True, False, True]),
    "scalar": np.array(2.5, np.float32),
    "none": np.empty((0, 4), np.float32),
}


def write(path: Path, header: Any, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, dtype: str = "F32", shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_file(ARRAYS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", ARRAYS)
def test_array_is_what_was_saved(saved: Path, name: str) -> None:
    tensors = read_safetensors(saved)
    assert set(tensors) == set(ARRAYS)
    assert (tensors[name].shape, tensors[name].dtype) == (ARRAYS[name].shape, ARRAYS[name].dtype.name)
    assert tensors[name].array().dtype == ARRAYS[name].dtype
    np.testing.assert_array_equal(tensors[name].array(), ARRAYS[name])


def test_weights_are_read_where_they_lie(saved: Path) -> None:
    assert all(tensor.in_file and tensor.file == saved for tensor in read_safetensors(saved).values())


def test_array_is_mapped_and_not_copied(saved: Path) -> None:
    array = read_safetensors(saved)["matrix"].array()
    assert not array.flags.owndata and not array.flags.writeable


HEADER = {"a": entry(0, 8), "b": entry(8, 16)}


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        pytest.param(HEADER, bytes(12), ["12 bytes of data", "expected 16 bytes", "truncated"], id="data too short"),
        pytest.param(HEADER, bytes(20), ["20 bytes of data", "expected 16 bytes"], id="bytes left over"),
        pytest.param({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12), ["b: got offset 4", "overlaps"], id="overlap"),
        pytest.param({"a": entry(0, 8), "b": entry(12, 20)}, bytes(20), ["offset 12", "gap"], id="gap"),
        pytest.param({"a": entry(0, 4)}, bytes(4), ["offsets 0 to 4", "8 bytes for F32 [2]"], id="shape and offsets"),
        pytest.param({"a": entry(8, 0)}, bytes(8), ["offsets 8 to 0"], id="offsets reversed"),
        pytest.param({"a": entry(0, 8, "F33")}, bytes(8), ["dtype F33", "did you mean 'F32'?"], id="dtype"),
        pytest.param({"a": entry(0, 8, "F32", (-2,))}, bytes(8), ["an object with dtype, shape"], id="negative shape"),
        pytest.param({"a": {"dtype": "F32"}}, bytes(8), ["an object with dtype, shape"], id="no offsets"),
        pytest.param({"a": 3}, bytes(8), ["an object with dtype, shape"], id="no entry"),
        pytest.param(b'{"a": \n oops}', b"", ["line 2, column 2", "malformed JSON"], id="no JSON"),
        pytest.param([1], b"", ["expected a JSON object"], id="no object"),
    ],
)
def test_fault_is_named(tmp_path: Path, header: Any, data: bytes, said: list[str]) -> None:
    path = write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ConfigError) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)
    assert [part for part in said if part not in str(caught.value)] == []


@pytest.mark.parametrize("size", [0, 5, 8, 40], ids=lambda size: f"{size} bytes left")
def test_truncated_header_is_named(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with pytest.raises(ConfigError, match="is it truncated"):
        read_safetensors(saved)


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    header = {"a": entry(0, 8, "F99"), "b": entry(8, 9), "c": entry(9, 17)}
    with pytest.raises(ConfigError) as caught:
        read_safetensors(write(tmp_path / "model.safetensors", header, bytes(17)))
    assert len(caught.value.problems) == 2


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_safetensors(tmp_path / "model.safetensors")
