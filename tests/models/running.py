"""Tiny engines, built and run by the real builder and executor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from framework.compile.builder import build
from framework.compile.family import BuildOptions, Family
from framework.engines.backend import Backend
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.execution.executor import Executor
from framework.execution.policies import InFlight, Policy
from framework.execution.runner import OpenContext, Runner
from framework.graph.model import Graph, Stage

CPU = OnnxRuntimeCpu(threads=1, spin="in_call")


def built(
    checkpoint: Path, folder: Path, families: Mapping[str, Family], options: BuildOptions, backend: Backend = CPU
) -> Graph:
    graph = build(checkpoint, folder, families=families, options=options, backend=backend)
    assert isinstance(graph, Graph), graph
    return graph


def executor(graph: Graph, runners: Mapping[str, Runner], folder: Path, policy: Policy | None = None) -> Executor:
    """Over the engines of a folder; four requests in flight where nothing else is said."""
    policy = policy or InFlight(4)

    def context(stage: Stage) -> OpenContext:
        rows = min(stage.max_batch, policy.size)
        return OpenContext(engine_dir=folder, artifact=folder / stage.artifact, backend=CPU, batch=rows)

    return Executor(graph, runners, policy=policy, make_context=context)
