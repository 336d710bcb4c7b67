"""Running a deployment from Python: `from framework import Deployment`."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import attrs
from attrs import validators as v

from framework.deployment.live import Live
from framework.deployment.replies import Reply, reply_of
from framework.deployment.requested import defaults_of
from framework.deployment.system import Deployed, check, deployed, faults_of, make_executor
from framework.errors import StageError
from framework.execution.request import Request, Result
from framework.execution.results import complete
from framework.execution.session import Chunk, Ended, Event
from framework.io.requests import Rejected, read_request
from framework.schema import structure

if TYPE_CHECKING:
    from framework.deployment.config import InferenceConfig
    from framework.execution.payloads import AudioChunk, TextChunk

File = str | PathLike[str]
Files = File | Sequence[File]

_composing = threading.Lock()  # Hydra's state is the process's


class Asked(TypedDict, total=False):
    """What one request may bring. Every other key of a request in a request file is taken too.

    prompt: text of the user; or `messages`, a conversation of `{"role": ..., "content": ...}`.
    system: text of a system message before the prompt.
    audio, image, video: files that the prompt is about, one or several.
    fps: frames looked at for a second of video.
    voice, language, instruct: how the reply is spoken; `Deployment.choices` has the names.
    ref_audio, ref_text: a recording of the voice to speak with, and what is said in it.
    sampling: settings (`temperature`, `top_p`, `seed`, `max_generate_length` ...), or such of one stage by its id.
    style: settings of an output that are no sampling (`speed` ...).
    enable_thinking: whether a model that can may think aloud first.
    speak: whether the reply is spoken, where the deployment can write one without; one that only speaks always does.
    priority: of waiting requests, those of the highest priority start first; default 0.
    deadline_s: seconds after which the request is given up and fails.
    """

    prompt: str
    messages: Sequence[Mapping[str, Any]]
    system: str
    audio: Files
    image: Files
    video: Files
    fps: float
    voice: str
    language: str
    instruct: str
    ref_audio: File
    ref_text: str
    sampling: Mapping[str, Any]
    style: Mapping[str, Any]
    enable_thinking: bool
    speak: bool
    priority: int
    deadline_s: float


@attrs.frozen(kw_only=True)
class _Own:
    """What a request has here that one in a file has not."""

    speak: bool = False
    priority: int = 0
    deadline_s: float | None = attrs.field(default=None, validator=v.optional(v.gt(0.0)))


class Deployment:
    """A deployment, open in this process::

        from framework import Deployment

        with Deployment.open("smollm2", build_if_missing=True) as deployment:
            reply = deployment.run(prompt="What is the capital of France?", sampling={"temperature": 0})
            print(reply.text)
            for chunk in deployment.stream(prompt="Tell me a story."):
                print(chunk.text, end="", flush=True)

    Engines are loaded when the first request needs them. The methods may be called from several threads and tasks at
    once; their requests then run together. What a request may bring: `Asked`.
    """

    def __init__(self, config: InferenceConfig, system: Deployed) -> None:
        """Of settings that are composed already; `open` is the usual way."""
        self._system = system
        self._defaults = defaults_of(config)
        self._faults = faults_of(system)
        self._numbers = count()
        self._executor = make_executor(config, system, None)
        self._live = Live(self._executor)

    @classmethod
    def open(
        cls,
        name: str | PathLike[str],
        *,
        backend: str = "cpu",
        sampling: str | Mapping[str, Any] | None = None,
        batching: str = "inflight",
        batch_size: int = 4,
        build_if_missing: bool = False,
        overrides: Sequence[str] = (),
        config_dir: str | PathLike[str] | None = None,
    ) -> Deployment:
        """Open a deployment.

        Args:
            name: a preset of `conf/deployment`, or of your own; a path, or a text with a slash, is a folder of engines.
            backend: file of `conf/backend`.
            sampling: settings for every request that says nothing else, or a file of `conf/sampling`.
            batching: file of `conf/batching`.
            batch_size: most requests that run together.
            build_if_missing: fetch the weights and build the engines where there are none; standard error says how far
                that is.
            overrides: any other setting, as on the command line: `["backend.threads=2", "stream_capacity=32"]`.
            config_dir: folder of presets of your own, as `--config-dir`.

        Raises:
            ConfigError, GraphError: with everything that is wrong with the settings, the graph and the engines.
        """
        from framework.cli.composition import Composer, own_folders, values_of
        from framework.deployment.config import InferenceConfig, check_standing

        given = _overrides(name, backend, sampling, batching, batch_size, build_if_missing, overrides)
        folders = own_folders(None if config_dir is None else fspath(config_dir))
        with _composing, Composer("inference", given, folders=folders) as composer:
            cfg = composer.compose()
            config = structure(InferenceConfig, values_of(cfg), where="")
            choices = dict(cfg.hydra.runtime.choices)
        check_standing(config)
        system = deployed(config)
        check(config, system, choices)
        return cls(config, system)

    @property
    def choices(self) -> dict[str, list[str]]:
        """Names that a request may give, by field (`voice`, `language`)."""
        return dict(self._system.choices)

    def run(self, **asked: Unpack[Asked]) -> Reply:
        """Run one request to its end.

        Raises:
            ConfigError: the request is not well formed, or the engines it needs do not load.
            StageError: a stage refused it, or broke.
        """
        return _reply(self._live.events(self._request(asked)))

    def stream(self, **asked: Unpack[Asked]) -> Iterator[TextChunk | AudioChunk]:
        """The pieces of a reply as they are made. Leaving the loop gives the request up.

        Raises as `run`: at once for what can be known, later from the loop.
        """
        return _pieces(self._live.events(self._request(asked)))

    async def arun(self, **asked: Unpack[Asked]) -> Reply:
        """As `run`, for a task of asyncio; cancelling the task gives the request up."""
        async for event in self._live.aevents(self._request(asked)):
            if isinstance(event, Ended):
                return reply_of(complete(event.result))
        raise AssertionError("a request ends")

    async def astream(self, **asked: Unpack[Asked]) -> AsyncIterator[TextChunk | AudioChunk]:
        """As `stream`, for a task of asyncio."""
        async for event in self._live.aevents(self._request(asked)):
            if isinstance(event, Chunk):
                yield event.value
            else:
                reply_of(complete(event.result))

    def close(self) -> None:
        """Give up what has not ended and close the engines. May be called again."""
        self._live.close()
        self._executor.close()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, asked: Mapping[str, Any]) -> Request:
        """Raises ConfigError or StageError with everything that is wrong with it."""
        raw = {key: _plain(value) for key, value in asked.items() if value is not None}
        own = structure(_Own, {key: raw.pop(key) for key in attrs.fields_dict(_Own) if key in raw}, where="request")
        entry = read_request(raw, next(self._numbers), self._defaults, Path(), "request")
        if isinstance(entry, Rejected):
            raise entry.error
        if own.speak or "text" not in self._system.speakers:
            entry = attrs.evolve(entry, kinds=entry.kinds | {"audio"})
        problems = self._faults(entry)
        if problems:
            raise StageError(problems)
        return attrs.evolve(entry, priority=own.priority, deadline_s=own.deadline_s)


def _reply(events: Iterator[Event]) -> Reply:
    results: list[Result] = [event.result for event in events if isinstance(event, Ended)]
    return reply_of(complete(results[-1]))


def _pieces(events: Iterator[Event]) -> Iterator[Any]:
    for event in events:
        if isinstance(event, Chunk):
            yield event.value
        else:
            reply_of(complete(event.result))


def _overrides(
    name: str | PathLike[str],
    backend: str,
    sampling: str | Mapping[str, Any] | None,
    batching: str,
    batch_size: int,
    build_if_missing: bool,
    overrides: Sequence[str],
) -> list[str]:
    """As Hydra reads them; what is in `overrides` wins."""
    from framework.cli.arguments import prepare

    folder = not isinstance(name, str) or "/" in name
    given = [f"{'engine_dir' if folder else 'deployment'}={fspath(name)}", f"backend={backend}"]
    given += [f"batching={batching}", f"batching.size={batch_size}"]
    given.append(f"build_if_missing={str(build_if_missing).lower()}")
    if sampling is not None:
        given.append(f"sampling={sampling if isinstance(sampling, str) else json.dumps(_plain(sampling))}")
    return prepare([*given, *overrides])


def _plain(value: Any) -> Any:
    """As it would stand in a request file."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
