from __future__ import annotations

import random
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.execution.policies import Candidate, Cohort, InFlight
from framework.execution.request import Request
from framework.execution.sampling import uniform
from framework.graph.model import Source
from framework.graph.routes import Route
from tests.execution.fakes import Bench, Sampled, Whole, alone, ask, speech, stage


def candidate(
    index: int,
    fields: str = "messages",
    stages: str = "llm",
    max_batch: int = 8,
    **sampling: Any,
) -> Candidate:
    request = Request(index=index, fields=dict.fromkeys(fields.split(), "x"), sampling=sampling)
    route = Route(stages=tuple(stages.split()), terminals=(Source(stages.split()[-1], "out"),))
    return Candidate(request=request, route=route, max_batch=max_batch)


def chosen(policy: Any, waiting: list[Candidate], active: list[Candidate] | None = None) -> list[int]:
    return [candidate.request.index for candidate in policy.select(waiting, active or [])]


# Cohorts


def test_a_cohort_takes_the_oldest_up_to_its_size() -> None:
    assert chosen(Cohort(3), [candidate(index) for index in range(5)]) == [0, 1, 2]


def test_a_cohort_is_capped_by_the_narrowest_stage() -> None:
    assert chosen(Cohort(4), [candidate(index, max_batch=2) for index in range(5)]) == [0, 1]


def test_a_cohort_starts_only_when_none_is_active() -> None:
    assert chosen(Cohort(3), [candidate(1)], active=[candidate(0)]) == []


def test_a_cohort_of_nothing_is_empty() -> None:
    assert chosen(Cohort(3), []) == []


def test_the_oldest_leads_and_what_does_not_fit_is_passed_over() -> None:
    waiting = [candidate(0), candidate(1, "messages audio"), candidate(2), candidate(3, "messages audio"), candidate(4)]
    assert chosen(Cohort(8), waiting) == [0, 2, 4]
    assert chosen(Cohort(8), [waiting[1], waiting[3]]) == [1, 3]


@pytest.mark.parametrize(
    ("other", "together"),
    [
        pytest.param(candidate(1), True, id="equal"),
        pytest.param(candidate(1, "messages voice"), False, id="another field"),
        pytest.param(candidate(1, stages="llm talker"), False, id="another route"),
        pytest.param(candidate(1, default={"temperature": 0.5}), False, id="another temperature"),
        pytest.param(candidate(1, talker={"temperature": 0.5}), False, id="another temperature in one role"),
        pytest.param(candidate(1, default={"max_generate_length": 9}), False, id="another length"),
        pytest.param(
            candidate(1, default={"seed": 7, "stop": ("x",), "logit_bias": {1: 2.0}}), True, id="own settings"
        ),
    ],
)
def test_a_cohort_shares_route_fields_and_batch_wide_sampling(other: Candidate, together: bool) -> None:
    assert chosen(Cohort(8), [candidate(0), other]) == ([0, 1] if together else [0])


def test_values_of_fields_may_differ() -> None:
    one, other = candidate(0), candidate(1)
    object.__setattr__(other.request, "fields", {"messages": "something else"})
    assert chosen(Cohort(8), [one, other]) == [0, 1]


def test_roles_are_compared_over_the_default_role() -> None:
    same = [
        candidate(0, default={"top_k": 5}),
        candidate(1, default={"top_k": 5}, talker={"top_k": 5.0}),
        candidate(2, default={"top_k": 5}, talker={}),
    ]
    assert chosen(Cohort(8), same) == [0, 1, 2]
    assert chosen(Cohort(8), [same[0], candidate(1, default={"top_k": 5}, talker={"top_k": 9})]) == [0]


def test_a_setting_that_was_not_given_is_not_taken_for_a_given_one() -> None:
    # A runner's own default for the temperature (from a checkpoint) may be other than 1.
    assert chosen(Cohort(8), [candidate(0), candidate(1, default={"temperature": 1.0})]) == [0]


def test_a_cohort_ends_completely_before_the_next_starts() -> None:
    bench = speech(policy=Cohort(2))
    results = bench.run([ask(0, 2, kinds="audio"), ask(1, 9, kinds="audio"), ask(2, 2, kinds="audio")])
    assert [result.request.index for result in results] == [0, 1, 2]
    assert bench.log.index(("admit", "thinker", 2)) > bench.log.index(("release", "vocoder", 1))


