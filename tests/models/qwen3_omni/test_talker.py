"""The talker says what transformers' says, of any conversation, whatever the batch; its ends and bad requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from framework.errors import ConfigError, StageError
from framework.execution.policies import Cohort, InFlight, Policy
from framework.graph.model import Input, Source, Stage
from framework.schema import structure
from models.qwen3_omni.config import OmniSpeechConfig
from models.qwen3_omni.runners import Talker, TalkerConfig
from models.qwen3_talker.runners import LONGEST_FRAMES_PER_TOKEN, PAUSE_FRAMES
from tests.models.qwen3_omni import tiny
from tests.models.qwen3_omni.speaking import (
    END,
    FRAMES,
    GREEDY,
    answers,
    codes_said,
    details,
    opened,
    request,
    sound_of,
)
from tests.models.qwen3_omni.thinking import Turns, audio, image, video

WORDS = [104, 101, 257, 11, 32, 119, 111, 260, 33, 40, 77, 78, 120, 9, 8, 7, 99, 100]


@attrs.frozen(kw_only=True)
class Case:
    turns: Turns
    words: tuple[int, ...] = tuple(WORDS)
    voice: str = "Ethan"


def user(*content: Any) -> tuple[str, Any]:
    return ("user", content)


CASES: Mapping[str, Case] = {
    "a question": Case(turns=[user("Say hi.")]),
    "an answer of one word": Case(turns=[user("Say it, please?")], words=(104,)),
    "an answer of two words": Case(turns=[user("Say it.")], words=(104, 77)),
    "a system prompt is not heard": Case(turns=[("system", ["Be brief."]), user("Say hi.")]),
    "three turns": Case(
        turns=[("system", ["Be brief."]), user("One?"), ("assistant", ["Two."]), user("Three?")], words=tuple(WORDS[4:])
    ),
    "another voice": Case(turns=[user("Say hi.")], voice="CHELSIE"),
    "a third voice": Case(turns=[user("Who is it?")], voice="aiden", words=tuple(WORDS[::2])),
    "sound": Case(turns=[user(audio(130), "What is it?")]),
    "an image": Case(turns=[user(image(4, 6), "What is it?")]),
    "a video": Case(turns=[user(video(3, 4, 4), "Go on.")], words=tuple(WORDS[2:])),
    "a video with its sound": Case(
        turns=[user(video(2, 4, 6, sound=210), "Go on.")], words=tuple((word + 14) % 256 for word in WORDS)
    ),
    "an image in the first of two turns": Case(
        turns=[user("Look", image(6, 4), "!"), ("assistant", ["Yes."]), user("And this?", image(4, 4), audio(90))]
    ),
    "sound and an image behind a system prompt": Case(
        turns=[("system", ["Look and listen."]), user(audio(60), "and", image(4, 8), "tell.")], words=tuple(WORDS[3:])
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def talks(workshop: Any) -> Any:
    """By name of the case: the talk, and the codes and sound of transformers."""
    found = {}
    for name, case in CASES.items():
        talk = workshop.speaker.talk(workshop.engines, case.turns, case.words)
        found[name] = (talk, *workshop.speaker.say(talk, case.voice))
    return found


@pytest.fixture(scope="module")
def executor(workshop: Any) -> Any:
    """For requests whose batching does not matter."""
    with opened(workshop.engines) as executor:
        yield executor


@pytest.mark.parametrize(
    ("policy", "chunk"),
    [
        pytest.param(Cohort(1), 64, id="alone"),
        pytest.param(Cohort(4), 64, id="cohort"),
        pytest.param(InFlight(3), 7, id="3 in flight, chunks of 7"),
        pytest.param(InFlight(2), 1, id="2 in flight, a token at a time"),
    ],
)
def test_codes_and_sound_are_those_of_transformers(workshop: Any, talks: Any, policy: Policy, chunk: int) -> None:
    with opened(
        workshop.engines, policy, talker={"prefill_chunk": chunk}, code2wav={"reference_chunks": True}
    ) as executor:
        requests = [request(i, talks[name][0], voice=case.voice) for i, (name, case) in enumerate(CASES.items())]
        results = answers(executor, requests)
    for name, result in zip(CASES, results, strict=True):
        _, codes, sound = talks[name]
        np.testing.assert_array_equal(codes_said(result), codes, err_msg=name)
        np.testing.assert_allclose(sound_of(result), sound, atol=1e-4, err_msg=name)
        ended = len(codes) < FRAMES
        assert details(result)["finish_reason"] == ("end-of-sequence" if ended else "max-length"), name
        assert details(result)["text_tokens"] == min(len(CASES[name].words), len(codes) + ended)
        np.testing.assert_array_equal(details(result, "code2wav")["rvq_codes"], codes)


def test_the_cases_say_different_things(talks: Any) -> None:
    """What the comparison rests on; only the system prompt is never heard."""
    assert talks["a system prompt is not heard"][1].tobytes() == talks["a question"][1].tobytes()
    assert len({codes.tobytes() for _, codes, _ in talks.values()}) == len(CASES) - 1
    lengths = {len(codes) for _, codes, _ in talks.values()}
    assert len(lengths) > 2 and max(lengths) == FRAMES


def test_media_and_its_places_matter(workshop: Any, talks: Any, executor: Any) -> None:
    """States at placeholders are read, those of words are not; and rotary positions are the picture's."""
    talk, codes, _ = talks["an image"]
    here = np.isin(talk.ids, [tiny.token_id("<|image_pad|>")])
    other = np.random.default_rng(1).standard_normal(talk.hidden.shape).astype(np.float32)
    words, pictures = other.copy(), other.copy()
    words[: len(here)][here] = talk.hidden[: len(here)][here]
    counted = np.broadcast_to(np.arange(len(talk.ids), dtype=np.float32), talk.positions.shape)
    variants = [
        attrs.evolve(talk, hidden=words),
        attrs.evolve(talk, hidden=pictures),
        attrs.evolve(talk, positions=counted),
    ]
    same, seen, moved = (codes_said(r) for r in answers(executor, [request(i, v) for i, v in enumerate(variants)]))
    np.testing.assert_array_equal(same, codes)
    assert seen.tobytes() != codes.tobytes()
    assert moved.tobytes() != codes.tobytes()


