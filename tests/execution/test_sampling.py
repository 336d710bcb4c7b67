from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.execution.request import Request
from framework.execution.sampling import BATCH_WIDE, Sampling, uniform


def test_noise_is_reproducible_and_of_the_promised_type() -> None:
    one, other = uniform(7, "talker", 3, size=16), uniform(7, "talker", 3, size=16)
    assert one.dtype == np.float32 and one.shape == (16,)
    np.testing.assert_array_equal(one, other)
    assert one.tolist() == uniform(7, "talker", 3, size=32).tolist()[:16]


def test_noise_does_not_depend_on_the_order_of_steps() -> None:
    forwards = [uniform(7, "talker", step)[0] for step in range(50)]
    backwards = [uniform(7, "talker", step)[0] for step in reversed(range(50))]
    assert forwards == backwards[::-1]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((8, "talker", 3), id="seed"),
        pytest.param((7, "thinker", 3), id="stage"),
        pytest.param((7, "talker", 4), id="step"),
        pytest.param((71, "talker", 3), id="longer seed"),
    ],
)
def test_noise_differs_by(other: tuple[int, str, int]) -> None:
    one = uniform(7, "talker", 3, size=64)
    assert not np.isin(one, uniform(*other, size=64)).any()


@pytest.mark.parametrize("seed", [0, 2**63, 2**200], ids=["zero", "64 bit", "larger"])
@pytest.mark.parametrize("step", [0, 2**32 + 1])
def test_any_seed_and_step_will_do(seed: int, step: int) -> None:
    noise = uniform(seed, "llm", step, size=1000)
    assert noise.min() >= 0.0 and noise.max() < 1.0
    assert 0.4 < noise.mean() < 0.6


def chi_square(values: np.ndarray[Any, Any], bins: int) -> float:
    counts, _ = np.histogram(values, bins=bins, range=(0.0, 1.0))
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


# 0.9999 quantile of chi-square with 15 degrees of freedom; the draws are fixed, so the tests are too.
LIMIT = 44.3


@pytest.mark.parametrize(
    "draws",
    [
        pytest.param([(0, "llm", step, 1) for step in range(8000)], id="steps"),
        pytest.param([(seed, "llm", 0, 1) for seed in range(8000)], id="seeds"),
        pytest.param([(0, f"stage{number}", 0, 1) for number in range(8000)], id="stages"),
        pytest.param([(0, "llm", 0, 8000)], id="one step"),
    ],
)
def test_noise_is_uniform_over(draws: list[tuple[int, str, int, int]]) -> None:
    assert chi_square(np.concatenate([uniform(*draw) for draw in draws]), bins=16) < LIMIT


def test_neighbouring_steps_are_independent() -> None:
    draws = np.array([uniform(0, "llm", step)[0] for step in range(8000)])
    cells = np.floor(draws[:-1] * 4) * 4 + np.floor(draws[1:] * 4)
    assert chi_square((cells + 0.5) / 16, bins=16) < LIMIT


def request(**sampling: Any) -> Request:
    return Request(index=0, fields={}, sampling=sampling)


def test_a_role_is_resolved_over_the_runner_over_built_in_values() -> None:
    asked = request(default={"top_k": 5, "seed": 9}, talker={"top_k": 7})
    talker = asked.sampling_for("talker", {"top_k": 3, "seed": 3, "temperature": 0.6})
    assert (talker.top_k, talker.seed, talker.temperature, talker.top_p) == (7, 9, 0.6, 0.8)


def test_of_the_backbone_s_settings_only_the_seed_is_for_every_role() -> None:
    asked = request(default={"temperature": 0.0, "seed": 9})
    predictor = asked.sampling_for("code_predictor", {"temperature": 0.9})
    assert (predictor.temperature, predictor.seed) == (0.9, 9)


def test_seed_bias_and_stop_are_a_request_s_own_and_all_else_is_batch_wide() -> None:
    names = set(Sampling.__annotations__)
    assert names - BATCH_WIDE == {"seed", "logit_bias", "stop"}
    assert Sampling(seed=1, stop=("a",)).batch_wide() == Sampling(seed=2, logit_bias={3: 1.0}).batch_wide()
    assert Sampling(top_p=0.5).batch_wide() != Sampling().batch_wide()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"max_generate_length": 0},
        {"num_logprobs": 51},
        {"seed": -1},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampling(**bad)
