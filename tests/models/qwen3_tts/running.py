"""Tiny engines run through the real builder and executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.compile.family import BuildOptions
from framework.execution.executor import Executor
from framework.execution.policies import Policy
from framework.execution.request import Request, Result
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph, Source
from framework.schema import structure
from models.qwen3_talker.runners import Talker, TalkerConfig
from models.qwen3_tts.topology import Qwen3TTS
from tests.models.running import built, executor

FAMILIES = {"Qwen3TTSForConditionalGeneration": Qwen3TTS()}
OPTIONS = BuildOptions(max_input_len=320, max_kv_cache_capacity=512, max_batch_size=4, prefill_chunk=256)
GREEDY = {"talker": {"temperature": 0.0}, "code_predictor": {"temperature": 0.0}}


def build_tiny(checkpoint: Path, engine_dir: Path, options: BuildOptions = OPTIONS) -> Graph:
    return built(checkpoint, engine_dir, FAMILIES, options)


def opened(engine_dir: Path, policy: Policy | None = None, *, max_seq: int = 0, **config: Any) -> Executor:
    """An executor over the talker alone, whose codes are what the caller asks for; `max_seq` 0 is the graph's own."""
    graph = files.load(engine_dir / FILE_NAME)
    stage = next(stage for stage in graph.stages if stage.id == "talker")
    stage = attrs.evolve(stage, emits=tuple(attrs.evolve(port, terminal=True) for port in stage.emits))
    stage = attrs.evolve(stage, max_seq=max_seq or stage.max_seq)
    graph = Graph(stages=(stage,), terminals=tuple(Source("talker", port.id) for port in stage.emits))
    settings = structure(TalkerConfig, {**stage.config, **config}, where="stages.talker.config")
    runners = {"talker": Talker(stage=stage, config=settings)}
    return executor(graph, runners, engine_dir, policy)


def request(index: int, text: str, *, sampling: Mapping[str, Any] = GREEDY, most: int = 14, **fields: str) -> Request:
    """`fields` that are empty are not given."""
    talker = {"max_generate_length": most, **sampling.get("talker", {})}
    return Request(
        index=index,
        fields={"messages": [{"role": "assistant", "content": text}], **{k: v for k, v in fields.items() if v}},
        sampling={**sampling, "talker": talker},
        kinds=frozenset({"codec"}),
    )


def answers(executor: Executor, requests: Sequence[Request]) -> list[Result]:
    """Results in the order of the requests."""
    return sorted(executor.run(requests), key=lambda result: result.request.index)


def codes_said(result: Result) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32 [frames, 16]."""
    assert result.ok, result.error
    chunks = result.outputs["talker:codes"]
    assert all(chunk.dtype == np.int32 and chunk.shape == (1, 16) for chunk in chunks)
    return np.concatenate(chunks) if chunks else np.zeros((0, 16), np.int32)


def details(result: Result) -> Mapping[str, Any]:
    return result.stages["talker"].details