# Ends


def test_every_word_of_an_answer_that_was_cut_is_said(workshop: Any, talks: Any, executor: Any) -> None:
    """transformers never hears the last one; so ours is what it says of one that goes on for a token more."""
    talk, codes, _ = talks["an answer of two words"]
    (result,) = answers(executor, [request(0, attrs.evolve(talk, ends=False))])
    np.testing.assert_array_equal(codes_said(result), codes)
    assert details(result)["text_tokens"] == 2


def test_an_answer_of_no_words_is_no_speech_with_a_reason(workshop: Any, executor: Any) -> None:
    silent = workshop.speaker.talk(workshop.engines, [user("Say hi.")], [])
    (result,) = answers(executor, [request(0, silent, texts=[""])])
    assert result.ok and result.outputs["code2wav:audio"] == ()
    assert details(result)["finish_reason"] == "no-text"
    assert details(result)["frames"] == 0
    assert details(result, "code2wav")["samples"] == 0


def test_words_that_begin_the_answer_in_the_prompt_are_said_too(workshop: Any, talks: Any, executor: Any) -> None:
    talk, codes, _ = talks["a question"]
    given = attrs.evolve(
        talk,
        ids=[*talk.ids, *talk.words[:2]],
        words=talk.words[2:],
        positions=np.zeros((3, len(talk.ids) + 2), np.float32),
    )
    (result,) = answers(executor, [request(0, given)])
    np.testing.assert_array_equal(codes_said(result), codes)


def test_what_ends_the_answer_by_its_text_is_not_said(workshop: Any, executor: Any) -> None:
    """Tokens whose text is held back until it is sure to be none of the words that end the answer."""
    speaker = workshop.speaker
    said = speaker.talk(workshop.engines, [user("Say hi.")], WORDS[:4])
    expected, _ = speaker.say(said)
    more = speaker.talk(workshop.engines, [user("Say hi.")], [*WORDS[:4], 83, 84, 79], ends=False)
    texts = ["a", "", "bc", "d", "", "", ""]
    (result,) = answers(executor, [request(0, more, texts=texts, stop=("STO",))])
    np.testing.assert_array_equal(codes_said(result), expected)
    assert details(result)["text_tokens"] == 4


NEVER: Mapping[str, Any] = {**GREEDY, "talker": {"temperature": 0.0, "logit_bias": {END: -100.0}}}


def test_a_talker_that_does_not_end_is_cut_with_a_reason(workshop: Any, executor: Any) -> None:
    short = workshop.speaker.talk(workshop.engines, [user("Say hi.")], [104])
    (result,) = answers(executor, [request(0, short, sampling=NEVER, frames=10_000)])
    assert len(codes_said(result)) == PAUSE_FRAMES + LONGEST_FRAMES_PER_TOKEN
    assert details(result)["finish_reason"] == "max-length"
    assert details(result)["cut_by"] == "no end after 7 s for 1 text tokens"


