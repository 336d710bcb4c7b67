"""The graph of a build, of parts of one, and the published page's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.checkpoints.checkpoint import Checkpoint, open_checkpoint
from framework.compile.builder import graph_only
from framework.compile.family import Topology
from framework.engines import manifest
from framework.errors import ConfigError
from framework.graph import files
from framework.graph.model import Graph, Source
from framework.graph.validate import load_checked
from models.language.media import encoder_folders
from models.language.runners import Backbone
from models.qwen3_codec.runners import Code2Wav
from models.qwen3_omni.config import OmniConfig
from models.qwen3_omni.runners import Talker
from models.qwen3_omni.topology import Qwen3Omni
from tests.models.qwen3_omni import tiny
from tests.models.qwen3_omni.thinking import FAMILIES, THINKER

PAGE = Path(__file__).parents[2] / "graph" / "qwen3_omni.json"
RUNNERS: Mapping[str, Any] = {"llm.backbone": Backbone, "qwen3_omni.talker": Talker, "qwen3_omni.code2wav": Code2Wav}
WHOLE = {"llm": ".", **{name: name for name in ("audio", "visual", "talker", "hidden_projection", "code2wav")}}


@pytest.fixture(scope="module")
def checkpoint(workshop: Any) -> Checkpoint:
    return open_checkpoint(workshop.checkpoint)


def graph_of(checkpoint: Checkpoint, components: Mapping[str, str]) -> Graph:
    found = Qwen3Omni().topology(components, checkpoint, attrs.evolve(THINKER, hidden_layers=()))
    assert isinstance(found, Topology), found
    return Graph(terminals=found.terminals, stages=found.stages)


def edges(graph: Graph) -> set[tuple[str, str, str]]:
    return {(str(item.source), stage.id, item.name) for stage in graph.stages for item in stage.inputs}


def test_a_whole_build_has_the_graph_of_the_page_and_reads_pictures_too(checkpoint: Checkpoint) -> None:
    page, graph = files.load(PAGE), graph_of(checkpoint, WHOLE)
    assert graph.terminals == page.terminals
    kept = ("id", "runner", "artifact", "kind")
    shapes = [[tuple(getattr(s, key) for key in kept) for s in g.stages] for g in (page, graph)]
    assert shapes[0] == shapes[1]
    assert edges(graph) - edges(page) == {("request:image", "thinker", "image"), ("request:video", "thinker", "video")}
    assert edges(page) <= edges(graph)
    ports = [{(s.id, p.id, p.kind, p.terminal) for s in g.stages for p in s.emits} for g in (page, graph)]
    assert ports[0] <= ports[1]


@pytest.mark.parametrize(
    ("parts", "fields", "stages"),
    [
        (("llm",), ["messages"], ["thinker"]),
        (("llm", "audio"), ["messages", "audio"], ["thinker"]),
        (("llm", "visual"), ["messages", "image", "video"], ["thinker"]),
        (("llm", "talker", "code2wav"), ["messages"], ["thinker", "talker", "code2wav"]),
    ],
    ids=" ".join,
)
def test_parts_of_a_build(checkpoint: Checkpoint, parts: tuple[str, ...], fields: list[str], stages: list[str]) -> None:
    graph = graph_of(checkpoint, {name: WHOLE[name] for name in parts})
    assert [stage.id for stage in graph.stages] == stages
    assert [item.source.name for item in graph.stages[0].inputs] == fields
    assert ("thinker:accept_hidden" in {source for source, _, _ in edges(graph)}) == ("talker" in parts)
    assert (Source("code2wav", "audio") in graph.terminals) == ("talker" in parts)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("audio", "talker", "code2wav"), "no llm component was built"),
        (("llm", "talker"), "talker was built without code2wav"),
        (("llm", "code2wav"), "code2wav was built without talker"),
        (("llm", "action"), "no stage runs the component action"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_parts_that_make_no_graph(checkpoint: Checkpoint, parts: tuple[str, ...], reason: str) -> None:
    assert Qwen3Omni().topology(dict.fromkeys(parts, "."), checkpoint, THINKER) == reason


def test_a_checkpoint_without_a_talker(checkpoint: Checkpoint) -> None:
    silent = attrs.evolve(checkpoint, config={**checkpoint.config, "enable_audio_output": False})
    components = Qwen3Omni().components(silent, THINKER)
    assert [component.name for component in components] == ["llm", "audio", "visual"]


def test_the_checkpoint_s_sampling_is_the_thinker_s_default(checkpoint: Checkpoint) -> None:
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 99}
    asked = attrs.evolve(checkpoint, generation_config={**generation, "repetition_penalty": 1.1})
    config = graph_of(asked, WHOLE).stages[0].config
    expected = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_generate_length": 99, "repetition_penalty": 1.1}
    assert config == expected
    assert Backbone.decl.config is not None
    assert {key: getattr(Backbone.decl.config(**config), key) for key in expected} == expected
    greedy = attrs.evolve(checkpoint, generation_config={"do_sample": False, "temperature": 0.6})
    assert graph_of(greedy, WHOLE).stages[0].config == {"temperature": 0.0}


# Engines that are there


def test_the_page_s_graph_is_valid_as_it_stands(workshop: Any, tmp_path: Path) -> None:
    shutil.copy(PAGE, tmp_path / "multistage_config.json")
    graph = load_checked(tmp_path, {name: cls.decl for name, cls in RUNNERS.items()}, stages={})
    assert [stage.id for stage in graph.stages] == ["thinker", "talker", "code2wav"]


@pytest.mark.parametrize("place", ["audio", "multimodal/audio"])
@pytest.mark.parametrize("backbone", [".", "thinker"])
def test_encoders_are_found_where_other_builds_put_them(
    workshop: Any, tmp_path: Path, backbone: str, place: str
) -> None:
    engines = tmp_path / "engines"
    for folder in (backbone, place):
        shutil.copytree(workshop.thinker(), engines / folder, dirs_exist_ok=True)
    graph = graph_only(workshop.checkpoint, engines, families=FAMILIES)
    assert isinstance(graph, Graph)
    (stage,) = graph.stages
    assert [item.source.name for item in stage.inputs] == ["messages", "audio"]
    found = encoder_folders(engines / stage.artifact, stage.config.get("multimodal_artifact", ""))
    assert {name: folder.resolve() for name, folder in found.items()} == {"audio": engines / place}


def test_the_thinker_s_engine_carries_what_the_talker_reads(workshop: Any) -> None:
    record = manifest.read(workshop.thinker())
    assert {spec.name for spec in record.spec.outputs if "hidden" in spec.name} == {"hidden.0", "hidden.3"}


# Configs that are wrong


def test_every_fault_of_a_config_is_named() -> None:
    config = json.loads(json.dumps(tiny.config()))
    del config["thinker_config"]["image_token_id"]
    config["thinker_config"]["text_config"]["rope_parameters"]["mrope_section"] = [4, 4, 4]
    config["thinker_config"]["text_config"]["rope_parameters"]["mrope_interleaved"] = False
    config["thinker_config"]["text_config"]["hidden_size"] = 0
    config["talker_config"]["accept_hidden_layer"] = None
    with pytest.raises(ConfigError) as caught:
        OmniConfig.from_checkpoint(config)
    assert {problem.where for problem in caught.value.problems} == {
        "config.json: thinker_config.image_token_id",
        "config.json: talker_config.accept_hidden_layer",
        "config.json: thinker_config.text_config.rope_parameters.mrope_section",
        "config.json: thinker_config.text_config.rope_parameters.mrope_interleaved",
        "config.json: thinker_config.text_config.hidden_size",
    }
