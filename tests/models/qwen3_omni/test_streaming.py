"""Thinker, talker and vocoder overlap: speech begins while the answer is being written, and says the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from framework.execution.policies import Cohort, InFlight
from framework.execution.request import Request, Result
from framework.graph import files
from tests.models.qwen3_omni.speaking import END, GREEDY, answers, codes_said, details, opened, request, sound_of
from tests.models.qwen3_omni.test_talker import CASES, user

PAGE = Path(__file__).parents[2] / "graph" / "qwen3_omni.json"  # the graph of the page, as it stands there
LONG = [(word * 7) % 256 for word in range(3, 43)]
NEVER_ENDS = {**GREEDY, "talker": {"temperature": 0.0, "logit_bias": {END: -100.0}}}
SOON = {"first_chunk_frames": 2, "chunk_frames": 4}


@pytest.fixture(scope="module")
def talk(workshop: Any) -> Any:
    return workshop.speaker.talk(workshop.engines, [user("Tell a story.")], LONG)


def timeline(executor: Any, requests: Sequence[Request]) -> tuple[list[Result], list[str]]:
    """Results, and the terminals of the chunks that were made, in order."""
    made: list[str] = []
    results = sorted(
        executor.run(requests, on_chunk=lambda request, terminal, chunk: made.append(terminal)),
        key=lambda result: result.request.index,
    )
    return results, made


@pytest.mark.parametrize("pace", [1, 3], ids=["as fast as it can", "a slow thinker"])
def test_the_first_sound_comes_long_before_the_last_word(workshop: Any, talk: Any, pace: int) -> None:
    with opened(workshop.engines, pace=pace, code2wav=SOON) as executor:
        [result], made = timeline(executor, [request(0, talk, sampling=NEVER_ENDS, frames=60)])
    assert len(codes_said(result)) == 60
    words = [place for place, terminal in enumerate(made) if terminal == "thinker:text"]
    first = made.index("code2wav:audio")
    assert first < words[4] < words[-1], "sound of two frames needs the first two words"
    # Beside a slow thinker the talker waits: never more frames than words, until the answer's end is known.
    before = made[: words[-1]]
    assert before.count("talker:codes") <= before.count("thinker:text") <= len(LONG)
    assert result.stages["talker"].start_s < result.stages["thinker"].end_s
    first_s, end_s = result.stages["code2wav"].first_output_s, result.stages["thinker"].end_s
    assert first_s is not None and first_s < end_s


def test_speech_can_wait_for_the_whole_text(workshop: Any, talk: Any) -> None:
    with opened(workshop.engines, talker={"wait_for_text": True}, code2wav=SOON) as executor:
        [_], made = timeline(executor, [request(0, talk, sampling=NEVER_ENDS, frames=20)])
    last = len(made) - 1 - made[::-1].index("thinker:text")
    assert last < made.index("talker:codes") < made.index("code2wav:audio")


def test_codes_and_sound_do_not_depend_on_when_the_words_come(workshop: Any) -> None:
    talks = [workshop.speaker.talk(workshop.engines, case.turns, case.words) for case in CASES.values()]
    requests = [
        request(index, attrs.evolve(talk, ends=index % 2 == 0), sampling=sampling)
        for index, (talk, sampling) in enumerate(zip(talks, [GREEDY, NEVER_ENDS] * len(talks), strict=False))
    ]
    said: list[list[Result]] = []
    for pace, wait, policy in (
        (1, True, InFlight(4)),
        (1, False, InFlight(4)),
        (5, False, Cohort(4)),
        (2, False, InFlight(3)),
    ):
        settings = {"wait_for_text": wait, "prefill_chunk": 16}
        with opened(workshop.engines, policy, pace=pace, talker=settings, code2wav=SOON) as executor:
            said.append(answers(executor, requests))
    for others in said[1:]:
        for result, expected in zip(others, said[0], strict=True):
            np.testing.assert_array_equal(codes_said(result), codes_said(expected))
            np.testing.assert_allclose(sound_of(result), sound_of(expected), atol=1e-5)
            same = {key: value for key, value in details(expected).items() if key != "batch_idx"}
            assert {key: value for key, value in details(result).items() if key != "batch_idx"} == same


def test_written_requests_run_beside_spoken_ones(workshop: Any, talk: Any) -> None:
    """They take no row of talker or vocoder, and end before the others' speech does."""
    spoken = [request(index, talk, sampling=NEVER_ENDS, frames=60) for index in (0, 2)]
    written = [request(index, talk, kinds=frozenset({"text"})) for index in (1, 3)]
    with opened(workshop.engines, InFlight(4)) as executor:
        results = list(executor.run([spoken[0], written[0], spoken[1], written[1]]))
    assert [result.ok for result in results] == [True] * 4
    assert {result.request.index for result in results[:2]} == {1, 3}
    for result in results:
        speaks = result.request.index in (0, 2)
        assert ("talker" in result.stages) == ("code2wav" in result.stages) == speaks


def test_nothing_of_speech_is_opened_for_written_requests(workshop: Any, talk: Any) -> None:
    """A later one that speaks opens it then."""
    with opened(workshop.engines) as executor:
        answers(executor, [request(index, talk, kinds=frozenset({"text"})) for index in range(3)])
        assert executor.opened == {"thinker"}
        (result,) = answers(executor, [request(0, talk)])
        assert executor.opened == {"thinker", "talker", "code2wav"}
    assert len(codes_said(result))


def test_a_thinker_far_ahead_does_not_wait_for_the_talker(workshop: Any, talk: Any) -> None:
    """Its words are taken as they come, however many fit into the stream between them."""
    long = workshop.speaker.talk(workshop.engines, [user("Go on.")], [*LONG, *LONG, *LONG])
    with opened(workshop.engines, talker={"wait_for_text": True}) as executor:
        (result,) = answers(executor, [request(0, long, frames=3, sampling=NEVER_ENDS)])
    assert details(result)["text_tokens"] == 3
    assert result.stages["thinker"].details["steps"] == 121


def test_the_graph_as_the_page_has_it(workshop: Any, talk: Any) -> None:
    """No stage has settings, so that the talker goes by what is bound, and all by their defaults."""
    graph = files.load(PAGE)
    assert all(not stage.config for stage in graph.stages)
    with opened(workshop.engines, graph=graph) as executor:
        spoken, written = answers(executor, [request(0, talk), request(1, talk, kinds=frozenset({"text"}))])
    with opened(workshop.engines) as executor:
        (expected,) = answers(executor, [request(0, talk)])
    np.testing.assert_array_equal(codes_said(spoken), codes_said(expected))
    np.testing.assert_allclose(sound_of(spoken), sound_of(expected), atol=1e-5)
    assert written.ok and "talker" not in written.stages


def test_a_cancelled_answer_frees_its_rows(workshop: Any, talk: Any) -> None:
    requests = [request(index, talk, sampling=NEVER_ENDS, frames=30) for index in range(3)]
    with opened(workshop.engines, InFlight(1), code2wav=SOON) as executor:

        def stop(which: Request, terminal: str, chunk: Any) -> None:
            if which.index == 1 and terminal == "code2wav:audio":
                executor.cancel(1)

        results = {result.request.index: result for result in executor.run(requests, on_chunk=stop)}
    assert [results[index].cancelled for index in range(3)] == [False, True, False]
    assert 0 < len(codes_said(attrs.evolve(results[1], ok=True))) < 30
    np.testing.assert_array_equal(codes_said(results[2]), codes_said(results[0]))
