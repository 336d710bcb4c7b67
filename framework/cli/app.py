"""What every command shares: Hydra's own flags, runs and sweeps.

Exit status: 0 done · 1 a request failed: a stage refused it, or broke, or its result could not be written · 2 what was
asked for is wrong, which is told before a request runs · 130 interrupted · 141 the reader of standard output has gone.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import attrs
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from framework.cli import streams
from framework.cli.arguments import prepare
from framework.cli.composition import Composer, key_of, own_folders, values_of
from framework.cli.hydra_private import Callbacks, get_args_parser
from framework.cli.status import check_standard_output, status_of, status_or_interrupted
from framework.errors import ConfigError, Problem
from framework.writing import after_requests


@attrs.frozen(kw_only=True)
class Run:
    """What a command's task knows of the run it is in.

    Attributes:
        folder: Hydra's folder of this run; None for a run that leaves nothing behind.
        overrides: as they were given.
        sweep: whether it is one job of a sweep.
        choices: what was chosen of each config group.
        command: what a shell runs to do this again.
        notes: what the task adds to the record of the run (`framework.sweeps.record`).
    """

    folder: Path | None
    overrides: tuple[str, ...]
    sweep: bool
    choices: Mapping[str, str] = attrs.field(factory=dict)
    command: str = ""
    notes: dict[str, Any] = attrs.field(factory=dict)


Task = Callable[[dict[str, Any], Run], int]


@attrs.frozen(kw_only=True)
class Hooks:
    """What a command has beside its task.

    Attributes:
        keeps_folder: whether a run with this config gets a folder below `outputs/`. A sweep's jobs always do.
        check: raises ConfigError for values that no run can have; asked for both ends of a sweep before it starts.
        sweep_end: called with the folder of a sweep and what its jobs share, after the last job; gives an exit status.
    """

    keeps_folder: Callable[[DictConfig], bool] = lambda cfg: False
    check: Callable[[dict[str, Any]], object] = lambda values: None
    sweep_end: Callable[[Path, DictConfig], int] = lambda folder, cfg: 0


def main(command: str, task: Task, hooks: Hooks | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit.

    Args:
        command: root config, e.g. `inference`.
        task: from the composed values to the exit status.
        argv: in place of the arguments of the process.
    """
    arguments = sys.argv[1:] if argv is None else argv
    leave(lambda: call(command, task, arguments, hooks))


def leave(command: Callable[[], int]) -> NoReturn:
    """Exit with the status of a command, which a standard output that is not read, or is full, can change."""
    streams.protect()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that finished results are written
    status = command()
    if status == 0:
        status = status_of(check_standard_output)
    sys.exit(status)


def call(command: str, task: Task, argv: Sequence[str], hooks: Hooks | None = None) -> int:
    """`main` without the process: the exit status."""
    return status_or_interrupted(lambda: _dispatch(command, task, argv, hooks or Hooks()))


def _dispatch(command: str, task: Task, argv: Sequence[str], hooks: Hooks) -> int:
    parser = get_args_parser()
    args = parser.parse_intermixed_args(prepare(argv))
    if args.experimental_rerun:
        problem = Problem(where="--experimental-rerun", got="a pickled run", expected="nothing: pickles can run code")
        raise ConfigError(problem)
    overrides = list(args.overrides)
    config_dir = Path(args.config_path) if args.config_path else None
    folders = own_folders(args.config_dir)
    options = [f"--config-dir={args.config_dir}"] if args.config_dir else []
    with Composer(args.config_name or command, overrides, config_dir=config_dir, folders=folders) as composer:
        if _answered(composer, parser, args):
            return 0
        if "list_deployments=true" in overrides:  # which composes by itself
            return _list_deployments(composer)
        if args.multirun or any(key_of(override) == "hydra.mode" for override in overrides):
            return _sweep(composer, task, hooks, options)
        cfg = composer.compose()
        if cfg.hydra.mode == RunMode.MULTIRUN:  # an experiment can be a sweep
            return _sweep(composer, task, hooks, options)
        if cfg.get("list_deployments"):
            return _list_deployments(composer)
        if cfg.get("explain"):
            from framework.cli.explain import origins, table

            print(table(origins(composer, values_of(cfg))))
            return 0
        return _run(composer, cfg, task, hooks.keeps_folder(cfg), argv)


