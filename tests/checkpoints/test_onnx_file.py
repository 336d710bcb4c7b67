"""An ONNX file is a checkpoint: its name is its architecture, its initializers are its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from framework.checkpoints.checkpoint import open_checkpoint
from framework.errors import ConfigError


def save(path: Path, weight: float) -> Path:
    x, w = (ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((2, 3))) for name in ("x", "w"))
    w.const_value = ir.tensor(np.full((2, 3), weight, np.float32), name="w")
    node = ir.node("Add", [x, w])
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[w], opset_imports={"": 17}, name="main")
    node.outputs[0].name = "y"
    ir.save(ir.Model(graph, ir_version=8), path)
    return path


def test_name_and_weights(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tmp_path / "voice.onnx", 0.5))
    assert checkpoint.config == {"architectures": ["voice"]}
    (tensor,) = checkpoint.tensors.values()
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes) == ("w", "float32", (2, 3), 24)
    assert tensor.array().tolist() == [[0.5] * 3] * 2
    assert tensor.raw().tobytes() == tensor.array().tobytes()


def test_two_trainings_have_two_fingerprints(tmp_path: Path) -> None:
    one, other = (open_checkpoint(save(tmp_path / "voice.onnx", weight)).fingerprint for weight in (0.5, 0.25))
    assert one != other


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "voice.onnx"
    path.write_bytes(b"not an ONNX file at all")
    with pytest.raises(ConfigError, match="expected an ONNX file"):
        open_checkpoint(path)