def test_what_does_not_fit_runs_in_a_later_cohort() -> None:
    bench = speech(policy=Cohort(4))
    requests = [ask(0, 2), ask(1, 2, kinds="audio"), ask(2, 2), ask(3, 2, voice="amy"), ask(4, 2, kinds="audio")]
    results = bench.run(requests)
    assert [result.request.index for result in results] == [0, 2, 1, 4, 3]
    assert all(result.ok for result in results)


# In flight


def test_in_flight_fills_the_free_places_in_order_whatever_the_requests_are() -> None:
    waiting = [candidate(2), candidate(3, "messages audio"), candidate(4, default={"top_k": 1})]
    assert chosen(InFlight(4), waiting, active=[candidate(0), candidate(1)]) == [2, 3]
    assert chosen(InFlight(2), waiting, active=[candidate(0), candidate(1)]) == []
    assert chosen(InFlight(8), waiting) == [2, 3, 4]


def test_in_flight_a_row_that_ends_frees_its_place_for_the_next_request_at_once() -> None:
    bench = alone(policy=InFlight(2))
    bench.run([ask(0, 6), ask(1, 2), ask(2, 1), ask(3, 1), ask(4, 1)])
    after = {index: bench.log[bench.log.index(("release", "count", index)) + 1] for index in (1, 2, 3)}
    assert after == {1: ("admit", "count", 2), 2: ("admit", "count", 3), 3: ("admit", "count", 4)}


def test_in_flight_a_request_that_ends_in_the_last_stage_lets_the_next_in_within_the_same_round() -> None:
    bench = speech(policy=InFlight(2))
    bench.run([ask(0, 1, kinds="audio"), ask(1, 9, kinds="audio"), ask(2, 1)])
    ended = bench.log.index(("release", "vocoder", 0))
    between = bench.log[ended + 1 : bench.log.index(("admit", "thinker", 2))]
    assert between.count(("step", "thinker", 1)) == 0


# Both


@pytest.mark.parametrize("policy", [Cohort, InFlight])
@pytest.mark.parametrize("size", [0, -1, 1.5, "4", None, True], ids=repr)
def test_a_size_below_one_names_the_setting(policy: Any, size: Any) -> None:
    with pytest.raises(ConfigError, match=rf"batching.size: got {size!r}, expected a whole number of 1 or more"):
        policy(size=size)


def random_requests(seed: int) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            index=index,
            fields={"n": index, **({"voice": "amy"} if draw.random() < 0.3 else {})},
            sampling={"default": {"seed": draw.randrange(100), "top_k": draw.choice([5, 50])}},
            kinds=frozenset(draw.choice([{"text"}, {"audio"}, {"text", "audio"}])),
        )
        for index in range(12)
    ]


class Burst(Sampled):
    """Writes noise until chance stops it, however much it was given."""

    def has_input(self, row: Any) -> bool:
        return True

    def advance(self, row: Any) -> None:
        step = self.steps[row.index]
        noise, stop = uniform(row.request.sampling_for("default").seed, self.stage.id, step, size=2).tolist()
        row.outputs["out"].write(noise)
        if stop < 0.1:
            row.finish()


@pytest.mark.parametrize("seed", range(3))
def test_a_request_has_the_same_outputs_alone_in_a_cohort_and_in_flight(seed: int) -> None:
    def outputs(policy: Any, capacity: int) -> dict[int, Any]:
        bench = Bench(
            (Burst, stage("thinker", "items<-request:n")),
            (Sampled, stage("talker", "items<-thinker:out", out="codec", terminal=False, max_batch=2)),
            (Whole, stage("vocoder", "items<-talker:out", "whole<-request:voice?", out="audio", max_batch=1)),
            policy=policy,
            capacity=capacity,
        )
        results = bench.run(random_requests(seed))
        assert all(result.ok for result in results)
        return {result.request.index: dict(result.outputs) for result in results}

    alone = outputs(Cohort(1), capacity=64)
    assert len(alone) == 12 and len({str(output) for output in alone.values()}) > 6
    for policy in (Cohort(4), InFlight(3)):
        for capacity in (1, 64):
            assert outputs(policy, capacity) == alone
