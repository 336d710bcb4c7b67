"""What an ASR model hears in the speech of a sweep: a word error rate says whether the text was said at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from framework.execution.request import Request, Result
from framework.io.requests import Defaults, Rejected, read_request
from framework.sweeps.collect import TRANSCRIPTS, Cell, Sweep
from framework.sweeps.record import write

Run = Callable[[Iterable[Request]], Iterable[Result]]


def missing(sweep: Sweep, model: str) -> list[Cell]:
    """Cells with sound that `model` has not heard yet."""
    said = _known(sweep.folder, model)
    return [cell for point in sweep.points for cell in point.cells if cell.audio is not None and cell.key not in said]


def transcribe(sweep: Sweep, model: str, run: Run) -> None:
    """Let `run`, the executor of an ASR deployment, hear what `missing` lists, and keep what it heard in the folder.

    Sound without speech in it is heard as "". What another model heard before is forgotten.
    """
    cells = missing(sweep, model)
    said = _known(sweep.folder, model)
    for result in run(_requests(cells)):
        if result.ok or _no_speech(result):
            said[cells[result.request.index].key] = _text(result) if result.ok else ""
    write(sweep.folder / TRANSCRIPTS, {"deployment": model, "said": dict(sorted(said.items()))})


def _requests(cells: list[Cell]) -> Iterator[Request]:
    for index, cell in enumerate(cells):
        request = read_request({"audio": str(cell.audio)}, index, Defaults(), Path(), cell.key)
        if not isinstance(request, Rejected):
            yield request


def _text(result: Result) -> str:
    transcripts = (report.details.get("transcript") for report in result.stages.values())
    return next((str(text).strip() for text in transcripts if text is not None), "")


def _no_speech(result: Result) -> bool:
    return any(report.details.get("finish_reason") == "no-speech" for report in result.stages.values())


def _known(folder: Path, model: str) -> dict[str, str]:
    try:
        known = json.loads((folder / TRANSCRIPTS).read_text("utf-8"))
        return dict(known["said"]) if known["deployment"] == model else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
