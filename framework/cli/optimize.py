"""A sweep that looks for its best point, with Optuna: each batch of points is chosen by how those before it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from framework.cli.composition import values_of
from framework.cli.launchers import needed
from framework.deployment.building import has_graph, say
from framework.errors import ConfigError, Problem, nearest
from framework.sweeps.collect import collect
from framework.sweeps.metrics import METRICS

DIRECTIONS = {"high": "maximize", "low": "minimize"}
HEARD = "wer"  # known once the sound of a point has been transcribed
# What decides which outputs a point has: of points that differ in it, the first says nothing about the others.
_DECIDING = frozenset({"deployment", "engine_dir", "experiment", "out_audio", "output_audio_dir"})


class OptunaSweeper(Sweeper):
    """See `conf/hydra/sweeper/optuna.yaml`. The objective is read from the record that each job leaves."""

    def __init__(
        self,
        *,
        objective: str | None,
        direction: str | None,
        n_trials: int,
        n_jobs: int,
        seed: int | None,
        storage: str | None,
        study_name: str | None,
        params: Mapping[str, str],
    ) -> None:
        needed("optuna", "optuna", "hydra/sweeper")
        metrics = {metric.name: metric for metric in METRICS}
        problems = []
        if objective is None or objective not in metrics:
            got, hint = "nothing" if objective is None else repr(objective), nearest(objective or "", metrics)
            expected = "a column of the report"
            problems.append(Problem(where="hydra.sweeper.objective", got=got, expected=expected, hint=hint))
        better = DIRECTIONS.get(metrics[objective].better) if objective in metrics else None
        if direction not in (*DIRECTIONS.values(), None) or (direction is None and better is None and not problems):
            expected, hint = "maximize or minimize", nearest(direction, DIRECTIONS.values()) if direction else ""
            got = "nothing" if direction is None else repr(direction)
            problems.append(Problem(where="hydra.sweeper.direction", got=got, expected=expected, hint=hint))
        for key, number in {"n_trials": n_trials, "n_jobs": n_jobs}.items():
            if not isinstance(number, int) or number < 1:
                where, expected = f"hydra.sweeper.{key}", "a whole number of 1 or more"
                problems.append(Problem(where=where, got=repr(number), expected=expected))
        if seed is not None and not isinstance(seed, int):
            problems.append(Problem(where="hydra.sweeper.seed", got=repr(seed), expected="a whole number, or null"))
        if problems:
            raise ConfigError(problems)
        self.objective = str(objective)
        self.direction: Any = direction or better
        self.n_trials, self.n_jobs, self.seed = n_trials, n_jobs, seed
        self.storage, self.study_name, self.params = storage, study_name, params

    def setup(self, *, hydra_context: HydraContext, task_function: Callable[..., Any], config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        import optuna

        assert self.hydra_context is not None and self.config is not None and self.launcher is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        given = parser.parse_overrides([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        given = list({override.get_key_element(): override for override in given}.values())  # the later wins
        if not any(override.is_sweep_override() for override in given):
            hint = "'sampling.temperature=interval(0.2,1.2)'"
            raise ConfigError(Problem(where="hydra/sweeper", got="no range", expected="something to try", hint=hint))
        study = self._study()
        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        batches: list[Sequence[JobReturn]] = []
        points: list[tuple[str, float]] = []
        for begin in range(0, self.n_trials, self.n_jobs):
            trials = [study.ask() for _ in range(min(self.n_jobs, self.n_trials - begin))]
            jobs = [[suggested(override, trial) for override in given] for trial in trials]
            if not batches:
                self.validate_batch_is_legal(jobs)
                if not {override.key_or_group for override in given if override.is_sweep_override()} & _DECIDING:
                    check_objective(self.objective, values_of(loader.load_sweep_config(self.config, jobs[0])))
            batches.append(self.launcher.launch(jobs, initial_job_idx=begin))
            if self.objective == HEARD:
                from framework.cli.report import hear

                hear(folder, self.config)
            for trial, job, result in zip(trials, jobs, batches[-1], strict=True):
                value = self._value(result, folder)
                state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
                study.tell(trial, value, state=state)
                if value is not None:
                    changed = [o for o, asked in zip(job, given, strict=True) if asked.is_sweep_override()]
                    points.append((f"[{begin + trials.index(trial)}] {' '.join(changed)}", value))
        self._tell(points)
        return batches

    def _study(self) -> Any:
        """Begun, or gone on with. Raises ConfigError when its storage cannot be opened, or holds one that goes the
        other way."""
        import optuna

        begin = partial(optuna.create_study, direction=self.direction, study_name=self.study_name, load_if_exists=True)
        sampler = optuna.samplers.TPESampler(seed=self.seed)
        try:
            study = begin(sampler=sampler, storage=self.storage)
        except Exception as error:  # of the many libraries that a storage may be of
            if self.storage is None:
                raise
            where, expected = "hydra.sweeper.storage", "a storage of Optuna, such as sqlite:///study.db"
            hint = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigError(Problem(where=where, got=repr(self.storage), expected=expected, hint=hint)) from error
        if (found := study.direction.name.lower()) != self.direction:
            where, got = "hydra.sweeper.study_name", f"{self.study_name!r}, which is there to {found}"
            raise ConfigError(Problem(where=where, got=got, expected=f"a study to {self.direction}"))
        return study

    def _value(self, result: JobReturn, folder: Path) -> float | None:
        """The objective of one job; None when it failed or has no such number."""
        if int(result.return_value) or result.hydra_cfg is None:
            return None
        job = Path(str(result.hydra_cfg.hydra.runtime.output_dir)).absolute()
        try:
            points = collect(folder if self.objective == HEARD else job).points  # the sweep keeps what was heard
        except ConfigError:
            return None
        value = next((point.numbers.get(self.objective) for point in points if point.folder == job), None)
        return float(value) if isinstance(value, (int, float)) else None

    def _tell(self, points: Sequence[tuple[str, float]]) -> None:
        if not points:
            say(f"no point has a {self.objective}: see the errors above, or choose another hydra.sweeper.objective")
            return
        best, value = (max if self.direction == "maximize" else min)(points, key=lambda point: point[1])
        say(f"best of {len(points)}: {best}, with {self.objective} {value:g}")


def check_objective(objective: str, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a column that no point will have.

    Args:
        values: the config of a point. What its graph gives is known once its engines are built.
    """
    from framework.deployment.requested import SPOKEN, offered
    from framework.graph import files

    where = "hydra.sweeper.objective"
    of = next(metric.of for metric in METRICS if metric.name == objective)
    engine_dir = Path(values["engine_dir"] or "").expanduser()
    kinds = offered(files.load(engine_dir)) if has_graph(engine_dir) else [of]
    if of and of not in kinds:
        hint = nearest(objective, [metric.name for metric in METRICS if metric.of in ("", *kinds)])
        expected = f"a column of what this graph gives, {', '.join(kinds)}"
        raise ConfigError(Problem(where=where, got=repr(objective), expected=expected, hint=hint))
    if of == "audio" and all(values[key] is None for key in SPOKEN):
        got, hint = f"{objective!r}, and replies that are not spoken", "out_audio=NAME.wav, or output_audio_dir=DIR"
        raise ConfigError(Problem(where=where, got=got, expected="a column that these points have", hint=hint))
    if objective == HEARD and values["report"]["transcribe"] is None:
        expected, hint = f"a deployment that hears, for {where}={HEARD}", "list_deployments=true shows them"
        raise ConfigError(Problem(where="report.transcribe", got="nothing", expected=expected, hint=hint))


def suggested(override: Override, trial: Any) -> str:
    """An override with the value that a trial tries for it; one without a choice is as it was.

    Raises ConfigError for a range without a value in it.
    """
    key = override.get_key_element()
    if not override.is_sweep_override():
        return f"{key}={override.get_value_element_as_str()}"
    try:
        return f"{key}={_suggestion(override, trial)}"
    except ValueError as error:
        where, got = override.key_or_group, str(override.input_line).partition("=")[2]
        raise ConfigError(Problem(where=where, got=repr(got), expected="values to try", hint=str(error))) from error


def _suggestion(override: Override, trial: Any) -> Any:
    name, value = override.key_or_group, override.value()
    if isinstance(value, IntervalSweep):
        log = "log" in value.tags
        if isinstance(value.start, int) and isinstance(value.end, int):
            return trial.suggest_int(name, value.start, value.end, log=log)
        return trial.suggest_float(name, float(value.start or 0), float(value.end or 0), log=log)
    if isinstance(value, RangeSweep) and not value.shuffle:
        return trial.suggest_categorical(name, list(value.range()))
    assert isinstance(value, (ChoiceSweep, RangeSweep)) or override.is_discrete_sweep()
    return trial.suggest_categorical(name, list(override.sweep_string_iterator()))
