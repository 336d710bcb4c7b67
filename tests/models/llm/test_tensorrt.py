"""Every network of the family becomes a TensorRT-RTX plan, on a machine that may have no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.compile.builder import build
from framework.engines import manifest
from framework.engines.tensorrt.backend import TensorRT
from framework.graph.model import Graph
from tests.models.llm.tiny import CHECKPOINTS, FAMILIES, OPTIONS

pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")

ADA = TensorRT(module="tensorrt_rtx", compute_capability="8.9")
SMALL = attrs.evolve(OPTIONS, max_input_len=48, max_kv_cache_capacity=64, prefill_chunk=16, hidden_layers=(0, -1))


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "fp16") for name in CHECKPOINTS),
        ("llama", "fp32"),
        ("llama", "bf16"),
        ("qwen3-moe", "fp32"),
        ("qwen3-moe", "bf16"),
    ],
)
def test_a_checkpoint_becomes_a_plan(workshop: Any, tmp_path: Path, name: str, precision: str) -> None:
    options = attrs.evolve(SMALL, precision=precision)
    graph = build(workshop.checkpoint(name), tmp_path / "engines", families=FAMILIES, options=options, backend=ADA)
    assert isinstance(graph, Graph)
    record = manifest.read(tmp_path / "engines")
    assert record.files["engine.plan"].bytes > 10_000
    dtype = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]
    assert {s.input.dtype for s in record.spec.states if "cache" in s.input.name} == {dtype}
    assert "candidates" not in {spec.name for spec in record.spec.inputs}, "shapes must not follow from values"
    outputs = {spec.name: spec.shape for spec in record.spec.outputs}
    assert outputs["candidate_ids"] == ("batch", 264), "1,024, or the whole vocabulary where that is smaller"
