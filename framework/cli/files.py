"""A request file into a predictions file: each result on disk as it ends, and a stopped run gone on with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.cli import app
from framework.deployment import building
from framework.deployment.config import FILE, InferenceConfig, Shard
from framework.deployment.requested import places_of
from framework.graph.model import Graph
from framework.writing import after_requests

if TYPE_CHECKING:
    from framework.cli.profile import Profile
    from framework.execution.executor import Executor
    from framework.execution.request import Request, Result
    from framework.io.kinds import PayloadKind
    from framework.io.requests import RequestFile

# Settings that do not decide what is answered: where things lie, how fast it goes, and what the graph, the engines and
# the request file say themselves (`record_of`).
_UNHEEDED = frozenset(
    {
        "paths", "deployment", "stages", "whole_utterance", "engine_dir", "model_dir", "build", "families",
        "build_if_missing", "input_file", "outputs", *FILE, "resume", "shard", "batching", "stream_capacity",
        "keep_loaded", "keep_loaded_bytes", "explain", "validate_config", "list_voices", "plan_memory",
        "list_deployments", "dump_profile", "report",
    }
)  # fmt: skip


def output_of(config: InferenceConfig, folder: Path | None) -> Path:
    """Where the predictions go."""
    return shard_file(config.output_file or (folder or Path()) / "predictions.json", config.shard)


def shard_file(path: Path, shard: Shard) -> Path:
    """Where a shard writes what a whole run would write to `path`: `p.json`, `p.shard-0-of-4.json`."""
    if shard.count == 1:
        return path
    return path.with_name(f"{path.stem}.shard-{shard.index}-of-{shard.count}{path.suffix}")


def record_of(
    values: Mapping[str, Any], config: InferenceConfig, folder: Path, graph: Graph, file: RequestFile
) -> dict[str, Any]:
    """What decides the answers of a run, for the run that goes on with it to compare.

    Args:
        values: the composed config.
        folder: of the engines.
    """
    from framework.engines import manifest
    from framework.graph.files import dumps

    built = {stage.artifact: folder / stage.artifact / manifest.FILE_NAME for stage in graph.stages if stage.artifact}
    settings = {
        **{key: value for key, value in values.items() if key not in _UNHEEDED and value is not None},
        "kinds": sorted(places_of(config)),
        "stages": {stage["id"]: stage for stage in json.loads(dumps(graph))["stages"]},
        "engines": {name: _digest(path) for name, path in built.items() if path.is_file()},
    }
    shard = {"index": config.shard.index, "count": config.shard.count}
    record = {"digest": file.digest, "requests": len(file.entries), "shard": shard, "settings": settings}
    return dict(json.loads(json.dumps(record, default=str)))


def run_file(
    config: InferenceConfig,
    run: app.Run,
    executor: Executor,
    file: RequestFile,
    record: Mapping[str, Any],
    profile: Profile,
    kinds: Mapping[str, PayloadKind],
) -> int:
    """Run the requests that have no answer yet; returns how many of all have failed.

    Args:
        kinds: of payload, by name.
    """
    from framework.cli.progress import progress
    from framework.execution.results import complete
    from framework.io.predictions import Predictions, entry_of, rejected_entry
    from framework.io.requests import Rejected

    places = places_of(config)
    output, total, ran = output_of(config, run.folder), len(file.entries), False
    mine = range(config.shard.index, total, config.shard.count)
    saving = Predictions(output, file.name, requests=total, record=record, resume=config.resume)
    try:
        with saving as predictions, progress(len(mine), predictions.done, predictions.failed) as advance:

            def keep(entry: dict[str, Any]) -> None:
                predictions.add(entry)
                advance(entry["request_idx"], None if entry["ok"] else entry["error"])

            def left() -> Iterator[Request]:
                for index in mine:
                    entry = None if predictions.has(index) else file.entries[index]
                    if isinstance(entry, Rejected):
                        keep(rejected_entry(entry))
                    elif entry is not None:
                        yield entry

            for result in map(complete, executor.run(left())):
                ran = True
                keep(entry_of(result, places, kinds))
                profile.add(result)
    except BaseException:
        if saving.done:
            kept = f"{saving.done} of {len(mine)} requests are done and kept"
            building.say(f"{kept}: output_file={config.output_file or output} resume=true goes on")
        if ran:
            with after_requests():  # a disk that is full by now
                raise
        raise
    building.say(f"{saving.done - saving.failed} of {len(mine)} requests answered: {output}")
    return saving.failed


def keep(
    path: Path, file: RequestFile, results: list[Result], kinds: Mapping[str, PayloadKind], places: Mapping[str, Path]
) -> None:
    """The predictions file of one request, whose outputs are in the files `places`, by kind, where they were made."""
    from framework.io.predictions import Predictions, entry_of, rejected_entry

    made = {f"{kind}_file": str(place) for kind, place in places.items() if place.is_file()}
    entries = (entry_of(result, None, kinds) for result in results)
    with Predictions(path, file.name) as predictions:
        for entry in [*map(rejected_entry, file.rejected), *entries]:
            predictions.add({**entry, **made})


def error_of(result: Result) -> Exception:
    return result.error or RuntimeError("cancelled")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
