"""`multistage-report`: the table and the page of a sweep; also what becomes of a sweep when it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from framework.cli import app
from framework.cli.status import status_of
from framework.deployment import building
from framework.deployment.config import Paths, ReportConfig, ReportOptions
from framework.errors import ConfigError, Problem
from framework.schema import structure

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from framework.sweeps.collect import Sweep


def task(values: dict[str, Any], run: app.Run) -> int:
    config = structure(ReportConfig, values, where="")
    if config.folder is None:
        hint = "multistage-report outputs/sweeps/..."
        raise ConfigError(Problem(where="folder", got="nothing", expected="the folder of a sweep or run", hint=hint))
    sweep, status = make(config.folder.expanduser(), config.report, config.paths)
    print(as_text(sweep))
    return max(status, 0 if sweep.ok else 1)


def make(folder: Path, options: ReportOptions, paths: Paths) -> tuple[Sweep, int]:
    """Write the table and the page of what lies in `folder`, into it.

    Returns:
        what was found, and an exit status: 2 when nothing could be transcribed, which takes nothing else away.

    Raises:
        ConfigError: there is no run in the folder.
    """
    from framework.sweeps import table
    from framework.sweeps.collect import collect

    sweep, status = collect(folder), 0
    if options.transcribe is not None:
        name = options.transcribe
        status = status_of(lambda: _transcribe(sweep, name, paths))
        sweep = collect(folder)
    table.save_csv(sweep, folder / table.CSV)
    missing = table.save_parquet(sweep, folder / table.PARQUET)
    if missing:
        building.say(missing)
    if options.page:
        from framework.sweeps import page

        page.save_page(sweep, folder / page.NAME, embed_mb=options.embed_mb)
        building.say(f"page: {folder / page.NAME}")
    return sweep, status


def as_text(sweep: Sweep) -> str:
    """The table, and below it what went wrong."""
    from framework.cli.text import columns
    from framework.sweeps.table import text

    alike: dict[str, list[str]] = {}
    for point in sweep.points:
        if point.error:
            alike.setdefault(point.error, []).append(point.name)
    faults = [(", ".join(names), *error.splitlines()) for error, names in alike.items()]
    told = [f"{names}: {first}{f' (and {len(more)} more)' if more else ''}" for names, first, *more in faults]
    if sweep.missing:
        told.append(f"{sweep.missing} of {sweep.missing + len(sweep.points)} points are missing: running, or killed")
    return "\n".join([columns(text(sweep)), *told])


def after_sweep(folder: Path, cfg: DictConfig) -> int:
    """The report of a sweep that has ended; its table goes where all goes that is no reply. The exit status."""
    sweep, status = make(folder, *_shared(cfg))
    building.say(as_text(sweep))
    return status


def hear(folder: Path, cfg: DictConfig) -> None:
    """What a sweep under way has said up to now, heard as its report will. Raises ConfigError when it cannot be."""
    from framework.sweeps.collect import collect

    options, paths = _shared(cfg)
    _transcribe(collect(folder), str(options.transcribe), paths)


def _shared(cfg: DictConfig) -> tuple[ReportOptions, Paths]:
    from omegaconf import OmegaConf

    node = {key: OmegaConf.to_container(cfg[key], resolve=True) for key in ("report", "paths")}
    return structure(ReportOptions, node["report"], where="report"), structure(Paths, node["paths"], where="paths")


def _transcribe(sweep: Sweep, deployment: str, paths: Paths) -> int:
    """Let a deployment hear what it has not heard yet. Raises ConfigError when there is none of this name, also where
    there is nothing to hear; when it cannot be had; and when it hears nothing at all."""
    from framework.cli.composition import Composer, own_folders, values_of
    from framework.deployment.config import InferenceConfig
    from framework.deployment.system import deployed, make_executor
    from framework.graph.routes import unread_fields
    from framework.sweeps.transcripts import missing, transcribe

    folders = [f"paths.{key}='{getattr(paths, key)}'" for key in ("cache", "engines", "weights")]
    given = ["build_if_missing=true", "batching=inflight", "batching.size=4", *folders]
    with Composer("inference", given, folders=own_folders(None)) as composer:
        composer.check_choice("deployment", deployment, where="report.transcribe")
        cells = missing(sweep, deployment)
        if not cells:
            return 0
        config = structure(InferenceConfig, values_of(composer.compose([f"deployment={deployment}"])), where="")
    system = deployed(config)
    if unread_fields(system.graph, ["audio"]):
        problem = Problem(where="report.transcribe", got=repr(deployment), expected="a deployment that hears sound")
        raise ConfigError(problem)
    building.say(f"{deployment} hears {len(cells)} replies")
    with make_executor(config, system, None) as executor:
        transcribe(sweep, deployment, executor.run)
    return 0


def with_folder(argv: Sequence[str]) -> list[str]:
    """The first argument that is neither a setting nor a flag is the folder."""
    place = next((n for n, arg in enumerate(argv) if "=" not in arg and not arg.startswith("-")), None)
    return [f"folder={arg}" if number == place else arg for number, arg in enumerate(argv)]


def main() -> NoReturn:
    app.main("report", task, argv=with_folder(sys.argv[1:]))


if __name__ == "__main__":
    main()
