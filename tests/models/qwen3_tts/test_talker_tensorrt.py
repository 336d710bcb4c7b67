"""The talker becomes a TensorRT-RTX plan, on a machine that may have no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.compile.builder import build
from framework.engines import manifest
from framework.engines.tensorrt.backend import TensorRT
from tests.models.qwen3_tts.running import FAMILIES, OPTIONS

pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")

ADA = TensorRT(module="tensorrt_rtx", compute_capability="8.9")
SMALL = attrs.evolve(
    OPTIONS, max_input_len=48, max_kv_cache_capacity=64, prefill_chunk=16, components=("talker",), candidates=64
)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("custom-0b6", "fp16"), ("custom-1b7", "bf16"), ("base-0b6", "fp32")],
)
def test_a_checkpoint_becomes_a_plan(workshop: Any, tmp_path: Path, name: str, precision: str) -> None:
    options = attrs.evolve(SMALL, precision=precision)
    build(workshop.checkpoint(name), tmp_path / "engines", families=FAMILIES, options=options, backend=ADA)
    record = manifest.read(tmp_path / "engines" / "talker")
    assert record.files["engine.plan"].bytes > 10_000
    dtype = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]
    assert {s.input.dtype for s in record.spec.states if "cache" in s.input.name} == {dtype}
    inputs = {spec.name for spec in record.spec.inputs}
    assert "candidates" not in inputs, "shapes must not follow from values"
    assert ("speaker" in inputs) == (name == "base-0b6")
