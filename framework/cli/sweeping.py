"""A sweep: Hydra's own sweeper and launcher, over jobs that all run, whatever becomes of some of them.

Hydra composes every job before it starts the first, and gives up at the first that does not fit. Here such a job fails
alone, as one does whose requests fail; only what is wrong at both ends of the sweep is refused before anything runs.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from framework.cli.composition import Composer, problems_of, values_of
from framework.cli.hydra_private import CachingConfigRepository, Callbacks
from framework.cli.launchers import make_sweeper
from framework.cli.status import print_error
from framework.errors import ConfigError, Problem
from framework.sweeps.record import FILE_NAME, MARK, write
from framework.writing import after_requests, naming

_PROBLEMS = "composition_problems"  # key of a job's config that did not compose


Check = Callable[[dict[str, Any]], object]


def sweep(composer: Composer, job: Callable[[DictConfig], int], check: Check) -> tuple[Path, DictConfig, list[int]]:
    """Run all jobs; `job` must return, whatever happens in it, unless the sweep is to stop.

    Args:
        check: raises ConfigError for the values of a job that cannot run.

    Returns:
        the folder of the sweep, the config its jobs share, and the exit status of each job.

    Raises:
        ConfigError: the sweep cannot start: its config does not compose, no job fits, or its folder holds another one.
    """
    composer.mode = RunMode.MULTIRUN
    cfg = composer.compose()
    transcriber = OmegaConf.select(cfg, "report.transcribe")
    if transcriber is not None:  # needed when all jobs are done
        composer.check_choice("deployment", str(transcriber), where="report.transcribe")
    size = OmegaConf.select(cfg, "hydra.sweeper.max_batch_size")
    if size is not None and size < 1:
        where, expected = "hydra.sweeper.max_batch_size", "1 or more; null is all at once"
        raise ConfigError(Problem(where=where, got=str(size), expected=expected))
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.mode = RunMode.MULTIRUN
    loader: Any = composer.hydra.config_loader
    quick: Any = copy.copy(loader)
    quick.repository = ParsedOnce(loader.repository)
    lenient: Any = copy.copy(loader)
    lenient.load_sweep_config = partial(_load, quick)
    callbacks = Callbacks(cfg)
    context = HydraContext(config_loader=lenient, callbacks=callbacks)
    with composer.plain_errors():
        sweeper = make_sweeper(cfg, context, job)
        sweeper.validate_batch_is_legal = partial(_check, loader, cfg, check)
        folder = Path(str(cfg.hydra.sweep.dir)).absolute()
        claim(folder)
        callbacks.on_multirun_start(config=cfg, config_name=composer.command)
        arguments = [str(override) for override in cfg.hydra.overrides.task]
        try:
            with naming(folder):
                batches = sweeper.sweep(arguments=arguments) or []
            _check_some(batches)
        except (HydraException, OmegaConfBaseException, ConfigError):
            _unclaim(folder)
            raise
        except OSError:
            if any(folder.rglob(FILE_NAME)):
                with after_requests():  # a disk that the jobs have filled
                    raise
            _unclaim(folder)
            raise
        except Exception as error:  # a launcher that cannot start, or whose worker died
            if str(cfg.hydra.runtime.choices["hydra/launcher"]) == "basic":
                raise
            stopped = _stopped(error)
            if not any(folder.rglob(FILE_NAME)):
                _unclaim(folder)
                raise stopped from error
            print_error(stopped)  # what the other jobs did is on disk
            codes = [1]
        else:
            codes = [int(result.return_value) for batch in batches for result in batch]
        callbacks.on_multirun_end(config=cfg, config_name=composer.command)
    return folder, cfg, codes


class ParsedOnce(CachingConfigRepository):
    """The YAML files of all jobs, which are the same, read once: composing a job takes a third less."""

    def __deepcopy__(self, memo: Any) -> ParsedOnce:
        return self  # each composition copies the repository it is given

    def load_config(self, config_path: str) -> ConfigResult | None:
        return copy.deepcopy(super().load_config(config_path))


def _stopped(error: Exception) -> ConfigError:
    """What a launcher of others said last, in its first two lines; a log may follow."""
    got = " ".join(" ".join(str(error).splitlines()[:2]).split()) or type(error).__name__
    return ConfigError(Problem(where="hydra/launcher", got=got, expected="jobs that start, and end"))


def problems_in(cfg: DictConfig) -> ConfigError | None:
    """What kept a job's config from being composed."""
    faults: Any = None if _PROBLEMS not in cfg else OmegaConf.to_container(cfg[_PROBLEMS], resolve=False)
    return None if faults is None else ConfigError(Problem(**fault) for fault in faults)


