from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.errors import ConfigError, GraphError
from framework.graph import Graph, InputDecl, RunnerDecl, check, load_checked, loads, save, validate
from framework.graph.files import dumps
from framework.graph.model import FILE_NAME, Input, Port, Source, Stage

Edited = Callable[[Mapping[str, Any]], str]
Runners = Mapping[str, RunnerDecl]


@attrs.frozen(kw_only=True)
class Reads:
    """Settings of a runner that reads a folder."""

    encoder: str = ""


def faults_of(folder: Path, runners: Runners, stages: Mapping[str, Any]) -> list[str]:
    try:
        load_checked(folder, runners, stages=stages)
    except GraphError as error:
        return [problem.where for problem in error.problems]
    return []


TEXT = {"id": "text", "terminal": True}
CODES = {"name": "codes", "from": "talker:codes"}
ROWS = "llm.backbone, plain.copy, qwen3_omni.code2wav, qwen3_omni.talker"
FORM = "'request:<field>' or '<stage>:<port>'"
COPY = {"runner": "plain.copy", "kind": "host", "inputs": {"any": {"from": "thinker:text"}}, "emits": {"text": {}}}


@pytest.mark.parametrize("graph", ["omni", "tts"])
def test_a_sound_graph_has_no_fault(graph: str, runners: Runners, request: pytest.FixtureRequest) -> None:
    assert validate(request.getfixturevalue(graph), runners) == []
    check(request.getfixturevalue(graph), runners)


def rule(name: str, changes: dict[str, Any], where: str, got: str, expected: str, hint: str = "") -> Any:
    return pytest.param(changes, where, got, expected, hint, id=name)


