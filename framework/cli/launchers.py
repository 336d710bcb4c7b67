"""Launchers and sweepers that need an extra, and a launcher for Ray, whose published plugin wants far more than Ray.

Published ones are plugins of Hydra, which makes them itself; it makes none of other packages, so ours are made here.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from framework.cli.hydra_private import BASIC_LAUNCHER
from framework.deployment.instances import TARGET, class_of
from framework.errors import ConfigError, Problem


def make_sweeper(cfg: DictConfig, context: HydraContext, task: Callable[..., Any]) -> Any:
    """The sweeper that a config chooses, with the launcher that it chooses.

    Raises ConfigError for settings that are wrong, and when the extra that one of the two needs is not installed.
    """
    launcher, sweeper = _own(cfg, "launcher"), _own(cfg, "sweeper")
    if launcher is not None:
        launcher.setup(hydra_context=context, task_function=task, config=cfg)
    if sweeper is not None:
        sweeper.launcher = launcher or Plugins.instance().instantiate_launcher(context, task, cfg)
        sweeper.setup(hydra_context=context, task_function=task, config=cfg)
        return sweeper
    plain = cfg
    if launcher is not None:
        plain = copy.deepcopy(cfg)
        with read_write(plain.hydra), open_dict(plain.hydra):
            plain.hydra.launcher = {TARGET: BASIC_LAUNCHER}
    sweeper = Plugins.instance().instantiate_sweeper(hydra_context=context, task_function=task, config=plain)
    if launcher is not None:
        sweeper.launcher, sweeper.config = launcher, cfg  # the time in a folder's name is resolved once, in `cfg`
    return sweeper


def _own(cfg: DictConfig, group: str) -> Any:
    """Ours, made; None for one of Hydra's."""
    node: Any = OmegaConf.to_container(cfg.hydra[group], resolve=True)
    if not str(node[TARGET]).startswith("framework."):
        return None
    settings = {key: value for key, value in node.items() if key != TARGET}
    return class_of(node, f"hydra.{group}")(**settings)


def needed(package: str, extra: str, where: str) -> None:
    """Raise ConfigError when the package of an extra is not installed."""
    if importlib.util.find_spec(package) is None:
        hint = f"pip install 'multistage[{extra}]'"
        raise ConfigError(Problem(where=where, got=extra, expected=f"{package} installed", hint=hint))


class RayLauncher(Launcher):
    """See `conf/hydra/launcher/ray.yaml`.

    A job whose worker dies counts as failed, and the others go on.
    """

    def __init__(self, address: str | None, workers: int, cpus: float, gpus: float) -> None:
        needed("ray", "ray", "hydra/launcher")
        if not isinstance(workers, int) or workers < 1:
            expected = "a whole number of 1 or more"
            raise ConfigError(Problem(where="hydra.launcher.workers", got=repr(workers), expected=expected))
        self.address, self.workers, self.cpus, self.gpus = address, workers, cpus, gpus

    def setup(self, *, hydra_context: HydraContext, task_function: Callable[..., Any], config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        import ray

        setup_globals()
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        started = not ray.is_initialized()
        if started:
            cpus = None if self.address else self.workers * self.cpus
            self._connect(ray, cpus)
        try:
            return self._launched(ray, list(enumerate(job_overrides, initial_job_idx)))
        finally:
            if started:
                ray.shutdown()

    def _connect(self, ray: Any, cpus: float | None) -> None:
        """Raises ConfigError when there is no cluster at the address."""
        try:
            ray.init(address=self.address, num_cpus=cpus, include_dashboard=False, logging_level="warning")
        except (ConnectionError, RuntimeError, ValueError) as error:
            if self.address is None:
                raise
            where, hint = "hydra.launcher.address", " ".join(str(error).split())
            problem = Problem(where=where, got=repr(self.address), expected="a running Ray cluster", hint=hint)
            raise ConfigError(problem) from error

    def _launched(self, ray: Any, jobs: list[tuple[int, Sequence[str]]]) -> list[JobReturn]:
        worker = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(_Worker)
        shared = ray.put((self.hydra_context, self.task_function, self.config, Singleton.get_state()))
        idle = [worker.remote() for _ in range(min(self.workers, len(jobs)))]
        busy: dict[Any, tuple[int, Any]] = {}
        done: dict[int, JobReturn] = {}
        waiting = jobs[::-1]
        while waiting or busy:
            while waiting and idle:
                actor, (index, overrides) = idle.pop(), waiting.pop()
                busy[actor.run.remote(shared, index, list(overrides))] = index, actor
            (finished,), _ = ray.wait(list(busy), num_returns=1)
            index, actor = busy.pop(finished)
            try:
                done[index] = ray.get(finished)
                idle.append(actor)
            except ray.exceptions.RayError as error:
                done[index] = _lost(index, error)
                ray.kill(actor)
                idle.append(worker.remote())  # a new one, since the next job could be given to one that is just dying
        for actor in idle:
            ray.kill(actor)
        return [done[index] for index, _ in jobs]


class _Worker:
    """One process of the cluster, which takes one job after the other and keeps what it has loaded."""

    def run(self, shared: Any, index: int, overrides: list[str]) -> JobReturn:
        context, task, config, state = shared
        setup_globals()
        Singleton.set_state(state)
        job = context.config_loader.load_sweep_config(config, overrides)
        with open_dict(job):
            job.hydra.job.id, job.hydra.job.num = f"{job.hydra.job.name}_{index}", index
        HydraConfig.instance().set_config(job)
        return run_job(
            hydra_context=context,
            task_function=task,
            config=job,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            configure_logging=False,
        )


def _lost(index: int, error: Exception) -> JobReturn:
    from framework.deployment.building import say

    say(f"[{index}] its worker is gone: {next(iter(str(error).splitlines()), type(error).__name__)}")
    result = JobReturn(status=JobStatus.COMPLETED)
    result.return_value = 1
    return result
