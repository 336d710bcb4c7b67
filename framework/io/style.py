"""Style: settings of an output that are no sampling. Each stage reads those that it knows; the others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from framework.errors import Problem, at, nearest
from framework.graph.model import Graph, RunnerDecl
from framework.schema import attempt, show


def style_problems(
    graph: Graph, runners: Mapping[str, RunnerDecl], given: Mapping[str, Any], where: str
) -> list[Problem]:
    """What is wrong with style settings for this graph: unknown ones, values that a stage cannot take."""
    declared = {stage.id: cls for stage in graph.stages if (cls := runners[stage.runner].style) is not None}
    fields = {stage: attrs.fields_dict(cls) for stage, cls in declared.items()}
    known = {name for names in fields.values() for name in names}
    problems: list[Problem] = []
    for key, value in given.items():
        if value is None:
            continue
        if key not in known:
            expected = "a style that a stage reads" if known else "nothing: no stage of this graph reads a style"
            problem = Problem(where=at(where, key), got=show(value), expected=expected, hint=nearest(key, known))
            problems.append(problem)
        faults = [attempt(declared[stage], {key: value}, where=where)[1] for stage in fields if key in fields[stage]]
        problems += [fault for found in faults for fault in found if fault not in problems]
    return problems
