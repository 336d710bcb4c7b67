"""What the sampler draws against transformers' logits processors, in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.execution.sampling import uniform
from framework.nn import Sampler, sampler_inputs
from tests.nn.running import Array, Layer, softmax

VOCAB = 40
RNG = np.random.default_rng(11)
LOGITS = (2 * RNG.standard_normal(VOCAB)).astype(np.float32)
SEEN = np.array([3, 3, 17, int(LOGITS.argmax()), int(LOGITS.argmin())])
GRID = 4096
# The middle of each of 4,096 equal parts of [0, 1): how many of them give a token is its probability.
EVEN = ((np.arange(GRID) + 0.5) / GRID).astype(np.float32)


def make(candidates: int = 0, dtype: str = "float32") -> Layer:
    inputs: dict[str, Any] = {s.name: (s.dtype, s.shape) for s in sampler_inputs(VOCAB, candidates=candidates)}
    return Layer(
        Sampler(candidates),
        lambda op, sampler, given: sampler(op, given["logits"], given["history"], given["lengths"], given),
        inputs={
            "logits": (dtype, ("batch", VOCAB)),
            "history": ("int64", ("batch", "entries")),
            "lengths": ("int64", ("batch",)),
            **inputs,
        },
        outputs={"token": ("int64", 2), "ids": ("int64", 2), "logprobs": ("float32", 2)},
        weights={},
    )


@pytest.fixture(scope="module")
def sampler() -> Layer:
    return make()


def draw(
    run: Layer,
    noise: Array,
    *,
    candidates: int | None = VOCAB,
    logits: Array = LOGITS,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    bias: dict[int, float] | None = None,
) -> tuple[Array, Array, Array]:
    """One row of equal settings for each number of `noise`: tokens [n], candidate ids and log-probabilities [n, k]."""
    n = len(noise)
    added = np.zeros(VOCAB, np.float32)
    for token, value in (bias or {}).items():
        added[token] = value

    def rows(value: Any, dtype: Any = np.float32) -> Array:
        return np.broadcast_to(np.asarray(value, dtype), (n, *np.shape(value)))

    token, ids, logprobs = run(
        logits=rows(logits, logits.dtype),
        # Behind a row's own tokens lie those of an earlier request, which are not to be penalised.
        history=rows([*SEEN, *range(VOCAB)], np.int64),
        lengths=rows(len(SEEN), np.int64),
        noise=noise.astype(np.float32)[:, None],
        **({} if candidates is None else {"candidates": np.array([candidates])}),
        temperature=rows(temperature),
        top_k=rows(top_k, np.int64),
        top_p=rows(top_p),
        min_p=rows(min_p),
        repetition_penalty=rows(repetition_penalty),
        logit_bias=rows(added),
    )
    return token[:, 0], ids, logprobs


def transformers_probabilities(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    bias: dict[int, float] | None = None,
) -> Array:
    import torch
    from transformers.generation import logits_process as p

    scores = torch.tensor(LOGITS)[None]
    ids = torch.tensor(SEEN)[None]
    if repetition_penalty != 1:
        scores = p.RepetitionPenaltyLogitsProcessor(repetition_penalty)(ids, scores)
    for token, value in (bias or {}).items():
        scores[0, token] += value
    scores = p.TemperatureLogitsWarper(temperature)(ids, scores)
    if top_k:
        scores = p.TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = p.TopPLogitsWarper(top_p)(ids, scores)
    if min_p:
        scores = p.MinPLogitsWarper(min_p)(ids, scores)
    return np.asarray(scores.softmax(dim=-1)[0].numpy())


SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 3": {"temperature": 3.0},
    "top_k 1": {"top_k": 1},
    "top_k 5": {"top_k": 5},
    "top_k over the vocabulary": {"top_k": 500},
    "top_p 0.3": {"top_p": 0.3},
    "top_p 0.9": {"top_p": 0.9},
    "top_p below the best": {"top_p": 0.001},
    "min_p 0.1": {"min_p": 0.1},
    "min_p 1": {"min_p": 1.0},
    "repetition penalty 1.5": {"repetition_penalty": 1.5},
    "repetition penalty 0.5": {"repetition_penalty": 0.5},
    "bias": {"bias": {3: 100.0, 5: -100.0}},
    "bias of a seen token": {"bias": {3: 2.0, 17: -1.5, 8: 3.0}, "repetition_penalty": 1.3},
    "top_k, then top_p": {"top_k": 6, "top_p": 0.8, "temperature": 1.5},
    "top_p, then min_p": {"top_p": 0.95, "min_p": 0.05, "temperature": 2.0},
    "all": {
        "temperature": 1.7,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "bias": {1: 1.5, 2: -3.0},
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_probabilities_equal_transformers(sampler: Layer, settings: dict[str, Any]) -> None:
    tokens, _, _ = draw(sampler, EVEN, **settings)
    share = np.bincount(tokens, minlength=VOCAB) / GRID
    expected = transformers_probabilities(**settings)
    np.testing.assert_allclose(share, expected, atol=1.5 / GRID)
    assert set(tokens) <= set(np.flatnonzero(expected)), "a token that the filters drop was drawn"
    assert set(tokens) >= set(np.flatnonzero(expected > 2 / GRID)), "a token that the filters keep was never drawn"


@pytest.mark.parametrize(
    "settings",
    [SETTINGS["temperature 1"], SETTINGS["top_p 0.9"], SETTINGS["all"]],
    ids=["temperature 1", "top_p 0.9", "all"],
)
def test_tokens_of_the_real_noise_follow_the_distribution(sampler: Layer, settings: dict[str, Any]) -> None:
    """Pearson's chi-square over 8,000 steps of one request; tokens expected less than 8 times count as one."""
    steps = 8000
    noise = np.concatenate([uniform(4, "thinker", step) for step in range(steps)])
    tokens, _, _ = draw(sampler, noise, **settings)
    observed = np.bincount(tokens, minlength=VOCAB)
    expected = transformers_probabilities(**settings) * steps
    common = expected >= 8
    o = np.append(observed[common], observed[~common].sum())
    e = np.append(expected[common], expected[~common].sum())
    o, e = o[e > 0], e[e > 0]
    freedom = len(o) - 1
    statistic = ((o - e) ** 2 / e).sum()
    # Wilson and Hilferty (1931): the cube root is nearly normal; 3.09 is its 99.9th percentile.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    assert freedom >= 8
    assert statistic < limit
    uniformly = np.full(len(o), steps / len(o))
    assert ((o - uniformly) ** 2 / uniformly).sum() > limit, "the test would not see another distribution"


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_temperature_0_takes_the_best_after_penalty_and_bias(sampler: Layer, settings: dict[str, Any]) -> None:
    settings = {**settings, "temperature": 0.0}
    scores = LOGITS.copy()
    seen = np.unique(SEEN)
    penalty = settings.get("repetition_penalty", 1.0)
    scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    for token, value in settings.get("bias", {}).items():
        scores[token] += value
    tokens, _, _ = draw(sampler, np.array([0.0, 0.5, 0.999]), candidates=1, **settings)
    assert tokens.tolist() == [scores.argmax()] * 3


