"""What a person types, made into what Hydra's grammar reads.

Hydra gives `, = ( ) { } ' "` a meaning inside values, which is right for numbers and sweeps and wrong for text. For the
keys below the value is taken as it stands. Also here: `sampling=` and `style=` from a file or JSON, and settings of
stages, which only the graph knows, without a plus.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from framework import parsing
from framework.errors import ConfigError, Problem
from framework.io.sampling import (
    OWNER,
    PREFIXES,
    ROLES,
    SETTINGS,
    TALKER_LENGTH,
    by_role,
    config_form,
    flat_key,
    require,
)
from framework.schema import show

# Written by a person: `${...}` in them is text as well.
TEXT = frozenset({"prompt", "system", "voice", "language", "instruct", "ref_text"})
# Names of files and folders: `${paths.cache}/x` keeps its meaning.
PATHS = frozenset(
    {
        "engine_dir", "model_dir", "prompt_file", "audio", "ref_audio", "image", "video", "out_audio",
        "out_timeline", "out_video", "input_file", "output_file", "output_audio_dir", "output_video_dir",
        "folder", "paths.cache", "paths.engines", "paths.outputs",
    }
)  # fmt: skip

FILES = (".json", ".yaml", ".yml")  # a `sampling=` or `style=` that ends so, or has a slash, is a file
_STAGE = re.compile(rf"stages\..+|build\.own\..+|outputs\..+|sampling\.(?!(?:{'|'.join([OWNER, *ROLES])})\.)\w+\.\w+")
_FLAT = re.compile(rf"sampling\.((?:{'|'.join(PREFIXES)})(?:{'|'.join(SETTINGS)})|{TALKER_LENGTH})")
_OVERRIDE = re.compile(r"(?P<plus>\+{0,2})(?P<key>[A-Za-z_][\w./@]*)=(?P<value>.*)", re.DOTALL)
_INTEGER = re.compile(rf"(?<![\w.])[0-9](?:_?[0-9]){{{parsing.DIGITS},}}(?![\w.])")  # with more digits than may be
_MISSING = re.compile(r"\\*\?\?\?")
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
# What a sweep sets apart: commas outside of quotes and not before a space, where they belong to a text.
_CHOICES = re.compile(rf"(?:{_QUOTED.pattern}(?=,|\Z)|(?:[^,]|,(?=\s))+)", re.DOTALL)
_SWEEP = re.compile(r"(?:choice|range|interval|glob|shuffle|sort|tag)\(.*\)", re.DOTALL)

_SEVERAL = re.compile(r"\}\s*,\s*\{")  # objects of JSON side by side
_JSON_KEY = re.compile(r'"(\w+)"(?=\s*:)')


def prepare(argv: Sequence[str]) -> list[str]:
    """Overrides as Hydra can read them; everything that needs no help is passed on unchanged.

    What a file or JSON sets comes first, as for a group, so that single settings go over it wherever they stand.

    Raises ConfigError for an argument that is no text or has an integer that is too long, and for a file or JSON that
    cannot be read, with its faults.
    """
    problems = [problem for arg in argv if (problem := _no_text(arg) or _too_long(arg))]
    if problems:
        raise ConfigError(problems)
    sweep = any(arg in ("-m", "--multirun") for arg in argv)
    found = [(arg, [*_prepare(arg, sweep)]) for arg in argv]
    whole = [override for arg, given in found if _whole(arg) for override in given]
    return whole + [override for arg, given in found if not _whole(arg) for override in given]


def _no_text(arg: str) -> Problem | None:
    """Bytes that are no UTF-8 come as half surrogate pairs, which neither a tokenizer nor a file of ours takes."""
    match = _OVERRIDE.fullmatch(arg)
    where, value = (match["key"], match["value"]) if match else ("command line", arg)
    try:
        os.fsencode(value).decode()
    except UnicodeDecodeError as error:
        return parsing.no_utf8(error, where, error.start)
    return None


def _too_long(arg: str) -> Problem | None:
    """An integer of more digits than Python reads, which Hydra passes to it unasked."""
    match = _OVERRIDE.fullmatch(arg)
    if match is None or match["key"] in TEXT | PATHS or _whole(arg):
        return None
    found = _INTEGER.search(_QUOTED.sub("", match["value"]))
    return parsing.too_long(found[0].replace("_", ""), match["key"]) if found else None


def _prepare(arg: str, sweep: bool) -> Iterable[str]:
    match = _OVERRIDE.fullmatch(arg)
    if match is None:
        return [arg]
    plus, key, value = match["plus"], match["key"], match["value"]
    if flat := _FLAT.fullmatch(key):
        owner, name = flat_key(flat[1])
        unset = flat[1].startswith("subtalker_") and value in ("0", "0.0")  # as in a request file
        return [f"sampling.{owner}.{name}={'null' if unset else value}"]
    if _STAGE.fullmatch(key) and not plus:
        return [f"++{arg}"]
    if _whole(arg):
        return overrides(key, INLINE[key](_read(key, value), key))
    if key not in TEXT | PATHS or value == "null":
        return [arg]
    if sweep:
        choices = _CHOICES.findall(value) or [value]
        as_it_is = _SWEEP.fullmatch(value) or ",".join(choices) != value
        return [arg if as_it_is else f"{plus}{key}={','.join(_choice(key, choice) for choice in choices)}"]
    if key in PATHS and _QUOTED.fullmatch(value):
        return [arg]
    return [f"{plus}{key}={quote(as_text(value) if key in TEXT else value)}"]


def _choice(key: str, choice: str) -> str:
    """One of several texts of a sweep; what the user has quoted is left alone."""
    return (
        choice if _QUOTED.fullmatch(choice) or choice == "null" else quote(as_text(choice) if key in TEXT else choice)
    )


def _whole(arg: str) -> bool:
    """Whether an argument is the settings of a group as JSON, or a file of them."""
    key, _, value = arg.partition("=")
    return key in INLINE and (value.startswith("{") or value.endswith(FILES) or "/" in value)


def _read(key: str, value: str) -> Mapping[str, Any]:
    """The settings in JSON, or in a file of JSON or YAML. Raises ConfigError with what is wrong."""
    text: str | bytes = value
    from framework.deployment import building
    from framework.io.reading import open_input

    where, path = key, Path(value).expanduser()
    if not value.startswith("{"):
        where = str(path)
        try:
            with open_input(path, building.say) as file:
                text = file.read()
        except OSError as error:
            hint = f"in a sweep over several, files of your own in MULTISTAGE_CONFIG_DIR/{key}/ are {key}=a,b"
            got, expected = error.strerror or str(error), "a file of JSON or YAML"
            several = hint if "," in value else ""
            raise ConfigError(Problem(where=where, got=got, expected=expected, hint=several)) from None
    given, problems = parsing.attempt(text, where=where, yaml=where != key and path.suffix != ".json")
    if problems and where == key and _SEVERAL.search(value):
        spelled = f"+{key}={_JSON_KEY.sub(lambda quoted: quoted[1], value)}"
        hint = f"a sweep over several, as Hydra spells it: -m '{spelled}'"
        problems = [Problem(where=key, got=show(value), expected="one object of settings", hint=hint)]
    if not problems and not isinstance(given, Mapping):
        problems = [Problem(where=where, got=show(given), expected="an object of settings")]
    if problems:
        raise ConfigError(problems)
    return given


def as_text(value: str) -> str:
    """`value` so that it is text for OmegaConf, in which `${...}` and `???` have a meaning; see `from_text`."""
    if _MISSING.fullmatch(value):
        return f"\\{value}"
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)


def from_text(value: str) -> str:
    """Undoes what `as_text` did to `???`, which OmegaConf cannot be told to take as it stands."""
    return value[1:] if value.startswith("\\") and _MISSING.fullmatch(value) else value


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
            path = f"{key}.{name}"
            found.append(f"{'++' * bool(_STAGE.fullmatch(path))}{path}={_literal(value)}")
    return found


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return quote(as_text(value))
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
