"""The language model on a real GPU, by hand: `python tests/models/llm/gpu_check.py MODEL [ENGINES]`.

Builds MODEL (a GGUF file or a checkpoint folder) for `backend=cpu` and `backend=cuda`, and prints whether the greedy
token ids in fp32 are equal, alone and in a cohort, and the milliseconds of one decode step on the GPU: launched node
by node, and captured as one launch. Needs onnxruntime-gpu; no test, for it needs the machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from framework.compile.builder import build
from framework.compile.family import BuildOptions
from framework.engines.backend import Backend
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.execution.executor import Executor
from framework.execution.policies import Cohort
from framework.execution.request import Request
from framework.execution.runner import OpenContext
from framework.graph.files import load
from models.language.runners import Backbone
from models.llm.topology import LLM

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "Write a poem about rain.",
)
FAMILIES = {"LlamaForCausalLM": LLM(), "Qwen3ForCausalLM": LLM(), "Qwen3MoeForCausalLM": LLM()}


def built(model: Path, folder: Path, backend: Backend, precision: str) -> Path:
    options = BuildOptions(precision=precision, max_kv_cache_capacity=2048)  # type: ignore[arg-type]
    start = time.perf_counter()
    build(model, folder, families=FAMILIES, options=options, backend=backend)
    print(f"build {backend.name} {precision}: {time.perf_counter() - start:.1f} s", flush=True)
    return folder


def replies(folder: Path, backend: Backend, size: int) -> tuple[list[tuple[int, ...]], float]:
    """Greedy token ids of every question, and seconds for all of them (engines open)."""
    graph = load(folder)
    runners = {stage.id: Backbone(stage=stage) for stage in graph.stages}
    sampling = {"default": {"temperature": 0.0, "max_generate_length": 64}}
    requests = [
        Request(index=i, fields={"messages": [{"role": "user", "content": text}]}, sampling=sampling)
        for i, text in enumerate(QUESTIONS)
    ]

    def context(stage: Any) -> OpenContext:
        return OpenContext(engine_dir=folder, artifact=folder / stage.artifact, backend=backend, batch=size)

    with Executor(graph, runners, policy=Cohort(size=size), make_context=context) as executor:
        executor.open([stage.id for stage in graph.stages])
        start = time.perf_counter()
        results = sorted(executor.run(requests), key=lambda result: result.request.index)
        for result in results:
            if not result.ok:
                raise result.error or RuntimeError("failed")
        seconds = time.perf_counter() - start
    chunks = [result.outputs["thinker:text"] for result in results]
    print(f"  {backend.name} x{size}: {''.join(chunk.text for chunk in chunks[0])!r}", flush=True)
    return [tuple(id_ for chunk in reply for id_ in chunk.ids) for reply in chunks], seconds


def step_ms(folder: Path, backend: Backend, rows: int, captured: bool) -> float:
    """Milliseconds of one decode step at 256 cached tokens, its token fed back on the device and read by the host."""
    from framework.engines.backend import open_engine

    with open_engine(folder, backend) as engine:
        states = engine.new_states(rows)
        dims = (
            {"tokens": 1}
            if "candidates" not in {s.name for s in engine.spec.inputs}
            else {"tokens": 1, "candidates": 1}
        )
        call = engine.bind(dims, states, slice(0, rows), shared={"token": "ids"})
        call.write("past_lengths", np.full(rows, 256, np.int64))
        call.write("token_counts", np.ones(rows, np.int64))
        call.write("top_p", np.ones(rows, np.float32))
        call.write("repetition_penalty", np.ones(rows, np.float32))
        if "candidates" in dims:
            call.write("candidates", np.ones(1, np.int64))
        if captured:
            call.capture()
        times = []
        for step in range(150):
            start = time.perf_counter()
            call.write("past_lengths", np.full(rows, 256 + step, np.int64))
            call()
            call.read("token")
            times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times[20:]))


def main() -> None:
    model = Path(sys.argv[1])
    root = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
    cpu, cuda = OnnxRuntimeCpu(), OnnxRuntimeCuda()
    wanted, _ = replies(built(model, root / "cpu", cpu, "fp32"), cpu, 1)
    folder = built(model, root / "cuda32", cuda, "fp32")
    for size in (1, 4):
        ids, seconds = replies(folder, cuda, size)
        equal = sum(a == b for a, b in zip(ids, wanted, strict=True))
        print(
            f"cuda fp32, {size} a cohort: {equal} of {len(wanted)} replies equal the CPU's, {seconds:.2f} s", flush=True
        )
    for precision, engine in (("fp32", folder), ("fp16", built(model, root / "cuda16", cuda, "fp16"))):
        for rows in (1, 4):
            plain, graph = step_ms(engine, cuda, rows, False), step_ms(engine, cuda, rows, True)
            print(f"cuda {precision}, {rows} rows: {plain:.2f} ms a step, captured {graph:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
