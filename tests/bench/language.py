"""SmolLM2: tokens a second beside the peers, and the command as a user starts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.bench import commands, speed
from tests.bench.line import Line
from tests.bench.ours import DEPLOYMENT, Ours, configured
from tests.bench.worker import Worker

PRECISIONS = ("int4", "int8")  # the first is the deployment's own


def measure(folder: Path, threads: int, rounds: int, say: Callable[[str], None]) -> list[Line]:
    """Lines for engines that are built in `folder`."""
    from framework.deployment.building import fetch_weights

    config = configured()
    file = fetch_weights(config.deployment, config.paths)
    engines = {precision: folder / precision for precision in PRECISIONS}
    for precision, engine in engines.items():
        say(f"building {precision} engines")
        commands.command(DEPLOYMENT, f"build.precision={precision}", f"engine_dir={engine}", module=commands.BUILD)
    lines = speed.measure(engines, file, threads, rounds, say)
    own = engines[PRECISIONS[0]]
    with Worker(Ours, own, threads, 1) as ours:
        cached = ours.call("cached", commands.PROMPT, commands.REPLY)
    return lines + commands.measure(own, cached, rounds, say)
