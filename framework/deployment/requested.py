"""What the settings of `multistage-inference` ask for, as requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import attrs

from framework.deployment.building import say
from framework.deployment.config import FILE, OUTPUTS, InferenceConfig
from framework.errors import ConfigError, Problem, StageError
from framework.execution.request import Request
from framework.graph.model import Graph
from framework.io.kinds import PayloadKind
from framework.io.predictions import FOLDER_FILES
from framework.io.reading import open_input
from framework.io.requests import Defaults, Rejected, RequestFile, load_requests, read_request
from framework.io.sampling import by_role, require
from framework.parsing import no_utf8
from framework.writing import not_a_file

SPOKEN = tuple(key for key, kind in OUTPUTS.items() if kind == "audio")
WRITTEN = ("out_audio", "out_timeline", "out_video", "output_file", "output_audio_dir", "output_video_dir")


def in_folder(config: InferenceConfig, folder: Path) -> InferenceConfig:
    """A job of a sweep: what it writes lies in its own folder, where no other job writes.

    Raises ConfigError for an output elsewhere, which every job would write again.
    """
    outputs = _written(config)
    hint = "a relative name lies in the folder of each job"
    problems = [
        Problem(where=key, got=f"'{path}'", expected="a place of its own for each job of the sweep", hint=hint)
        for key, path in outputs.items()
        if not (folder / path.expanduser()).resolve().is_relative_to(folder.resolve())
    ]
    if problems:
        raise ConfigError(problems)
    moved: dict[str, Any] = {key: folder / path for key, path in outputs.items() if key in WRITTEN}
    return attrs.evolve(config, **moved, outputs={kind: folder / path for kind, path in config.outputs.items()})


def _written(config: InferenceConfig) -> dict[str, Path]:
    """Where outputs go, by the setting that says so."""
    named = {key: path for key in WRITTEN if isinstance(path := getattr(config, key), Path)}
    return named | {f"outputs.{kind}": path for kind, path in config.outputs.items()}


def places_of(config: InferenceConfig) -> dict[str, Path]:
    """Where the outputs of a kind of payload go: a file for one request, a folder for a file of them."""
    return {_kind(key): path for key, path in _written(config).items() if _kind(key)}


def _kind(setting: str) -> str:
    """Kind of payload that a setting names a place for; empty for a setting that names another file."""
    return OUTPUTS.get(setting) or setting.partition("outputs.")[2]


def defaults_of(config: InferenceConfig) -> Defaults:
    """What holds for every request. Raises ConfigError for sampling settings out of range."""
    style = {key: value for key, value in config.style.items() if value is not None}
    options = {key: getattr(config, key) for key in ("apply_chat_template", "add_generation_prompt", "enable_thinking")}
    return Defaults(
        sampling=require(by_role(config.sampling, "sampling")),
        fields=_speech(config),
        kinds=frozenset({"text", *places_of(config)}),
        options={**options, "style": style} if style else options,
    )


def _speech(config: InferenceConfig) -> dict[str, str]:
    """Fields that a speech stage reads beside the text."""
    given = {key: getattr(config, key) for key in ("voice", "language", "instruct", "ref_text")}
    given["ref_audio"] = None if config.ref_audio is None else str(config.ref_audio.expanduser().absolute())
    return {key: value for key, value in given.items() if value is not None}


def file_of(config: InferenceConfig) -> RequestFile:
    """The request file. Raises ConfigError with its faults."""
    assert config.input_file is not None
    return load_requests(config.input_file, defaults=defaults_of(config), waiting=say)


def single_request(config: InferenceConfig) -> RequestFile:
    """The one request of the command line. Raises ConfigError when it is not right."""
    prompt = config.prompt if config.prompt_file is None else _read_prompt(config.prompt_file)
    given: dict[str, Any] = {"system": config.system, "prompt": prompt}
    given |= {key: _several(getattr(config, key)) for key in ("audio", "image", "video")}
    given |= {key: getattr(config, key) for key in ("fps", "use_audio_in_video")}
    raw = {key: value for key, value in given.items() if value is not None}
    entry = read_request(raw, 0, defaults_of(config), Path(), "request")
    if isinstance(entry, Rejected):
        raise entry.error
    return RequestFile(name="", batch_size=None, entries=(entry,))


def _several(value: str | tuple[str, ...] | None) -> str | list[str] | None:
    """Files as they are written on a command line: `a.jpg,b.jpg`, also in brackets; a name may have a comma in it."""
    if isinstance(value, tuple):
        return list(value)
    if value is None or "," not in value or Path(value).exists():
        return value
    return [name.strip() for name in value.removeprefix("[").removesuffix("]").split(",")]


def check_places(config: InferenceConfig) -> None:
    """Raise ConfigError for an output that would be written over a file that is read or over what is no regular file,
    or where nobody may write."""
    read: dict[Path, str] = {}
    for key in ("input_file", "prompt_file", "ref_audio", "audio", "image", "video"):
        value = getattr(config, key)
        files = [value] if isinstance(value, Path) else _several(value) or []
        read |= {_place(name): key for name in ([files] if isinstance(files, str) else files)}
    outputs = _written(config)
    problems = [
        Problem(where=key, got=f"'{path}', which is {read[_place(path)]}", expected="another file")
        for key, path in outputs.items()
        if _place(path) in read
    ]
    for key, path in outputs.items():
        folder = key.endswith("_dir") or (key.startswith("outputs.") and config.input_file is not None)
        inside = path.expanduser().glob(FOLDER_FILES) if folder else [path.expanduser()]
        problems += [problem for place in inside if (problem := not_a_file(place, key))]
        if reason := _unwritable(_place(path)):
            got = f"'{path}', and {reason}"
            problems.append(Problem(where=key, got=got, expected="a place to write to"))
    if problems:
        raise ConfigError(problems)


def _unwritable(path: Path) -> str:
    """Why no file or folder can be written at `path`; empty where one can."""
    folder = next(place for place in path.parents if os.path.lexists(place))
    if not folder.is_dir():
        return f"{folder} is no folder"
    for place in (path, folder):
        if os.path.lexists(place) and not os.access(place, os.W_OK):
            return f"{place} may not be written to"
    return ""


def _place(path: str | Path) -> Path:
    return Path(path).expanduser().resolve()


def offered(graph: Graph) -> list[str]:
    """Kinds of payload that a request may ask for."""
    ports = [stage.port(terminal.name) for terminal in graph.terminals if (stage := graph.stage(terminal.owner))]
    return sorted({port.kind for port in ports if port is not None})


def check_outputs(graph: Graph, config: InferenceConfig, rows: Mapping[str, PayloadKind]) -> None:
    """Raise ConfigError when an output is asked for that the graph cannot give, or none of those that it gives.

    Args:
        rows: kinds of payload that the deployment knows, by name.
    """
    kinds, problems = offered(graph), []
    for key, path in _written(config).items():
        kind, one = _kind(key), config.input_file is None
        if not kind:
            continue
        row, got = rows.get(kind), repr(str(path))
        if kind not in kinds:
            expected = f"nothing: this graph gives {', '.join(kinds)}"
        elif row is None or row.write is None:
            expected = f"nothing: {kind} has no file of its own"
        elif one and path.suffix.lower() != row.suffix:
            expected = f"a file name in {row.suffix}"
        else:
            continue
        problems.append(Problem(where=key, got=got, expected=expected))
    if not problems and not {"text", *places_of(config)} & {*kinds}:
        one = config.input_file is None
        settings = {key: kind for key, kind in OUTPUTS.items() if (key in FILE) is not one}
        settings |= {f"outputs.{kind}": kind for kind in kinds if kind not in OUTPUTS.values()}
        problems += [
            Problem(where=key, got="nothing", expected=f"a place for what this graph gives: {kind}")
            for key, kind in settings.items()
            if kind in kinds
        ]
    if config.out_timeline is not None:
        from framework.io.picture import check_picture

        check_picture(config.out_timeline, "out_timeline")
    if problems:
        raise ConfigError(problems)


def checked(file: RequestFile, faults: Callable[[Request], list[Problem]]) -> RequestFile:
    """The file with those requests rejected that have faults."""

    def read(entry: Request | Rejected) -> Request | Rejected:
        problems = [] if isinstance(entry, Rejected) else faults(entry)
        if not problems or isinstance(entry, Rejected):
            return entry
        raw: Mapping[str, Any] = {"messages": entry.fields["messages"]}
        return Rejected(index=entry.index, error=StageError(problems), raw=raw)

    return file.mapped(read)


def _read_prompt(name: str) -> str:
    """Text of a file, or of standard input for `-`; the last line end is not part of it."""
    where = f"prompt_file {name}"
    try:
        source = open(0, "rb", closefd=False) if name == "-" else open_input(Path(name), say)  # noqa: SIM115
        with TextIOWrapper(source, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise ConfigError(no_utf8(error, where, error.start)) from error
    except OSError as error:
        raise ConfigError(Problem(where=where, got=error.strerror or str(error), expected="a file of text")) from error
    return text.removesuffix("\n")
