"""Predictions files as text: writing, reading and merging them without having one in memory."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from framework.errors import ConfigError, Problem
from framework.io.jsonstream import walk
from framework.io.reading import open_input
from framework.schema import show
from framework.writing import not_a_file, write_text

Entries = Iterator[Mapping[str, Any]]


def document(head: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The text of a predictions file, piece by piece."""

    def shown(value: Any, indent: str) -> str:
        return json.dumps(value, ensure_ascii=False, indent=4).replace("\n", "\n" + indent)

    yield "{"
    for key, value in head.items():
        yield f"\n    {json.dumps(key)}: {shown(value, '    ')},"
    yield '\n    "responses": ['
    number = -1
    for number, entry in enumerate(entries):
        yield ("," if number else "") + "\n        " + shown(entry, "        ")
    yield "\n    ]\n}\n" if number >= 0 else "]\n}\n"


def read(path: Path, waiting: Callable[[str], None] = lambda what: None) -> tuple[dict[str, Any], Entries]:
    """What stands before the responses of a predictions file, and the responses, read as they are asked for.

    Raises ConfigError when it is missing or no JSON object.
    """
    try:
        file = open_input(path, waiting)
    except OSError as error:
        got = error.strerror or str(error)
        raise ConfigError(Problem(where=str(path), got=got, expected="a predictions file")) from error
    parts = walk(file, str(path), "responses")
    head: dict[str, Any] = {}
    for found in parts:
        if found.key == "responses":
            rest = (part.value for part in chain([found], parts) if part.index is not None)
            return head, rest
        head[found.key] = found.value
    raise ConfigError(Problem(where=str(path), got="no responses", expected="a predictions file"))


def differences(then: Mapping[str, Any] | None, now: Mapping[str, Any] | None, where: str) -> list[Problem]:
    """What a run has changed since the one that the file `where` is of; both as `Predictions` was given them."""
    if not then or not now:
        got, hint = "responses of a run that it does not describe", "resume=false starts over"
        return [Problem(where=where, got=got, expected="a file that this run began", hint=hint)]
    if then["digest"] != now["digest"]:
        got = "a request file that has changed"
        return [Problem(where="input_file", got=got, expected=f"the requests that {where} is of")]
    old, new = dict(_flat(then)), dict(_flat(now))
    return [
        Problem(
            where=key,
            got=show(new[key]) if key in new else "nothing",
            expected=f"{show(old[key]) if key in old else 'nothing'}, as in the run that {where} is of",
        )
        for key in {**new, **old}
        if key not in old or key not in new or old[key] != new[key]
    ]


def merge_predictions(paths: Sequence[Path], out: Path, waiting: Callable[[str], None] = lambda what: None) -> int:
    """Put the predictions files of all shards of a run together as `out`, the file that one run had written.

    Args:
        waiting: told what is waited for, when a file is a pipe that nobody has written to yet.

    Returns:
        how many requests failed.

    Raises:
        ConfigError: a file is no predictions file, the files are of different runs, or a shard is missing, given
            twice or unfinished.
    """
    if problem := not_a_file(out, "merge"):
        raise ConfigError(problem)
    if out.resolve() in {path.resolve() for path in paths}:
        raise ConfigError(Problem(where="merge", got=f"{out} as a shard too", expected="a file of its own to write"))
    heads, entries = dict[Path, dict[str, Any]](), list[Entries]()
    for path in paths:
        heads[path], responses = read(path, waiting)
        entries.append(responses)
    if not heads:
        raise ConfigError(Problem(where="merge", got="no file", expected="the predictions of all shards"))
    shards = {path: _first(heads[path].get("record")) for path in paths}
    record, problems = shards[paths[0]], list[Problem]()
    for path, other in shards.items():
        problems += differences(other, record, str(path))
    if problems:
        raise ConfigError(problems)
    count = record["shard"]["count"]
    places = [heads[path]["record"]["shard"]["index"] for path in paths]
    for index in range(count):
        given = [str(path) for path, place in zip(paths, places, strict=True) if place == index]
        if len(given) != 1:
            got = " and ".join(given) or "no file"
            problems.append(Problem(where=f"shard {index} of {count}", got=got, expected="one"))
    if problems:
        raise ConfigError(problems)
    failed = 0

    def complete() -> Entries:
        nonlocal failed
        number = 0
        for entry in chain(heapq.merge(*entries, key=lambda entry: entry["request_idx"]), [{"request_idx": None}]):
            if entry["request_idx"] != number < record["requests"]:
                unfinished = paths[places.index(number % count)]
                got, hint = f"no response to request {number}", "resume=true goes on with that run"
                raise ConfigError(Problem(where=str(unfinished), got=got, expected="a finished run", hint=hint))
            if number < record["requests"]:
                failed += not entry["ok"]
                number += 1
                yield entry

    whole = {**record, "shard": {"index": 0, "count": 1}}
    write_text(out, document({**heads[paths[0]], "record": whole}, complete()))
    return failed


def _first(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """The record of the first shard of the same run; empty for none."""
    return {**record, "shard": {**record["shard"], "index": 0}} if record else {}


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by their dotted paths; what is below `settings` stands at the top, as in the config."""
    for key, value in node.items():
        path = "" if not prefix and key == "settings" else f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}." if path else "")
        else:
            yield path, value
