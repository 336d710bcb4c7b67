"""A tiny random checkpoint: token ids equal transformers', alone and in any batch, with and without timestamps."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from framework.execution.policies import Cohort, InFlight, Policy
from models.whisper import processing
from tests.models.whisper import tiny
from tests.models.whisper.conftest import Workshop
from tests.models.whisper.tiny import NO_TIMESTAMPS, START, WINDOW

COUNT = WINDOW.max_tokens


@pytest.mark.parametrize("name", ["en", "128 mels"])
@pytest.mark.parametrize("seed", range(4))
def test_ids_without_timestamps(workshop: Workshop, name: str, seed: int) -> None:
    samples = tiny.chirps(0.9, seed)
    model = workshop.reference(name)
    expected = tiny.greedy(model, samples, [START, NO_TIMESTAMPS], timed=False, count=COUNT)
    # A window that does not end is heard again by timestamps: those are compared below.
    config = attrs.evolve(WINDOW, max_tokens=COUNT + 1) if len(expected) < COUNT else WINDOW
    if len(expected) == COUNT:
        expected = tiny.greedy(model, samples, [START], timed=True, count=COUNT)
    with tiny.opened(workshop.engines(name), config) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(samples))])
    assert tiny.ids_of(result) == [id_ for id_ in expected if id_ < NO_TIMESTAMPS]


@pytest.mark.parametrize("seed", range(4))
def test_ids_and_times_with_timestamps(workshop: Workshop, seed: int) -> None:
    samples = tiny.chirps(1.0, seed)
    written = tiny.greedy(workshop.reference("en"), samples, [START], timed=True, count=COUNT)
    found, rest = processing.segments(written, NO_TIMESTAMPS + 1, 1.0)
    expected = [*found, *([rest] if rest else [])]
    with tiny.opened(workshop.engines("en"), attrs.evolve(WINDOW, timestamps=True)) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(samples))])
    assert len(expected) >= 1
    assert [chunk.ids for chunk in result.outputs["asr:text"]] == [segment.ids for segment in expected]
    lines = tiny.text_of(result).splitlines()
    assert [line.partition(" --> ")[2][:9] for line in lines] == [processing.clock(s.end) for s in expected]


@pytest.mark.parametrize("policy", [Cohort(3), InFlight(3)], ids=["cohort", "in flight"])
def test_a_request_hears_the_same_in_every_batch(workshop: Workshop, policy: Policy) -> None:
    sounds = [tiny.sound(tiny.chirps(seconds, seed)) for seed, seconds in enumerate((0.9, 3.3, 0.3, 2.1, 1.0))]
    requests = [tiny.request(index, sound, temperature=0.7, seed=index) for index, sound in enumerate(sounds)]
    engines = workshop.engines("en")
    with tiny.opened(engines) as executor:
        alone = [tiny.ids_of(tiny.answers(executor, [request])[0]) for request in requests]
    with tiny.opened(engines, policy=policy) as executor:
        together = [tiny.ids_of(result) for result in tiny.answers(executor, requests)]
    assert together == alone
    assert len({tuple(ids) for ids in alone}) == len(alone), "sounds that all say the same would prove nothing"


def test_a_seed_repeats_and_another_differs(workshop: Workshop) -> None:
    sound = tiny.sound(tiny.chirps(0.9))
    with tiny.opened(workshop.engines("en")) as executor:
        first, again, other = (
            tiny.ids_of(tiny.answers(executor, [tiny.request(0, sound, temperature=1.0, seed=seed)])[0])
            for seed in (1, 1, 2)
        )
    assert first == again != other


def test_a_multilingual_model_hears_the_language_first(workshop: Workshop) -> None:
    import torch
    from transformers import WhisperFeatureExtractor

    samples, model = tiny.chirps(0.9), workshop.reference("multilingual")
    features = WhisperFeatureExtractor(chunk_length=1)(samples, sampling_rate=tiny.RATE, return_tensors="pt")
    with torch.no_grad():
        logits = model(features.input_features, decoder_input_ids=torch.tensor([[START]])).logits[0, -1]
    language = START + 1 + int(logits[START + 1 : START + 12].argmax())
    prompt = [START, language, NO_TIMESTAMPS - 4]  # transcribe
    expected = tiny.greedy(model, samples, prompt, timed=True, count=COUNT)
    with tiny.opened(workshop.engines("multilingual"), attrs.evolve(WINDOW, timestamps=True)) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(samples))])
    assert tiny.ids_of(result) == [id_ for id_ in expected if id_ < NO_TIMESTAMPS]
    assert result.stages["asr"].details["language"] == f"l{language - START - 1}"


def test_a_named_language_and_translation_stand_in_the_prompt(workshop: Workshop) -> None:
    samples = tiny.chirps(0.9, 2)
    prompt = [START, START + 4, NO_TIMESTAMPS - 5]  # l3, translate
    expected = tiny.greedy(workshop.reference("multilingual"), samples, prompt, timed=True, count=COUNT)
    config = attrs.evolve(WINDOW, timestamps=True, language="l3", task="translate")
    with tiny.opened(workshop.engines("multilingual"), config) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(samples))])
    assert tiny.ids_of(result) == [id_ for id_ in expected if id_ < NO_TIMESTAMPS]


def test_log_probabilities_belong_to_the_ids(workshop: Workshop) -> None:
    with tiny.opened(workshop.engines("en")) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(tiny.chirps(0.9)), num_logprobs=2)])
    for chunk in result.outputs["asr:text"]:
        assert [best[0].token_id for best in chunk.logprobs] == list(chunk.ids)
        assert all(len(best) == 2 and 0 >= best[0].logprob >= best[1].logprob for best in chunk.logprobs)


def test_an_unlikely_window_is_tried_at_other_temperatures(workshop: Workshop) -> None:
    sound = tiny.sound(tiny.chirps(0.9))
    greedy = WINDOW
    hard = attrs.evolve(WINDOW, min_logprob=-1e-6, fallback=(0.5, 1.0), no_speech=1.0)
    with tiny.opened(workshop.engines("en"), greedy) as executor:
        (once,) = tiny.answers(executor, [tiny.request(0, sound)])
    with tiny.opened(workshop.engines("en"), hard) as executor:
        (thrice,) = tiny.answers(executor, [tiny.request(0, sound)])
    assert thrice.stages["asr"].details["windows"] == 1
    assert thrice.stages["asr"].details["generated_tokens"] > once.stages["asr"].details["generated_tokens"]
    assert tiny.ids_of(thrice) != tiny.ids_of(once)


def test_text_that_is_a_loop_is_dropped(workshop: Workshop) -> None:
    config = attrs.evolve(WINDOW, max_compression=1e-9)
    with tiny.opened(workshop.engines("en"), config) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(tiny.chirps(0.9)))])
    assert "no speech" in str(result.error)
    assert result.stages["asr"].details["dropped_windows"] == 1


def test_int8_is_near_fp32(workshop: Workshop) -> None:
    """The encoder's integer products: hidden states of the same sound."""
    from framework.engines.backend import open_engine

    hidden = {}
    mel = processing.log_mel(tiny.chirps(0.9), 80, 100)[None]
    for precision in ("fp32", "int8"):
        with open_engine(workshop.engines("en", precision=precision) / "audio", tiny.CPU) as engine:
            states = engine.new_states(1)
            call = engine.bind({}, states)
            call.write("mel", mel)
            call()
            hidden[precision] = np.array(call.read("hidden"))
    error = np.abs(hidden["int8"] - hidden["fp32"]).max() / hidden["fp32"].std()
    assert 0 < error < 0.15
