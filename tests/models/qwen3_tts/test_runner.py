"""Sampling, ends and bad requests of the talker through the real executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.decoding.calls import RowCalls
from framework.errors import ConfigError, StageError
from framework.execution.policies import Cohort, InFlight
from framework.schema import structure
from models.qwen3_talker.runners import LONGEST_FRAMES_PER_TOKEN, PAUSE_FRAMES, TalkerConfig
from tests.models.qwen3_tts.running import answers, codes_said, details, opened, request
from tests.models.qwen3_tts.talker_tiny import END, HELLO, MIXED, recording

SAMPLED: dict[str, Any] = {"talker": {"temperature": 0.9, "top_k": 50}, "code_predictor": {"top_k": 50}}
NEVER: dict[str, Any] = {"talker": {"temperature": 0.0, "logit_bias": {END: -100.0}}}


@pytest.fixture(scope="module")
def executor(workshop: Any) -> Any:
    """For requests whose batching does not matter."""
    with opened(workshop.engines("custom-0b6")) as executor:
        yield executor


@pytest.fixture(scope="module")
def base(workshop: Any) -> Any:
    with opened(workshop.engines("base-0b6")) as executor:
        yield executor


def one(executor: Any, text: str = HELLO, **settings: Any) -> Any:
    (result,) = answers(executor, [request(0, text, **settings)])
    return result


def sampling(role: str = "talker", **settings: Any) -> dict[str, Any]:
    """Greedy but for what is given."""
    both: dict[str, Any] = {"talker": {"temperature": 0.0}, "code_predictor": {"temperature": 0.0}}
    return {**both, role: {**both[role], **settings}}


# Codes belong to the request


def test_sampled_codes_are_equal_alone_in_a_cohort_and_in_flight(workshop: Any) -> None:
    """Each with its own voice, text length, seed and temperature; they end at different times."""
    texts = [HELLO, "a", MIXED, HELLO * 3, "Yes.", MIXED * 2]
    requests = [
        request(
            index,
            text,
            voice=("ryan", "dylan", "serena")[index % 3],
            most=5 + 3 * index,
            sampling={**SAMPLED, "talker": {"temperature": 0.7 + 0.2 * index, "seed": index}},
        )
        for index, text in enumerate(texts)
    ]
    said = []
    # A draw can fall so near to the border of two codes that the rounding of another number of rows decides: `bucket`.
    for policy in (InFlight(4), Cohort(4), Cohort(1)):
        with opened(workshop.engines("custom-0b6"), policy, bucket=4) as executor:
            said.append([codes_said(one) for request in requests for one in executor.run([request])])
            said.append([codes_said(result) for result in answers(executor, requests)])
            said.append([codes_said(result) for result in answers(executor, requests[::-1])])
    assert len({len(codes) for codes in said[0]}) > 3
    for others in said[1:]:
        for codes, expected in zip(others, said[0], strict=True):
            np.testing.assert_array_equal(codes, expected)


def test_a_bucket_is_filled_also_by_a_lone_request(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: set[tuple[int, int]] = set()

    def get(self: RowCalls, start: int, stop: int, dims: Any, fixed: Any = None, *, repeated: bool = False) -> Any:
        if repeated:
            calls.add((start, stop))
        return found(self, start, stop, dims, fixed, repeated=repeated)

    found = RowCalls.get
    monkeypatch.setattr(RowCalls, "get", get)
    with opened(workshop.engines("custom-0b6"), Cohort(1), bucket=4) as executor:
        one(executor)
    assert calls == {(0, 4)}


def test_a_bucket_beyond_the_build_is_refused(workshop: Any) -> None:
    with (
        pytest.raises(ConfigError, match=r"talker\.config\.bucket: got 5, expected at most 4, as built"),
        opened(workshop.engines("custom-0b6"), bucket=5) as executor,
    ):
        one(executor)


def test_a_budget_beyond_the_build_is_refused(workshop: Any) -> None:
    with (
        pytest.raises(ConfigError, match=r"talker\.max_seq: got 513, expected at most 512, as built"),
        opened(workshop.engines("custom-0b6"), max_seq=513) as executor,
    ):
        one(executor)


def test_a_smaller_budget_of_the_stage_is_heeded(workshop: Any) -> None:
    with opened(workshop.engines("custom-0b6"), max_seq=40) as executor:
        (result,) = executor.run([request(0, HELLO)])
    assert "expected at most 40 together" in str(result.error)


def test_the_noise_is_the_seeds(executor: Any) -> None:
    def say(seed: int) -> bytes:
        return codes_said(one(executor, sampling={**SAMPLED, "talker": {"seed": seed}})).tobytes()

    first = [say(seed) for seed in range(5)]
    assert len(set(first)) == 5
    assert [say(seed) for seed in range(5)] == first


@pytest.mark.parametrize("role", ["talker", "code_predictor"])
def test_each_part_has_its_own_temperature(executor: Any, role: str) -> None:
    """The first code is the talker's, the others the predictor's."""
    greedy = codes_said(one(executor, sampling=sampling()))
    hot = codes_said(one(executor, sampling=sampling(role, temperature=1.5, top_k=0)))
    same = greedy[0] == hot[0]
    assert bool(same[0]) == (role == "code_predictor")
    assert same[1:].sum() < 8


def test_penalty_counts_the_codes_of_this_speech_alone(executor: Any) -> None:
    """So strong a penalty lets no first code come twice; the row's last request leaves nothing."""
    settings = sampling(repetition_penalty=1e6, logit_bias={END: -100.0})
    first = codes_said(one(executor, sampling=settings))
    assert len(set(first[:, 0])) == len(first) == 14
    np.testing.assert_array_equal(codes_said(one(executor, sampling=settings)), first)


