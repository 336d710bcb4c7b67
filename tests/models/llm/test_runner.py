"""Sampling, ends and bad requests through the real executor."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from framework.decoding.calls import RowCalls
from framework.errors import ConfigError, StageError
from framework.execution.policies import Cohort, InFlight
from framework.execution.runner import OpenContext
from framework.graph.model import Port, Stage
from framework.schema import structure
from models.language.runners import Backbone, BackboneConfig
from tests.models.llm.tiny import END, VOCAB, answers, details, ids_of, opened, request, text_of, text_written
from tests.models.running import CPU

SEEDS = (0, 1, 2, 3, 4, 5)
SETTINGS: dict[str, dict[str, Any]] = {
    "top_k": {"temperature": 1.0, "top_k": 20, "top_p": 1.0},
    "top_p of all": {"temperature": 1.3, "top_k": 0, "top_p": 0.9},
    "penalty": {"temperature": 1.0, "top_k": 50, "repetition_penalty": 1.5},
    "min_p": {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.2},
    "bias": {"temperature": 1.0, "top_k": 40, "logit_bias": {97: 6.0, 98: 5.5, END: -100.0}},
}


@pytest.fixture(scope="module")
def engines(workshop: Any) -> Any:
    return workshop.engines("llama")


@pytest.fixture(scope="module")
def executor(engines: Any) -> Any:
    """For requests whose batching does not matter."""
    with opened(engines) as executor:
        yield executor


def one(executor: Any, text: str = "hello", **sampling: Any) -> Any:
    (result,) = answers(executor, [request(0, text, **sampling)])
    return result


# Sampled tokens belong to the request


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_sampled_tokens_are_equal_alone_in_a_cohort_and_in_flight(engines: Any, settings: dict[str, Any]) -> None:
    requests = [
        request(i, text_of(length, seed=i), seed=i, **settings) for i, length in enumerate((9, 33, 1, 20, 9, 5))
    ]
    spoken = []
    for policy, chunk in ((Cohort(1), 256), (Cohort(4), 16), (InFlight(3), 8), (InFlight(4), 256)):
        with opened(engines, policy, prefill_chunk=chunk) as executor:
            spoken.append([ids_of(result) for result in answers(executor, requests)])
            if policy == InFlight(3):
                spoken.append([ids_of(result) for result in answers(executor, requests[::-1])])
    assert len({token for ids in spoken[0] for token in ids}) > 12
    for others in spoken[1:]:
        assert others == spoken[0]


def test_the_noise_is_the_seeds(executor: Any) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "logit_bias": {END: -100.0}}
    spoken = {seed: ids_of(one(executor, seed=seed, **settings)) for seed in SEEDS}
    assert len({tuple(ids) for ids in spoken.values()}) == len(SEEDS)
    assert {seed: ids_of(one(executor, seed=seed, **settings)) for seed in SEEDS} == spoken


def test_penalty_counts_prompt_and_reply_of_this_request_alone(executor: Any) -> None:
    """So strong a penalty lets no token come twice, nor one of the prompt; the row's last request leaves nothing."""
    settings: dict[str, Any] = {"repetition_penalty": 1e6, "logit_bias": {END: -100.0}, "max_generate_length": 40}
    text = "abcdefghij"
    first = ids_of(one(executor, text, **settings))
    assert len(set(first)) == 40
    assert not set(first) & set(text.encode())
    assert ids_of(one(executor, text, **settings)) == first


# Ends


def test_reply_ends_at_the_end_token(executor: Any) -> None:
    result = one(executor, logit_bias={END: 100.0})
    assert ids_of(result) == [END]
    assert text_written(result) == ""
    assert details(result)["finish_reason"] == "end-of-sequence"
    assert details(result)["generated_tokens"] == 1


def test_reply_ends_at_max_generate_length(executor: Any) -> None:
    result = one(executor, max_generate_length=5, logit_bias={97: 100.0})
    assert ids_of(result) == [97] * 5
    assert text_written(result) == "aaaaa"
    assert details(result)["finish_reason"] == "max-length"


def test_reply_ends_before_a_stop_string_of_several_tokens(executor: Any) -> None:
    letters = {token: 30.0 for token in range(97, 123)}
    settings: dict[str, Any] = {"logit_bias": letters, "temperature": 1.0, "top_k": 26, "max_generate_length": 40}
    whole = one(executor, **settings)
    written = text_written(whole)
    assert len(written) == 40 and details(whole)["finish_reason"] == "max-length"
    place = next(n for n in range(5, 38) if written.index(written[n : n + 3]) == n)
    result = one(executor, stop=("never", written[place : place + 3]), **settings)
    assert text_written(result) == written[:place]
    assert details(result)["finish_reason"] == "stop-words"
    assert details(result)["generated_tokens"] == place + 3


