from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.errors import ConfigError, GraphError
from framework.graph import FILE_NAME, Graph, Input, Port, Source, Stage, dumps, load, loads, overlay, save

OMNI = Path(__file__).with_name("qwen3_omni.json")


def everything_set() -> Graph:
    """A graph in which no field has its default."""
    stage = Stage(
        id="a",
        runner="r",
        artifact="x/y",
        kind="iterative",
        inputs=(Input(name="p", source=Source("request", "messages"), on_missing="prune"),),
        emits=(Port(id="out", kind="audio", terminal=True, binding="wav"),),
        max_batch=4,
        max_seq=4096,
        config={"depth": {"no": [1, 2.5, "8", None, True]}, "name": "1e-5"},
    )
    return Graph(schema_version=2, terminals=(Source("a", "out"),), stages=(stage, Stage(id="b", runner="r")))


def test_the_seeds_example_is_read_field_by_field(omni: Graph) -> None:
    assert omni.terminals == (Source("thinker", "text"), Source("code2wav", "audio"))
    assert omni.stages[1] == Stage(
        id="talker",
        runner="qwen3_omni.talker",
        artifact="talker",
        kind="autoregressive",
        inputs=(
            Input(name="hidden", source=Source("thinker", "accept_hidden"), on_missing="fail"),
            Input(name="text_ids", source=Source("thinker", "text"), on_missing="fail"),
            Input(name="voice", source=Source("request", "voice"), on_missing="skip"),
        ),
        emits=(Port(id="codes", kind="codec", terminal=False),),
    )


