"""The files of a checkpoint that turn text into tokens: whether they have changed, and whether they work."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from framework.errors import ConfigError, Problem
from framework.io.chat import ChatTemplate
from framework.io.tokens import Tokenizer

Files = Mapping[str, bytes | Path]

_LINE = 'Grüße, 42 "Leute"!\n\tça va? 你好'


def digest(parts: Iterable[tuple[str, bytes]]) -> str:
    """Sha-256 of what the files are made from: name, or key, and content of each."""
    state = hashlib.sha256()
    for name, content in parts:
        state.update(f"{name} {len(content)} ".encode() + content)
    return state.hexdigest()


def check(files: Files, where: Path) -> None:
    """Raise ConfigError for a tokenizer that is malformed or fails at a line of text, or a malformed chat template.

    Files without a tokenizer are left to whoever needs one.
    """
    if "tokenizer.json" not in files:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, folder / file)
            else:
                (folder / file).write_bytes(content)
        try:
            _use(folder)
        except ConfigError as error:
            problems = [attrs.evolve(p, where=p.where.replace(str(folder), str(where), 1)) for p in error.problems]
            raise ConfigError(problems) from error


def _use(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    path = str(folder / "tokenizer.json")
    try:
        tokenizer.decode(tokenizer.encode(_LINE))
    except Exception as error:  # the library raises nothing narrower
        problem = Problem(where=path, got=str(error), expected="a tokenizer that can write a line of text")
        raise ConfigError(problem) from error
    if not tokenizer.vocab_size:
        raise ConfigError(Problem(where=path, got="an empty vocabulary", expected="a tokenizer with tokens"))
    ChatTemplate.load(folder)
