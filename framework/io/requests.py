"""Request files: the original's LLM and TTS formats as one JSON object, and JSON lines (`.jsonl`), a request a line.

A fault of the file (syntax, a key at the top) is an error of the file, told before any engine is loaded. A fault inside
one request, or a broken line of JSON lines, is that request's error alone, so that one bad request among four gives
three answers and one error. Of a file on disk no more than a request at a time is held in memory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import attrs

from framework.errors import ConfigError, MultistageError, Problem, at
from framework.execution.request import Fields, Request
from framework.io import fields as f
from framework.io.jsonstream import walk
from framework.io.messages import SHORT_FORMS, VIDEO_SETTINGS, read_conversation
from framework.io.reading import open_input
from framework.io.sampling import FLAT, Roles, by_role, overlay
from framework.parsing import attempt
from framework.schema import show

MAX_BATCH_SIZE = 16

# Switches of a run or of one request; they become `Request.options`.
SWITCHES = {
    "apply_chat_template": f.FLAG,
    "add_generation_prompt": f.FLAG,
    "enable_thinking": f.FLAG,
    "style": f.OBJECT,
    "context_cache_lookup_policy": f.one_of("use_cache", "bypass"),
    "context_cache_commit_policy": f.one_of("including_generated_tokens", "prefill_state_only"),
}
# What a speech stage reads beside the messages; they become `Request.fields`.
SPEECH = dict.fromkeys(("speaker", "voice", "language", "instruct", "ref_audio", "ref_text"), f.TEXT)
TOP = {
    **SWITCHES,
    **SPEECH,
    "requests": f.LIST,
    "batch_size": f.whole(1, MAX_BATCH_SIZE),
    "sampling": f.OBJECT,
    "streaming": f.OBJECT,
    "available_lora_weights": f.OBJECT,
    "diffusion_config": f.OBJECT,
    "diffusion_max_denoising_steps": f.whole(0),
}
ONE = {
    **SWITCHES,
    **SPEECH,
    **SHORT_FORMS,
    **VIDEO_SETTINGS,
    **dict.fromkeys(("assistant_instruct", "system_instruct", "talker_language"), f.TEXT),
    "messages": f.LIST,
    "sampling": f.OBJECT,
    "prompt_speaker_codes": f.CODES,
    "lora_name": f.TEXT,
    "save_system_prompt_kv_cache": f.FLAG,
    "disable_spec_decode": f.FLAG,
    "modalities": f.TEXTS,
}
# What `request:<field>` of a graph can read.
FIELDS = frozenset(Fields.__annotations__)
_STREAMING = {"enable": f.FLAG, "codec_chunk_frames": f.whole(0), "talker_prefill_threshold": f.whole(1)}

# Accepted, and refused when it asks for something, until a model here can do it.
_NOT_YET = {
    "available_lora_weights": "LoRA adapters are",
    "lora_name": "LoRA adapters are",
    "diffusion_config": "text diffusion is",
    "diffusion_max_denoising_steps": "text diffusion is",
}
_READ_ELSEWHERE = frozenset(
    {"requests", "batch_size", "sampling", "messages", "modalities", *SHORT_FORMS, *VIDEO_SETTINGS, *_NOT_YET}
)


@attrs.frozen(kw_only=True)
class Defaults:
    """What holds for every request of a run unless its file says otherwise.

    Attributes:
        sampling: by role, as `framework.io.sampling.by_role` gives it.
        fields: request fields such as voice.
        kinds: payload kinds the caller wants.
        options: see `Request.options`.
    """

    sampling: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    kinds: frozenset[str] = frozenset({"text"})
    options: Mapping[str, Any] = attrs.field(factory=dict)

    def under(self, given: _Settings) -> Defaults:
        """These, with what was given over them."""
        return Defaults(
            sampling=overlay(self.sampling, given.sampling),
            fields={**self.fields, **given.fields},
            kinds=self.kinds,
            options={**self.options, **given.options},
        )


@attrs.frozen(kw_only=True, eq=False)
class Rejected:
    """A request that cannot be served as it is written.

    Attributes:
        raw: what stands in the file, for the predictions to show.
    """

    index: int
    error: MultistageError
    raw: Any


@attrs.frozen(kw_only=True, eq=False)
class RequestFile:
    """A request file whose form is right.

    Attributes:
        name: as the user wrote it.
        batch_size: None when the file does not say.
        entries: in file order; those of a file on disk are read, and checked, each time they are asked for.
        digest: of the file's bytes; "" when there is no file.
    """

    name: str
    batch_size: int | None
    entries: Sequence[Request | Rejected]
    digest: str = ""

    @property
    def good(self) -> Iterator[Request]:
        return (entry for entry in self.entries if isinstance(entry, Request))

    @property
    def rejected(self) -> Iterator[Rejected]:
        return (entry for entry in self.entries if isinstance(entry, Rejected))

    def mapped(self, change: Callable[[Request | Rejected], Request | Rejected]) -> RequestFile:
        """The file with every entry changed when it is read."""
        return attrs.evolve(self, entries=_Lazy(len(self.entries), lambda index: change(self.entries[index])))


class _Lazy(Sequence[Request | Rejected]):
    """Entries that are made when they are asked for."""

    def __init__(self, length: int, read: Callable[[int], Request | Rejected]) -> None:
        self._length = length
        self._read = read

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self._read(index)


def load_requests(
    source: Path | Mapping[str, Any],
    *,
    defaults: Defaults | None = None,
    waiting: Callable[[str], None] = lambda what: None,
) -> RequestFile:
    """Read a request file, or the same as a mapping.

    Paths of media are taken relative to the folder of the file.

    Args:
        waiting: told what is waited for, when the file is a pipe that nobody has written to yet.

    Raises:
        ConfigError: every fault of the file as a whole.
    """
    defaults = defaults or Defaults()
    if not isinstance(source, Path):
        shared = defaults.under(_read_top(source, "", len(source.get("requests", ()))))
        entries = tuple(
            read_request(raw, index, shared, Path(), f"requests[{index}]")
            for index, raw in enumerate(source["requests"])
        )
        return RequestFile(name="", batch_size=source.get("batch_size"), entries=entries)
    name, file = str(source), _open(source, waiting)
    places, by_line = _Places(), source.suffix.lower() == ".jsonl"
    if by_line:
        content: dict[str, Any] = {"requests": []}
        for line, text in enumerate(file, 1):
            if not text.isspace():
                places.add(file.tell() - len(text), len(text.rstrip()), line, 1)
    else:
        content = {}
        for found in walk(file, name, "requests"):
            if found.index is not None:
                content["requests"] = []
                places.add(found.offset, found.length, found.line, found.column)
            elif found.problems:
                raise ConfigError(found.problems)
            else:
                content[found.key] = found.value
    shared = defaults.under(_read_top(content, f"{name}:", len(places)))

    def read(index: int) -> Request | Rejected:
        offset, length, line, column = places[index]
        where = f"{name}, line {line}: request" if by_line else f"{name}: requests[{index}]"
        file.seek(offset)
        raw, problems = attempt(file.read(length), where=name, line=line, column=column, root=where)
        if problems:
            return Rejected(index=index, error=ConfigError(problems), raw=raw)
        return read_request(raw, index, shared, source.parent, where)

    file.seek(0)
    return RequestFile(
        name=name,
        batch_size=content.get("batch_size"),
        entries=_Lazy(len(places), read),
        digest=hashlib.file_digest(file, "sha256").hexdigest(),
    )


class _Places:
    """Where in a file the requests are: offset and length in bytes, line and column from 1."""

    def __init__(self) -> None:
        self._numbers = array("Q")

    def __len__(self) -> int:
        return len(self._numbers) // 4

    def __getitem__(self, index: int) -> array[int]:
        return self._numbers[4 * index : 4 * index + 4]

    def add(self, offset: int, length: int, line: int, column: int) -> None:
        self._numbers.extend((offset, length, line, column))


def _open(path: Path, waiting: Callable[[str], None]) -> BufferedReader:
    """The file, which stays open; what cannot be read twice, such as a pipe, is copied first. Raises ConfigError."""
    try:
        file = open_input(path, waiting)
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        with file, tempfile.NamedTemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            copy.flush()
            return open(copy.name, "rb")
    except OSError as error:
        raise ConfigError(Problem(where=str(path), got=error.strerror or str(error), expected="a JSON file")) from error


def _read_top(content: Mapping[str, Any], where: str, requests: int) -> _Settings:
    """What a file sets for all its requests. Raises ConfigError with the faults of the file."""
    top = _Settings.read(content, TOP, where)
    hint = '{"requests": [{"prompt": "Hello"}]}'
    empty = content.get("requests") == []
    got, expected = ("an empty list", "at least one request") if empty else ("nothing", "a list of requests")
    if not requests and not any(problem.where == at(where, "requests") for problem in top.problems):
        place = at(where, "requests")
        top.problems.append(Problem(where=place, got=got, expected=expected, hint=hint))
    if top.problems:
        raise ConfigError(top.problems)
    return top


def read_request(raw: Any, index: int, defaults: Defaults, folder: Path, where: str) -> Request | Rejected:
    """One request over its defaults, or everything that is wrong with it."""
    if not isinstance(raw, dict):
        problem = Problem(where=where, got=show(raw), expected="an object", hint='{"prompt": "Hello"}')
        return Rejected(index=index, error=ConfigError(problem), raw=raw)
    given = _Settings.read(raw, ONE, where, folder)
    conversation = read_conversation(raw, where, folder)
    known = {problem.where for problem in conversation.problems}
    problems = [problem for problem in given.problems if problem.where not in known] + conversation.problems
    unwritten = [] if problems else sorted({*raw.get("modalities", ())} - defaults.kinds)
    if unwritten:
        got, expected = ", ".join(unwritten), f"only what the run writes: {', '.join(sorted(defaults.kinds))}"
        hint = "output_audio_dir=DIR" if "audio" in unwritten else ""
        problems = [Problem(where=f"{where}.modalities", got=got, expected=expected, hint=hint)]
    if problems:
        return Rejected(index=index, error=ConfigError(problems), raw=raw)
    full = defaults.under(given)
    return Request(
        index=index,
        fields={"messages": conversation.messages, **conversation.media, **full.fields},
        sampling=full.sampling,
        kinds=frozenset(raw.get("modalities", full.kinds)),
        options=full.options,
    )


@attrs.frozen
class _Settings:
    """Everything but the messages that one object of a request file sets."""

    sampling: Roles = attrs.field(factory=dict)
    fields: dict[str, Any] = attrs.field(factory=dict)
    options: dict[str, Any] = attrs.field(factory=dict)
    problems: list[Problem] = attrs.field(factory=list)

    @classmethod
    def read(
        cls, content: Mapping[str, Any], kinds: Mapping[str, f.Kind], where: str, folder: Path = Path()
    ) -> _Settings:
        found = cls()
        flat = {key: value for key, value in content.items() if key in FLAT}
        for key, value in content.items():
            if key in FLAT:
                continue
            if key not in kinds:
                found.problems.append(f.unknown_key(where, key, [*kinds, *FLAT]))
                continue
            problem = kinds[key].problem(at(where, key), value)
            if problem is None and key in _NOT_YET and value:
                expected = f"none: {_NOT_YET[key]} not supported yet"
                problem = Problem(where=at(where, key), got=show(value), expected=expected)
            if problem:
                found.problems.append(problem)
            elif key not in _READ_ELSEWHERE:
                found._set(key, value, folder)
        if "streaming" in found.options:
            found._check_streaming(where)
        sampling, faults = by_role(flat, where)
        if isinstance(content.get("sampling"), dict):
            inner, more = by_role(content["sampling"], at(where, "sampling"))
            sampling, faults = overlay(sampling, inner), faults + more
        found.sampling.update(sampling)
        found.problems.extend(faults)
        return found

    def _set(self, key: str, value: Any, folder: Path) -> None:
        if key in SWITCHES or key in ("streaming", "save_system_prompt_kv_cache", "disable_spec_decode"):
            self.options[key] = value
        elif value not in ("", []):  # an empty speaker or language means "not given"
            name = "voice" if key == "speaker" else key
            self.fields[name] = str((folder / value).absolute()) if key == "ref_audio" else value

    def _check_streaming(self, where: str) -> None:
        for key, value in self.options["streaming"].items():
            place = at(where, "streaming")
            if key not in _STREAMING:
                self.problems.append(f.unknown_key(place, key, _STREAMING))
            elif problem := _STREAMING[key].problem(at(place, key), value):
                self.problems.append(problem)
