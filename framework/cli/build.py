"""`multistage-build`: a checkpoint into engines, and the graph that joins them; prints the graph's path."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from framework.cli import app
from framework.deployment import building
from framework.deployment.config import BuildConfig
from framework.deployment.instances import PREFIXES, safe_instantiate
from framework.graph.model import FILE_NAME
from framework.schema import structure


def task(values: dict[str, Any], run: app.Run) -> int:
    config = structure(BuildConfig, values, where="")
    if config.plan_memory:
        return _plan(config)
    begin = time.perf_counter()
    graph = building.build(config)
    folder = building.engine_dir(config)
    if isinstance(graph, str):
        building.say(f"no graph written: {graph}")
        return 2 if config.build.graph_only else 0
    stages = ", ".join(stage.id for stage in graph.stages)
    building.say(f"stages: {stages}; {time.perf_counter() - begin:.1f} s")
    print(folder / FILE_NAME)
    return 0


def _plan(config: BuildConfig) -> int:
    """Print what the engines would take; status 1 when some would not fit."""
    from framework.cli.memory import tell
    from framework.deployment.planning import process

    backend = safe_instantiate(config.backend, "backend", PREFIXES)
    return tell({backend: [*process(backend), *building.plan(config, backend)]})


def main() -> NoReturn:
    app.main("build", task)


if __name__ == "__main__":
    main()
