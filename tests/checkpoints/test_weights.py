"""Weights of a network out of a checkpoint: renamed, stacked, and still on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

from framework.checkpoints.checkpoint import Checkpoint, open_checkpoint
from framework.checkpoints.weights import load_weights
from framework.errors import ConfigError
from tests.checkpoints.test_gguf import write_gguf

RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Any] = {
    "up.weight": RNG.standard_normal((64, 32)).astype(np.float32),
    "norm.weight": RNG.standard_normal(32).astype(np.float32),
    **{f"experts.{n}.weight": RNG.standard_normal((8, 32)).astype(np.float32) for n in range(3)},
    "rotary.inv_freq": np.ones(4, np.float32),
}
PARAMETERS = {"up.weight": (64, 32), "norm.weight": (32,), "experts": (3, 8, 32)}
STACKED = {"experts": [f"experts.{n}.weight" for n in range(3)]}


def checkpoint(folder: Path, **changed: Any) -> Checkpoint:
    weights = {name: w for name, w in {**WEIGHTS, **changed}.items() if w is not None}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Tiny"]}))
    return open_checkpoint(folder)


def load(source: Checkpoint, **options: Any) -> dict[str, Any]:
    return load_weights(PARAMETERS, source, **{"names": STACKED, "ignore": ("*.inv_freq",), "where": "tiny", **options})


def test_weights_come_by_parameter_name(tmp_path: Path) -> None:
    found = load(checkpoint(tmp_path))
    assert found.keys() == PARAMETERS.keys()
    np.testing.assert_array_equal(found["up.weight"].numpy(), WEIGHTS["up.weight"])
    np.testing.assert_array_equal(found["norm.weight"].numpy(), WEIGHTS["norm.weight"])


def test_several_weights_are_stacked_in_the_order_of_their_names(tmp_path: Path) -> None:
    stacked = load(checkpoint(tmp_path))["experts"]
    assert tuple(stacked.shape) == (3, 8, 32) and stacked.dtype == ir.DataType.FLOAT
    np.testing.assert_array_equal(stacked.numpy(), np.stack([WEIGHTS[f"experts.{n}.weight"] for n in range(3)]))


def test_large_weights_are_read_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.checkpoints.weights._PIECE", 1000)
    found = load(checkpoint(tmp_path))
    assert [piece().shape for piece in found["up.weight"].pieces] == [(7, 32)] * 9 + [(1, 32)]
    assert [piece().shape for piece in found["experts"].pieces] == [(1, 8, 32)] * 3
    np.testing.assert_array_equal(found["up.weight"].numpy(), WEIGHTS["up.weight"])
    with (tmp_path / "written").open("wb") as file:
        found["up.weight"].tofile(file)
    assert (tmp_path / "written").read_bytes() == WEIGHTS["up.weight"].tobytes()


def test_a_checkpoint_may_be_links_into_another_folder(tmp_path: Path) -> None:
    """As a download cache keeps its files."""
    (tmp_path / "blobs").mkdir()
    checkpoint(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    found = load(open_checkpoint(tmp_path / "snapshot"))
    np.testing.assert_array_equal(found["up.weight"].numpy(), WEIGHTS["up.weight"])


def test_bfloat16_is_kept(tmp_path: Path) -> None:
    half = WEIGHTS["up.weight"].astype(ml_dtypes.bfloat16)
    small = WEIGHTS["norm.weight"].astype(ml_dtypes.bfloat16)
    found = load(checkpoint(tmp_path, **{"up.weight": half, "norm.weight": small}))
    assert found["up.weight"].dtype == found["norm.weight"].dtype == ir.DataType.BFLOAT16
    np.testing.assert_array_equal(found["up.weight"].numpy(), half)
    np.testing.assert_array_equal(found["norm.weight"].numpy(), small)


def test_every_fault_is_named_at_once_by_official_names(tmp_path: Path) -> None:
    changed = {
        "up.weight": np.zeros((32, 64), np.float32),
        "norm.weight": None,
        "experts.1.weight": np.zeros((8, 16), np.float32),
        "experts.3.weight": np.zeros((8, 32), np.float32),
    }
    with pytest.raises(ConfigError) as error:
        load(checkpoint(tmp_path, **changed))
    assert [str(problem) for problem in error.value.problems] == [
        "tiny: got no weight 'norm.weight', expected shape [32]",
        "tiny: up.weight: got shape [32, 64], expected shape [64, 32]",
        "tiny: experts.1.weight: got shape [8, 16], expected shape [8, 32]",
        "tiny: got weight 'experts.3.weight', expected no such weight",
    ]


def test_what_is_not_ignored_is_left_over(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weight 'rotary\.inv_freq', expected no such weight"):
        load(checkpoint(tmp_path), ignore=())


def test_quantised_blocks_come_with_the_weight(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", Type.Q4_1)
    source = open_checkpoint(tmp_path / "m.gguf")
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    found = load_weights(shapes, source, where="llama")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert found[name].meta["blocks"]().format == "Q4_1"
    assert found["model.norm.weight"].meta["blocks"]() is None
    np.testing.assert_array_equal(found[name].numpy(), source.tensors[name].array())
