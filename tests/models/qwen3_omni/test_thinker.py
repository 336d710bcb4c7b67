"""The thinker writes what transformers' does, whatever it is shown, and hears the same in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from framework.execution.policies import Cohort, InFlight, Policy
from tests.models.qwen3_omni.thinking import (
    Turns,
    answers,
    audio,
    hidden_of,
    ids_of,
    image,
    media_of,
    opened,
    request,
    video,
)

SYSTEM = ("system", ["You are a test."])
CASES: Mapping[str, Turns] = {
    "text": [("user", ["What is it?"])],
    "system and text": [SYSTEM, ("user", ["Hello there, how are you?"])],
    "audio": [("user", [audio(130), "What is it?"])],
    "two sounds": [("user", ["One: ", audio(40), " two: ", audio(99, seed=1)])],
    "image": [("user", [image(6, 4), "What is it?"])],
    "image alone": [("user", [image(4, 4)])],
    "three images of different size": [("user", [image(4, 8), "and", image(2, 2, seed=1), image(10, 4, seed=2), "?"])],
    "video": [("user", [video(3, 4, 6), "What happens?"])],
    "video between whole positions": [("user", ["See: ", video(4, 4, 4, seconds_per_grid=2 / 3), "What happens?"])],
    "video with sound": [("user", [video(3, 4, 4, sound=240), "What happens?"])],
    "video with sound that ends before it": [("user", [video(5, 4, 4, sound=90), "?"])],
    "video with sound that goes on after it": [("user", [video(1, 8, 8, sound=300), "?"])],
    "video with sound between whole positions": [("user", [video(4, 2, 4, seconds_per_grid=0.8, sound=250), "?"])],
    "audio and image": [("user", [audio(70), image(4, 6), "What is it?"])],
    "image and audio and video": [("user", [image(4, 4), audio(60), "then", video(2, 4, 4), "?"])],
    "three turns with a system prompt": [
        SYSTEM,
        ("user", [image(4, 4), "What is it?"]),
        ("assistant", ["The thing."]),
        ("user", [audio(80), "And this?"]),
        ("assistant", ["A sound."]),
        ("user", ["Are you sure?"]),
    ],
}
COUNT = 12


def expected(workshop: Any, name: str, count: int = COUNT) -> tuple[list[int], list[int], list[Any]]:
    """Prompt, reply, hidden states by layer."""
    ids = workshop.reference.ids(workshop.thinker(), CASES[name])
    return (ids, *workshop.reference.generate(ids, media_of(CASES[name]), count))


@pytest.mark.parametrize("name", CASES)
def test_ids_and_hidden_states_equal_transformers(workshop: Any, name: str) -> None:
    prompt, reply, layers = expected(workshop, name)
    with opened(workshop.thinker(), workshop.reference) as executor:
        (result,) = answers(executor, [request(0, CASES[name])])
    assert ids_of(result) == reply
    fed = [*prompt, *reply[:-1]]
    positions, following = workshop.reference.positions(prompt, media_of(CASES[name]))
    for port, layer in (("embeddings", 0), ("accept_hidden", 3)):
        ids, values, places = hidden_of(result, port)
        assert ids == fed
        np.testing.assert_allclose(values, layers[layer], atol=1e-4)
        np.testing.assert_array_equal(places[:, : len(prompt)], positions)
        behind = following + np.arange(len(reply) - 1)
        np.testing.assert_array_equal(places[:, len(prompt) :], np.broadcast_to(behind, (3, len(behind))))
    assert result.stages["thinker"].details["prompt_tokens"] == len(prompt)


def test_the_cases_say_different_things(workshop: Any) -> None:
    """A network that always says the same would prove nothing."""
    replies = {name: tuple(expected(workshop, name)[1]) for name in CASES}
    assert len(set(replies.values())) >= len(CASES) - 1
    assert len({token for reply in replies.values() for token in reply}) > 20


@pytest.mark.parametrize(
    ("policy", "chunk"),
    [
        pytest.param(Cohort(4), 64, id="cohorts of 4, chunks of 64"),
        pytest.param(Cohort(3), 7, id="cohorts of 3, chunks of 7"),
        pytest.param(InFlight(4), 10, id="4 in flight, chunks of 10"),
        pytest.param(InFlight(2), 1, id="2 in flight, chunks of 1"),
    ],
)
def test_requests_differ_freely_in_a_batch(workshop: Any, policy: Policy, chunk: int) -> None:
    wanted = [expected(workshop, name)[1] for name in CASES]
    with opened(workshop.thinker(), workshop.reference, policy, prefill_chunk=chunk) as executor:
        results = answers(executor, [request(index, turns) for index, turns in enumerate(CASES.values())])
    assert [ids_of(result) for result in results] == wanted


def test_text_is_read_without_encoders(workshop: Any) -> None:
    with opened(workshop.thinker()) as executor:
        (result,) = answers(executor, [request(0, CASES["system and text"])])
    assert ids_of(result) == expected(workshop, "system and text")[1]


# Requests that cannot be answered


def error_of(workshop: Any, turns: Turns, *, reference: bool = True, **options: Any) -> str:
    """Of a request beside one that can be answered."""
    with opened(workshop.thinker(), workshop.reference if reference else None) as executor:
        good, bad = answers(executor, [request(0, CASES["text"]), request(1, turns, options=options)])
    assert ids_of(good) == expected(workshop, "text")[1]
    assert not bad.ok
    return str(bad.error)


def test_more_media_than_placeholders(workshop: Any) -> None:
    turns = [("user", ["<|vision_start|><|image_pad|><|vision_end|>", image(4, 4), image(4, 4)])]
    error = error_of(workshop, turns, apply_chat_template=False)
    assert "2 of kind image, and 1 placeholders in the prompt" in error


def test_more_placeholders_than_media(workshop: Any) -> None:
    error = error_of(workshop, [("user", ["<|audio_pad|>", audio(40)])])
    assert "1 of kind audio, and 2 placeholders in the prompt" in error
    assert "0 of kind video, and 1 placeholders in the prompt" in error_of(workshop, [("user", ["<|video_pad|>"])])


def test_media_that_make_a_prompt_longer_than_the_engine_takes(workshop: Any) -> None:
    error = error_of(workshop, [("user", [image(36, 40)])])
    assert "request 1: prompt" in error and "370 tokens" in error and "at most 320" in error


def test_media_for_a_build_without_their_encoder(workshop: Any) -> None:
    error = error_of(workshop, [("user", [image(4, 4), audio(50), "?"])], reference=False)
    assert "a part of type 'image'" in error and "a part of type 'audio'" in error
    assert "build the component 'visual' too" in error
