"""From a checkpoint to an engine folder with its graph file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from framework.checkpoints.checkpoint import Checkpoint, open_checkpoint
from framework.compile.family import (
    BuildOptions,
    Component,
    DecoderOptions,
    EngineOptions,
    Family,
    Topology,
    options_of,
)
from framework.engines import manifest
from framework.engines.backend import Backend, compile_engine
from framework.engines.footprint import Footprint
from framework.engines.trial import run_once
from framework.errors import ConfigError, MultistageError, Problem, nearest
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph

Options = TypeVar("Options", bound=EngineOptions)
Progress = Callable[[str], None]


def build(
    model_path: Path,
    engine_dir: Path,
    *,
    families: Mapping[str, Family],
    options: BuildOptions,
    backend: Backend,
    progress: Progress = lambda message: None,
) -> Graph | str:
    """Compile every component of a checkpoint and write the graph beside the engines.

    The folder appears whole or not at all; an older one is replaced.

    Returns:
        The graph, or the reason why this build has none (its engines are there nonetheless).

    Raises:
        ConfigError: the checkpoint, the options or the backend cannot be had.
    """
    from framework.engines.folder import building

    dtype = backend.activation_dtype(options.precision)
    checkpoint = open_checkpoint(model_path)
    family = family_of(checkpoint, families)
    heeded = resolved(options_of(family, options), backend)
    options = resolved(options, backend)
    _check_blocks(checkpoint, options)
    components = _selected(family.components(checkpoint, heeded), options.components)
    recorded = attrs.asdict(options)
    partial = "all" not in options.components  # what other components already lie there stays
    with building(engine_dir, keep_subfolders=partial) as folder:
        for component in components:
            progress(f"{component.name}: reading weights")
            model = component.model(dtype)
            _note(model, options)
            target = folder / component.artifact
            target.mkdir(parents=True, exist_ok=True)
            progress(f"{component.name}: compiling for {backend.name}")
            compile_engine(
                model,
                target,
                backend,
                states=component.states,
                caps=component.caps,
                opt=component.opt,
                most=component.most,
                checkpoint=checkpoint.fingerprint,
                options=recorded,
            )
            _write_files(target, component.files)
            unable = run_once(target, backend, least=component.least, most=component.most)
            if unable is not None:
                progress(f"{component.name}: not tried, for it cannot run here: {unable}")
        found = family.topology({c.name: c.artifact for c in components}, checkpoint, heeded)
        if isinstance(found, Topology):
            graph = Graph(terminals=found.terminals, stages=found.stages)
            files.save(graph, folder / FILE_NAME)
            return graph
        return found


def plan(
    model_path: Path, *, families: Mapping[str, Family], options: BuildOptions, backend: Backend
) -> dict[str, Footprint]:
    """Memory that each component would take once it is built and loaded, by name; builds nothing and reads no weights.

    Raises ConfigError as `build`.
    """
    from framework.engines.footprint import foreseen

    dtype = backend.activation_dtype(options.precision)
    checkpoint = open_checkpoint(model_path)
    family = family_of(checkpoint, families)
    _check_blocks(checkpoint, options)
    components = family.components(checkpoint, resolved(options_of(family, options), backend))
    found = {}
    for component in _selected(components, options.components):
        model = component.model(dtype)
        _note(model, options)
        for rewrite in backend.passes():
            model = rewrite(model)
        found[component.name] = foreseen(model, backend.memory, component.states, component.caps, component.most)
    return found


def graph_only(model_path: Path, engine_dir: Path, *, families: Mapping[str, Family]) -> Graph | str:
    """Write the graph of engines that are already in `engine_dir`; builds nothing.

    Each is looked for where its family says that it may lie, else in a subfolder of its own name. One anywhere else is
    left out.

    Returns:
        The graph, or the reason why none was written.
    """
    checkpoint = open_checkpoint(model_path)
    family = family_of(checkpoint, families)
    components = _discover(engine_dir, family)
    if not components:
        places = list(dict.fromkeys(place for named in family.places.values() for place in named if place != "."))
        listed = f", in {', '.join(places)}" if places else ""
        expected = f"{manifest.FILE_NAME} in it{listed} or in a component's own folder"
        raise ConfigError(Problem(where=str(engine_dir), got="no engine", expected=expected))
    # The engine in front of the others says what it was built with: its hidden states are ports of the graph.
    given = _recorded(engine_dir / next(iter(components.values())))
    found = family.topology(components, checkpoint, options_of(family, given))
    if isinstance(found, str):
        return found
    stages = tuple(_with_caps(stage, engine_dir) for stage in found.stages)
    graph = Graph(terminals=found.terminals, stages=stages)
    files.save(graph, engine_dir / FILE_NAME)
    return graph


def stale(engine_dir: Path, *, options: BuildOptions, backend: Backend, model_path: Path | None = None) -> str | None:
    """Why the folder does not hold what these options would build, in words; None when it does.

    Args:
        model_path: the checkpoint; its weights are compared with those of the build by `Checkpoint.fingerprint`, which
            reads a little of each. One that is no longer there is not asked for.
    """
    try:
        graph = files.load(engine_dir / FILE_NAME)
        records = [manifest.read(engine_dir / stage.artifact) for stage in graph.stages if stage.artifact]
    except (MultistageError, OSError) as error:
        return str(error) if engine_dir.exists() else "there are no engines yet"
    wanted = _plain(resolved(options, backend))
    younger = _plain(resolved(BuildOptions(), backend))  # what an option does that the build did not know yet
    for record in records:
        if record.backend != backend.name:
            return f"it was built for backend {record.backend}, not {backend.name}"
        for key, value in wanted.items():
            built = record.options.get(key, younger[key])
            if built != value:
                return f"it was built with {key}={built}, not {value}"
    if model_path is not None and model_path.exists():
        now = open_checkpoint(model_path)
        for record in records:
            if changed := now.changed_since(record.checkpoint):
                return f"it was built from {changed} than {str(model_path)!r} has now"
    return None


def resolved(options: Options, backend: Backend) -> Options:
    """Options with what they leave to the backend filled in."""
    if not isinstance(options, DecoderOptions) or options.candidates is not None:
        return options
    return attrs.evolve(options, candidates=backend.candidates)


def _plain(options: BuildOptions) -> dict[str, Any]:
    """As an engine's record has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in attrs.asdict(options).items()}


