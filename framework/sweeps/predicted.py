"""Reading predictions files again: finished ones, the journals of unfinished ones, and the parts of a sharded run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "predictions.json"


def entries(path: Path) -> list[Mapping[str, Any]]:
    """Entries of the predictions file at `path`, in order of their requests; of its journal when it is unfinished.

    A journal line that is cut off (the process was killed while it wrote) is left out. [] when there is neither file.

    Raises ValueError for a finished file that is no predictions file.
    """
    if path.is_file():
        document = json.loads(path.read_text("utf-8"))
        found = document.get("responses") if isinstance(document, dict) else None
        if not isinstance(found, list):
            raise ValueError(f"{path.name}: no list of responses")
        return [entry for entry in found if isinstance(entry, dict)]
    journal = path.with_name(path.name + ".journal")
    if not journal.is_file():
        return []
    known: dict[Any, Mapping[str, Any]] = {}
    for line in journal.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "request_idx" in entry:
            known[entry["request_idx"]] = entry  # a request that was done again counts once
    return [known[index] for index in sorted(known)]
