"""The thinker becomes a TensorRT-RTX plan, on a machine that may have no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.compile.builder import build
from framework.engines import manifest
from framework.engines.tensorrt.backend import TensorRT
from framework.graph.model import Graph
from tests.models.qwen3_omni.thinking import FAMILIES, THINKER

pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")

ADA = TensorRT(module="tensorrt_rtx", compute_capability="8.9")
SMALL = attrs.evolve(THINKER, max_input_len=48, max_kv_cache_capacity=64, prefill_chunk=16)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_the_thinker_becomes_a_plan(workshop: Any, tmp_path: Path, precision: str) -> None:
    options = attrs.evolve(SMALL, precision=precision)
    graph = build(workshop.checkpoint, tmp_path / "engines", families=FAMILIES, options=options, backend=ADA)
    assert isinstance(graph, Graph)
    record = manifest.read(tmp_path / "engines")
    assert record.files["engine.plan"].bytes > 10_000
    inputs = {spec.name: (spec.dtype, spec.shape) for spec in record.spec.inputs}
    assert inputs["positions"] == ("float32", (3, "batch", "tokens")), "in three directions, and not whole"
    assert inputs["deepstack"] == ("float32", (3, "batch", "media", 48))
    assert inputs["is_feature"] == ("bool", ("batch", "tokens"))
    assert record.spec.caps["media"] == SMALL.prefill_chunk
