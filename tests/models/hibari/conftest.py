"""The package's own network, built once, and a speaker over it that waits for another stage's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from framework.compile.builder import build
from framework.execution.executor import Executor
from framework.execution.policies import InFlight
from framework.execution.request import Request, Result
from framework.execution.runner import OpenContext
from framework.graph.model import Graph, Port, Source, Stage
from models.hibari.runners import Speaker
from models.hibari.topology import Hibari, speaker_stage
from tests.models.hibari.writer import CHUNKS, CPU, INT8, Writer


@pytest.fixture(scope="session")
def package() -> Any:
    """The published implementation, with its voice in the package."""
    return pytest.importorskip("hibari").Hibari()


@pytest.fixture(scope="session")
def published(package: Any) -> Path:
    """Its network."""
    return Path(package.model_path)


@pytest.fixture(scope="session")
def engines(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hibari") / "engines"
    build(published, folder, families={"hibari": Hibari()}, options=INT8, backend=CPU)
    return folder


@pytest.fixture(scope="session")
def executor(engines: Path) -> Iterator[Executor]:
    """A graph of a writer and a speaker; four requests at a time."""
    writer = Stage(id="writer", runner="writer", max_batch=4, inputs=(CHUNKS,), emits=(Port(id="text", terminal=True),))
    speaker = speaker_stage("tts", Source("writer", "text"), INT8)
    graph = Graph(terminals=(Source("writer", "text"), Source("tts", "audio")), stages=(writer, speaker))
    runners = {"writer": Writer(stage=writer), "tts": Speaker(stage=speaker)}

    def context(stage: Stage) -> OpenContext:
        return OpenContext(engine_dir=engines, artifact=engines / stage.artifact, backend=CPU, batch=4)

    with Executor(graph, runners, policy=InFlight(4), make_context=context) as executor:
        yield executor


@pytest.fixture(scope="session")
def speak(executor: Executor) -> Callable[..., list[Result]]:
    """Results of texts, each a string or a list of chunks, in order."""

    def speak(*texts: str | Sequence[str], seed: int = 0, **style: Any) -> list[Result]:
        requests = [
            Request(
                index=index,
                fields={"chunks": [text] if isinstance(text, str) else list(text)},
                sampling={"default": {"seed": seed}},
                kinds=frozenset({"text", "audio"}),
                options={"style": style},
            )
            for index, text in enumerate(texts)
        ]
        return sorted(executor.run(requests), key=lambda result: result.request.index)

    return speak
