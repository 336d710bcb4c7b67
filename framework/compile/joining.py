"""Several checkpoints in one deployment: each part is built into a folder of its own, and their graphs become one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from framework.compile.builder import Progress, build, stale
from framework.compile.family import BuildOptions, Family, only
from framework.engines.backend import Backend
from framework.errors import ConfigError, Problem
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph, Source


@attrs.frozen(kw_only=True)
class Part:
    """One checkpoint of a joined deployment, what it is built with, and what it may be; () is any."""

    model: Path
    options: BuildOptions
    architectures: tuple[str, ...] = ()


def build_joined(
    parts: Mapping[str, Part],
    engine_dir: Path,
    *,
    stages: Mapping[str, Any],
    families: Mapping[str, Family],
    backend: Backend,
    progress: Progress = lambda message: None,
) -> Graph:
    """Build every part into `engine_dir/<part>`, where it also runs alone, and write the joined graph beside them.

    Args:
        stages: what joins them: changes to the stages of the parts, by stage id, as `graph.overlay` takes them.

    Raises:
        ConfigError: a part cannot be built or has no graph, or the parts do not go together.
    """
    from framework.engines.folder import building

    with building(engine_dir) as folder:
        graphs = {}
        for name, part in parts.items():
            progress(f"{name}:")
            mine = only(families, part.architectures)
            found = build(
                part.model, folder / name, families=mine, options=part.options, backend=backend, progress=progress
            )
            if isinstance(found, str):
                where = f"deployment.parts.{name}"
                raise ConfigError(Problem(where=where, got=f"no graph: {found}", expected="a part with a graph"))
            graphs[name] = found
        graph = join(graphs, stages)
        files.save(graph, folder / FILE_NAME)
    return graph


def join(graphs: Mapping[str, Graph], stages: Mapping[str, Any]) -> Graph:
    """One graph of all stages, each artifact below the folder of its part; outputs marked terminal are returned.

    Raises ConfigError for two stages of one name, and for changes that do not fit their stage.
    """
    owners: dict[str, str] = {}
    moved, problems = [], []
    for part, graph in graphs.items():
        for stage in graph.stages:
            if stage.id in owners:
                got = f"stage {stage.id!r} in {owners[stage.id]} and {part}"
                problems.append(Problem(where="deployment.parts", got=got, expected="stages of different names"))
            owners[stage.id] = part
            artifact = str(PurePosixPath(part) / stage.artifact) if stage.artifact else ""
            moved.append(attrs.evolve(stage, artifact=artifact))
    if problems:
        raise ConfigError(problems)
    joined = files.overlay(Graph(stages=tuple(moved)), stages, where="deployment.stages")
    terminals = tuple(Source(stage.id, port.id) for stage in joined.stages for port in stage.emits if port.terminal)
    return attrs.evolve(joined, terminals=terminals)


def stale_part(
    parts: Mapping[str, BuildOptions],
    engine_dir: Path,
    *,
    backend: Backend,
    model_paths: Mapping[str, Path | None] | None = None,
) -> str | None:
    """Why some part is not what its options and its checkpoint would build, in words; None when all are."""
    for name, options in parts.items():
        model_path = (model_paths or {}).get(name)
        reason = stale(engine_dir / name, options=options, backend=backend, model_path=model_path)
        if reason is not None:
            return f"{name}: {reason}"
    return None