def _answered(composer: Composer, parser: argparse.ArgumentParser, args: argparse.Namespace) -> bool:
    """Hydra's own questions: help, the composed config, its search path, shell completion."""
    hydra, name, overrides = composer.hydra, composer.command, composer.overrides
    with composer.plain_errors():
        if args.help:
            print(composer.help())
        elif args.hydra_help:
            hydra.hydra_help(config_name=name, args_parser=parser, args=args)
        elif args.cfg:
            hydra.show_cfg(name, overrides, cfg_type=args.cfg, package=args.package, resolve=args.resolve)
        elif args.info:
            hydra.show_info(args.info, config_name=name, overrides=overrides)
        elif args.shell_completion:
            hydra.shell_completion(config_name=name, overrides=overrides)
        else:
            return False
    return True


def _list_deployments(composer: Composer) -> int:
    from framework.cli.listing import deployments, overview

    print(overview(deployments(composer)))
    return 0


def _run(composer: Composer, cfg: DictConfig, task: Task, keep: bool, argv: Sequence[str]) -> int:
    command = _shell(composer.command, argv)
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.mode = RunMode.RUN
        if not keep:
            cfg.hydra.run.dir, cfg.hydra.output_subdir = ".", None
        elif "${now:" in str(OmegaConf.to_container(cfg.hydra.run, resolve=False)):  # no name that the user has chosen
            from framework.cli.folder import own

            cfg.hydra.run.dir = str(own(Path(cfg.hydra.run.dir)))
    callbacks = Callbacks(cfg)
    callbacks.on_run_start(config=cfg, config_name=cfg.hydra.job.config_name)
    job = run_job(
        task_function=lambda task_cfg: status_or_interrupted(
            lambda: _job(task, task_cfg, command, keep=keep, sweep=False)
        ),
        config=cfg,
        job_dir_key="hydra.run.dir",
        job_subdir_key=None,
        hydra_context=HydraContext(config_loader=composer.hydra.config_loader, callbacks=callbacks),
        configure_logging=False,
    )
    callbacks.on_run_end(config=cfg, config_name=cfg.hydra.job.config_name, job_return=job)
    return int(job.return_value)


def _sweep(composer: Composer, task: Task, hooks: Hooks, options: Sequence[str]) -> int:
    """The worst exit status of the jobs."""
    from framework.cli.sweeping import sweep
    from framework.deployment.loaded import process

    def job(task_cfg: DictConfig) -> int:
        streams.protect()  # a worker of a launcher has its own
        hydra_cfg = HydraConfig.get()
        print(f"[{hydra_cfg.job.num}] {' '.join(hydra_cfg.overrides.task)}", file=sys.stderr, flush=True)
        try:
            # A sweep of one: its overrides are in Hydra's grammar, and its outputs lie in its folder.
            alone = ("hydra/sweeper=basic", "hydra/launcher=basic", "hydra.sweeper.params=null")
            command = _shell(composer.command, ["-m", *options, *hydra_cfg.overrides.task, *alone])
            return status_of(lambda: _job(task, task_cfg, command, keep=True, sweep=True))
        except Exception:  # a bug of ours: the other jobs shall still run
            traceback.print_exc()
            return 1

    try:
        folder, cfg, codes = sweep(composer, job, hooks.check)
    finally:
        process.close()
    with after_requests():
        return max([*codes, hooks.sweep_end(folder, cfg), check_standard_output()])


def _shell(command: str, arguments: Sequence[str]) -> str:
    """What a shell runs to do the same again, from any folder."""
    return f"cd {shlex.quote(os.getcwd())}\n{shlex.join([f'multistage-{command}', *arguments])}"


def _job(task: Task, cfg: DictConfig, command: str, *, keep: bool, sweep: bool) -> int:
    hydra_cfg = HydraConfig.get()
    run = Run(
        folder=Path(hydra_cfg.runtime.output_dir) if keep else None,
        overrides=tuple(hydra_cfg.overrides.task),
        sweep=sweep,
        choices=dict(hydra_cfg.runtime.choices),
        command=command,
    )
    if run.folder is None:
        return task(values_of(cfg), run)
    from framework.cli.sweeping import check_own, problems_in
    from framework.sweeps.record import recording

    if sweep:
        check_own(run.folder, Path(hydra_cfg.runtime.cwd, hydra_cfg.sweep.dir))
    with recording(run.folder, run.overrides, measured=run.sweep) as record:
        if problems := problems_in(cfg):
            raise problems
        record.exit_status = task(values_of(cfg), attrs.evolve(run, notes=record.notes))
    return record.exit_status
