"""A request file into a predictions file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from framework.cli import app, building
from framework.cli.config import InferenceConfig

if TYPE_CHECKING:
    from framework.execution.executor import Executor
    from framework.execution.request import Result
    from framework.io.requests import RequestFile


def run_file(config: InferenceConfig, run: app.Run, executor: Executor, file: RequestFile) -> list[Result]:
    """A request file into a predictions file, each result written as it ends."""
    from framework.io.predictions import Predictions, entry_of, rejected_entry

    output = config.output_file or (run.folder or Path()) / "predictions.json"
    results: list[Result] = []
    with Predictions(output, file.name) as predictions, _progress(len(file.entries)) as advance:
        for rejected in file.rejected:
            predictions.add(rejected_entry(rejected))
            advance(rejected.index, rejected.error)
        for result in executor.run(file.good):
            predictions.add(entry_of(result, config.output_audio_dir))
            advance(result.request.index, None if result.ok else error_of(result))
            # What was made is on disk now; only its numbers are still needed.
            results.append(attrs.evolve(result, outputs={}))
    answered = sum(result.ok for result in results)
    building.say(f"{answered} of {len(file.entries)} requests answered: {output}")
    return results


def _progress(total: int) -> Any:
    from framework.cli.progress import progress

    return progress(total)


def keep(path: Path, file: RequestFile, results: list[Result], spoken: Path | None) -> None:
    """The predictions file of one request, whose speech is in the file `spoken` when it was asked for and made."""
    from framework.io.predictions import Predictions, entry_of, rejected_entry

    audio = {"audio_file": str(spoken)} if spoken is not None and spoken.is_file() else {}
    with Predictions(path, file.name) as predictions:
        for entry in [*map(rejected_entry, file.rejected), *map(entry_of, results)]:
            predictions.add({**entry, **audio})


def error_of(result: Result) -> Exception:
    return result.error or RuntimeError("cancelled")