@pytest.mark.parametrize(
    ("changes", "where", "got", "expected", "hint"),
    [
        rule("version", {"schema_version": 2}, "schema_version", "2", "1, the only version there is"),
        # runners
        rule(
            "runner is unknown",
            {"stages.talker.runner": "qwen3_omni.talkr"},
            "stages.talker.runner",
            '"qwen3_omni.talkr"',
            f"a row of the runners table: {ROWS}",
            "did you mean 'qwen3_omni.talker'?",
        ),
        rule(
            "runner is far from all",
            {"stages.talker.runner": "x"},
            "stages.talker.runner",
            '"x"',
            f"a row of the runners table: {ROWS}",
        ),
        rule(
            "kind differs",
            {"stages.talker.kind": "iterative"},
            "stages.talker.kind",
            '"iterative"',
            '"autoregressive", as runner qwen3_omni.talker has it',
        ),
        # sources
        rule(
            "source stage is unknown",
            {"stages.code2wav.inputs.codes.from": "talkr:codes"},
            "stages.code2wav.inputs.codes.from",
            "talkr:codes, an unknown stage",
            FORM,
            "did you mean 'talker'?",
        ),
        rule(
            "request is misspelt",
            {"stages.talker.inputs.voice.from": "requst:voice"},
            "stages.talker.inputs.voice.from",
            "requst:voice, an unknown stage",
            FORM,
            "did you mean 'request'?",
        ),
        rule(
            "source port is unknown",
            {"stages.talker.inputs.hidden.from": "thinker:hidden"},
            "stages.talker.inputs.hidden.from",
            "thinker:hidden, an unknown port",
            "a port of stage 'thinker'",
            "did you mean 'accept_hidden'?",
        ),
        rule(
            "source is the stage itself",
            {"stages.talker.inputs.hidden.from": "talker:codes"},
            "stages.talker.inputs.hidden.from",
            "talker:codes, the stage itself",
            "a request field, or a port of another stage",
        ),
        rule(
            "port of an unfit kind",
            {"stages.talker.inputs.hidden.from": "thinker:text"},
            "stages.talker.inputs.hidden.from",
            "thinker:text of kind text",
            "a port of kind hidden",
        ),
        rule(
            "port where a request field belongs",
            {"stages.talker.inputs.voice.from": "thinker:text"},
            "stages.talker.inputs.voice.from",
            "thinker:text of kind text",
            "a request field, request:<field>",
        ),
        rule(
            "request field where a port belongs",
            {"stages.talker.inputs.hidden.from": "request:hidden"},
            "stages.talker.inputs.hidden.from",
            "request:hidden",
            "a port of kind hidden",
        ),
        rule(
            "port or request field",
            {
                "stages.copy": {**COPY, "inputs": {"any": {"from": "talker:codes"}}, "emits": {"text": TEXT}},
                "terminals": ["thinker:text", "code2wav:audio", "copy:text"],
            },
            "stages.copy.inputs.any.from",
            "talker:codes of kind codec",
            "a port of kind audio or text or a request field, request:<field>",
        ),
        # inputs
        rule(
            "input is unknown",
            {"stages.talker.inputs.voices": {"from": "request:voice"}},
            "stages.talker.inputs.voices",
            'unknown input "voices"',
            "an input of runner qwen3_omni.talker",
            "did you mean 'voice'?",
        ),
        rule(
            "required input is misspelt",
            {"stages.code2wav.inputs": {"code": {"from": "talker:codes"}}},
            "stages.code2wav.inputs.code",
            'unknown input "code"',
            "an input of runner qwen3_omni.code2wav",
            "did you mean 'codes'?",
        ),
        rule(
            "required input may be skipped",
            {"stages.thinker.inputs.prompt.on_missing": "skip"},
            "stages.thinker.inputs.prompt.on_missing",
            '"skip"',
            '"fail" or "prune": the runner cannot run without this input',
        ),
        rule(
            "required input from the request is not bound",
            {"stages.thinker.inputs.prompt": None},
            "stages.thinker.inputs",
            "no input 'prompt'",
            "it bound: runner llm.backbone cannot run without",
            'e.g. {"name": "prompt", "from": "request:<field>"}',
        ),
        rule(
            "input is bound twice",
            {"stages.code2wav.inputs": [CODES, CODES]},
            "stages.code2wav.inputs.codes",
            "bound twice",
            "each input bound once",
        ),
        # ports
        rule(
            "port is unknown to the runner",
            {"stages.thinker.emits.txt": {}},
            "stages.thinker.emits.txt",
            'unknown port "txt"',
            "a port of runner llm.backbone",
            "did you mean 'text'?",
        ),
        rule(
            "port kind differs, which is no fault of its readers",
            {"stages.talker.emits.codes.kind": "audio"},
            "stages.talker.emits.codes.kind",
            '"audio"',
            '"codec", as runner qwen3_omni.talker has it',
        ),
        rule(
            "port twice",
            {"stages.thinker.emits": [TEXT, TEXT, {"id": "accept_hidden", "kind": "hidden"}]},
            "stages.thinker.emits.text.id",
            '"text" twice',
            "each port of a stage once",
        ),
        # terminals
        rule(
            "terminal of an unknown stage",
            {"terminals": ["thinkr:text", "code2wav:audio"]},
            "terminals[0]",
            "thinkr:text, an unknown stage",
            FORM,
            "did you mean 'thinker'?",
        ),
        rule(
            "terminal of an unknown port",
            {"terminals": ["thinker:text", "code2wav:audi"]},
            "terminals[1]",
            "code2wav:audi, an unknown port",
            "a port of stage 'code2wav'",
            "did you mean 'audio'?",
        ),
        rule(
            "terminal is no output",
            {"terminals": ["thinker:text", "code2wav:audio", "request:messages"]},
            "terminals[2]",
            "request:messages",
            "an output of a stage, <stage>:<port>",
        ),
        rule(
            "terminal is not marked",
            {"stages.thinker.emits.text.terminal": False},
            "terminals[0]",
            "thinker:text, a port not marked as terminal",
            'a port with "terminal": true',
            'e.g. {"id": "text", "kind": "text", "terminal": true}',
        ),
        rule(
            "marked port is not listed",
            {"terminals": ["thinker:text"]},
            "stages.code2wav.emits.audio.terminal",
            "true, but not listed",
            "every terminal port in the graph's terminals",
            'e.g. "terminals": ["code2wav:audio", ...]',
        ),
        rule(
            "terminal twice",
            {"terminals": ["thinker:text", "code2wav:audio", "thinker:text"]},
            "terminals[2]",
            "thinker:text twice",
            "each terminal once",
        ),
        rule(
            "no terminal",
            {
                "terminals": [],
                "stages.thinker.emits.text.terminal": False,
                "stages.code2wav.emits.audio.terminal": False,
            },
            "terminals",
            "none",
            "at least one output",
            'e.g. ["writer:text"]',
        ),
        # shape
        rule(
            "cycle",
            {
                "stages.a": {**COPY, "inputs": {"any": {"from": "b:text"}}},
                "stages.b": {**COPY, "inputs": {"any": {"from": "c:text"}}, "emits": {"text": TEXT}},
                "stages.c": {**COPY, "inputs": {"any": {"from": "a:text"}}},
                "terminals": ["thinker:text", "code2wav:audio", "b:text"],
            },
            "stages",
            "the cycle a -> c -> b -> a",
            "stages that only feed later ones",
        ),
        rule(
            "stage that nobody hears",
            {"stages.copy": COPY},
            "stages.copy",
            "a stage that reaches no terminal",
            "an output that is a terminal, or read by a stage that reaches one",
        ),
        # numbers and folders
        rule("max_batch", {"stages.talker.max_batch": 0}, "stages.talker.max_batch", "0", "an integer >= 1"),
        rule("max_seq", {"stages.talker.max_seq": -1}, "stages.talker.max_seq", "-1", "an integer >= 0"),
        *[
            rule(
                f"artifact {folder}",
                {"stages.talker.artifact": folder},
                "stages.talker.artifact",
                f'"{folder}"',
                "a folder below the one that holds the graph file",
                'e.g. "talker"',
            )
            for folder in ("/etc", "../talker", "talker/../../x", "C:/x", "..")
        ],
        # settings of the runner
        rule(
            "setting is unknown",
            {"stages.code2wav.config": {"chunk_frame": 3}},
            "stages.code2wav.config.chunk_frame",
            'unknown key "chunk_frame"',
            "a known key",
            "did you mean 'chunk_frames'?",
        ),
        rule(
            "setting is out of range",
            {"stages.code2wav.config": {"chunk_frames": 0}},
            "stages.code2wav.config.chunk_frames",
            "0",
            "an integer >= 1",
        ),
        rule(
            "setting is none of the words",
            {"stages.talker.config": {"prefill_builder": "segment"}},
            "stages.talker.config.prefill_builder",
            '"segment"',
            'one of "segments", "chunked", "tts"',
            "did you mean 'segments'?",
        ),
        rule(
            "setting of a runner that takes none",
            {
                "stages.copy": {**COPY, "emits": {"text": TEXT}, "config": {"x": 1}},
                "terminals": ["thinker:text", "code2wav:audio", "copy:text"],
            },
            "stages.copy.config.x",
            'unknown key "x"',
            "no settings: runner plain.copy takes none",
        ),
    ],
)
def test_one_broken_rule_is_one_fault(
    edited: Edited, runners: Runners, changes: dict[str, Any], where: str, got: str, expected: str, hint: str
) -> None:
    (problem,) = validate(loads(edited(changes)), runners, where="graph.json")
    assert (problem.where, problem.got, problem.expected, problem.hint) == (f"graph.json: {where}", got, expected, hint)


