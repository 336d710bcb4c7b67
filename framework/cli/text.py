"""Plain text in columns."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, each as wide as its column needs; a cell may have several lines. The first row is a heading."""
    lines = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for row in lines for line in row[column]) for column in range(len(rows[0]))]
    printed = []
    for number, row in enumerate(lines):
        for line in range(max(len(cell) for cell in row)):
            cells = [cell[line] if line < len(cell) else "" for cell in row]
            printed.append("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
        if number == 0:
            printed.append("  ".join("-" * width for width in widths))
    return "\n".join(printed)
