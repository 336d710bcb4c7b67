from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from framework.errors import StageError
from framework.graph import Graph, Source, consumers, loads, route, topological, unread_fields

Edited = Callable[[Mapping[str, Any]], str]

# Two roads to one vocoder, written in an order that is not topological.
DIAMOND = """
terminals: [join:audio, left:text]
stages:
  join:
    runner: r
    inputs:
      a: {from: left:text, on_missing: skip}
      b: {from: right:codes, on_missing: %(b)s}
    emits: {audio: {kind: audio, terminal: true}}
  left:
    runner: r
    inputs: {x: {from: request:messages, on_missing: %(x)s}}
    emits: {text: {kind: text, terminal: true}}
  right:
    runner: r
    inputs: {y: {from: request:voice, on_missing: %(y)s}}
    emits: {codes: {kind: codec}}
"""


def diamond(b: str = "fail", x: str = "fail", y: str = "fail") -> Graph:
    return loads(DIAMOND % {"b": b, "x": x, "y": y}, suffix=".yaml")


def stages(graph: Graph, fields: Collection[str], kinds: Collection[str]) -> tuple[str, ...]:
    return route(graph, fields, kinds).stages


class TestOmni:
    """The seed's example: thinker -> talker -> code2wav."""

    def test_text_alone_runs_the_thinker_alone(self, omni: Graph) -> None:
        found = route(omni, {"messages", "audio", "voice"}, {"text"})
        assert found.stages == ("thinker",)
        assert found.terminals == (Source("thinker", "text"),)

    def test_text_and_audio_run_everything(self, omni: Graph) -> None:
        found = route(omni, {"messages", "voice"}, {"text", "audio"})
        assert found.stages == ("thinker", "talker", "code2wav")
        assert found.terminals == (Source("thinker", "text"), Source("code2wav", "audio"))

    def test_audio_alone_runs_everything_but_returns_audio(self, omni: Graph) -> None:
        found = route(omni, {"messages"}, {"audio"})
        assert found.stages == ("thinker", "talker", "code2wav")
        assert found.terminals == (Source("code2wav", "audio"),)

    def test_an_output_by_name_runs_what_it_needs(self, omni: Graph) -> None:
        found = route(omni, {"messages"}, {"text", "audio"}, terminals=("talker:codes",))
        assert found.stages == ("thinker", "talker")
        assert found.terminals == (Source("talker", "codes"),)

    def test_an_unknown_output_is_told_with_the_nearest(self, omni: Graph) -> None:
        with pytest.raises(StageError, match="did you mean 'talker:codes'"):
            route(omni, {"messages"}, {"text"}, terminals=("talker:code",))

    def test_what_the_request_brings_leaves_out_the_stages_that_would_make_it(self, omni: Graph) -> None:
        found = route(omni, {"messages"}, {"audio"}, given={"talker:codes"})
        assert found.stages == ("code2wav",)

    def test_an_absent_skip_input_changes_nothing(self, omni: Graph) -> None:
        assert route(omni, {"messages"}, {"text", "audio"}) == route(
            omni, {"messages", "voice", "audio"}, {"text", "audio"}
        )

    def test_an_absent_fail_input_fails_every_output_behind_it(self, omni: Graph) -> None:
        with pytest.raises(StageError) as caught:
            route(omni, {"audio"}, {"text", "audio"})
        (problem,) = caught.value.problems
        assert problem.where == "stages.thinker.inputs.prompt"
        assert problem.got == "a request without 'messages'"
        assert "request:messages" in problem.expected
        assert "thinker:text" in problem.expected
        assert "code2wav:audio" in problem.expected

    @pytest.mark.parametrize("on_missing", ["fail", "prune"])
    def test_a_stage_that_no_requested_output_needs_may_be_left_out(self, edited: Edited, on_missing: str) -> None:
        graph = loads(edited({"stages.talker.inputs.voice.on_missing": on_missing}))
        assert stages(graph, {"messages"}, {"text"}) == ("thinker",)

    @pytest.mark.parametrize("on_missing", ["fail", "prune"])
    def test_a_stage_that_a_requested_output_needs_may_not(self, edited: Edited, on_missing: str) -> None:
        graph = loads(edited({"stages.talker.inputs.voice.on_missing": on_missing}))
        with pytest.raises(StageError) as caught:
            route(graph, {"messages"}, {"text", "audio"})
        (problem,) = caught.value.problems
        assert problem.where == "stages.talker.inputs.voice"
        assert "'talker'" in problem.expected
        assert "code2wav:audio" in problem.expected
        assert "thinker:text" not in problem.expected

    def test_a_kind_that_the_graph_does_not_make(self, omni: Graph) -> None:
        with pytest.raises(
            StageError, match=r"request for video output.*text \(thinker:text\), audio \(code2wav:audio"
        ):
            route(omni, {"messages"}, {"text", "video"})

    def test_no_kind_at_all(self, omni: Graph) -> None:
        with pytest.raises(StageError, match="request for no output"):
            route(omni, {"messages"}, set())