@pytest.mark.parametrize(
    ("name", "got", "expected"),
    [
        ("", '""', "a name for a stage"),
        ("a:b", '"a:b"', "a name without ':', which parts a stage from its port in <stage>:<port>"),
        ("request", '"request"', "another name: it stands for the request"),
        ("thinker", '"thinker" more than once', "an id of its own"),
    ],
    ids=["empty", "colon", "request", "taken"],
)
def test_names_of_stages(omni: Graph, runners: Runners, name: str, got: str, expected: str) -> None:
    last = attrs.evolve(omni.stages[2], id=name)
    problems = validate(attrs.evolve(omni, stages=(*omni.stages, last)), runners, where="")
    assert (got, expected) in [(problem.got, problem.expected) for problem in problems if problem.where.endswith(".id")]


@pytest.mark.parametrize("name", ["", "a:b"], ids=["empty", "colon"])
def test_names_of_ports(omni: Graph, runners: Runners, name: str) -> None:
    port = attrs.evolve(omni.stages[1].emits[0], id=name)
    talker = attrs.evolve(omni.stages[1], emits=(*omni.stages[1].emits, port))
    graph = attrs.evolve(omni, stages=(omni.stages[0], talker, omni.stages[2]))
    where = f"stages.talker.emits.{name}.id" if name else "stages.talker.emits[1].id"
    assert where in [problem.where for problem in validate(graph, runners, where="")]


