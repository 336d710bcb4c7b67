"""What a person types, made into what Hydra's grammar reads.

Hydra gives `, = ( ) { } ' "` a meaning inside values, which is right for numbers and sweeps and wrong for text. For the
keys below the value is taken as it stands. Also here: `sampling=` and `style=` from JSON, and `stages.` without a plus.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.io.requests import as_object, read_object
from framework.io.sampling import by_role, config_form, require
from framework.parsing import parse_json

# Written by a person: `${...}` in them is text as well.
TEXT = frozenset({"prompt", "system", "voice", "language", "instruct", "ref_text"})
# Names of files and folders: `${paths.cache}/x` keeps its meaning.
PATHS = frozenset(
    {
        "engine_dir", "model_dir", "prompt_file", "audio", "ref_audio", "image", "video", "out_audio",
        "out_timeline", "out_video", "input_file", "output_file", "output_audio_dir", "output_video_dir",
        "paths.cache", "paths.engines", "paths.outputs",
    }
)  # fmt: skip

_OVERRIDE = re.compile(r"(?P<plus>\+{0,2})(?P<key>[A-Za-z_][\w./@]*)=(?P<value>.*)", re.DOTALL)
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def prepare(argv: Sequence[str]) -> list[str]:
    """Overrides as Hydra can read them; everything that needs no help is passed on unchanged.

    Raises ConfigError for JSON that is not.
    """
    sweep = any(arg in ("-m", "--multirun") for arg in argv)
    return [override for arg in argv for override in _prepare(arg, sweep)]


def _prepare(arg: str, sweep: bool) -> Iterable[str]:
    match = _OVERRIDE.fullmatch(arg)
    if match is None:
        return [arg]
    plus, key, value = match["plus"], match["key"], match["value"]
    if key.startswith("stages.") and not plus:
        return [f"++{arg}"]
    if key in INLINE and (value.startswith("{") or value.endswith(".json")):
        inline = value.startswith("{")
        given = as_object(parse_json(value, key), key) if inline else read_object(Path(value))
        return overrides(key, INLINE[key](given, key))
    # In a sweep a comma separates runs, so there the user quotes what is one text.
    if key in TEXT | PATHS and not sweep and value != "null" and not _QUOTED.fullmatch(value):
        text = re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if key in TEXT else value
        return [f"{plus}{key}={quote(text)}"]
    return [arg]


def quote(text: str) -> str:
    """`text` as one quoted string of Hydra's grammar."""
    # A backslash is itself unless a run of them ends at a quote; there each must be doubled.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def overrides(key: str, values: Mapping[str, Any]) -> list[str]:
    """One override for each value; mappings are one level of keys, except below a key that is itself a table."""
    found: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in TABLES:
            found += overrides(f"{key}.{name}", value)
        else:
            found.append(f"{key}.{name}={_literal(value)}")
    return found


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return quote(re.sub(r"(\\*)\$\{", r"\1\1\\${", value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_literal(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_literal, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


TABLES = frozenset({"logit_bias"})
INLINE: Mapping[str, Callable[[Mapping[str, Any], str], Mapping[str, Any]]] = {
    "sampling": lambda given, where: config_form(require(by_role(given, where))),
    "style": lambda given, where: given,
}
