"""`multistage-inference`: requests through a graph; one from the command line, or a file of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from framework.cli import app
from framework.cli.files import error_of, keep, output_of, record_of, run_file
from framework.cli.folder import describe
from framework.deployment import building, checks
from framework.deployment.config import InferenceConfig, check_combination
from framework.deployment.instances import PREFIXES, runner_classes, runner_decls, safe_instantiate
from framework.deployment.requested import (
    check_outputs,
    check_places,
    checked,
    defaults_of,
    file_of,
    in_folder,
    single_request,
)
from framework.errors import ConfigError, Problem, StageError
from framework.graph.model import Graph, RunnerDecl, Stage
from framework.graph.validate import load_checked
from framework.schema import structure
from framework.writing import after_requests

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

    @property
    def decls(self) -> Mapping[str, RunnerDecl]:
        return runner_decls(self.classes)


def task(values: dict[str, Any], run: app.Run, prefixes: tuple[str, ...] = PREFIXES) -> int:
    """Exit status of one run; `prefixes` is what a `_target_` may start with."""
    config = settled(values)
    if run.sweep and run.folder is not None:
        config = in_folder(config, run.folder)
    check_places(config)
    if config.validate_config:
        system = deployed(config, prefixes)
        _check(config, system, run)
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
    _check(config, system, run)
    check_outputs(system.graph, config)
    file = checked(file, _faults(system))
    run.notes["stages"] = _speakers(system.graph)
    if run.folder is not None:
        describe(run.folder, system.graph, run.command)
        run.notes["predictions"] = output_of(config, run.folder)
    with executor_for(config, system, file.batch_size, run) as executor:
        opened, started = executor.opening_s, time.perf_counter()
        if config.input_file is not None:
            record = record_of(values, config, system.folder, system.graph, file)
            status = 1 if run_file(config, run, executor, file, record, profile) else 0
        else:
            results = _run_one(config, run, executor, file)
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


def _check(config: InferenceConfig, system: Deployed, run: app.Run) -> None:
    """Raise ConfigError for settings that this deployment would not heed and engines that do not fit."""
    checks.check_settings(system.graph, system.decls, config)
    backend = safe_instantiate(config.backend, "backend", system.prefixes)
    rebuild = building.command(config, run.choices, system.folder)
    checks.check_deployment(system.graph, system.folder, backend, rebuild)


def _faults(system: Deployed) -> Callable[[Request], list[Problem]]:
    """What is wrong with a request for this graph, also for the stages it leaves out: known before one is opened."""
    runners = [(stage, _runner(system, stage)) for stage in system.graph.stages]

    def faults(request: Request) -> list[Problem]:
        found = checks.request_problems(system.graph, system.decls, request)
        for stage, runner in runners:
            sources = {item.name: item.source for item in stage.inputs if item.source.from_request}
            given = {name: request.fields[it.name] for name, it in sources.items() if it.name in request.fields}
            try:
                runner.check_choices(system.folder / stage.artifact, given)
            except StageError as error:
                found += error.problems
        return found

    return faults


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
    from framework.execution.executor import Executor
    from framework.execution.runner import OpenContext

    policy, backend = _policy(config, system, batch_size), _backend(config, system)

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


@contextmanager
def executor_for(config: InferenceConfig, system: Deployed, batch_size: int | None, run: app.Run) -> Iterator[Executor]:
    """`make_executor` for one run; in a sweep, one that the jobs with the same engines share."""
    if not run.sweep:
        with make_executor(config, system, batch_size) as executor:
            yield executor
        return
    from framework.deployment.loaded import opened_with, process

    policy = _policy(config, system, batch_size)
    key = opened_with(system.folder, system.graph, system.classes, _backend(config, system), policy.size)
    process.number, process.limit = config.keep_loaded, config.keep_loaded_bytes
    with process.use(key, lambda: make_executor(config, system, batch_size)) as executor:
        executor.policy, executor.stream_capacity = policy, config.stream_capacity
        yield executor


def _policy(config: InferenceConfig, system: Deployed, batch_size: int | None) -> Any:
    size = config.batching.get("size")
    node = {**config.batching, "size": (batch_size or 1) if size is None else size}
    return safe_instantiate(node, "batching", system.prefixes)


def _backend(config: InferenceConfig, system: Deployed) -> Any:
    from framework.engines.backend import shared

    return shared(safe_instantiate(config.backend, "backend", system.prefixes), system.folder)


def _speakers(graph: Graph) -> dict[str, str]:
    """Which stage gives the reply's text, and which its sound."""
    found = ((terminal, graph.stage(terminal.owner)) for terminal in graph.terminals)
    ports = [(terminal.owner, stage.port(terminal.name)) for terminal, stage in found if stage is not None]
    return {port.kind: owner for owner, port in ports if port is not None and port.kind in ("text", "audio")}


def _runner(system: Deployed, stage: Stage) -> Any:
    cls = system.classes[stage.runner]
    settings = cls.decl.config
    typed = None if settings is None else structure(settings, stage.config, where=f"stages.{stage.id}.config")
    return cls(stage=stage, config=typed)


def _plan_memory(config: InferenceConfig, system: Deployed) -> int:
    """Print what the stages will take; status 1 when some do not fit."""
    from framework.deployment import planning

    backend = _backend(config, system)
    return planning.tell(planning.planned(system.graph, system.folder, backend, config.batching.get("size")), backend)


def _list_voices(system: Deployed) -> int:
    """Print what requests may choose by name, a line a choice."""
    found = [
        f"{field}: {', '.join(names)}"
        for stage in system.graph.stages
        for field, names in _runner(system, stage).choices(system.folder / stage.artifact).items()
        if names
    ]
    if not found:
        expected = "nothing: no stage of this graph has voices or languages"
        raise ConfigError(Problem(where="list_voices", got="true", expected=expected))
    print("\n".join(found))
    return 0


def _run_one(config: InferenceConfig, run: app.Run, executor: Executor, file: RequestFile) -> list[Result]:
    """One request, its text on standard output as it is written; whole where jobs beside it write there too.

    A reply that nobody reads any more, or that has no place, is not finished unless something else is made of it.
    """
    from framework.execution.payloads import TextChunk
    from framework.execution.results import heard

    def write(request: Request, terminal: str, chunk: Any) -> None:
        if isinstance(chunk, TextChunk):
            written.append(chunk.text)
            if alone:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
                if nothing_else:
                    app.check_standard_output()

    written: list[str] = []
    alone = run.choices.get("hydra/launcher", "basic") == "basic"
    nothing_else = run.folder is None and config.out_audio is None and config.out_timeline is None
    with after_requests():
        try:
            results = [heard(result) for result in executor.run(file.good, on_chunk=write)]
        finally:
            if written:
                # In one piece, line end and all: other processes may write between two.
                sys.stdout.write("\n" if alone else "".join([*written, "\n"]))
                sys.stdout.flush()
        for rejected in file.rejected:
            app.complain(rejected.error)
        for result in results:
            if not result.ok:
                app.complain(error_of(result))
            else:
                _tell_transcripts(result)
                _tell_cuts(result)
                if config.out_audio is not None:
                    _write_reply(config.out_audio, result)
                if config.out_timeline is not None:
                    _draw(config.out_timeline, result)
        if run.folder is not None:
            keep(run.folder / "predictions.json", file, results, config.out_audio)
        else:
            app.check_standard_output()
    return results


def _write_reply(path: Path, result: Result) -> None:
    from framework.execution.results import speech_of
    from framework.io.audio import write_wav

    speech = speech_of(result)
    assert speech is not None  # or it had failed
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
