"""What a request writes depends on nothing but itself, however its rows are read, placed and padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.decoding.limits import CANDIDATES
from framework.execution.sampling import Sampling, uniform
from tests.decoding.fakes import CHUNK, ROWS, VOCAB, Sums, Writer, admitted, loop

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [1], [2, 3, 4, 5], [42, 17])


def alone(prompt: list[int], steps: int = 12) -> list[int]:
    """What the prompt's tokens are by definition."""
    ids = list(prompt)
    for _ in range(steps):
        ids.append(sum(id_ * place for place, id_ in enumerate(ids, 1)) % VOCAB)
    return ids[len(prompt) :]


@pytest.mark.parametrize("captures", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("settings", [{}, {"chunk": 1}, {"chunk": 2}, {"bucket": 2}, {"bucket": ROWS}], ids=str)
def test_rows_write_together_what_they_write_alone(settings: dict[str, Any], captures: bool) -> None:
    steps = loop(Sums(captures=captures), **settings)
    writers = admitted(steps, *(Writer(index, prompt) for index, prompt in enumerate(PROMPTS)))
    for _ in range(15):
        steps.step(writers)
    assert [writer.written[:8] for writer in writers] == [alone(prompt, 8) for prompt in PROMPTS]


@pytest.mark.parametrize("captures", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("waits", range(ROWS))
def test_a_row_that_waits_between_others_goes_on_as_if_alone(waits: int, captures: bool) -> None:
    steps = loop(Sums(captures=captures))
    writers = admitted(steps, *(Writer(index, prompt) for index, prompt in enumerate(PROMPTS)))
    for turn in range(20):
        steps.step([writer for writer in writers if turn % 3 == 0 or writer.row.index != waits])
    assert writers[waits].written[:4] == alone(PROMPTS[waits], 4)


def test_a_row_that_nobody_has_any_more_takes_the_next_request() -> None:
    steps = loop(Sums())
    first, second = admitted(steps, Writer(0, PROMPTS[0]), Writer(1, PROMPTS[1]))
    for _ in range(4):
        steps.step([first, second])
    steps.remove(0)
    (third,) = admitted(steps, Writer(0, PROMPTS[2]))
    for _ in range(4):
        steps.step([third, second])
    assert third.written == alone(PROMPTS[2], 3)  # its prompt took two calls
    assert second.written == alone(PROMPTS[1], 8)


def test_a_prompt_that_begins_behind_a_known_prefix_reads_the_rest_alone() -> None:
    engine = Sums()
    steps = loop(engine)
    engine.cache[1, :4] = PROMPTS[0][:4]
    (writer,) = admitted(steps, Writer(1, PROMPTS[0]))
    writer.length = 4
    steps.step([writer])
    assert (len(engine.calls), writer.written) == (1, alone(PROMPTS[0], 1))


def test_only_calls_that_are_repeated_are_recorded() -> None:
    engine = Sums(captures=True)
    steps = loop(engine)
    writers = admitted(steps, Writer(2, PROMPTS[0]))
    for _ in range(5):
        steps.step(writers)
    assert [(call.dims["tokens"], call.recorded) for call in engine.calls] == [
        (CHUNK, False),
        (CHUNK, False),
        (1, True),  # what was left of the prompt
        (1, True),
        (1, True),
    ]
    assert engine.calls[-1].rows == slice(0, ROWS)
    assert engine.calls[-1] is engine.calls[-2]


def test_the_noise_of_a_row_is_drawn_by_its_seed_and_step() -> None:
    engine = Sums()
    steps = loop(engine)
    sampled = Sampling(temperature=1.0, top_k=8, seed=7)
    greedy = Sampling(temperature=0.0)
    writers = admitted(steps, Writer(0, [1], greedy, greedy), Writer(1, [1], sampled, greedy))
    for step in range(3):
        steps.step(writers)
        expected = np.stack([np.zeros(2, np.float32), uniform(7, "s", step, 2)])
        assert np.array_equal(engine.calls[-1].inputs["noise"], expected)


@pytest.mark.parametrize(
    ("first", "second", "looked"),
    [
        ({"temperature": 0.0, "top_k": 50}, {"temperature": 0.0}, CANDIDATES[0]),
        ({"temperature": 0.0, "num_logprobs": 5}, {"temperature": 0.0}, CANDIDATES[1]),
        ({"temperature": 0.0}, {"temperature": 0.5, "top_k": 64}, CANDIDATES[1]),
        ({"temperature": 0.5, "top_k": 65}, {"temperature": 0.0}, VOCAB),
        ({"temperature": 0.5, "top_k": 0}, {"temperature": 0.0}, VOCAB),
    ],
)
def test_a_call_looks_at_as_many_tokens_as_its_neediest_row(
    first: dict[str, Any], second: dict[str, Any], looked: int
) -> None:
    engine = Sums()
    steps = loop(engine)
    steps.step(admitted(steps, Writer(0, [1]), Writer(1, [1], Sampling(**first), Sampling(**second))))
    assert engine.calls[-1].inputs["candidates"].tolist() == [looked]


def test_settings_are_each_row_s_own_and_neutral_where_nobody_is() -> None:
    engine = Sums()
    steps = loop(engine, bucket=3)
    given = Sampling(temperature=0.5, top_p=0.25, logit_bias={3: 2.0}), Sampling(top_k=9)
    (writer,) = admitted(steps, Writer(1, [1], *given))
    steps.choose(writer, voice=[1.0, 2.0])
    for _ in range(2):
        steps.step([writer])
    inputs = engine.calls[-1].inputs
    assert inputs["temperature"].tolist() == [0.0, 0.5, 0.0]
    assert inputs["top_p"].tolist() == [1.0, 0.25, 1.0]
    assert inputs["b_top_k"].tolist() == [0, 9, 0]
    assert inputs["voice"].tolist() == [[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]
    assert np.argwhere(inputs["logit_bias"]).tolist() == [[1, 3]]


def test_a_kept_call_is_told_of_new_settings() -> None:
    engine = Sums()
    steps = loop(engine)
    (writer,) = admitted(steps, Writer(0, [1]))
    steps.step([writer])
    writer.samplings = (Sampling(temperature=0.0, top_p=0.5), writer.samplings[1])
    steps.choose(writer)
    steps.step([writer])
    assert engine.calls[0] is engine.calls[1]
    assert engine.calls[1].inputs["top_p"].tolist() == [0.5]
