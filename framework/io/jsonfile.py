"""JSON objects of published checkpoints: written by programs, often in one line of megabytes.

(`framework.parsing` reads what people write: it shows the line at fault and looks for keys given twice.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.errors import ConfigError, Problem


def parse_object(text: str | bytes, where: str) -> Mapping[str, Any]:
    """The JSON object in `text` (UTF-8). Raises ConfigError with line and column of a syntax error."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where}: line {error.lineno}, column {error.colno}"
        raise ConfigError(Problem(where=place, got=_excerpt(error), expected=f"valid JSON: {error.msg}")) from error
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ConfigError(Problem(where=where, got=got, expected="JSON in UTF-8")) from error
    except (RecursionError, ValueError) as error:  # brackets without end; an integer of thousands of digits
        raise ConfigError(Problem(where=where, got=str(error), expected="valid JSON")) from error
    if not isinstance(value, dict):
        raise ConfigError(Problem(where=where, got=f"a JSON {type(value).__name__}", expected="a JSON object"))
    return value


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file. Raises ConfigError when it is missing, unreadable or no JSON object."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(Problem(where=str(path), got=error.strerror or str(error), expected="a JSON file")) from error
    return parse_object(text, str(path))


def _excerpt(error: json.JSONDecodeError) -> str:
    line = error.doc.splitlines()[error.lineno - 1 :][:1] or [""]
    text = line[0][max(0, error.colno - 1) :][:30]
    return repr(text) if text else "end of text"
