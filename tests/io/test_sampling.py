"""Sampling by role and by stage: which setting wins, and which would change nothing."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from framework.execution.request import Request
from framework.graph.model import Graph, RunnerDecl, Stage
from framework.io.sampling import by_role, overlay, require, unread
from framework.io.style import style_problems


@attrs.frozen(kw_only=True)
class Style:
    speed: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.le(2.0)))


TEXT = RunnerDecl(kind="autoregressive", inputs={}, ports={"text": "text"}, samples=("default",))
SPEECH = RunnerDecl(kind="autoregressive", inputs={}, ports={"codes": "codec"}, samples=("talker", "code_predictor"))
SOUND = RunnerDecl(kind="iterative", inputs={}, ports={"audio": "audio"}, style=Style)
RUNNERS = {"text": TEXT, "speech": SPEECH, "sound": SOUND}


def graph(**stages: str) -> Graph:
    return Graph(stages=tuple(Stage(id=name, runner=runner) for name, runner in stages.items()))


OMNI = graph(thinker="text", talker="speech", code2wav="sound")
SPEAKER = graph(talker="speech", code2wav="sound")
WRITERS = graph(thinker="text", writer="text")


def settings(stage: str, role: str, *layers: dict[str, Any]) -> Any:
    """What a stage of that role gets from these layers, each over the one before."""
    sampling = overlay(*(require(by_role(layer, "sampling")) for layer in layers))
    return Request(index=0, fields={}, sampling=sampling).sampling_for(role, {"top_k": 7}, stage=stage)


@pytest.mark.parametrize(
    ("stage", "role", "layers", "temperature"),
    [
        ("thinker", "default", [{}], 1.0),
        ("thinker", "default", [{"temperature": 0.1, "thinker": {"temperature": 0.2}}], 0.2),
        ("writer", "default", [{"temperature": 0.1, "thinker": {"temperature": 0.2}}], 0.1),
        ("writer", "default", [{"writer": {"temperature": 0.3}, "temperature": 0.1}], 0.3),
        ("talker", "talker", [{"temperature": 0.1}], 1.0),
        ("talker", "talker", [{"talker_temperature": 0.4}], 0.4),
        ("talker", "talker", [{"talker": {"temperature": 0.5}, "talker_temperature": 0.4}], 0.5),
        ("", "code_predictor", [{"talker": {"temperature": 0.5}, "cp_temperature": 0.6}], 0.6),
        ("speaker", "talker", [{"talker_temperature": 0.4, "speaker": {"temperature": 0.8}}], 0.8),
        # a request's own keys over those of the run, also where the run names the thinker and the request need not
        ("thinker", "default", [{"thinker": {"temperature": 0.2}}, {"temperature": 0.9}], 0.9),
        ("talker", "talker", [{"talker": {"temperature": 0.5}}, {"talker_temperature": 0.4}], 0.4),
        ("writer", "default", [{"writer": {"temperature": 0.3}}, {"temperature": 0.9}], 0.3),
    ],
)
def test_the_more_specific_wins_then_the_later(
    stage: str, role: str, layers: list[dict[str, Any]], temperature: float
) -> None:
    found = settings(stage, role, *layers)
    assert (found.temperature, found.top_k) == (temperature, 7)


def test_a_penalty_without_a_name_is_the_talkers_too_unless_it_has_its_own() -> None:
    assert settings("talker", "talker", {"repetition_penalty": 1.2}).repetition_penalty == 1.2
    own = {"talker": {"repetition_penalty": 1.05}, "repetition_penalty": 1.2}
    assert settings("talker", "talker", own).repetition_penalty == 1.05
    prefixed = {"talker_repetition_penalty": 1.05, "repetition_penalty": 1.2}
    assert settings("talker", "talker", prefixed).repetition_penalty == 1.05


@pytest.mark.parametrize(
    ("of", "given", "message"),
    [
        (OMNI, {"tinker": {"top_k": 1}}, r"sampling.tinker: got .* unknown stage, expected one of .*thinker'\?\)"),
        (OMNI, {"code2wav": {"top_k": 1}}, r"sampling.code2wav: got settings for a stage that chooses no tokens"),
        (WRITERS, {"talker": {"top_k": 1}}, r"expected one of thinker, writer"),
        (SPEAKER, {"temperature": 0.2}, r"sampling.temperature: got 0.2, expected it for a stage by name.*talker.temp"),
        (SPEAKER, {"thinker": {"top_k": 1}}, r"sampling.thinker: got settings for an unknown stage"),
        (
            graph(code2wav="sound"),
            {"talker": {"top_k": 1}},
            r"expected nothing: no stage of this graph chooses",
        ),
    ],
)
def test_what_no_stage_reads_is_told(of: Graph, given: dict[str, Any], message: str) -> None:
    (problem,) = unread(of, RUNNERS, given, "sampling")
    assert re.search(message, str(problem))


@pytest.mark.parametrize(
    ("of", "given"),
    [
        (OMNI, {"temperature": 1, "thinker": {"top_k": 1}, "talker": {"top_k": 1}, "code_predictor": {"top_k": 1}}),
        (SPEAKER, {"seed": 3, "repetition_penalty": 1.1, "talker_top_k": 4, "thinker": {"top_k": None}}),
        (WRITERS, {"logit_bias": {5: 1.0}, "writer": {"top_k": 2}}),
    ],
)
def test_what_some_stage_reads_is_not(of: Graph, given: dict[str, Any]) -> None:
    assert unread(of, RUNNERS, given, "sampling") == []


@pytest.mark.parametrize(
    ("of", "given", "problem"),
    [
        (OMNI, {"speed": 1.5, "width": None}, None),
        (OMNI, {"sped": 1.5}, "style.sped: got 1.5, expected a style that a stage reads (did you mean 'speed'?)"),
        (OMNI, {"speed": 3}, "style.speed: got 3, expected a number or null <= 2.0"),
        (OMNI, {"speed": "fast"}, 'style.speed: got "fast", expected a number'),
        (WRITERS, {"speed": 1.0}, "style.speed: got 1.0, expected nothing: no stage of this graph reads a style"),
    ],
)
def test_styles_are_typed_by_the_stages_that_read_them(of: Graph, given: dict[str, Any], problem: str | None) -> None:
    assert [str(found) for found in style_problems(of, RUNNERS, given, "style")] == ([problem] if problem else [])
