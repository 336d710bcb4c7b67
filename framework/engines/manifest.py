"""`engine.json`: what an engine folder holds and what built it.

It is written last and read first, so that a folder without it was not finished, and an engine that does not fit the
run is named before anything is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from framework.engines.base import EngineSpec
from framework.engines.folder import digest
from framework.errors import ConfigError, Problem
from framework.schema import structure, unstructure

FILE_NAME = "engine.json"


@attrs.frozen(kw_only=True)
class File:
    """A file of an engine: its size, and `folder.digest` of it."""

    bytes: int
    digest: str


FORMAT = 2  # of the record and of what the passes make of a network: one more whenever either changes


@attrs.frozen(kw_only=True)
class Manifest:
    """Record of one built engine.

    Attributes:
        format: `FORMAT` of the build.
        backend: name of the backend it was built for.
        spec: its tensors, with the names of their dimensions, which a compiled plan no longer has.
        in_place: output -> inputs that it may share a buffer with.
        checkpoint: fingerprint of the weights it was made from; "" when there were none.
        options: what the build was asked for (precision, backend settings ...).
        versions: of the packages that made it.
        files: every file of the engine.
        weights, activations: bytes they take in memory once loaded (see `footprint`); 0 when not recorded.
        seal: digest of `spec` and `in_place`, which only the build knows to be the network's; "" in an older record.
        alone: whether the activations are those of the largest call whatever the rows, as it is for one row.
    """

    format: int = FORMAT
    backend: str
    spec: EngineSpec
    in_place: Mapping[str, tuple[str, ...]]
    checkpoint: str
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    files: Mapping[str, File]
    weights: int = 0
    activations: int = 0
    alone: bool = False
    seal: str = ""

    @property
    def own_seal(self) -> str:
        """What `seal` is when nobody has changed the record."""
        text = json.dumps([unstructure(self.spec), unstructure(self.in_place)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def write(folder: Path, manifest: Manifest) -> None:
    """Write the record, sealed."""
    sealed = attrs.evolve(manifest, seal=manifest.own_seal)
    (folder / FILE_NAME).write_text(json.dumps(unstructure(sealed), indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> Manifest:
    """The record of a built engine. Raises ConfigError when the folder is missing, unfinished, unreadable or older, or
    when its tensors are not those that the build wrote."""
    path = folder / FILE_NAME
    if not folder.is_dir():
        raise ConfigError(Problem(where=str(folder), got="no such folder", expected="an engine folder", hint=_BUILD))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        got = f"no {FILE_NAME}" if isinstance(error, FileNotFoundError) else str(error)
        raise ConfigError(Problem(where=str(folder), got=got, expected="a finished engine", hint=_BUILD)) from None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(Problem(where=str(path), got=str(error), expected="JSON", hint=_BUILD)) from None
    made = document.get("format") if isinstance(document, dict) else None
    if isinstance(made, int) and made != FORMAT:
        got, expected = f"an engine of format {made}", f"format {FORMAT}, which this version makes"
        raise ConfigError(Problem(where=str(folder), got=got, expected=expected, hint=_BUILD))
    record = structure(Manifest, document, where=f"{path}:")
    if record.seal and record.seal != record.own_seal:
        got, expected = "other tensors", "the names, dtypes and shapes that the build wrote"
        raise ConfigError(Problem(where=f"{path}: spec", got=got, expected=expected, hint=_BUILD))
    return record


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise ConfigError naming every file of the engine that is missing, cut short or changed."""
    problems = []
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(Problem(where=str(path), got="no such file", expected=f"{file.bytes} bytes", hint=_BUILD))
        elif path.stat().st_size != file.bytes:
            got = f"{path.stat().st_size} bytes"
            problems.append(Problem(where=str(path), got=got, expected=f"{file.bytes} bytes", hint=_BUILD))
        elif digest(path) != file.digest:
            problems.append(Problem(where=str(path), got="other content", expected="what the build wrote", hint=_BUILD))
    if problems:
        raise ConfigError(problems)


def describe(folder: Path, names: Iterable[str]) -> dict[str, File]:
    return {name: File(bytes=(folder / name).stat().st_size, digest=digest(folder / name)) for name in names}


def versions(*packages: str) -> dict[str, str]:
    """Installed version of each package that is installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


_BUILD = "build it with multistage-build"
