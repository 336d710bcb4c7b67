"""Composing a command's config with Hydra, and saying in plain words what does not fit.

Runs compose here directly, which takes two thirds of the time that `hydra.main` does; sweeps and Hydra's own flags use
the same `Hydra` object, so that nothing of Hydra is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import resources
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Any

from hydra import initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from framework.cli.arguments import from_text, quote
from framework.cli.hydra_private import Hydra, parsed_with_repository
from framework.deployment.instances import PREFIXES, TARGET, target_problems
from framework.errors import ConfigError, Problem, closest, nearest

CONF = "conf"  # the package of this distribution that holds the YAML
CONFIG_DIR = "MULTISTAGE_CONFIG_DIR"  # folders of the user's own, as in PATH
# What Hydra instantiates itself, and what it may: a preset from anywhere must not name other code.
_INSTANTIATED = ("callbacks", "launcher", "sweeper")
_EXTRAS = ("joblib", "submitit")
_HYDRAS_OWN = ("hydra.", "hydra_plugins.", *PREFIXES)

# `${conf:requests/questions.json}` is a file beside the YAML, wherever that is installed.
OmegaConf.register_new_resolver("conf", lambda name: str(resources.files(CONF) / name), replace=True)


class Composer:
    """A root config and overrides; a context manager, since Hydra's state is the process's.

    Args:
        command: root config, e.g. `inference`.
        overrides: as Hydra's grammar has them (`framework.cli.arguments.prepare`).
        config_dir: used in place of our `conf`.
        folders: presets of the user's own, beside ours (`own_folders`).

    Attributes:
        mode: MULTIRUN composes what the jobs of a sweep share; an override with several values is then none of it.
    """

    def __init__(
        self,
        command: str,
        overrides: Sequence[str] = (),
        *,
        config_dir: Path | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        self.command = command
        self._folder: Any = config_dir or resources.files(CONF)
        search = ",".join(quote(f"file://{folder}") for folder in folders)
        self.overrides = [*([f"hydra.searchpath=[{search}]"] if search else []), *overrides]
        self.mode = RunMode.RUN
        self._outer = GlobalHydra.instance().hydra  # of a run in the middle of which something else is composed
        GlobalHydra.instance().clear()
        self._context = (
            initialize_config_dir(str(config_dir.absolute()), job_name=command, version_base="1.3")
            if config_dir
            else initialize_config_module(CONF, job_name=command, version_base="1.3")
        )

    @property
    def hydra(self) -> Hydra:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        return hydra

    def __enter__(self) -> Composer:
        self._context.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._context.__exit__(*exception)
        GlobalHydra.instance().hydra = self._outer

    def compose(self, more: Sequence[str] = ()) -> DictConfig:
        """The config with its `hydra` node, interpolations unresolved.

        Args:
            more: overrides after those of the composer.

        Raises ConfigError with every override that does not fit.
        """
        overrides = [*self.overrides, *more]
        with self.plain_errors(overrides):
            cfg = self._compose(overrides)
        nodes = {name: OmegaConf.to_container(cfg.hydra[name], resolve=False) for name in _INSTANTIATED}
        problems = [p for name, node in nodes.items() for p in target_problems(node, f"hydra.{name}", _HYDRAS_OWN)]
        if problems:
            raise ConfigError(problems)
        return cfg

    def options(self, group: str) -> list[str]:
        """What may be chosen of a config group, the user's own among them."""
        return [str(name) for name in self._repository.get_group_options(group)]

    @cached_property
    def _repository(self) -> Any:
        """The files on the search path. Hydra makes it anew, some 20 ms, whenever it is asked what a group has."""
        return parsed_with_repository(self.hydra.config_loader, self.command, self.overrides)[1]

    def check_choice(self, group: str, name: str, *, where: str) -> None:
        """Raise ConfigError when a config group has no such file; `where` is the setting that names it."""
        if not self._repository.config_exists(f"{group}/{name}"):
            hint = nearest(name, self.options(group))
            raise ConfigError(Problem(where=where, got=repr(name), expected=f"a file of conf/{group}", hint=hint))

    @contextmanager
    def plain_errors(self, overrides: Sequence[str] | None = None) -> Iterator[None]:
        """What Hydra raises while the block runs, as a ConfigError."""
        given = self.overrides if overrides is None else overrides
        try:
            yield
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(problems_of(error, given, self._compose)[0]) from error
        except MarkedYAMLError as error:
            raise ConfigError(_malformed(error)) from error

    def help(self) -> str:
        """`hydra.help.template` of the command, with its groups and the commented settings of its root config, and of
        those groups that are nothing to choose from."""
        cfg = self.compose()
        HydraConfig.instance().set_config(cfg)
        text = (self._folder / f"{self.command}.yaml").read_text("utf-8")
        # What stands above is the defaults list, which the groups show; its last line chooses this very help.
        settings = text.partition("override hydra/help")[2].partition("\n\n")[2]
        groups = ""
        for group in self._repository.get_group_options("", ObjectType.GROUP):
            found = self.options(group)
            if group == "hydra" or group not in cfg.hydra.runtime.choices:  # of another command
                continue
            if found == ["default"] and TARGET not in (
                text := (self._folder / group / "default.yaml").read_text("utf-8")
            ):
                settings += f"\n{group}:\n{indent(text, '  ')}"
            else:
                groups += f"{group}: {', '.join(found)}\n"
        return Template(cfg.hydra.help.template).safe_substitute(GROUPS=groups, SETTINGS=settings)

    def _compose(self, overrides: list[str]) -> DictConfig:
        return self.hydra.compose_config(
            config_name=self.command,
            overrides=overrides,
            run_mode=self.mode,
            from_shell=True,
            with_log_configuration=False,
        )