def test_required_port_input_that_is_not_bound_shows_one_that_fits(edited: Edited, runners: Runners) -> None:
    problems = validate(loads(edited({"stages.code2wav.inputs.codes": None})), runners, where="")
    assert [problem.hint for problem in problems if problem.where == "stages.code2wav.inputs"] == [
        'e.g. {"name": "codes", "from": "talker:codes"}'
    ]


@pytest.mark.parametrize(
    ("bound", "lacking"),
    [
        ((), ["text"]),
        (("hidden",), ["text_ids"]),
        (("text_ids", "voice"), ["hidden"]),
        (("text", "voice"), []),
        (("hidden", "text_ids"), []),
    ],
)
def test_one_of_several_sets_of_inputs_must_be_bound(bound: tuple[str, ...], lacking: list[str]) -> None:
    """The set that most of is there is what is meant; where nothing is, the usual one."""
    names = ("text", "hidden", "text_ids", "voice")
    decl = RunnerDecl(
        kind="host",
        inputs={name: InputDecl(from_request=True) for name in names},
        ports={"audio": "audio"},
        alternatives=(frozenset({"text"}), frozenset({"hidden", "text_ids"})),
    )
    stage = Stage(
        id="talker",
        runner="a.talker",
        inputs=tuple(Input(name=name, source=Source("request", name)) for name in bound),
        emits=(Port(id="audio", kind="audio", terminal=True),),
    )
    graph = Graph(stages=(stage,), terminals=(Source("talker", "audio"),))
    problems = validate(graph, {"a.talker": decl}, where="")
    assert [problem.got for problem in problems] == [f"no input {name!r}" for name in lacking]


def test_words_of_a_graph_that_came_from_no_file(omni: Graph, runners: Runners) -> None:
    thinker = omni.stages[0]
    inputs = (attrs.evolve(thinker.inputs[0], on_missing="stop"), *thinker.inputs[1:])
    graph = attrs.evolve(omni, stages=(attrs.evolve(thinker, inputs=inputs), *omni.stages[1:]))
    (problem,) = validate(graph, runners, where="")
    assert (problem.got, problem.expected) == ('"stop"', 'one of "fail", "skip", "prune"')


def test_an_empty_graph(runners: Runners) -> None:
    (problem,) = validate(Graph(), runners, where="")
    assert (problem.where, problem.got) == ("stages", "none")


def test_two_cycles_are_two_faults(edited: Edited, runners: Runners) -> None:
    changes = {
        "stages.thinker.inputs.audio.from": "code2wav:audio",
        "stages.a": {**COPY, "inputs": {"any": {"from": "b:text"}}},
        "stages.b": {**COPY, "inputs": {"any": {"from": "a:text"}}},
    }
    got = [problem.got for problem in validate(loads(edited(changes)), runners) if "cycle" in problem.got]
    assert sorted(got) == ["the cycle a -> b -> a", "the cycle thinker -> talker -> code2wav -> thinker"]


FIVE = {
    "schema_version": 3,
    "stages.talker.runner": "qwen3_omni.talkr",
    "stages.talker.max_batch": 0,
    "stages.code2wav.inputs.codes.from": "talker:code",
    "terminals": ["thinker:text", "thinker:accept_hidden", "code2wav:audio"],
}
FIVE_PLACES = [
    "schema_version",
    "stages.code2wav.inputs.codes.from",
    "stages.talker.max_batch",
    "stages.talker.runner",
    "terminals[1]",
]


def test_five_faults_are_listed_at_once(edited: Edited, runners: Runners) -> None:
    with pytest.raises(GraphError, match=r"^5 problems:") as caught:
        check(loads(edited(FIVE)), runners, where="")
    assert sorted(problem.where for problem in caught.value.problems) == FIVE_PLACES


