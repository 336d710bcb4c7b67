"""`multistage-bench`: what a request costs on this machine, step by step and engine by engine."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from framework.cli import app
from framework.cli.text import columns
from framework.deployment import building
from framework.deployment.config import BenchConfig, check_combination
from framework.deployment.instances import PREFIXES
from framework.deployment.requested import (
    check_outputs,
    check_places,
    checked,
    defaults_of,
    file_of,
    places_of,
    single_request,
)
from framework.deployment.system import backend_of, check, deployed, faults_of, make_executor
from framework.schema import structure
from framework.writing import write_text

if TYPE_CHECKING:
    from framework.engines.watch import Watch
    from framework.execution.request import Result

_HEADINGS = ("what", "times", "ms each", "weights MB", "ms to read them", "times as long")


def task(values: dict[str, Any], run: app.Run, prefixes: tuple[str, ...] = PREFIXES) -> int:
    """Exit status of one benchmark: 1 when a request of it failed."""
    from framework.engines.watch import Watch, watched
    from framework.execution.results import chunks_of

    config = settled(values)
    check_places(config)
    file = file_of(config) if config.input_file else single_request(config)
    system = deployed(config, prefixes)
    check(config, system, run.choices)
    check_outputs(system.graph, config, system.kinds)
    file = checked(file, faults_of(system))
    for rejected in file.rejected:
        raise rejected.error
    watch = Watch()
    rounds: list[tuple[float, list[Result]]] = []
    with make_executor(config, system, file.batch_size, lambda backend: watched(backend, watch)) as executor:
        for number in range(config.bench.warmup + config.bench.rounds):
            if number == config.bench.warmup:
                watch.clear()
            start = time.perf_counter()
            results = list(executor.run(file.good))
            for result in results:
                if result.error is not None:
                    building.say(str(result.error))
                    return 1
            if number >= config.bench.warmup:
                rounds.append((time.perf_counter() - start, results))
    backend = backend_of(config, system)
    found = measured(rounds, watch, system.folder, backend.copy_rate())
    if config.bench.json is not None:
        write_text(config.bench.json, json.dumps(found, indent=1) + "\n")
    for name, path in places_of(config).items():
        kind = system.kinds[name]
        reply = chunks_of(rounds[-1][1][-1], kind.name)
        if reply is not None and kind.write is not None:
            kind.write(path, reply[1])
    print(told(found))
    return 0


def settled(values: dict[str, Any]) -> BenchConfig:
    """The settings of one benchmark. Raises ConfigError for what is wrong with them whatever the graph is."""
    config = structure(BenchConfig, values, where="")
    check_combination(config)
    defaults_of(config)
    return config


def measured(
    rounds: Sequence[tuple[float, Sequence[Result]]], watch: Watch, folder: Path, copy_rate: float
) -> dict[str, Any]:
    """Medians over rounds and, of steps and calls, over all of them.

    Args:
        rounds: wall time in seconds and results of each.
        folder: of the deployment's engines.
        copy_rate: bytes a second, read and written, of a copy where the engines' weights are.
    """
    from framework.execution.results import speech_of

    wall = statistics.median(seconds for seconds, _ in rounds)
    found: dict[str, Any] = {"rounds": len(rounds), "wall_s": wall, "copy_bytes_per_s": copy_rate}
    results = [result for _, of_round in rounds for result in of_round]
    found["stages"] = {}
    for stage in dict.fromkeys(name for result in results for name in result.stages):
        reports = [result.stages[stage] for result in results if stage in result.stages]
        steps = [report.busy_s / report.steps for report in reports if report.steps]
        firsts = [report.first_output_s for report in reports if report.first_output_s is not None]
        found["stages"][stage] = {
            "steps": statistics.median(report.steps for report in reports),
            "step_s": statistics.median(steps) if steps else None,
            "first_output_s": statistics.median(firsts) if firsts else None,
        }
    found["engines"] = {}
    for engine, times in watch.calls.items():
        if not times:
            continue
        weights, call = watch.weights[engine], statistics.median(times)
        found["engines"][engine.relative_to(folder).as_posix()] = {
            "calls": len(times) / len(rounds),
            "call_s": call,
            "weight_bytes": weights,
            "weights_read_s": weights / copy_rate,
            "times_reading": call * copy_rate / weights,
        }
    spoken = [sound for _, sound in (speech_of(result) or (None, None) for result in results) if sound is not None]
    if spoken:
        said = sum(len(sound.samples) / sound.sample_rate for sound in spoken)
        found["real_time_factor"] = sum(seconds for seconds, _ in rounds) / said
    return found


def told(found: dict[str, Any]) -> str:
    """The same as a table."""
    rows = [_HEADINGS]
    for name, stage in found["stages"].items():
        rows.append((f"stage {name}: a step", f"{stage['steps']:g}", _ms(stage["step_s"]), "", "", ""))
    for name, engine in found["engines"].items():
        read = (f"{engine['weight_bytes'] / 1e6:.1f}", _ms(engine["weights_read_s"]), f"{engine['times_reading']:.1f}")
        rows.append((f"engine {name}: a call", f"{engine['calls']:g}", _ms(engine["call_s"]), *read))
    lines = [columns(rows)]
    for name, stage in found["stages"].items():
        if stage["first_output_s"] is not None:
            lines.append(f"first output of {name} after {stage['first_output_s'] * 1e3:.1f} ms")
    copied = f"{found['copy_bytes_per_s'] / 1e9:.1f} GB/s of a copy, read and written"
    lines.append(f"a round {found['wall_s']:.3f} s, median of {found['rounds']}; {copied}, measured in this run")
    if "real_time_factor" in found:
        factor = f"real-time factor {found['real_time_factor']:.3f}"
        lines.append(f"{factor} (seconds of work per second of sound: smaller is faster)")
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def main() -> NoReturn:
    app.main("bench", task)


if __name__ == "__main__":
    main()
