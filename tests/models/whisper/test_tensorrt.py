"""Encoder and decoder become TensorRT-RTX plans, on a machine that may have no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.engines import manifest
from framework.engines.tensorrt.backend import TensorRT
from tests.models.whisper import tiny
from tests.models.whisper.conftest import Workshop

pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")

ADA = TensorRT(module="tensorrt_rtx", compute_capability="8.9")


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_both_networks_become_plans(workshop: Workshop, tmp_path: Path, precision: str) -> None:
    folder = tiny.build_tiny(workshop.checkpoint("en"), tmp_path / "engines", precision=precision, backend=ADA)
    dtype = {"fp16": "float16", "fp32": "float32"}[precision]
    for name in ("audio", "decoder"):
        record = manifest.read(folder / name)
        assert record.files["engine.plan"].bytes > 10_000
        assert {state.input.dtype for state in record.spec.states if "cross" in state.input.name} == {dtype}