def test_a_speech_is_cut_where_the_cache_ends(workshop: Any, talks: Any) -> None:
    talk = talks["a question"][0]
    with opened(workshop.engines, talker={"stop_runaway": False}) as executor:
        (result,) = answers(executor, [request(0, talk, sampling=NEVER, frames=10_000)])
    assert details(result)["cut_by"] == "cache of 352 entries"
    assert details(result)["prompt_tokens"] + len(codes_said(result)) - 1 == 352


def test_the_talker_may_end_at_once(talks: Any, executor: Any) -> None:
    at_once = {**GREEDY, "talker": {"temperature": 0.0, "logit_bias": {END: 100.0}}}
    (result,) = answers(executor, [request(0, talks["a question"][0], sampling=at_once)])
    assert result.ok and len(codes_said(result)) == 0 and details(result)["finish_reason"] == "end-of-sequence"


# Codes belong to the request


def test_sampled_codes_are_equal_alone_in_a_cohort_and_in_flight(workshop: Any, talks: Any) -> None:
    """Each with its own voice, text, media and seed."""
    requests = [
        request(
            index,
            talk,
            voice=("ethan", "aiden", "chelsie")[index % 3],
            frames=4 + 2 * index,
            sampling={"talker": {"temperature": 0.9, "seed": index}, "code_predictor": {"top_k": 50}},
        )
        for index, (talk, _, _) in enumerate(list(talks.values())[::2])
    ]
    said = []
    for policy in (InFlight(4), Cohort(4), Cohort(1)):
        with opened(workshop.engines, policy, talker={"bucket": 4}) as executor:
            said.append([codes_said(one) for request in requests for one in executor.run([request])])
            said.append([codes_said(result) for result in answers(executor, requests[::-1])])
    assert len({codes.tobytes() for codes in said[0]}) == len(requests)
    for others in said[1:]:
        for codes, expected in zip(others, said[0], strict=True):
            np.testing.assert_array_equal(codes, expected)


def test_the_code_predictor_is_as_greedy_as_the_talker(talks: Any, executor: Any) -> None:
    """As in the published class; otherwise it samples from the likeliest codes, of 0.8 in all."""
    talk, codes, _ = talks["a question"]
    talker = {**GREEDY["talker"], "seed": 5}
    greedy = request(0, talk, sampling={"talker": talker})
    own = request(1, talk, sampling={"talker": talker, "code_predictor": {"temperature": 1.0}})
    same, other = (codes_said(result) for result in answers(executor, [greedy, own]))
    np.testing.assert_array_equal(same, codes)
    assert other[0, 0] == codes[0, 0] and other[:, 1:].tobytes() != codes[:, 1:].tobytes()


@pytest.mark.parametrize("voice", ["", "Ethan", "ETHAN", "2302"])
def test_voices_have_names_in_any_case_and_a_default(talks: Any, executor: Any, voice: str) -> None:
    talk, codes, _ = talks["a question"]
    (result,) = answers(executor, [request(0, talk, voice=voice)])
    np.testing.assert_array_equal(codes_said(result), codes)


def test_voices_are_listed(workshop: Any) -> None:
    with opened(workshop.engines) as executor:
        choices = executor.runners["talker"].choices(workshop.engines / "talker")
    assert choices == {"voice": ("chelsie", "ethan", "aiden")}


# Bad requests


def test_a_voice_that_is_not_there(talks: Any, executor: Any) -> None:
    bad, good = answers(executor, [request(0, talks["a question"][0], voice="etan"), request(1, talks["sound"][0])])
    assert isinstance(bad.error, StageError)
    assert "voice: got 'etan', expected one of chelsie, ethan, aiden" in str(bad.error)
    assert "did you mean" in str(bad.error)
    assert good.ok


def test_a_voice_that_is_not_there_is_told_without_an_engine(workshop: Any) -> None:
    with opened(workshop.engines) as executor:
        talker = executor.runners["talker"]
    talker.check_choices(workshop.engines / "talker", {})
    talker.check_choices(workshop.engines / "talker", {"voice": "2302"})
    with pytest.raises(StageError, match="voice: got 'etan', expected one of chelsie, ethan, aiden"):
        talker.check_choices(workshop.engines / "talker", {"voice": "etan"})


