"""`multistage-inference`: requests through a graph; one from the command line, or a file of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from framework.cli import app, building
from framework.cli.config import InferenceConfig, check_combination
from framework.cli.instances import PREFIXES, runner_classes, runner_decls, safe_instantiate
from framework.cli.requested import check_outputs, file_of, read_by_graph, single_request
from framework.errors import ConfigError, Problem
from framework.graph.model import Graph, Stage
from framework.graph.validate import load_checked
from framework.schema import structure

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from framework.execution.executor import Executor
    from framework.execution.request import Request, Result
    from framework.io.requests import RequestFile


@attrs.frozen(kw_only=True)
class Deployed:
    """A checked graph and the classes of its runners."""

    folder: Path
    graph: Graph
    classes: Mapping[str, type[Any]]
    prefixes: tuple[str, ...]


def task(values: dict[str, Any], run: app.Run, prefixes: tuple[str, ...] = PREFIXES) -> int:
    """Exit status of one run; `prefixes` is what a `_target_` may start with."""
    config = structure(InferenceConfig, values, where="")
    check_combination(config)
    if config.validate_config:
        _print_graph(deployed(config, prefixes).graph)
        return 0
    if config.list_voices:
        return _list_voices(deployed(config, prefixes))
    begin = time.perf_counter()
    file = file_of(config) if config.input_file else single_request(config)
    system = deployed(config, prefixes)
    check_outputs(system.graph, config)
    file = read_by_graph(system.graph, file)
    with make_executor(config, system, file.batch_size) as executor:
        results = _run_file(config, run, executor, file) if config.input_file else _run_one(config, run, executor, file)
    if config.dump_profile:
        from framework.cli.profile import profile

        building.say(profile(results, time.perf_counter() - begin))
    return 0 if all(result.ok for result in results) and not any(file.rejected) else 1


def deployed(config: InferenceConfig, prefixes: tuple[str, ...] = PREFIXES) -> Deployed:
    """The graph of the engine folder, fit to run; built first when that was asked for.

    Raises ConfigError or GraphError with every fault of the graph and of the changes to it.
    """
    folder = building.engine_dir(config)
    building.ensure_built(config, folder, config.build_if_missing, prefixes)
    classes = runner_classes(config.runners, prefixes)
    stages = _merged(config.deployment.stages, config.stages)
    graph = load_checked(folder, runner_decls(classes), stages=stages)
    graph = _with_whole_utterance(graph, classes, config)
    return Deployed(folder=folder, graph=graph, classes=classes, prefixes=prefixes)


def make_executor(config: InferenceConfig, system: Deployed, batch_size: int | None) -> Executor:
    """An executor whose stages are opened when the first request needs them."""
    from framework.engines.backend import shared
    from framework.execution.executor import Executor
    from framework.execution.runner import OpenContext

    size = config.batching.get("size")
    policy = safe_instantiate(
        {**config.batching, "size": (batch_size or 1) if size is None else size}, "batching", system.prefixes
    )
    backend = shared(safe_instantiate(config.backend, "backend", system.prefixes), system.folder)

    def context(stage: Stage) -> OpenContext:
        artifact = system.folder / stage.artifact
        batch = min(stage.max_batch, policy.size)
        return OpenContext(engine_dir=system.folder, artifact=artifact, backend=backend, batch=batch)

    return Executor(
        system.graph,
        {stage.id: _runner(system, stage) for stage in system.graph.stages},
        policy=policy,
        make_context=context,
        stream_capacity=config.stream_capacity,
    )


def _runner(system: Deployed, stage: Stage) -> Any:
    cls = system.classes[stage.runner]
    settings = cls.decl.config
    typed = None if settings is None else structure(settings, stage.config, where=f"stages.{stage.id}.config")
    return cls(stage=stage, config=typed)


def _list_voices(system: Deployed) -> int:
    """Print what requests may choose by name, a line a choice; status 1 when there is nothing."""
    found = [
        f"{field}: {', '.join(names)}"
        for stage in system.graph.stages
        for field, names in _runner(system, stage).choices(system.folder / stage.artifact).items()
        if names
    ]
    print("\n".join(found) or "nothing to choose: no stage of this graph has voices or languages")
    return 0 if found else 1


def _run_one(config: InferenceConfig, run: app.Run, executor: Executor, file: RequestFile) -> list[Result]:
    """One request, its text on standard output as it is written."""
    from framework.execution.payloads import TextChunk

    def write(request: Request, terminal: str, chunk: Any) -> None:
        if isinstance(chunk, TextChunk):
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            written.append(chunk.text)

    written: list[str] = []
    try:
        results = list(executor.run(file.good, on_chunk=write))
    finally:
        if written:
            print(flush=True)
    for rejected in file.rejected:
        app.complain(rejected.error)
    for result in results:
        if not result.ok:
            app.complain(_error_of(result))
        else:
            _tell_transcripts(result)
            if config.out_audio is not None:
                _write_reply(config.out_audio, result)
            if config.out_timeline is not None:
                _draw(config.out_timeline, result)
    if run.folder is not None:
        _keep(run.folder / "predictions.json", file, results)
    return results


def _run_file(config: InferenceConfig, run: app.Run, executor: Executor, file: RequestFile) -> list[Result]:
    """A request file into a predictions file, each result written as it ends."""
    from framework.io.predictions import Predictions, entry_of, rejected_entry

    output = config.output_file or (run.folder or Path()) / "predictions.json"
    results: list[Result] = []
    with Predictions(output, file.name) as predictions, _progress(len(file.entries)) as advance:
        for rejected in file.rejected:
            predictions.add(rejected_entry(rejected))
            advance(rejected.index, rejected.error)
        for result in executor.run(file.good):
            predictions.add(entry_of(result, config.output_audio_dir))
            advance(result.request.index, None if result.ok else _error_of(result))
            # What was made is on disk now; only its numbers are still needed.
            results.append(attrs.evolve(result, outputs={}))
    answered = sum(result.ok for result in results)
    building.say(f"{answered} of {len(file.entries)} requests answered: {output}")
    return results


def _progress(total: int) -> Any:
    from framework.cli.progress import progress

    return progress(total)


def _keep(path: Path, file: RequestFile, results: list[Result]) -> None:
    from framework.io.predictions import Predictions, entry_of, rejected_entry

    with Predictions(path, file.name) as predictions:
        for entry in [*map(rejected_entry, file.rejected), *map(entry_of, results)]:
            predictions.add(entry)


def _write_reply(path: Path, result: Result) -> None:
    from framework.execution.results import speech_of
    from framework.io.audio import write_wav

    speech = speech_of(result)
    if speech is None:
        raise ConfigError(Problem(where="out_audio", got="a reply without a sound", expected="speech"))
    _, sound = speech
    write_wav(path, sound)
    building.say(f"{len(sound.samples) / sound.sample_rate:.2f} s of speech: {path}")


def _draw(path: Path, result: Result) -> None:
    from framework.io.picture import save_timeline

    save_timeline(path, result)
    building.say(f"time line: {path}")


def _tell_transcripts(result: Result) -> None:
    """What was understood of a recording, where that is not the reply itself."""
    for stage, report in result.stages.items():
        if "transcript" in report.details and f"{stage}:text" not in result.outputs:
            building.say(f"{stage} heard: {report.details['transcript']}")


def _error_of(result: Result) -> Exception:
    return result.error or RuntimeError("cancelled")


def _print_graph(graph: Graph) -> None:
    from framework.cli.text import columns
    from framework.graph.render import HEADINGS, mermaid, table

    print(columns([HEADINGS, *table(graph)]))
    print()
    print(mermaid(graph), end="")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings of both, at any depth; `over` wins."""
    both = {**base, **over}
    nested = [k for k in base if isinstance(base[k], Mapping) and isinstance(over.get(k), Mapping)]
    return {**both, **{key: _merged(base[key], over[key]) for key in nested}}


def _with_whole_utterance(graph: Graph, classes: Mapping[str, type[Any]], config: InferenceConfig) -> Graph:
    """`whole_utterance` set in the stages whose runner knows it."""
    if config.whole_utterance is None:
        return graph
    takers = [stage for stage in graph.stages if _takes(classes[stage.runner], "whole_utterance")]
    if not takers:
        got, expected = str(config.whole_utterance).lower(), "nothing: no stage of this graph vocodes in windows"
        raise ConfigError(Problem(where="whole_utterance", got=got, expected=expected))
    changed = {
        stage.id: attrs.evolve(stage, config={**stage.config, "whole_utterance": config.whole_utterance})
        for stage in takers
    }
    return attrs.evolve(graph, stages=tuple(changed.get(stage.id, stage) for stage in graph.stages))


def _takes(cls: type[Any], setting: str) -> bool:
    settings = cls.decl.config
    return settings is not None and setting in attrs.fields_dict(settings)


def keeps_folder(cfg: DictConfig) -> bool:
    return cfg.get("input_file") is not None and not cfg.get("validate_config")


def main() -> NoReturn:
    app.main("inference", task, keeps_folder=keeps_folder)


if __name__ == "__main__":
    main()