def test_no_mark_is_ever_said(executor: Any) -> None:
    bias = {code: 100.0 for code in range(2048, 3072) if code != END}
    codes = codes_said(one(executor, sampling=sampling(temperature=2.0, top_k=0, logit_bias=bias)))
    assert codes.max() < 2048


# Ends


def test_the_end_cannot_come_before_the_third_frame(executor: Any) -> None:
    result = one(executor, sampling=sampling(logit_bias={END: 100.0}))
    assert len(codes_said(result)) == 2
    assert details(result)["finish_reason"] == "end-of-sequence"
    assert details(result)["frames"] == 2


def test_a_talker_that_does_not_end_is_cut_with_a_reason(executor: Any) -> None:
    result = one(executor, "a", sampling=NEVER, most=10_000)
    assert len(codes_said(result)) == PAUSE_FRAMES + LONGEST_FRAMES_PER_TOKEN
    assert details(result)["finish_reason"] == "max-length"
    assert details(result)["cut_by"] == "no end after 7 s for 1 text tokens"


def test_the_length_that_was_asked_for_is_a_reason_too(executor: Any) -> None:
    result = one(executor, sampling=NEVER, most=3)
    assert len(codes_said(result)) == 3
    assert details(result)["cut_by"] == "max_generate_length of 3 frames"


def test_a_runaway_is_stopped_only_where_that_is_on(workshop: Any) -> None:
    with opened(workshop.engines("custom-0b6"), stop_runaway=False) as executor:
        result = one(executor, "a", sampling=NEVER, most=150)
    assert len(codes_said(result)) == 150


def test_speech_that_the_cache_could_not_hold_is_refused_before_it_starts(executor: Any) -> None:
    text = "x" * 60  # 60 tokens, about 30 s
    result = one(executor, text, most=4096)
    assert isinstance(result.error, StageError)
    (problem,) = result.error.problems
    assert "555 frames" in problem.got and "512" in problem.expected
    assert one(executor, text, most=20).ok, "as long as it is asked for it fits"


# Requests that say too little or too much


