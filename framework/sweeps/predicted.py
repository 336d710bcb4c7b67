"""Reading predictions files again: finished ones, and the journals of those that are not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME, JOURNAL = "predictions.json", ".journal"


def path_in(folder: Path) -> Path:
    """The predictions file that a run has written, or would have, in its folder; a shard's has a longer name."""
    shards = sorted(folder.glob(f"{Path(NAME).stem}.shard-*.json*"))
    return next((path.with_name(path.name.removesuffix(JOURNAL)) for path in shards), folder / NAME)


def entries(path: Path) -> list[Mapping[str, Any]]:
    """Entries of the predictions file at `path`, in order of their requests; [] when there is none.

    While a run writes, and after it was killed, a journal stands beside the file and has all there is; a last line that
    was cut off is left out.

    Raises ValueError for a file that is no predictions file.
    """
    journal = _journal(path.with_name(path.name + JOURNAL))
    if journal or not path.is_file():
        return journal
    document = json.loads(path.read_text("utf-8"))
    found = document.get("responses") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise ValueError("no list of responses")
    return [entry for entry in found if isinstance(entry, dict)]


def _journal(path: Path) -> list[Mapping[str, Any]]:
    known: dict[int, Mapping[str, Any]] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("request_idx"), int):
            known[entry["request_idx"]] = entry  # a request that was done again counts once
    return [known[index] for index in sorted(known)]
