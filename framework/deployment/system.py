"""From settings to a deployment that can run: its checked graph, its runners, and an executor over its engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from framework.deployment import building, checks
from framework.deployment.config import InferenceConfig
from framework.deployment.instances import PREFIXES, runner_classes, runner_decls, safe_instantiate
from framework.errors import ConfigError, Problem, StageError, at, nearest
from framework.graph.files import merged
from framework.graph.model import Graph, RunnerDecl, Stage
from framework.graph.validate import load_checked
from framework.schema import structure

if TYPE_CHECKING:
    from framework.engines.backend import Backend
    from framework.execution.executor import Executor
    from framework.execution.policies import Policy
    from framework.execution.request import Request
    from framework.execution.runner import Runner
    from framework.io.kinds import PayloadKind


@attrs.frozen(kw_only=True)
class Deployed:
    """A checked graph over a folder of engines, and the classes of its runners.

    Attributes:
        classes: by the name that a graph gives a runner.
        prefixes: what a `_target_` may start with.
    """

    folder: Path
    graph: Graph
    classes: Mapping[str, type[Any]]
    prefixes: tuple[str, ...]

    @property
    def decls(self) -> Mapping[str, RunnerDecl]:
        return runner_decls(self.classes)

    @property
    def kinds(self) -> dict[str, PayloadKind]:
        """Kinds of payload that a caller gets, by name: those of every deployment, and those of the graph's runners."""
        from framework.io.kinds import KINDS

        used = [self.classes[stage.runner].decl for stage in self.graph.stages]
        return {**KINDS, **{row.name: row for decl in used for row in decl.payloads}}

    @property
    def speakers(self) -> dict[str, str]:
        """Which stage gives the reply's text, and which its sound."""
        found = ((terminal, self.graph.stage(terminal.owner)) for terminal in self.graph.terminals)
        ports = [(terminal.owner, stage.port(terminal.name)) for terminal, stage in found if stage is not None]
        return {port.kind: owner for owner, port in ports if port is not None and port.kind in ("text", "audio")}

    @property
    def choices(self) -> list[tuple[str, list[str]]]:
        """What requests may choose by name (voice, language), stage by stage: the field and its names."""
        return [
            (field, [*names])
            for stage in self.graph.stages
            for field, names in self.runner(stage).choices(self.folder / stage.artifact).items()
            if names
        ]

    def runner(self, stage: Stage) -> Runner:
        """A new runner of the stage, not open yet. Raises ConfigError for a config that it does not know."""
        cls = self.classes[stage.runner]
        settings = cls.decl.config
        typed = None if settings is None else structure(settings, stage.config, where=f"stages.{stage.id}.config")
        runner: Runner = cls(stage=stage, config=typed)
        return runner


def deployed(config: InferenceConfig, prefixes: tuple[str, ...] = PREFIXES) -> Deployed:
    """The graph of the engine folder, fit to run; built first when that was asked for.

    Raises ConfigError or GraphError with every fault of the graph and of the changes to it.
    """
    folder = building.engine_dir(config)
    building.ensure_built(config, folder, config.build_if_missing, prefixes)
    classes = runner_classes(config.runners, prefixes)
    stages = merged(config.deployment.stages, config.stages)
    graph = load_checked(folder, runner_decls(classes), stages=stages)
    graph = _with_whole_utterance(graph, classes, config)
    return Deployed(folder=folder, graph=graph, classes=classes, prefixes=prefixes)


def check(config: InferenceConfig, system: Deployed, choices: Mapping[str, str]) -> None:
    """Raise ConfigError for settings that this deployment would not heed and engines that do not fit.

    Args:
        choices: what was chosen of each config group.
    """
    checks.check_settings(system.graph, system.decls, config)
    rebuild = building.command(config, choices, system.folder)
    checks.check_deployment(system.graph, system.folder, backends_of(config, system), rebuild)