def test_reply_ends_where_the_cache_is_full(workshop: Any) -> None:
    """The last token is never read, so it needs no place in the cache."""
    folder = workshop.engines("llama", max_input_len=16, max_kv_cache_capacity=20, prefill_chunk=8)
    settings: dict[str, Any] = {"logit_bias": {END: -100.0}, "max_generate_length": 100}
    with opened(folder) as executor:
        requests = [request(i, text_of(length), **settings) for i, length in enumerate((16, 3))]
        results = answers(executor, requests)
    assert [len(ids_of(result)) for result in results] == [20 - 16 + 1, 20 - 3 + 1]
    assert {details(result)["finish_reason"] for result in results} == {"max-length"}


def test_a_full_cache_says_the_same_as_a_large_one(workshop: Any) -> None:
    small = workshop.engines("llama", max_input_len=16, max_kv_cache_capacity=20, prefill_chunk=8)
    settings: dict[str, Any] = {"logit_bias": {END: -100.0}, "max_generate_length": 100}
    with opened(small) as executor:
        full = ids_of(one(executor, text_of(9), **settings))
    with opened(workshop.engines("llama")) as executor:
        assert ids_of(one(executor, text_of(9), **settings))[: len(full)] == full


# What a result tells


def test_log_probabilities_have_token_text_and_bytes(executor: Any) -> None:
    result = one(executor, num_logprobs=3, max_generate_length=2, logit_bias={97: 50.0, 195: 40.0})
    for chunk in result.outputs["thinker:text"]:
        (best,) = chunk.logprobs
        assert [(entry.token_id, entry.token, entry.bytes) for entry in best[:2]] == [
            (97, "a", (97,)),
            (195, "\N{REPLACEMENT CHARACTER}", (195,)),
        ]
        assert all(entry.logprob < 0 for entry in best)
    assert all(chunk.logprobs == () for chunk in one(executor).outputs["thinker:text"])


def test_details_name_the_prompt_as_the_model_saw_it(executor: Any) -> None:
    fields = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
    (result,) = executor.run([attrs.evolve(request(0, "", max_generate_length=1), fields=fields, options={})])
    assert details(result)["formatted_complete_request"] == "<|user|>Be brief.<|user|>Hi<|assistant|>"
    assert details(result)["formatted_system_prompt"].startswith("<|user|>Be brief.")
    assert details(result)["prompt_tokens"] == 1 + 9 + 1 + 2 + 1


def test_text_streams_a_chunk_a_token(executor: Any) -> None:
    seen: list[tuple[str, str]] = []
    requests = [request(0, "hello", logit_bias={97: 100.0}, max_generate_length=3)]
    for _ in executor.run(requests, lambda _, port, chunk: seen.append((port, chunk.text))):
        pass
    assert seen == [("thinker:text", "a")] * 3


def test_a_cancelled_request_gives_its_row_to_the_next(engines: Any) -> None:
    with opened(engines, InFlight(1)) as executor:
        alone = ids_of(one(executor, "abc"))
        long = request(0, "xyz", max_generate_length=300, logit_bias={END: -100.0})
        results = {}
        for result in executor.run([long, request(1, "abc")], lambda r, _, __: r.index == 0 and executor.cancel(0)):
            results[result.request.index] = result
    assert results[0].cancelled and not results[0].ok
    assert ids_of(results[1]) == alone


# Bad requests fail alone