def test_a_conversation_that_the_talker_cannot_read(workshop: Any, executor: Any) -> None:
    long = workshop.speaker.talk(workshop.engines, [user("x" * 330)], WORDS)
    (result,) = answers(executor, [request(0, long)])
    assert "tokens, expected at most 320, which the engine was built for" in str(result.error)


def test_a_prompt_without_an_answer_to_speak(talks: Any, executor: Any) -> None:
    talk = talks["a question"][0]
    bare = attrs.evolve(talk, ids=talk.ids[:-3])
    (result,) = answers(executor, [request(0, bare)])
    assert "got no assistant turn" in str(result.error)


def test_media_without_their_projection(workshop: Any, talks: Any) -> None:
    with opened(workshop.engines, talker={"projection_artifact": "../nowhere"}) as executor:
        seen, heard = answers(executor, [request(0, talks["an image"][0]), request(1, talks["a question"][0])])
    assert "expected the engine hidden_projection" in str(seen.error)
    assert heard.ok


# The stage


@pytest.mark.parametrize(
    ("names", "settings", "fault"),
    [
        ((), {}, "no input 'text'"),
        (("hidden",), {}, "no input 'text_ids'"),
        (("text",), {"prefill_builder": "segments"}, "no input 'hidden'"),
        (("hidden", "text_ids"), {"prefill_builder": "tts"}, "no input 'text'"),
    ],
)
def test_inputs_that_the_talker_cannot_run_without(names: tuple[str, ...], settings: Any, fault: str) -> None:
    inputs = tuple(Input(name=name, source=Source("thinker", name)) for name in names)
    stage = Stage(id="talker", runner="qwen3_omni.talker", kind="autoregressive", inputs=inputs)
    with pytest.raises(ConfigError, match=fault):
        Talker(stage=stage, config=structure(TalkerConfig, settings, where="config"))


def test_the_file_beside_the_engine_is_of_the_right_kind(workshop: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with opened(workshop.engines) as executor, pytest.raises(ConfigError, match="talker_config"):
        executor.runners["talker"].choices(tmp_path)


# The checkpoint's own words


def test_configs_of_transformers_4_say_the_same() -> None:
    """They have `rope_scaling` beside `rope_theta`; and every layer of the talker is a mixture, whatever they say."""
    newer, older = tiny.config(), tiny.config()
    for part in ("text_config", "code_predictor_config"):
        settings = older["talker_config"][part]
        rope = settings.pop("rope_parameters")
        settings |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    older["talker_config"]["text_config"] |= {"decoder_sparse_step": 2, "mlp_only_layers": [1]}
    found = OmniSpeechConfig.from_checkpoint(older)
    expected = OmniSpeechConfig.from_checkpoint(newer)
    for part in ("talker", "predictor"):
        own, other = getattr(found, part), getattr(expected, part)
        assert own.rope["rope_theta"] == other.rope["rope_theta"]
        assert attrs.evolve(own, rope={}) == attrs.evolve(other, rope={})
    assert found.sections == expected.sections == (4, 2, 2)
    assert found.talker.moe is not None and found.talker.moe.shared == 28 and not found.talker.moe.dense_layers


def test_every_fault_of_a_config_is_told() -> None:
    config = tiny.config()
    del config["tts_pad_token_id"]
    talker = config["talker_config"]
    talker |= {"codec_bos_id": -1, "speaker_id": {}}
    del talker["text_config"]["num_experts"]
    del config["thinker_config"]["image_token_id"]
    with pytest.raises(ConfigError) as raised:
        OmniSpeechConfig.from_checkpoint(config)
    assert {problem.where for problem in raised.value.problems} == {
        "config.json: tts_pad_token_id",
        "config.json: talker_config.codec_bos_id",
        "config.json: talker_config.speaker_id",
        "config.json: talker_config.text_config.num_experts",
        "config.json: thinker_config.image_token_id",
    }


@pytest.mark.parametrize(
    ("part", "changes", "place"),
    [
        ("code_predictor_config", {"hidden_size": 64}, "code_predictor_config.hidden_size"),
        ("code_predictor_config", {"num_code_groups": 8}, "code_predictor_config.num_code_groups"),
        ("text_config", {"head_dim": 32}, "text_config.rope_parameters.mrope_section"),
    ],
)
def test_networks_that_cannot_be(part: str, changes: Any, place: str) -> None:
    config = tiny.config()
    config["talker_config"][part] |= changes
    with pytest.raises(ConfigError, match=place):
        OmniSpeechConfig.from_checkpoint(config)
