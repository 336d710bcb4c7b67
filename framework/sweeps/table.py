"""The table of a sweep, a row a point: as CSV and Parquet for programs, as text for a terminal."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from framework.sweeps.collect import Point, Sweep
from framework.writing import write_bytes, write_text

CSV, PARQUET = "table.csv", "table.parquet"
_FIRST = ("point", "status", "requests", "ok", "failed")
_LAST = ("finish_reasons", "error")
# Left to the files and the page.
_NOT_PRINTED = frozenset({"load_s", "run_s", "clipped_share"})


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """A mapping a point with the same keys each: what it is, its parameters, its numbers, None where it has none."""
    return [
        {
            **dict(zip(_FIRST, _counts(point), strict=True)),
            **{key: point.overrides.get(key) for key in sweep.parameters},
            **{metric.name: point.numbers.get(metric.name) for metric in sweep.metrics},
            "finish_reasons": point.numbers.get("finish_reasons", ""),
            "error": point.error,
        }
        for point in sweep.points
    ]


def save_csv(sweep: Sweep, path: Path) -> None:
    found, file = rows(sweep), StringIO(newline="")
    writer = csv.DictWriter(file, list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    write_text(path, [file.getvalue()])


def save_parquet(sweep: Sweep, path: Path) -> str | None:
    """None when it is written, else what is missing for it. A column of several kinds of values is one of text."""
    if find_spec("pyarrow") is None:
        return f"no {path.name}: it needs pyarrow (pip install 'multistage[report]')"
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = rows(sweep)
    columns = {_utf8(name): _column([row[name] for row in found]) for name in found[0]}
    fixed = {"fixed": json.dumps(dict(sweep.fixed), ensure_ascii=False, default=str)}
    out = BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(fixed), out)
    write_bytes(path, out.getvalue())
    return None


def text(sweep: Sweep) -> list[tuple[str, ...]]:
    """Heading and rows for `framework.cli.text.columns`; parameters by the shortest name that tells them apart."""
    shown = [metric for metric in sweep.metrics if metric.name not in _NOT_PRINTED]
    short = short_names(sweep.parameters)
    heading = ("point", *short.values(), "ok", *(metric.label for metric in shown), "finish reasons")
    return [
        heading,
        *(
            (
                point.name,
                *(show(point.overrides.get(key)) for key in short),
                _ok(point),
                *(show(point.numbers.get(metric.name)) for metric in shown),
                str(point.numbers.get("finish_reasons", "")),
            )
            for point in sweep.points
        ),
    ]


def short_names(keys: Sequence[str]) -> Mapping[str, str]:
    """`sampling.thinker.temperature` as `temperature`, or with as much of the rest as it needs to be the only one."""
    names = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        names[key] = next(
            end for end in ends if sum(other == end or other.endswith(f".{end}") for other in keys) == 1 or end == key
        )
    return names


def show(value: Any) -> str:
    """A value as it stands in a cell: three figures are enough."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-3 else "0"
    return " ".join(str(value).split())[:40]


def _counts(point: Point) -> tuple[str, str, int, int, int]:
    ok = sum(cell.ok for cell in point.cells)
    return point.name, point.status, len(point.cells), ok, len(point.cells) - ok


def _ok(point: Point) -> str:
    counts = f"{sum(cell.ok for cell in point.cells)}/{len(point.cells)}"
    return counts if point.status in ("ok", "failed") else f"{counts} {point.status}"


def _column(values: Sequence[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) if float in kinds else value for value in values]
    if kinds == {bool}:
        return [*values]
    return [None if value is None else _utf8(str(value)) for value in values]


def _utf8(text: str) -> str:
    """The name of a folder may be no text, which only files of bytes take as it is."""
    return text.encode("utf-8", "backslashreplace").decode()
