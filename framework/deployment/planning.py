"""What every stage will take and whether it fits, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from framework.engines import manifest
from framework.engines.backend import Backend
from framework.engines.footprint import Footprint, footprint
from framework.graph.model import Graph

PROCESS = 75_000_000  # Python and its libraries, on the host


@attrs.frozen(kw_only=True)
class Planned:
    """One engine of a deployment. `stage` is "" where a stage loads it beside its own, when a request needs it."""

    stage: str
    engine: str
    takes: Footprint
    rows: int = 0


def planned(graph: Graph, folder: Path, backend: Backend, rows: int | None = None) -> list[Planned]:
    """The process itself where it shares its memory with the engines; every engine of the graph, in its order; and
    those that no stage has for its own.

    Args:
        backend: the typed settings.
        rows: requests that run together, where the run limits them; default each stage's `max_batch`.

    Raises ConfigError for an engine folder that cannot be read.
    """
    found = process(backend)
    for stage in graph.stages:
        if stage.artifact and (folder / stage.artifact / manifest.FILE_NAME).is_file():
            count = min(stage.max_batch, rows or stage.max_batch)
            found.append(_engine(folder, folder / stage.artifact, count, stage.id))
    most = max((item.rows for item in found), default=0) or rows or 1
    own = {(folder / stage.artifact).resolve() for stage in graph.stages if stage.artifact}
    others = sorted(path.parent for path in folder.rglob(manifest.FILE_NAME) if path.parent.resolve() not in own)
    return found + [_engine(folder, path, most) for path in others]


def process(backend: Backend) -> list[Planned]:
    """The process itself, where it shares its memory with the engines."""
    takes = Footprint(weights=PROCESS, states=0, activations=0)
    return [Planned(stage="", engine="(process)", takes=takes)] if backend.shares_host_memory else []


def _engine(folder: Path, artifact: Path, rows: int, stage: str = "") -> Planned:
    takes = footprint(manifest.read(artifact), rows)
    return Planned(stage=stage, engine=artifact.relative_to(folder).as_posix(), rows=rows, takes=takes)


def too_much(plan: Sequence[Planned], free: int) -> list[str]:
    """Stages (or engines) that are left without room when those before them have taken theirs."""
    names, used = [], 0
    for item in plan:
        used += item.takes.total
        if used > free:
            names.append(item.stage or item.engine)
    return names
