"""What does not fit is told before it takes a place."""

from __future__ import annotations

import pytest

from framework.decoding.limits import Limits, check_budget
from framework.errors import ConfigError, StageError
from framework.execution.sampling import Sampling
from framework.graph.model import Stage
from tests.decoding.fakes import SPEC, VOCAB

LIMITS = Limits(prompt=8, cache=6, vocab=VOCAB, candidates=16)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "here: got no tokens, expected at least one"),
        (9, "here: got 9 tokens, expected at most 8"),
        (6, "here: got 6 tokens, expected fewer than the cache's 6"),
    ],
)
def test_a_prompt_that_does_not_fit(count: int, message: str) -> None:
    with pytest.raises(StageError, match=message):
        LIMITS.check_prompt(count, "here")


def test_a_prompt_that_leaves_room_for_one_token_fits() -> None:
    LIMITS.check_prompt(5, "here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, f"here: logit_bias: got {VOCAB}, expected token ids 0 to {VOCAB - 1}"),
        ({"logit_bias": {-1: 1.0}}, "here: logit_bias: got -1"),
        ({"temperature": 1.0, "top_k": 17}, "top_k=17, num_logprobs=0, expected at most the 16 best tokens"),
        ({"temperature": 1.0, "top_k": 0}, "top_k=0"),
        ({"temperature": 0.0, "num_logprobs": 17}, "num_logprobs=17"),
    ],
)
def test_sampling_that_no_call_serves(settings: dict[str, object], message: str) -> None:
    with pytest.raises(StageError, match=message):
        LIMITS.check_sampling(Sampling(**settings), "here")  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"temperature": 1.0, "top_k": 16}, {"temperature": 0.0, "top_k": 0}])
def test_sampling_that_a_call_serves(settings: dict[str, object]) -> None:
    LIMITS.check_sampling(Sampling(**settings), "here")  # type: ignore[arg-type]


def test_an_engine_that_is_told_how_many_tokens_to_look_at_fixes_none() -> None:
    assert Limits.of(SPEC, prompt=8, cache=6, candidates=16).candidates == 0


def test_everything_beyond_the_build_is_told_at_once() -> None:
    stage = Stage(id="s", runner="a.b", artifact=".", kind="autoregressive", max_batch=5, max_seq=7)
    with pytest.raises(ConfigError) as caught:
        check_budget(stage, rows=4, cache=6, bucket=8)
    assert [str(problem) for problem in caught.value.problems] == [
        "stages.s.max_batch: got 5, expected at most 4, as built",
        "stages.s.max_seq: got 7, expected at most 6, as built",
        "stages.s.config.bucket: got 8, expected at most 4, as built",
    ]