def _note(model: Any, options: BuildOptions) -> None:
    """Tell the backend's passes how weights are to be stored; an imported network says it itself."""
    model.metadata_props.setdefault("precision", options.precision)
    model.metadata_props.setdefault("block_size", str(options.block_size))


def family_of(checkpoint: Checkpoint, families: Mapping[str, Family]) -> Family:
    """The family of a checkpoint's architecture. Raises ConfigError naming the supported ones."""
    named = checkpoint.config.get("architectures") or []
    for architecture in named:
        if architecture in families:
            return families[architecture]
    got = ", ".join(named) or "none"
    supported = ", ".join(sorted(families))
    hint = nearest(named[0], families) if named else ""
    where = f"{checkpoint.path}: architectures"
    raise ConfigError(Problem(where=where, got=got, expected=f"a supported architecture: {supported}", hint=hint))


def _check_blocks(checkpoint: Checkpoint, options: BuildOptions) -> None:
    """Raise ConfigError for a size of blocks that nothing would have: of weights that are not rounded, or that are
    rounded already."""
    from framework.engines.passes.weights import BLOCK, CARRIED

    if options.block_size == BLOCK:
        return
    where, got = "build.block_size", str(options.block_size)
    bits = {"int8": 8, "int4": 4}.get(options.precision)
    if bits is None:
        expected = f"{BLOCK} with build.precision={options.precision}: weights of 8 and 4 bits alone go in blocks"
        raise ConfigError(Problem(where=where, got=got, expected=expected))
    formats = sorted({tensor.block_format for tensor in checkpoint.tensors.values()} & {*CARRIED[bits]})
    if formats:
        expected = (
            f"{BLOCK}: {checkpoint.path} brings blocks of that size ({', '.join(formats)}), which are carried over"
        )
        raise ConfigError(Problem(where=where, got=got, expected=expected))


def _selected(components: Sequence[Component], wanted: Sequence[str]) -> list[Component]:
    if "all" in wanted:
        return list(components)
    names = [component.name for component in components]
    problems = [
        Problem(where="build.components", got=repr(name), expected="a component", hint=nearest(name, names))
        for name in wanted
        if name not in names
    ]
    if problems:
        raise ConfigError(problems)
    return [component for component in components if component.name in wanted]


def _write_files(folder: Path, sidecars: Mapping[str, bytes | Path]) -> None:
    for name, content in sidecars.items():
        if isinstance(content, Path):
            shutil.copyfile(content, folder / name)
        else:
            (folder / name).write_bytes(content)


def _discover(engine_dir: Path, family: Family) -> dict[str, str]:
    def first(candidates: Sequence[str]) -> str | None:
        return next((c for c in candidates if (engine_dir / c / manifest.FILE_NAME).is_file()), None)

    places = {name: first(candidates) for name, candidates in family.places.items()}
    taken = {place.partition("/")[0] for candidates in family.places.values() for place in candidates}
    for folder in sorted(engine_dir.iterdir()) if engine_dir.is_dir() else ():
        if folder.name not in taken and (folder / manifest.FILE_NAME).is_file():
            places[folder.name] = folder.name
    return {name: place for name, place in places.items() if place is not None}


def _recorded(folder: Path) -> BuildOptions:
    """Options that an engine was built with."""
    from framework.schema import structure

    names = {field.name for field in attrs.fields(BuildOptions)}
    built = {name: value for name, value in manifest.read(folder).options.items() if name in names}
    return structure(BuildOptions, built, where=f"{folder / manifest.FILE_NAME}: options")


def _with_caps(stage: Any, engine_dir: Path) -> Any:
    """A stage with the caps that its engine was built with."""
    if not stage.artifact:
        return stage
    record = manifest.read(engine_dir / stage.artifact)
    capacity = record.options.get("max_kv_cache_capacity", stage.max_seq)
    return attrs.evolve(stage, max_batch=record.spec.caps.get("batch", stage.max_batch), max_seq=capacity)
