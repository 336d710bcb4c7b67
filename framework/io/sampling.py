"""Sampling settings as request files and the command line spell them, sorted by the role they are for.

{"temperature": 0.7, "talker_top_k": 10, "cp_temperature": 0.9}
-> {"default": {"temperature": 0.7}, "talker": {"top_k": 10}, "code_predictor": {"temperature": 0.9}}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from framework.errors import ConfigError, Problem, at
from framework.execution.sampling import Sampling
from framework.io.fields import unknown_key
from framework.schema import attempt, show

SETTINGS = tuple(field.name for field in attrs.fields(Sampling))
ROLES = ("talker", "code_predictor")
PREFIXES = {"talker_": "talker", "cp_": "code_predictor", "subtalker_": "code_predictor"}
FLAT = frozenset([*SETTINGS, *(prefix + name for prefix in PREFIXES for name in SETTINGS), "max_audio_length"])

Roles = dict[str, dict[str, Any]]


def by_role(given: Mapping[str, Any], where: str) -> tuple[Roles, list[Problem]]:
    """Sort flat keys and role objects by role, dropping those that are null.

    As the original reads them: `repetition_penalty` without a prefix is the talker's too, `max_audio_length` is the
    talker's length in codec frames, and 0 for a `subtalker_` setting means "not given".

    Returns:
        the settings that are right, typed, and every fault found.
    """
    roles: Roles = {}
    problems: list[Problem] = []
    for key, value in given.items():
        if key in ROLES:
            if isinstance(value, Mapping):
                _sort(roles, problems, key, value, at(where, key))
            elif value is not None:
                problems.append(Problem(where=at(where, key), got=show(value), expected="an object of settings"))
    _sort(roles, problems, "default", {key: value for key, value in given.items() if key not in ROLES}, where)
    return roles, problems


def overlay(*layers: Mapping[str, Mapping[str, Any]]) -> Roles:
    """Later layers win, setting by setting."""
    merged: Roles = {}
    for layer in layers:
        for role, settings in layer.items():
            merged.setdefault(role, {}).update(settings)
    return merged


def config_form(roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """As `conf/sampling` spells it: the default role's settings at the top, the others below their name."""
    others = {role: dict(settings) for role, settings in roles.items() if role != "default"}
    return {**roles.get("default", {}), **others}


def require(result: tuple[Roles, list[Problem]]) -> Roles:
    """The settings; raises ConfigError when any is wrong."""
    roles, problems = result
    if problems:
        raise ConfigError(problems)
    return roles


def _sort(roles: Roles, problems: list[Problem], role: str, given: Mapping[str, Any], where: str) -> None:
    for key, value in given.items():
        if value is None:
            continue
        if key not in (FLAT if role == "default" else SETTINGS):
            problems.append(unknown_key(where, key, [*FLAT, *ROLES] if role == "default" else SETTINGS))
            continue
        for owner, name in _owners(role, key, value):
            plain = [value] if name == "stop" and isinstance(value, str) else value
            typed, faults = attempt(Sampling, {name: plain}, where=where)
            if typed is not None and not faults:
                faults = _out_of_range(typed, where)
            if faults:  # named as they were spelled
                spelled = [fault.where.replace(at(where, name), at(where, key)) for fault in faults]
                problems += [attrs.evolve(fault, where=place) for fault, place in zip(faults, spelled, strict=True)]
                break
            roles.setdefault(owner, {})[name] = getattr(typed, name)


def _out_of_range(sampling: Sampling, where: str) -> list[Problem]:
    return [
        Problem(where=at(at(where, "logit_bias"), str(token)), got=show(bias), expected="a number from -100 to 100")
        for token, bias in sampling.logit_bias.items()
        if not -100 <= bias <= 100
    ]


def _owners(role: str, key: str, value: Any) -> Iterable[tuple[str, str]]:
    if key == "max_audio_length":
        return [("talker", "max_generate_length")]
    prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), None)
    if prefix is not None:
        unset = prefix == "subtalker_" and value == 0
        return [] if unset else [(PREFIXES[prefix], key.removeprefix(prefix))]
    if key == "repetition_penalty" and role == "default":
        return [("default", key), ("talker", key)]
    return [(role, key)]
