"""What can be known to be wrong before anything is loaded: settings that no stage reads, engines that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from framework.deployment.config import InferenceConfig
from framework.engines.backend import Backend
from framework.errors import ConfigError, MultistageError, Problem, at, nearest
from framework.execution.request import Request
from framework.graph.model import Graph, RunnerDecl, Stage
from framework.graph.routes import unread_fields
from framework.io.requests import FIELDS
from framework.io.sampling import ROLES, unread
from framework.io.style import style_problems

Runners = Mapping[str, RunnerDecl]


def check_settings(graph: Graph, runners: Runners, config: InferenceConfig) -> None:
    """Raise ConfigError for sampling and style settings that this graph would not heed."""
    problems = unread(graph, runners, config.sampling, "sampling")
    problems += style_problems(graph, runners, config.style, "style")
    if problems:
        raise ConfigError(problems)


def check_deployment(graph: Graph, folder: Path, backends: Mapping[str, Backend], rebuild: str) -> None:
    """Raise ConfigError where the graph reads what no request has, or asks for what its engines cannot give.

    Args:
        folder: of the engines.
        backends: the typed settings, by stage.
        rebuild: the command that builds the engines for the backend of the run.
    """
    problems = [problem for stage in graph.stages for problem in _unknown_fields(stage)]
    problems += [problem for stage in graph.stages for problem in _engine(stage, folder, backends[stage.id], rebuild)]
    if problems:
        raise ConfigError(problems)


def request_problems(graph: Graph, runners: Runners, request: Request) -> list[Problem]:
    """What one request brings that no stage reads, such as an image for a text model or a style for a stage that has
    none. Sampling of a role is no such thing: a request may be written for a deployment that speaks too."""
    # Every request has messages; a graph that starts from sound alone need not read them.
    fields = unread_fields(graph, [field for field in request.fields if field != "messages"])
    read = sorted({i.source.name for stage in graph.stages for i in stage.inputs if i.source.from_request})
    where = f"request {request.index}"
    problems = [
        Problem(where=where, got=field, expected=f"only what a stage reads: {', '.join(read)}") for field in fields
    ]
    named = {key: value for key, value in request.sampling.items() if key not in ("default", *ROLES)}
    problems += unread(graph, runners, named, f"{where}: sampling")
    return problems + style_problems(graph, runners, request.options.get("style", {}), f"{where}: style")


def _unknown_fields(stage: Stage) -> Iterator[Problem]:
    for item in stage.inputs:
        if item.source.from_request and item.source.name not in FIELDS:
            where = at(at(at("stages", stage.id), "inputs"), item.name)
            hint = nearest(item.source.name, FIELDS)
            yield Problem(where=f"{where}.from", got=str(item.source), expected="a field of a request", hint=hint)


def _engine(stage: Stage, folder: Path, backend: Backend, rebuild: str) -> Iterator[Problem]:
    from framework.engines import manifest

    if not stage.artifact:
        return
    artifact, where = folder / stage.artifact, at("stages", stage.id)
    if not artifact.is_dir():
        got, expected = f"'{artifact}', which is not there", "a folder with the engine of this stage"
        yield Problem(where=at(where, "artifact"), got=got, expected=expected, hint=rebuild)
        return
    if not (artifact / manifest.FILE_NAME).is_file():  # the runner knows what it needs
        return
    try:
        record = manifest.read(artifact)
    except MultistageError as error:
        yield from error.problems
        return
    if record.backend != backend.name:
        got = f"an engine built for backend {record.backend!r}"
        hint = f"run with backend={record.backend}, or build another: {rebuild}"
        if stage.backend:  # `rebuild` is for the backend of the run
            hint = f"{at(where, 'backend')}={record.backend}, or the folder of one in {at(where, 'artifact')}"
        yield Problem(where=str(artifact), got=got, expected=f"one for {backend.name!r}", hint=hint)
    built = {"max_batch": record.spec.caps.get("batch"), "max_seq": record.options.get("max_kv_cache_capacity")}
    for key, most in built.items():
        if most is not None and getattr(stage, key) > most:
            yield Problem(where=at(where, key), got=str(getattr(stage, key)), expected=f"at most {most}, as built")