def test_rows_have_their_own_settings(sampler: Layer) -> None:
    token, _, _ = sampler(
        logits=np.tile(LOGITS, (3, 1)),
        history=np.zeros((3, 4), np.int64),
        lengths=np.ones(3, np.int64),
        noise=np.full((3, 1), 0.99, np.float32),
        candidates=np.array([VOCAB]),
        temperature=np.array([0, 1, 1], np.float32),
        top_k=np.array([0, 2, 0]),
        top_p=np.ones(3, np.float32),
        min_p=np.zeros(3, np.float32),
        repetition_penalty=np.ones(3, np.float32),
        logit_bias=np.stack([np.zeros(VOCAB), np.zeros(VOCAB), np.eye(VOCAB)[7] * 100]).astype(np.float32),
    )
    order = np.argsort(-LOGITS)
    assert token[:, 0].tolist() == [order[0], order[1], 7]


@pytest.mark.parametrize(
    "settings",
    [{"top_k": 5}, {"top_k": 5, "top_p": 0.7}, {"top_k": 8, "min_p": 0.1, "temperature": 2.5}],
    ids=["top_k", "top_k, top_p", "top_k, min_p"],
)
def test_choice_does_not_depend_on_the_candidates_looked_at(sampler: Layer, settings: dict[str, Any]) -> None:
    noise = np.concatenate([uniform(9, "thinker", step) for step in range(500)])
    first, *others = (draw(sampler, noise, candidates=count, **settings)[0] for count in (8, 13, 39, 40))
    assert len(set(first)) > 2
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_fixed_candidates_choose_alike(sampler: Layer) -> None:
    noise = np.concatenate([uniform(9, "thinker", step) for step in range(500)])
    settings: dict[str, Any] = {"top_k": 8, "top_p": 0.95, "temperature": 2.0}
    tokens, ids, logprobs = draw(make(candidates=16), noise, candidates=None, **settings)
    expected = draw(sampler, noise, candidates=16, **settings)
    for got, wanted in zip((tokens, ids, logprobs), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_ends_of_the_noise_give_the_first_and_the_last_kept_token(sampler: Layer, settings: dict[str, Any]) -> None:
    almost_one = np.nextafter(np.float32(1), np.float32(0))
    tokens, ids, _ = draw(sampler, np.array([0.0, almost_one], np.float32), **settings)
    kept = transformers_probabilities(**settings)[ids[0]]
    assert tokens[0] == ids[0, 0]
    # In float32 the last tokens may weigh less than the step between two numbers near the sum.
    place = int(np.flatnonzero(ids[0] == tokens[1])[0])
    assert kept[place] > 0
    assert kept[place + 1 :].sum() < 1e-6


def test_rounding_at_the_end_never_draws_a_dropped_token(sampler: Layer) -> None:
    """100 equal tokens of which top_k keeps 3: the largest noise must stay among them."""
    flat = np.zeros(VOCAB, np.float32)
    noise = np.linspace(0.9999, 1, 1000, endpoint=False, dtype=np.float32).clip(max=np.nextafter(np.float32(1), 0))
    tokens, ids, _ = draw(sampler, noise, logits=flat, top_k=3)
    assert set(tokens) == {ids[0, 2]}


def test_log_probabilities_are_those_of_the_network(sampler: Layer) -> None:
    """Penalty, bias and filters change the order of the candidates, not their log-probabilities."""
    settings: dict[str, Any] = {"repetition_penalty": 1.5, "bias": {8: 5.0}, "top_k": 3, "temperature": 0.3}
    _, ids, logprobs = draw(sampler, np.array([0.5]), candidates=10, **settings)
    expected = np.log(softmax(LOGITS.astype(np.float64)))
    np.testing.assert_allclose(logprobs[0], expected[ids[0]], atol=2e-6)
    _, plain, _ = draw(sampler, np.array([0.5]), candidates=10)
    assert plain[0].tolist() == np.argsort(-LOGITS)[:10].tolist()
    assert ids[0].tolist() != plain[0].tolist()


def test_half_precision_logits_are_widened_first() -> None:
    logits = LOGITS.astype(np.float16)
    tokens, ids, logprobs = draw(make(dtype="float16"), EVEN, logits=logits)
    probabilities = softmax(logits.astype(np.float64))
    np.testing.assert_allclose(logprobs[0], np.log(probabilities)[ids[0]], atol=2e-6)
    share = np.bincount(tokens, minlength=VOCAB) / GRID
    np.testing.assert_allclose(share, probabilities, atol=1.5 / GRID)


def test_tiny_temperature_is_greedy_without_overflow(sampler: Layer) -> None:
    tokens, _, _ = draw(sampler, EVEN[::64], temperature=1e-30)
    assert set(tokens) == {LOGITS.argmax()}
