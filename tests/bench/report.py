"""Lines as a table on a terminal, as plain text elsewhere, and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from tests.bench.line import Line

_STYLES = {"pass": "green", "below": "red", "not measured": "yellow", "-": "dim"}


def show(facts: Mapping[str, str], lines: Sequence[Line]) -> None:
    for name, value in facts.items():
        print(f"{name}: {value}")
    if sys.stdout.isatty():
        _table(lines)
    else:
        for line in lines:
            print(f"{line.name}: {', '.join(_cells(line))}")
    unmeasured = [line for line in lines if line.verdict == "not measured"]
    if unmeasured:
        print("not measured:")
        for line in unmeasured:
            print(f"  {line.name}: {line.missing}")


def save(path: Path, facts: Mapping[str, str], lines: Sequence[Line]) -> None:
    rows = [{**attrs.asdict(line), "wanted": line.wanted, "verdict": line.verdict} for line in lines]
    path.write_text(json.dumps({"machine": dict(facts), "lines": rows}, indent=2) + "\n", encoding="utf-8")


def _cells(line: Line) -> tuple[str, ...]:
    """ours, peer, ratio, wanted, verdict"""
    peer = "-" if line.peer is None else f"{line.peer_name} {_number(line.peer)} {line.unit}"
    ours = "-" if line.ours is None else f"{_number(line.ours)} {line.unit}"
    ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
    return ours, peer, ratio, line.wanted, line.verdict


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _table(lines: Sequence[Line]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "ours", "peer", "ratio", "wanted", "")
    for line in lines:
        *cells, verdict = _cells(line)
        table.add_row(line.name, *cells, f"[{_STYLES[verdict]}]{verdict}[/]")
    Console().print(table)
