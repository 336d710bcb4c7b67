"""Several checkpoints in one deployment: their engines side by side, their graphs made one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.compile.family import BuildOptions, Component, Topology
from framework.compile.joining import Part, build_joined, join, stale_part
from framework.engines import manifest
from framework.errors import ConfigError
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph, Input, Port, Source, Stage
from models.llm.topology import LLM
from tests.compile.test_builder import CONFIG, SMALL, write_checkpoint
from tests.models.running import CPU


def stage(name: str, source: str, *, artifact: str = ".", terminal: bool = True) -> Stage:
    owner, _, port = source.partition(":")
    return Stage(
        id=name,
        runner="test.stage",
        artifact=artifact,
        inputs=(Input(name="text", source=Source(owner, port)),),
        emits=(Port(id="text", kind="text", terminal=terminal),),
    )


def graph(*stages: Stage) -> Graph:
    terminals = tuple(Source(stage.id, "text") for stage in stages if stage.emits[0].terminal)
    return Graph(stages=stages, terminals=terminals)


HEARS = graph(stage("asr", "request:audio", artifact="decoder"))
WRITES = graph(stage("thinker", "request:messages"))
WIRES = {
    "asr": {"emits": {"text": {"terminal": False}}},
    "thinker": {"inputs": {"heard": {"from": "asr:text", "on_missing": "skip"}}, "config": {"bucket": 2}},
}


# One graph of several


def test_each_artifact_lies_in_the_folder_of_its_part() -> None:
    joined = join({"ear": HEARS, "mind": WRITES}, {})
    assert {stage.id: stage.artifact for stage in joined.stages} == {"asr": "ear/decoder", "thinker": "mind"}
    assert join({"ear": graph(stage("asr", "request:audio", artifact=""))}, {}).stages[0].artifact == ""


def test_stages_are_joined_by_changes_to_them() -> None:
    joined = join({"ear": HEARS, "mind": WRITES}, WIRES)
    thinker = joined.stage("thinker")
    assert thinker is not None and thinker.config == {"bucket": 2}
    assert {i.name: (str(i.source), i.on_missing) for i in thinker.inputs} == {
        "text": ("request:messages", "fail"),
        "heard": ("asr:text", "skip"),
    }


def test_outputs_that_are_marked_terminal_are_returned() -> None:
    assert [str(source) for source in join({"ear": HEARS, "mind": WRITES}, {}).terminals] == [
        "asr:text",
        "thinker:text",
    ]
    assert [str(source) for source in join({"ear": HEARS, "mind": WRITES}, WIRES).terminals] == ["thinker:text"]


def test_two_stages_of_one_name_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"deployment.parts: got stage 'asr' in left and right, expected stages of dif"
    ):
        join({"left": HEARS, "right": HEARS}, {})


def test_changes_that_fit_no_stage_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        join({"ear": HEARS, "mind": WRITES}, {"thinkr": {}, "asr": {"emit": {}}})
    assert [problem.where for problem in raised.value.problems] == [
        "deployment.stages.thinkr",
        "deployment.stages.asr.emit",
    ]


# Engines of several checkpoints in one folder


class Second:
    """The same network under another name, so that two of them fit in one graph."""

    options, places = LLM.options, LLM.places

    def components(self, checkpoint: Any, options: BuildOptions) -> Sequence[Component]:
        return LLM().components(checkpoint, options)

    def topology(self, components: Mapping[str, str], checkpoint: Any, options: BuildOptions | None) -> Topology | str:
        found = LLM().topology(components, checkpoint, options)
        assert isinstance(found, Topology)
        return Topology(
            stages=tuple(attrs.evolve(stage, id="second") for stage in found.stages),
            terminals=(Source("second", "text"),),
        )


class Lost(Second):
    def topology(self, *_: Any) -> str:
        return "nothing runs it"


FAMILIES = {"LlamaForCausalLM": LLM(), "SecondForCausalLM": Second(), "LostForCausalLM": Lost()}
OPTIONS = {"one": SMALL, "two": attrs.evolve(SMALL, precision="int8")}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Part]:
    folder = tmp_path_factory.mktemp("checkpoints")
    names = {"one": "LlamaForCausalLM", "two": "SecondForCausalLM"}
    return {
        part: Part(model=write_checkpoint(folder / part, {**CONFIG, "architectures": [name]}), options=OPTIONS[part])
        for part, name in names.items()
    }


@pytest.fixture(scope="module")
def engines(parts: dict[str, Part], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joined") / "engines"
    wires = {"second": {"inputs": {"more": {"from": "thinker:text", "on_missing": "skip"}}}}
    returned = build_joined(parts, folder, stages=wires, families=FAMILIES, backend=CPU)
    assert returned == files.load(folder / FILE_NAME)
    return folder


def test_each_part_has_a_folder_in_which_it_also_runs_alone(engines: Path) -> None:
    joined = files.load(engines / FILE_NAME)
    assert [stage.artifact for stage in joined.stages] == ["one", "two"]
    for part, name in (("one", "thinker"), ("two", "second")):
        alone = files.load(engines / part / FILE_NAME)
        assert [stage.id for stage in alone.stages] == [name]
        assert manifest.read(engines / part).options["precision"] == OPTIONS[part].precision


def test_a_part_built_with_other_options_is_stale(engines: Path) -> None:
    assert stale_part(OPTIONS, engines, backend=CPU) is None
    other = {**OPTIONS, "two": attrs.evolve(SMALL, precision="int4")}
    assert stale_part(other, engines, backend=CPU) == "two: it was built with precision=int8, not int4"
    assert stale_part({**OPTIONS, "three": SMALL}, engines, backend=CPU) == "three: there are no engines yet"


@pytest.mark.parametrize("fault", ["no graph", "wires", "no checkpoint"])
def test_what_fails_leaves_the_older_folder_as_it_was(
    fault: str, parts: dict[str, Part], engines: Path, tmp_path: Path
) -> None:
    given, wires, message = dict(parts), {}, "deployment.stages.third: got unknown stage"
    if fault == "wires":
        wires = {"third": {}}
    elif fault == "no graph":
        lost = write_checkpoint(tmp_path / "lost", {**CONFIG, "architectures": ["LostForCausalLM"]})
        given["two"] = Part(model=lost, options=SMALL)
        message = "deployment.parts.two: got no graph: nothing runs it, expected a part with a graph"
    else:
        given["two"] = Part(model=tmp_path / "nowhere", options=SMALL)
        message = "nowhere"
    before = json.loads((engines / FILE_NAME).read_text())
    with pytest.raises(ConfigError, match=message):
        build_joined(given, engines, stages=wires, families=FAMILIES, backend=CPU)
    assert json.loads((engines / FILE_NAME).read_text()) == before
    assert sorted(path.name for path in engines.iterdir()) == [FILE_NAME, "one", "two"]