class TestLoadChecked:
    """File, overlay and rules in one pass."""

    def test_a_sound_graph(self, tmp_path: Path, tts: Graph, runners: Runners) -> None:
        save(tts, tmp_path)
        assert load_checked(tmp_path, runners) == tts
        assert load_checked(tmp_path, runners, stages={"talker": {"max_batch": 2}}).stages[0].max_batch == 2

    def test_faults_of_all_three_kinds_come_together(self, tmp_path: Path, edited: Edited, runners: Runners) -> None:
        file = tmp_path / "graph.json"
        file.write_text(edited({**FIVE, "stages.talker.max_seq": "many", "stages.talker.knd": 1}))
        with pytest.raises(GraphError) as caught:
            load_checked(file, runners, stages={"vocoder": {}, "code2wav": {"max_seq": -1}})
        places = sorted(problem.where for problem in caught.value.problems)
        in_file = [*FIVE_PLACES, "stages.talker.knd", "stages.talker.max_seq"]
        # What the command line broke is not blamed on the file.
        assert places == sorted(
            [*(f"{file}: {place}" for place in in_file), "stages.code2wav.max_seq", "stages.vocoder"]
        )

    def test_a_fault_of_structure_is_not_told_twice(self, tmp_path: Path, edited: Edited, runners: Runners) -> None:
        file = tmp_path / "graph.json"
        file.write_text(edited({"stages.talker.runner": 3, "stages.code2wav.inputs.codes.from": "talker"}))
        with pytest.raises(GraphError) as caught:
            load_checked(file, runners)
        places = [problem.where for problem in caught.value.problems]
        assert places == [f"{file}: stages.talker.runner", f"{file}: stages.code2wav.inputs.codes.from"]

    def test_an_overlay_can_mend_the_file(self, tmp_path: Path, edited: Edited, runners: Runners) -> None:
        file = tmp_path / "graph.json"
        file.write_text(edited({"stages.talker.max_batch": 0}))
        assert load_checked(file, runners, stages={"talker": {"max_batch": 4}}).stages[1].max_batch == 4

    def test_links_stay_inside_the_engine_folder(self, tmp_path: Path, tts: Graph, runners: Runners) -> None:
        folder, elsewhere = tmp_path / "engines", tmp_path / "elsewhere"
        for place in (folder / "talker", elsewhere):
            place.mkdir(parents=True)
        save(tts, folder)
        (folder / "code2wav").symlink_to("talker")
        (folder / "talker" / "again").symlink_to(folder)
        (tmp_path / "engines too").symlink_to(folder)
        assert load_checked(folder, runners) == load_checked(tmp_path / "engines too", runners) == tts
        (folder / "code2wav").unlink()
        (folder / "code2wav").symlink_to(elsewhere)
        (folder / "talker" / "tokenizer.json").symlink_to("../../secret.json")
        with pytest.raises(GraphError) as caught:
            load_checked(folder, runners)
        places = [(problem.where, problem.got) for problem in caught.value.problems]
        assert places == [
            (str(folder / "code2wav"), f"a link to {elsewhere}"),
            (str(folder / "talker" / "tokenizer.json"), f"a link to {tmp_path / 'secret.json'}"),
        ]

    @pytest.mark.parametrize("name", ["../..", "/etc", "link", "../other/../.."])
    def test_folders_that_settings_name_are_inside(self, name: str, tmp_path: Path, runners: Runners) -> None:
        folder = tmp_path / "engines"
        (folder / "talker").mkdir(parents=True)
        (folder / "talker" / "link").symlink_to(tmp_path)
        stage = Stage(id="talker", runner="reads", artifact="talker", config={"encoder": name})
        (folder / FILE_NAME).write_text(dumps(Graph(stages=(stage,))))
        reads = RunnerDecl(kind="host", inputs={}, ports={}, config=Reads, folders={"encoder": ""})
        with pytest.raises(GraphError) as caught:
            load_checked(folder, {"reads": reads})
        where = f"stages.talker.config.encoder: got {json.dumps(name)}, expected a folder inside {folder}"
        assert any(str(problem) == where for problem in caught.value.problems)
        for fine in ("..", "../other", "deeper"):
            found = faults_of(folder, {"reads": reads}, {"talker": {"config": {"encoder": fine}}})
            assert found and not any("encoder" in where for where in found)

    def test_a_missing_file(self, tmp_path: Path, runners: Runners) -> None:
        with pytest.raises(ConfigError, match="no such file"):
            load_checked(tmp_path / "x.json", runners)