class TestWithoutText:
    """Qwen3-TTS: nothing but speech comes out."""

    @pytest.mark.parametrize(
        "kinds", [{"text"}, {"audio"}, {"text", "audio"}, set()], ids=lambda kinds: "+".join(sorted(kinds))
    )
    def test_the_speech_stages_always_run(self, tts: Graph, kinds: set[str]) -> None:
        found = route(tts, {"messages"}, kinds)
        assert found.stages == ("talker", "code2wav")
        assert found.terminals == (Source("code2wav", "audio"),)

    def test_a_kind_that_the_graph_does_not_make(self, tts: Graph) -> None:
        with pytest.raises(StageError, match=r"request for video output.*: audio \(code2wav:audio\)$"):
            route(tts, {"messages"}, {"text", "video"})

    def test_a_request_without_text_to_speak(self, tts: Graph) -> None:
        with pytest.raises(StageError, match=r"stages\.talker\.inputs\.text: got a request without 'messages'"):
            route(tts, {"voice"}, {"audio"})


class TestSkipBetweenStages:
    def test_a_left_out_stage_is_skipped_by_a_reader_that_can(self) -> None:
        graph = diamond(b="fail", x="prune")
        assert stages(graph, {"voice"}, {"audio"}) == ("right", "join")

    def test_a_stage_that_runs_is_read_although_it_could_be_skipped(self) -> None:
        assert stages(diamond(b="skip"), {"messages", "voice"}, {"audio"}) == ("left", "right", "join")

    def test_leaving_out_goes_on_to_readers_that_cannot_skip(self) -> None:
        with pytest.raises(StageError, match=r"stages\.right\.inputs\.y: .*'voice'.*join:audio"):
            route(diamond(b="prune", y="prune"), {"messages"}, {"audio"})

    def test_and_stops_at_one_that_can(self) -> None:
        assert stages(diamond(b="skip", y="prune"), {"messages"}, {"audio"}) == ("left", "join")

    def test_every_missing_field_is_named(self) -> None:
        with pytest.raises(StageError) as caught:
            route(diamond(), set(), {"text", "audio"})
        assert [problem.where for problem in caught.value.problems] == ["stages.right.inputs.y", "stages.left.inputs.x"]


def test_topological_order_keeps_the_files_order_where_it_can() -> None:
    assert [stage.id for stage in topological(diamond())] == ["left", "right", "join"]


def test_topological_order_of_a_cycle_is_an_error(edited: Edited) -> None:
    with pytest.raises(ValueError, match="cycle"):
        topological(loads(edited({"stages.thinker.inputs.audio.from": "code2wav:audio"})))


def test_consumers_of_a_port(omni: Graph) -> None:
    def readers(text: str) -> list[tuple[str, str]]:
        return [(stage.id, item.name) for stage, item in consumers(omni, Source.parse(text))]

    assert readers("thinker:text") == [("talker", "text_ids")]
    assert readers("request:audio") == [("thinker", "audio")]
    assert readers("code2wav:audio") == []


def test_fields_that_no_stage_reads(omni: Graph) -> None:
    assert unread_fields(omni, ["messages", "image", "voice"]) == ("image",)
