"""Sampling settings as request files and the command line spell them, sorted by what they are for.

{"temperature": 0.7, "talker_top_k": 10, "cp_seed": 2, "writer": {"top_k": 5}}
-> {"default": {"temperature": 0.7}, "talker": {"top_k": 10}, "code_predictor": {"seed": 2}, "writer": {"top_k": 5}}

A name that is no role is the id of a stage; `unread` says which of them a graph does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from framework.errors import ConfigError, Problem, at, nearest
from framework.execution.sampling import Sampling
from framework.graph.model import Graph, RunnerDecl
from framework.io.fields import unknown_key
from framework.schema import attempt, show

SETTINGS = tuple(field.name for field in attrs.fields(Sampling))
ROLES = ("talker", "code_predictor")
PREFIXES = {"talker_": "talker", "cp_": "code_predictor", "subtalker_": "code_predictor"}
OWNER = "thinker"  # the stage whose settings need no name, in the original and so in its request files
TALKER_LENGTH = "max_audio_length"
FLAT = frozenset([*SETTINGS, *(prefix + name for prefix in PREFIXES for name in SETTINGS), TALKER_LENGTH])

Roles = dict[str, dict[str, Any]]


def by_role(given: Mapping[str, Any], where: str) -> tuple[Roles, list[Problem]]:
    """Sort flat keys and the objects of roles and stages by role or stage, dropping those that are null.

    The more specific wins: an object over prefixed keys, those over keys that stand alone.

    As the original reads them: `repetition_penalty` without a prefix is the talker's too, `max_audio_length` is the
    talker's length in codec frames, and 0 for a `subtalker_` setting means "not given".

    Returns:
        the settings that are right, typed, and every fault found.
    """
    roles: Roles = {}
    problems: list[Problem] = []
    named = {key for key, value in given.items() if key in ROLES or (isinstance(value, Mapping) and key not in FLAT)}
    flat = sorted((key for key in given if key not in named), key=lambda key: key not in SETTINGS)
    _sort(roles, problems, "default", {key: given[key] for key in flat}, where)
    for key in (key for key in given if key in named):
        if isinstance(given[key], Mapping):
            _sort(roles, problems, key, given[key], at(where, key))
        elif given[key] is not None:
            problems.append(Problem(where=at(where, key), got=show(given[key]), expected="an object of settings"))
    return roles, problems


def overlay(*layers: Mapping[str, Mapping[str, Any]]) -> Roles:
    """Later layers win, setting by setting; one without a name also over an earlier one for `OWNER`."""
    merged: Roles = {}
    for layer in layers:
        for setting in layer.get("default", ()):
            merged.get(OWNER, {}).pop(setting, None)
        for role, settings in layer.items():
            merged.setdefault(role, {}).update(settings)
    return merged


def unread(graph: Graph, runners: Mapping[str, RunnerDecl], given: Mapping[str, Any], where: str) -> list[Problem]:
    """Settings that would change nothing: for a stage that is not there, or one that chooses no tokens.

    Args:
        given: as the user spelled them. Of settings without a name, `seed` is for every stage.
    """
    samples = {stage.id: runners[stage.runner].samples for stage in graph.stages}
    readers = {
        *(stage for stage, roles in samples.items() if roles),
        *(role for roles in samples.values() for role in roles),
    }
    named = sorted(readers - {"default"})
    problems = []
    for key, value in given.items():
        if isinstance(value, Mapping) and key not in FLAT:
            if key in readers or not any(setting is not None for setting in value.values()):
                continue
            got = "settings for a stage that chooses no tokens" if key in samples else "settings for an unknown stage"
            expected = f"one of {', '.join(named)}" if named else "nothing: no stage of this graph chooses tokens"
            problems.append(Problem(where=at(where, key), got=got, expected=expected, hint=_meant(key, named)))
        elif value is not None and key in SETTINGS and "default" not in readers and key != "seed":
            if key == "repetition_penalty" and "talker" in readers:
                continue
            got, hint = show(value), " or ".join(at(where, f"{name}.{key}") for name in named)
            expected = "it for a stage by name: none of this graph reads settings without one"
            problems.append(Problem(where=at(where, key), got=got, expected=expected, hint=hint))
    return problems


def _meant(key: str, named: Iterable[str]) -> str:
    hint = nearest(key, named)
    return hint if hint.startswith("did") else ""


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
            problems.append(unknown_key(where, key, [*FLAT, *ROLES, OWNER] if role == "default" else SETTINGS))
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


def flat_key(key: str) -> tuple[str, str]:
    """Role and setting of a flat key: `cp_top_k` is (`code_predictor`, `top_k`)."""
    if key == TALKER_LENGTH:
        return "talker", "max_generate_length"
    prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), "")
    return PREFIXES.get(prefix, "default"), key.removeprefix(prefix)


def _owners(role: str, key: str, value: Any) -> Iterable[tuple[str, str]]:
    if role == "default" and key not in SETTINGS:
        unset = key.startswith("subtalker_") and value == 0
        return [] if unset else [flat_key(key)]
    if key == "repetition_penalty" and role == "default":
        return [("default", key), ("talker", key)]
    return [(role, key)]