@pytest.mark.parametrize(
    ("settings", "place", "words"),
    [
        pytest.param({"text": ""}, "messages", "no text", id="empty text"),
        pytest.param({"text": " \n"}, "messages", "no text", id="only spaces"),
        pytest.param({"text": "x" * 20_000}, "text", "at most 320", id="20,000 characters"),
        pytest.param({"voice": "nobody"}, "voice", "serena, ryan, eric, dylan", id="unknown voice"),
        pytest.param({"voice": "rian"}, "voice", "did you mean 'ryan'", id="misspelt voice"),
        pytest.param({"voice": "17"}, "voice", "one of serena", id="unknown id of a voice"),
        pytest.param({"language": "klingon"}, "language", "auto, chinese, english", id="unknown language"),
        pytest.param(
            {"sampling": {"code_predictor": {"repetition_penalty": 1.2}}}, "code_predictor", "only temperature",
            id="penalty of the predictor",
        ),
        pytest.param({"sampling": {"talker": {"logit_bias": {3072: 1.0}}}}, "logit_bias", "0 to 3071", id="bias"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_and_leaves_its_neighbours_alone(
    executor: Any, settings: dict[str, Any], place: str, words: str
) -> None:
    good = request(1, HELLO)
    settings = dict(settings)
    bad = request(0, settings.pop("text", HELLO), **settings)
    refused, answered = answers(executor, [bad, good])
    assert isinstance(refused.error, StageError)
    assert place in str(refused.error) and words in str(refused.error)
    assert answered.ok


@pytest.mark.parametrize("given", [{"voice": "rian"}, {"voice": "17"}, {"language": "klingon"}], ids=str)
def test_a_name_that_is_not_there_is_told_without_an_engine_as_it_is_when_spoken(
    executor: Any, workshop: Any, given: dict[str, str]
) -> None:
    (stage, *_), folder = executor.graph.stages, workshop.engines("custom-0b6")
    closed = type(executor.runners[stage.id])(stage=stage, config=executor.runners[stage.id].config)
    closed.check_choices(folder / stage.artifact, {"voice": "Ryan", "language": "english"})
    with pytest.raises(StageError) as told:
        closed.check_choices(folder / stage.artifact, given)
    assert str(told.value) == str(one(executor, **given).error)


@pytest.mark.parametrize("voice", ["RYAN", "Ryan", "3061"])
def test_a_voice_is_known_by_its_name_in_any_case_and_by_its_id(executor: Any, voice: str) -> None:
    np.testing.assert_array_equal(codes_said(one(executor, voice=voice)), codes_said(one(executor, voice="ryan")))


def test_without_a_voice_the_first_one_speaks(executor: Any) -> None:
    result = one(executor)
    assert details(result)["voice"] == "serena"
    np.testing.assert_array_equal(codes_said(result), codes_said(one(executor, voice="serena")))


def test_an_instruct_that_is_not_read_is_told(executor: Any) -> None:
    assert "instruct" in details(one(executor, instruct="Whisper."))["ignored"]
    assert "ignored" not in details(one(executor))


def test_messages_of_both_roles_say_the_assistants(executor: Any) -> None:
    both = request(0, HELLO)
    both.fields["messages"].insert(0, {"role": "user", "content": "What do you say?"})
    user = request(1, HELLO)
    user.fields["messages"][0]["role"] = "user"
    system = request(2, HELLO)
    system.fields["messages"].insert(0, {"role": "system", "content": "Be kind."})
    results = answers(executor, [both, user, system])
    np.testing.assert_array_equal(codes_said(results[0]), codes_said(results[1]))
    assert "instruct" in str(results[2].error)


# Cloning


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    import soundfile

    path = tmp_path / "voice.wav"
    soundfile.write(path, recording(48_000), 24000)
    return path


def test_a_checkpoint_that_clones_needs_a_recording(base: Any) -> None:
    error = str(one(base).error)
    assert "ref_audio" in error and "a recording" in error


def test_a_text_without_its_recording_is_refused(base: Any) -> None:
    assert "no ref_audio" in str(one(base, ref_text="Hello.").error)


def test_a_checkpoint_that_clones_has_no_voices(base: Any, sound: Path) -> None:
    assert "no voices of its own" in str(one(base, voice="ryan", ref_audio=str(sound)).error)


@pytest.mark.parametrize(
    ("samples", "rate", "channels", "words"),
    [
        pytest.param(4800, 24000, 1, "0.20 s", id="0.2 s"),
        pytest.param(41 * 24000, 24000, 1, "41.00 s", id="41 s"),
        pytest.param(32_000, 16000, 2, "", id="16 kHz stereo"),
    ],
)
def test_recordings(base: Any, tmp_path: Path, samples: int, rate: int, channels: int, words: str) -> None:
    import soundfile

    path = tmp_path / "voice.wav"
    soundfile.write(path, np.repeat(recording(samples)[:, None], channels, axis=1), rate)
    result = one(base, ref_audio=str(path))
    if words:
        assert words in str(result.error)
    else:
        assert len(codes_said(result)) >= 2


def test_two_voices_in_one_batch_do_not_mix(workshop: Any, tmp_path: Path) -> None:
    import soundfile

    paths = []
    for seed in (1, 2, 3):
        paths.append(tmp_path / f"{seed}.wav")
        soundfile.write(paths[-1], recording(36_000) * np.sin(np.arange(36_000) * seed / 50), 24000, subtype="FLOAT")
    requests = [request(i, HELLO, ref_audio=str(path)) for i, path in enumerate(paths)]
    with opened(workshop.engines("base-0b6"), Cohort(1)) as executor:
        alone = [codes_said(result) for result in answers(executor, requests)]
    with opened(workshop.engines("base-0b6"), Cohort(3)) as executor:
        together = [codes_said(result) for result in answers(executor, requests)]
    assert len({codes.tobytes() for codes in alone}) == 3
    for codes, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(codes, expected)


def test_what_the_prompt_is_made_of_must_be_said() -> None:
    with pytest.raises(ConfigError, match="prefill_builder"):
        structure(TalkerConfig, {}, where="config")
    with pytest.raises(ConfigError, match="segments"):
        structure(TalkerConfig, {"prefill_builder": "segments"}, where="config")