PICTURE = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is it?"}]
BAD: dict[str, tuple[Any, list[str]]] = {
    "prompt longer than the build allows": (request(1, "x" * 321), ["321 tokens", "at most 320", "max_input_len"]),
    "empty prompt": (request(1, ""), ["messages", "no text"]),
    "prompt of spaces": (request(1, "  \n"), ["messages", "no text"]),
    "no messages": (attrs.evolve(request(1, ""), fields={"messages": []}), ["messages", "no text"]),
    "empty part": (
        attrs.evolve(
            request(1, ""), fields={"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}
        ),
        ["messages", "no text"],
    ),
    "null content": (
        attrs.evolve(request(1, ""), fields={"messages": [{"role": "user", "content": None}]}),
        ["messages", "no text"],
    ),
    "bias beyond the vocabulary": (request(1, "x", logit_bias={VOCAB: 1.0}), ["logit_bias", "264", "0 to 263"]),
    "bias below 0": (request(1, "x", logit_bias={-1: 1.0}), ["logit_bias", "-1", "0 to 263"]),
    "no valid Unicode": (request(1, "\ud800"), ["U+D800"]),
    "image part, text as it is": (
        attrs.evolve(
            request(1, ""),
            fields={"messages": [{"role": "user", "content": PICTURE}]},
        ),
        ["a part of type 'image'", "text"],
    ),
    "image part, chat template": (
        attrs.evolve(
            request(1, ""),
            fields={"messages": [{"role": "user", "content": PICTURE}]},
            options={},
        ),
        ["a part of type 'image'", "text"],
    ),
}


@pytest.mark.parametrize(("bad", "said"), BAD.values(), ids=BAD)
def test_a_bad_request_fails_alone(executor: Any, bad: Any, said: list[str]) -> None:
    results = answers(executor, [request(0, "abc"), bad, request(2, "abc")])
    assert [result.ok for result in results] == [True, False, True]
    assert isinstance(results[1].error, StageError)
    for text in said:
        assert text in str(results[1].error)
    assert ids_of(results[0]) == ids_of(results[2])


def test_a_prompt_that_leaves_no_room_in_the_cache_names_both_numbers(workshop: Any) -> None:
    folder = workshop.engines("llama", max_input_len=64, max_kv_cache_capacity=20, prefill_chunk=8)
    with opened(folder) as executor:
        results = answers(executor, [request(0, "x" * 19), request(1, "x" * 20)])
    assert [result.ok for result in results] == [True, False]
    assert "20 tokens" in str(results[1].error) and "the cache's 20" in str(results[1].error)


@pytest.mark.parametrize(("settings", "ok"), [({"top_k": 16}, True), ({"top_k": 17}, False), ({"top_k": 0}, False)])
def test_an_engine_of_fixed_candidates_names_what_it_looks_at(workshop: Any, settings: Any, ok: bool) -> None:
    with opened(workshop.engines("llama", candidates=16)) as executor:
        result = one(executor, temperature=1.0, **settings)
        greedy = one(executor)
    assert result.ok == ok
    if not ok:
        assert f"top_k={settings['top_k']}" in str(result.error) and "at most the 16 best" in str(result.error)
    assert ids_of(greedy) == workshop.greedy("llama", "hello", 12)


def test_fixed_candidates_draw_the_same_tokens(workshop: Any, executor: Any) -> None:
    settings: dict[str, Any] = {"temperature": 1.2, "top_k": 16, "top_p": 0.9, "seed": 3}
    with opened(workshop.engines("llama", candidates=16)) as fixed:
        assert ids_of(one(fixed, **settings)) == ids_of(one(executor, **settings))


@pytest.mark.parametrize("policy", [Cohort(1), Cohort(4)], ids=["alone", "in a cohort"])
def test_a_bucket_has_calls_of_one_shape(engines: Any, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding all rows, reading one prompt."""
    decoding, reading = set(), set()

    def get(self: RowCalls, start: int, stop: int, dims: Any, fixed: Any = None, *, repeated: bool = False) -> Any:
        (decoding if repeated else reading).add(stop - start)
        return found(self, start, stop, dims, fixed, repeated=repeated)

    found = RowCalls.get
    monkeypatch.setattr(RowCalls, "get", get)
    with opened(engines, policy, bucket=4) as executor:
        assert all(result.ok for result in answers(executor, [request(index, "hello") for index in range(3)]))
    assert (decoding, reading) == ({4}, {1})


def test_a_bucket_beyond_the_build_is_refused(engines: Any) -> None:
    with (
        pytest.raises(ConfigError, match=r"thinker\.config\.bucket: got 5, expected at most 4, as built"),
        opened(engines, bucket=5) as executor,
    ):
        one(executor)


def test_a_hidden_port_that_the_engine_lacks_is_named(workshop: Any, engines: Any) -> None:
    stage = Stage(id="thinker", runner="llm.backbone", emits=(Port(id="accept_hidden", kind="hidden"),))
    with pytest.raises(StageError, match=r"binding 'hidden\.-1'.*no hidden states.*build\.hidden_layers=\[-1\]"):
        Backbone(stage=stage).open(OpenContext(engine_dir=engines, artifact=engines, backend=CPU, batch=1))


def test_the_date_of_a_chat_template_is_a_day() -> None:
    assert structure(BackboneConfig, {"date": "2026-01-31"}, where="config").date == "2026-01-31"
    for wrong in ("yesterday", "2026-02-30", "20260131"):
        with pytest.raises(ConfigError, match=r"config.*date"):
            structure(BackboneConfig, {"date": wrong}, where="config")