def test_the_seeds_example_is_written_as_it_was_less_how_the_original_moves_data(omni: Graph) -> None:
    def pairs(found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:  # the order of keys counts too
        return [(key, value) for key, value in found if key not in ("transport", "stream_lane")]

    seed = json.loads(OMNI.read_text(), object_pairs_hook=pairs)
    assert json.loads(dumps(omni), object_pairs_hook=list) == seed


@pytest.mark.parametrize("stages", ['[{"id": "a", BODY}]', '{"a": {BODY}}'], ids=["a list", "a mapping"])
@pytest.mark.parametrize("emits", ['[{"id": "o", "transport": "device_tensor"}]', '{"o": {"transport": "pipe"}}'])
def test_how_the_original_moves_data_is_read_past(stages: str, emits: str) -> None:
    body = f'"runner": "r", "stream_lane": 1, "emits": {emits}'
    assert loads(f'{{"stages": {stages.replace("BODY", body)}}}') == Graph(
        stages=(Stage(id="a", runner="r", emits=(Port(id="o"),)),)
    )


def test_a_minimal_stage_takes_the_defaults() -> None:
    graph = loads('{"stages": [{"id": "a", "runner": "r", "emits": [{"id": "o"}]}]}')
    assert graph == Graph(schema_version=1, terminals=(), stages=(graph.stages[0],))
    assert graph.stages[0] == Stage(
        id="a",
        runner="r",
        artifact="",
        kind="host",
        emits=(Port(id="o", kind="text", terminal=False, binding=""),),
        max_batch=1,
        max_seq=0,
        config={},
    )


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
@pytest.mark.parametrize("graph", [load(OMNI), everything_set(), Graph()], ids=["seed", "every field", "empty"])
def test_saving_loses_nothing(graph: Graph, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"graph{suffix}"
    save(graph, file)
    assert load(file) == graph
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_either_file_takes_either_form(omni: Graph) -> None:
    as_mappings = dumps(omni, suffix=".yaml")
    assert "stages:\n  thinker:\n    runner: llm.backbone" in as_mappings
    assert loads(OMNI.read_text(), suffix=".yaml") == omni
    assert loads('{"stages": {"a": {"runner": "r", "inputs": {"p": {"from": "request:x"}}}}}') == Graph(
        stages=(Stage(id="a", runner="r", inputs=(Input(name="p", source=Source("request", "x")),)),)
    )


def test_an_engine_folder_stands_for_the_file_in_it(omni: Graph, tmp_path: Path) -> None:
    save(omni, tmp_path)
    assert (tmp_path / FILE_NAME).is_file()
    assert load(tmp_path) == omni


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"stages": [,]}', r"\.json, line 1, column 13: got malformed JSON, expected value\n    {.*,\]}\n {16}\^"),
        ('{"stages": [], "stages": []}', r'\.json: got the key "stages" twice'),
        ('{"stagse": []}', r'\.json: stagse: got unknown key "stagse".*did you mean \'stages\''),
        (
            '{"stages": [{"id": "a", "runner": "r", "max_bach": 2}]}',
            r"\.json: stages\.a\.max_bach: .*did you mean 'max_batch'",
        ),
        (
            '{"stages": [{"id": "a", "runner": "r", "inputs": [{"name": "p", "source": "request:x"}]}]}',
            r"stages\.a\.inputs\.p\.source: got unknown key.*\n.*stages\.a\.inputs\.p\.from: got nothing",
        ),
        ('{"terminals": ["thinker"]}', r"terminals\[0\]: got \"thinker\", expected 'request:<field>' or"),
        ("[]", r"\.json: got \[\], expected a mapping"),
    ],
    ids=["syntax", "key twice", "top-level key", "stage key", "from is not source", "source form", "no mapping"],
)
def test_a_malformed_file_names_its_faults(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text(text)
    with pytest.raises(GraphError, match=message):
        load(file)


def test_a_folder_without_a_graph(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"{FILE_NAME}: got no such file or directory, expected a graph file, or the"
    ):
        load(tmp_path)


@pytest.mark.parametrize("name", ["graph.txt", "graph"])
def test_an_unknown_suffix(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=r"expected \.json, \.yaml or \.yml"):
        load(tmp_path / name)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no UTF-8"):
        load(tmp_path / "graph.json")


def test_a_failed_save_leaves_the_old_file(omni: Graph, tmp_path: Path) -> None:
    save(omni, tmp_path)
    broken = attrs.evolve(omni, stages=(attrs.evolve(omni.stages[0], config={"x": float("nan")}),))
    with pytest.raises(ValueError):
        save(broken, tmp_path)
    assert load(tmp_path) == omni


class TestOverlay:
    def test_given_settings_replace_and_the_rest_stays(self, tts: Graph) -> None:
        changed = overlay(tts, {"talker": {"max_batch": 8, "max_seq": 512, "config": {"speaker": "ethan"}}})
        before = tts.stages[0]
        expected = attrs.evolve(before, max_batch=8, max_seq=512, config={"prefill_builder": "tts", "speaker": "ethan"})
        assert changed.stages == (expected, tts.stages[1])
        assert changed.terminals == tts.terminals

    def test_inputs_and_ports_merge_by_name(self, tts: Graph) -> None:
        patch = {"inputs": {"voice": {"on_missing": "prune"}}, "emits": {"codes": {"terminal": True}}}
        stage = overlay(tts, {"talker": patch}).stages[0]
        assert [(item.name, item.on_missing) for item in stage.inputs] == [("text", "fail"), ("voice", "prune")]
        assert stage.emits == (attrs.evolve(tts.stages[0].emits[0], terminal=True),)

    def test_a_list_replaces(self, tts: Graph) -> None:
        stage = overlay(tts, {"talker": {"inputs": [{"name": "text", "from": "request:text"}]}}).stages[0]
        assert stage.inputs == (Input(name="text", source=Source("request", "text")),)

    def test_nothing_given_changes_nothing(self, tts: Graph) -> None:
        assert overlay(tts, {}) == tts

    def test_every_fault_at_once(self, tts: Graph) -> None:
        patch = {
            "talkr": {"max_batch": 2},
            "talker": {"max_batch": "8", "max_sec": 1, "id": "speaker"},
            "code2wav": 3,
        }
        with pytest.raises(ConfigError) as caught:
            overlay(tts, patch)
        assert [(problem.where, problem.got, problem.hint) for problem in caught.value.problems] == [
            ("stages.talkr", 'unknown stage "talkr"', "did you mean 'talker'?"),
            ("stages.talker.max_sec", 'unknown key "max_sec"', "did you mean 'max_seq'?"),
            ("stages.talker.max_batch", '"8"', ""),
            ("stages.talker.id", '"speaker"', ""),
            ("stages.code2wav", "3", ""),
        ]
