"""The seed's Qwen3-Omni graph, a Qwen3-TTS graph without a thinker, and what their runners declare."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from attrs import validators as v

from framework import schema
from framework.graph import Graph, InputDecl, RunnerDecl, load, loads

OMNI = Path(__file__).with_name("qwen3_omni.json")

QWEN3_TTS = """
terminals: [code2wav:audio]
stages:
  talker:
    runner: qwen3_omni.talker
    artifact: talker
    kind: autoregressive
    max_batch: 4
    config: {prefill_builder: tts}
    inputs:
      text: {from: request:messages}
      voice: {from: request:voice, on_missing: skip}
    emits:
      codes: {kind: codec}
  code2wav:
    runner: qwen3_omni.code2wav
    artifact: code2wav
    kind: iterative
    inputs:
      codes: {from: talker:codes}
    emits:
      audio: {kind: audio, terminal: true}
"""


@attrs.frozen(kw_only=True)
class Backbone:
    accept_hidden_layer: int = -1


@attrs.frozen(kw_only=True)
class Talker:
    prefill_builder: Literal["segments", "chunked", "tts"] = "segments"
    speaker: str = ""


@attrs.frozen(kw_only=True)
class Code2Wav:
    chunk_frames: int = attrs.field(default=25, validator=v.ge(1))
    whole_utterance: bool = False


def takes(*kinds: str, request: bool = False) -> InputDecl:
    return InputDecl(kinds=frozenset(kinds), from_request=request)


RUNNERS = {
    "llm.backbone": RunnerDecl(
        kind="autoregressive",
        inputs={"prompt": takes(request=True), "audio": takes(request=True)},
        ports={"text": "text", "accept_hidden": "hidden"},
        required=frozenset({"prompt"}),
        config=Backbone,
    ),
    "qwen3_omni.talker": RunnerDecl(
        kind="autoregressive",
        inputs={
            "hidden": takes("hidden"),
            "text_ids": takes("text"),
            "text": takes(request=True),
            "voice": takes(request=True),
        },
        ports={"codes": "codec"},
        config=Talker,
    ),
    "qwen3_omni.code2wav": RunnerDecl(
        kind="iterative",
        inputs={"codes": takes("codec")},
        ports={"audio": "audio"},
        required=frozenset({"codes"}),
        config=Code2Wav,
    ),
    "plain.copy": RunnerDecl(kind="host", inputs={"any": takes("text", "audio", request=True)}, ports={"text": "text"}),
}


@pytest.fixture
def runners() -> Mapping[str, RunnerDecl]:
    return RUNNERS


@pytest.fixture
def omni() -> Graph:
    return load(OMNI)


@pytest.fixture
def tts() -> Graph:
    return loads(QWEN3_TTS, suffix=".yaml")


@pytest.fixture
def edited() -> Callable[[Mapping[str, Any]], str]:
    """The Omni graph as JSON text, after changes such as `{"stages.talker.inputs.voice.from": "request:speaker"}`."""

    def edit(changes: Mapping[str, Any]) -> str:
        data = schema.unstructure(load(OMNI), defaults=False, keyed=True)
        for path, value in changes.items():
            *parents, key = path.split(".")
            node = data
            for parent in parents:
                node = node.setdefault(parent, {})
            if value is None:  # taken away
                del node[key]
            else:
                node[key] = value
        return json.dumps(data)

    return edit