def own_folders(given: str | None) -> list[Path]:
    """Folders of presets of the user's own: the one of `--config-dir`, then those of $MULTISTAGE_CONFIG_DIR.

    Raises ConfigError for one that is no folder, and for a file whose name is taken: the other would never be read.
    """
    variable = os.environ.get(CONFIG_DIR, "")
    named = [("--config-dir", given or ""), *((CONFIG_DIR, name) for name in variable.split(os.pathsep))]
    problems, folders, taken = list[Problem](), list[Path](), dict[str, Any]()
    for where, name in named:
        folder = Path(name).expanduser().absolute()
        if not name or folder in folders:
            continue
        if not folder.is_dir():
            problems.append(Problem(where=where, got=repr(name), expected="a folder"))
            continue
        folders.append(folder)
        for path in sorted(folder.rglob("*.yaml")):
            key = path.relative_to(folder).as_posix()
            other = taken.setdefault(key, resources.files(CONF) / key)
            if other.is_file():
                expected = "a name of its own" if str(other).startswith(str(folder)) else f"another name than {other}"
                problems.append(Problem(where=where, got=str(path), expected=expected))
            taken[key] = path
    if problems:
        raise ConfigError(problems)
    return folders


def _malformed(error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "config"
    told = str(error.problem or error.context)
    return Problem(where=place, got="malformed YAML", expected=told.removeprefix("expected "))


def problems_of(
    error: Exception, overrides: Sequence[str], compose: Callable[[list[str]], DictConfig]
) -> tuple[list[Problem], DictConfig | None]:
    """Every override that does not fit, and the config without them (None when it is not the overrides).

    Hydra stops at the first fault, so each one found is taken out and the rest is tried again.
    """
    remaining, found, unknown = list(overrides), list[Problem](), list[str]()
    cfg: DictConfig | None = None
    while cfg is None:
        match = re.match(r"Could not override '([^']+)'", str(error))
        key = str(match[1]) if match else None
        culprit = _culprit(error, key, remaining)
        if key is not None:
            inner = str(getattr(error.__cause__, "full_key", ""))  # of a mapping: the key in it
            unknown.append(inner if inner.startswith(f"{key}.") else key)
        else:
            found.append(_problem(error, culprit))
        if culprit not in remaining:  # it is a file's, or not said
            break
        remaining.remove(str(culprit))
        try:
            cfg = compose(remaining)
        except (HydraException, OmegaConfBaseException) as following:
            error = following
    keys = [] if cfg is None else [*_keys(cfg)]
    if cfg is not None and any(key.startswith("hydra.") for key in unknown):
        keys += _keys(cfg.hydra, "hydra.")
    return found + [
        Problem(where=key, got="an unknown setting", expected="one that exists", hint=_nearest_key(key, keys))
        for key in unknown
    ], cfg


def values_of(cfg: DictConfig) -> dict[str, Any]:
    """Plain resolved values, without Hydra's own. Raises ConfigError for an interpolation that leads nowhere."""
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"]) if "hydra" in cfg else cfg
    try:
        values = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        got, where = str(error).splitlines()[0], str(error.full_key or "config")
        hint = "a preset of deployment/ begins with: defaults: [none, _self_]" if "'deployment." in got else ""
        raise ConfigError(Problem(where=where, got=got, expected="a value that can be resolved", hint=hint)) from error
    assert isinstance(values, dict)
    return {str(key): _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    """Texts as they were typed."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return from_text(value) if isinstance(value, str) else value


def key_of(override: str) -> str:
    """Key of an override without its signs: `++a.b=1` and `~a.b` are about `a.b`."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def _culprit(error: Exception, key: str | None, overrides: list[str]) -> str | None:
    """The override that Hydra complains about, if it says which."""
    if isinstance(error, OverrideParseException):
        return error.override
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        key = error.missing_cfg_file.rpartition("/")[0]
    if "does not support sweep type" in str(error):
        return next((o for o in overrides if "interval(" in o), None)
    if key is None:
        quoted = set(re.findall(r"[\w.+~/@]+", str(error)))
        return next((o for o in overrides if o in str(error) or key_of(o) in quoted), None)
    return next((o for o in overrides if key_of(o) == key), None)


def _problem(error: Exception, culprit: str | None) -> Problem:
    if culprit and ("=" not in culprit or not key_of(culprit)) and not culprit.startswith("~"):
        hint = "--help lists the keys; a text with spaces is 'key=a b'"
        return Problem(where="command line", got=repr(culprit), expected="key=value", hint=hint)
    where = key_of(culprit) if culprit else "config"
    got = repr(culprit.partition("=")[2]) if culprit else str(error).splitlines()[0]
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        hint = nearest(name, error.options or ())
        extra = next((extra for extra in _EXTRAS if name.startswith(extra)), None)
        if extra is not None and group == "hydra/launcher":  # plugins bring their own configs
            hint = f"pip install 'multistage[{extra}]'"
        if culprit is None:
            return Problem(where="defaults", got=error.missing_cfg_file, expected="a config that exists", hint=hint)
        return Problem(where=where, got=repr(name), expected=f"a file of conf/{group}", hint=hint)
    if isinstance(error, OverrideParseException):
        hint = "text with , = ( ) { } or quotes needs quotes of its own: 'key=\"a, b\"'"
        return Problem(where=where, got=got, expected="a value, a list or a mapping", hint=hint)
    if "does not support sweep type" in str(error):
        hint = "hydra/sweeper=optuna looks in an interval; range(0,1,0.2) tries each step"
        where, got = (where, got) if culprit else ("hydra.sweeper.params", "an interval")
        return Problem(where=where, got=got, expected="values to try", hint=hint)
    if "--multirun" in str(error):
        hint = "-m runs each of several; a text with a comma needs quotes of its own: 'key=\"a, b\"'"
        return Problem(where=where, got=got, expected="one value", hint=hint)
    return Problem(where=where, got=got, expected="an override that fits", hint=" ".join(str(error).split()))


def _keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key, value in node.items_ex(resolve=False):
        if not prefix and key == "hydra":
            continue
        path = f"{prefix}{key!s}"
        yield path
        if isinstance(value, DictConfig) and not value._is_none() and not value._is_interpolation():
            yield from _keys(value, f"{path}.")


def _nearest_key(key: str, keys: list[str]) -> str:
    """Hint; settings of the same parent come first, as `sampling.temprature` is not about a stage below `sampling`."""
    parent, _, name = key.rpartition(".")
    siblings = [other.rpartition(".")[2] for other in keys if other.rpartition(".")[0] == parent]
    close = closest(name, siblings)
    if close is not None:
        return f"did you mean {f'{parent}.{close}'.lstrip('.')!r}?"
    if parent and siblings:
        return f"valid: {', '.join(sorted(siblings))}"
    anywhere = closest(key, keys)
    return f"did you mean {anywhere!r}?" if anywhere else "--help lists them all"