def claim(folder: Path) -> None:
    """Make the folder of a sweep. Raises ConfigError when it holds one already; of two at once, one gets it."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "command": [*sys.argv]}
    taken = (folder / "multirun.yaml").exists() or any(folder.glob("*/.hydra"))
    try:
        if taken:
            raise FileExistsError
        with naming(folder / MARK), (folder / MARK).open("x", encoding="utf-8") as file:
            file.write(json.dumps(mark, ensure_ascii=False, indent=1) + "\n")
    except FileExistsError:
        got, hint = f"{str(folder)!r}, which holds a sweep", "leave hydra.sweep.dir to the preset, or name a new folder"
        raise ConfigError(
            Problem(where="hydra.sweep.dir", got=got, expected="a folder of its own", hint=hint)
        ) from None
    except OSError:  # a full disk
        _unclaim(folder)
        raise


def check_own(folder: Path, sweep: Path) -> None:
    """Raise ConfigError when another job has left its record in the folder of this one, or it is not in the sweep's."""
    outside = not folder.resolve().is_relative_to(sweep.resolve())
    if outside or (folder / FILE_NAME).exists():
        fault = "is not in the sweep's" if outside else "another point has"
        expected, hint = "a folder of its own in the sweep's for each point", "${hydra.job.num} is its number"
        raise ConfigError(
            Problem(where="hydra.sweep.subdir", got=f"'{folder}', which {fault}", expected=expected, hint=hint)
        )


def _unclaim(folder: Path) -> None:
    """Remove the folder of a sweep none of whose jobs has started."""
    if not any(path.is_dir() for path in folder.iterdir()):
        for name in (MARK, "multirun.yaml"):
            (folder / name).unlink(missing_ok=True)
        if not os.listdir(folder):
            folder.rmdir()


def _load(loader: Any, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
    """The config of a job; of one that does not fit, what fits, and the problems for the job to tell."""
    compose = partial(loader.load_sweep_config, master_config)
    try:
        return compose([*sweep_overrides])
    except (HydraException, OmegaConfBaseException) as error:
        problems, cfg = problems_of(error, sweep_overrides, compose)
        cfg = cfg if cfg is not None else compose([])
        with read_write(cfg), open_dict(cfg):
            cfg[_PROBLEMS] = [attrs.asdict(problem) for problem in problems]
            cfg.hydra.overrides.task = [*sweep_overrides]
        return cfg


def _check(loader: Any, cfg: DictConfig, check: Check, batch: Sequence[Sequence[str]]) -> None:
    """Raise ConfigError for jobs that cannot be meant; note how many there will be, for a sweep that is killed."""
    _check_ends(loader, cfg, check, batch)
    path = Path(str(cfg.hydra.sweep.dir)).absolute() / MARK
    mark = json.loads(path.read_text(encoding="utf-8"))
    mark["jobs"] = mark.get("jobs", 0) + len(batch)
    write(path, mark)  # in one step: a report may be reading it


def _check_some(points: Sequence[Any]) -> None:
    if not points:
        expected = "at least one value for each setting"
        raise ConfigError(Problem(where="sweep", got="no point", expected=expected, hint="range() or glob() gave none"))


def _check_ends(loader: Any, cfg: DictConfig, check: Check, batch: Sequence[Sequence[str]]) -> None:
    """Raise ConfigError for a sweep of nothing, and for what is wrong with the first and the last job alike."""
    _check_some(batch)
    ends = []
    for overrides in (batch[0], batch[-1]):
        try:
            job = _load(loader, cfg, overrides)
            if error := problems_in(job):
                raise error
            check(values_of(job))
        except ConfigError as found:
            ends.append(found)
        else:
            return
    common = [problem for problem in ends[0].problems if problem in ends[-1].problems]
    if common:
        raise ConfigError(common)
