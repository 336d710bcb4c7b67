"""`multistage-inference`: requests through a graph; one from the command line, or a file of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from framework.cli import app
from framework.cli.files import error_of, keep, output_of, record_of, run_file
from framework.cli.folder import describe
from framework.cli.status import check_standard_output, print_error
from framework.deployment import building
from framework.deployment.config import InferenceConfig, check_combination
from framework.deployment.instances import PREFIXES
from framework.deployment.requested import (
    check_outputs,
    check_places,
    checked,
    defaults_of,
    file_of,
    in_folder,
    places_of,
    single_request,
)
from framework.deployment.system import (
    Deployed,
    backend_of,
    backends_of,
    check,
    deployed,
    faults_of,
    kept_executor,
    make_executor,
)
from framework.errors import ConfigError, Problem
from framework.graph.model import Graph
from framework.schema import structure
from framework.writing import after_requests

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from framework.execution.executor import Executor
    from framework.execution.request import Request, Result
    from framework.io.kinds import PayloadKind
    from framework.io.requests import RequestFile


def task(values: dict[str, Any], run: app.Run, prefixes: tuple[str, ...] = PREFIXES) -> int:
    """Exit status of one run; `prefixes` is what a `_target_` may start with."""
    config = settled(values)
    if run.sweep and run.folder is not None:
        config = in_folder(config, run.folder)
    check_places(config)
    if config.validate_config:
        system = deployed(config, prefixes)
        check(config, system, run.choices)
        _print_graph(system.graph)
        return 0
    if config.plan_memory:
        return _plan_memory(config, deployed(config, prefixes))
    if config.list_voices:
        return _list_voices(deployed(config, prefixes))
    from framework.cli.profile import Profile

    begin, profile = time.perf_counter(), Profile()
    file = file_of(config) if config.input_file else single_request(config)
    system = deployed(config, prefixes)
    check(config, system, run.choices)
    check_outputs(system.graph, config, system.kinds)
    file = checked(file, faults_of(system))
    run.notes["stages"] = system.speakers
    if run.folder is not None:
        describe(run.folder, system.graph, run.command)
        run.notes["predictions"] = output_of(config, run.folder)
    open_executor = kept_executor if run.sweep else make_executor
    with open_executor(config, system, file.batch_size) as executor:
        opened, started = executor.opening_s, time.perf_counter()
        if config.input_file is not None:
            record = record_of(values, config, system.folder, system.graph, file)
            status = 1 if run_file(config, run, executor, file, record, profile, system.kinds) else 0
        else:
            results = _run_one(config, run, executor, file, system.kinds)
            for result in results:
                profile.add(result, speech=True)
            status = 2 if any(file.rejected) else 0 if all(result.ok for result in results) else 1
        load_s = executor.opening_s - opened
        run_s = time.perf_counter() - started - load_s
        # A run that was resumed did not answer all of its requests in this time.
        run.notes["timings"] = {"load_s": load_s} if config.resume else {"load_s": load_s, "run_s": run_s}
    if config.dump_profile:
        building.say(profile.table(time.perf_counter() - begin))
    return status


def settled(values: dict[str, Any]) -> InferenceConfig:
    """The settings of one run. Raises ConfigError for what is wrong with them whatever the graph is."""
    config = structure(InferenceConfig, values, where="")
    check_combination(config)
    defaults_of(config)
    return config


def _plan_memory(config: InferenceConfig, system: Deployed) -> int:
    """Print what the stages will take; status 1 when some do not fit."""
    from framework.cli.memory import tell
    from framework.deployment.planning import planned

    own, backends = backend_of(config, system), backends_of(config, system)
    plan = planned(system.graph, system.folder, own, config.batching.get("size"))
    places = {backend.place: backend for backend in (own, *backends.values())}
    return tell(
        {
            backend: [item for item in plan if backends.get(item.stage, own).place == place]
            for place, backend in places.items()
        }
    )


def _list_voices(system: Deployed) -> int:
    """Print what requests may choose by name, a line a choice."""
    found = [f"{field}: {', '.join(names)}" for field, names in system.choices]
    if not found:
        expected = "nothing: no stage of this graph has voices or languages"
        raise ConfigError(Problem(where="list_voices", got="true", expected=expected))
    print("\n".join(found))
    return 0


def _run_one(
    config: InferenceConfig, run: app.Run, executor: Executor, file: RequestFile, kinds: Mapping[str, PayloadKind]
) -> list[Result]:
    """One request, its text on standard output as it is written; whole where jobs beside it write there too.

    A reply that nobody reads any more, or that has no place, is not finished unless something else is made of it.
    """
    from framework.execution.payloads import TextChunk
    from framework.execution.results import complete

    def write(request: Request, terminal: str, chunk: Any) -> None:
        if isinstance(chunk, TextChunk):
            written.append(chunk.text)
            if alone:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
                if nothing_else:
                    check_standard_output()

    written: list[str] = []
    places = places_of(config)
    alone = run.choices.get("hydra/launcher", "basic") == "basic"
    nothing_else = run.folder is None and not places and config.out_timeline is None
    with after_requests():
        try:
            results = [complete(result) for result in executor.run(file.good, on_chunk=write)]
        finally:
            if written:
                # In one piece, line end and all: other processes may write between two.
                sys.stdout.write("\n" if alone else "".join([*written, "\n"]))
                sys.stdout.flush()
        for rejected in file.rejected:
            print_error(rejected.error)
        for result in results:
            if not result.ok:
                print_error(error_of(result))
            else:
                _tell_transcripts(result)
                _tell_cuts(result)
                for name, path in places.items():
                    _write_reply(kinds[name], path, result)
                if config.out_timeline is not None:
                    _draw(config.out_timeline, result)
        if run.folder is not None:
            keep(run.folder / "predictions.json", file, results, kinds, places)
        else:
            check_standard_output()
    return results


def _write_reply(kind: PayloadKind, path: Path, result: Result) -> None:
    from framework.execution.results import chunks_of

    found = chunks_of(result, kind.name)
    assert found is not None and kind.write is not None  # or it had failed, or been refused
    building.say(f"{kind.told(kind.write(path, found[1]))}: {path}")


def _draw(path: Path, result: Result) -> None:
    from framework.io.picture import save_timeline

    save_timeline(path, result)
    building.say(f"time line: {path}")


def _tell_transcripts(result: Result) -> None:
    """What was understood of a recording, where that is not the reply itself."""
    for stage, report in result.stages.items():
        if "transcript" in report.details and f"{stage}:text" not in result.outputs:
            building.say(f"{stage} heard: {report.details['transcript']}")


def _tell_cuts(result: Result) -> None:
    """Which replies end because they may be no longer."""
    for stage, report in result.stages.items():
        if report.details.get("finish_reason") == "max-length":
            limit = report.details.get("cut_by", f"sampling.{stage}.max_generate_length")
            building.say(f"{stage}: cut at its length limit ({limit})")


def _print_graph(graph: Graph) -> None:
    from framework.cli.text import columns
    from framework.graph.render import HEADINGS, mermaid, table

    print(columns([HEADINGS, *table(graph)]))
    print()
    print(mermaid(graph), end="")


def after_sweep(folder: Path, cfg: DictConfig) -> int:
    from framework.cli.report import after_sweep

    return after_sweep(folder, cfg)


def keeps_folder(cfg: DictConfig) -> bool:
    return cfg.get("input_file") is not None and not (cfg.get("validate_config") or cfg.get("plan_memory"))


HOOKS = app.Hooks(keeps_folder=keeps_folder, check=settled, sweep_end=after_sweep)


def main() -> NoReturn:
    app.main("inference", task, HOOKS)


if __name__ == "__main__":
    main()