def faults_of(system: Deployed) -> Callable[[Request], list[Problem]]:
    """What is wrong with a request for this graph, also for the stages it leaves out: known before one is opened."""
    runners = [(stage, system.runner(stage)) for stage in system.graph.stages]

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


def make_executor(
    config: InferenceConfig,
    system: Deployed,
    batch_size: int | None,
    opened_by: Callable[[Backend], Backend] = lambda backend: backend,
) -> Executor:
    """An executor whose stages are opened when the first request needs them.

    Args:
        batch_size: requests that run together where `batching.size` does not say; None is one.
        opened_by: what opens the engines in place of the backend, e.g. the same one watched.
    """
    from framework.execution.executor import Executor
    from framework.execution.runner import OpenContext

    policy = policy_of(config, system, batch_size)
    backends = {name: opened_by(backend) for name, backend in backends_of(config, system).items()}

    def context(stage: Stage) -> OpenContext:
        artifact = system.folder / stage.artifact
        batch = min(stage.max_batch, policy.size)
        return OpenContext(engine_dir=system.folder, artifact=artifact, backend=backends[stage.id], batch=batch)

    return Executor(
        system.graph,
        {stage.id: system.runner(stage) for stage in system.graph.stages},
        policy=policy,
        make_context=context,
        stream_capacity=config.stream_capacity,
    )


@contextmanager
def kept_executor(config: InferenceConfig, system: Deployed, batch_size: int | None) -> Iterator[Executor]:
    """As `make_executor`; jobs of this process with the same engines share one (`framework.deployment.loaded`)."""
    from framework.deployment.loaded import opened_with, process

    policy = policy_of(config, system, batch_size)
    backends = backends_of(config, system).values()
    key = opened_with(system.folder, system.graph, system.classes, backends, policy.size)
    process.number, process.limit = config.keep_loaded, config.keep_loaded_bytes
    with process.use(key, lambda: make_executor(config, system, batch_size)) as executor:
        executor.policy, executor.stream_capacity = policy, config.stream_capacity
        yield executor


def policy_of(config: InferenceConfig, system: Deployed, batch_size: int | None) -> Policy:
    size = config.batching.get("size")
    node = {**config.batching, "size": (batch_size or 1) if size is None else size}
    policy: Policy = safe_instantiate(node, "batching", system.prefixes)
    return policy


def backend_of(config: InferenceConfig, system: Deployed) -> Backend:
    from framework.engines.backend import shared

    return shared(safe_instantiate(config.backend, "backend", system.prefixes), system.folder)


def backends_of(config: InferenceConfig, system: Deployed) -> dict[str, Backend]:
    """The backend of every stage, by its id: the run's, or the one that the stage names, on the GPU that it names.

    Raises ConfigError for a name that is no row of `backends`, and for a GPU of a backend that uses none.
    """
    from framework.engines.backend import shared

    own, found, problems = backend_of(config, system), dict[str, "Backend"](), list[Problem]()
    for stage in system.graph.stages:
        where, backend = at("stages", stage.id), own
        if stage.backend and stage.backend != own.name:
            if stage.backend not in config.backends:
                names = sorted({own.name, *config.backends})
                hint, expected = nearest(stage.backend, names), "a backend of the configuration"
                problems.append(Problem(where=at(where, "backend"), got=stage.backend, expected=expected, hint=hint))
                continue
            node = config.backends[stage.backend]
            backend = shared(safe_instantiate(node, f"backends.{stage.backend}", system.prefixes), system.folder)
        if stage.device is not None:
            moved = backend.on_device(stage.device) if stage.device >= 0 else None
            if moved is None:
                expected = "an index from 0 on" if stage.device < 0 else f"nothing: backend {backend.name} uses no GPU"
                problems.append(Problem(where=at(where, "device"), got=str(stage.device), expected=expected))
                continue
            backend = moved
        found[stage.id] = backend
    if problems:
        raise ConfigError(problems)
    return found


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
