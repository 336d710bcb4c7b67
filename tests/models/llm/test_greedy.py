"""Greedy token ids equal transformers' in fp32, whatever the batch and however the prompt is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from framework.execution.policies import Cohort, InFlight, Policy
from tests.models.llm.tiny import CHECKPOINTS, answers, greedy, hidden_of, ids_of, opened, request, text_of

LENGTHS = (17, 1, 300, 2)
COUNT = 12


@pytest.mark.parametrize(
    ("policy", "chunk"),
    [
        pytest.param(Cohort(1), 256, id="alone, chunks of 256"),
        pytest.param(Cohort(1), 1, id="alone, chunks of 1"),
        pytest.param(Cohort(2), 64, id="cohorts of 2, chunks of 64"),
        pytest.param(Cohort(4), 7, id="cohort of 4, chunks of 7"),
        pytest.param(InFlight(3), 64, id="3 in flight, chunks of 64"),
        pytest.param(InFlight(4), 256, id="4 in flight, chunks of 256"),
    ],
)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_ids_equal_transformers(workshop: Any, name: str, policy: Policy, chunk: int) -> None:
    texts = [text_of(length) for length in LENGTHS]
    expected = [workshop.greedy(name, text, COUNT) for text in texts]
    assert len({token for ids in expected for token in ids}) > 10, "a network that always says the same proves nothing"
    with opened(workshop.engines(name), policy, prefill_chunk=chunk) as executor:
        results = answers(executor, [request(index, text) for index, text in enumerate(texts)])
    assert [ids_of(result) for result in results] == expected


@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_rows_that_end_at_different_times_leave_the_others_alone(workshop: Any, name: str) -> None:
    """Eight requests through three rows: rows are taken over in the middle, with what the last one left in them."""
    cases = [(text_of(length, seed=1), 2 + 2 * number) for number, length in enumerate((5, 40, 3, 90, 1, 20, 7, 33))]
    expected = [workshop.greedy(name, text, count) for text, count in cases]
    with opened(workshop.engines(name), InFlight(3), prefill_chunk=16) as executor:
        requests = [request(i, text, max_generate_length=count) for i, (text, count) in enumerate(cases)]
        assert [ids_of(result) for result in answers(executor, requests)] == expected
        assert [ids_of(result) for result in answers(executor, requests[::-1])] == expected, "and again, other rows"


@pytest.mark.parametrize("policy", [Cohort(4), InFlight(4)], ids=["cohort", "in flight"])
def test_neighbours_with_long_prompts(workshop: Any, policy: Policy) -> None:
    texts = [text_of(length, seed=2) for length in (100, 61, 60, 300)]
    with opened(workshop.engines("llama"), policy, prefill_chunk=20) as executor:
        results = answers(executor, [request(index, text) for index, text in enumerate(texts)])
    assert [ids_of(result) for result in results] == [workshop.greedy("llama", text, COUNT) for text in texts]


@pytest.mark.parametrize("layer", [1, 2, -1], ids=["layer 1", "last layer", "after the norm"])
def test_hidden_states_equal_transformers(workshop: Any, layer: int) -> None:
    """Of every position of prompt and reply but the last token, which is never read."""
    import torch

    name = "qwen3"
    model = workshop.reference(name)
    folder = workshop.engines(name, hidden_layers=(0, layer))
    with opened(folder, InFlight(2), prefill_chunk=16) as executor:
        results = answers(executor, [request(i, text_of(n), hidden=True) for i, n in enumerate((37, 5))])
    for result, length in zip(results, (37, 5), strict=True):
        read = [*text_of(length).encode(), *ids_of(result)][:-1]
        with torch.no_grad():
            states = model(torch.tensor([read]), output_hidden_states=True).hidden_states
        np.testing.assert_allclose(hidden_of(result, "embeddings"), states[0][0].numpy(), atol=1e-6)
        found = torch.tensor(hidden_of(result, "accept_hidden"))
        # transformers lists the normed stream in place of the last layer's own output.
        found = model.model.norm(found).detach() if layer == 2 else found
        np.testing.assert_allclose(found.numpy(), states[layer][0].numpy(), atol=1e-4)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_log_probabilities_equal_transformers(workshop: Any, name: str) -> None:
    import torch

    text = text_of(29)
    with opened(workshop.engines(name), prefill_chunk=8) as executor:
        (result,) = answers(executor, [request(0, text, num_logprobs=50)])
    ids = ids_of(result)
    with torch.no_grad():
        logits = workshop.reference(name)(torch.tensor([[*text.encode(), *ids]])).logits[0, len(text) - 1 : -1]
    expected = logits.log_softmax(dim=-1).numpy()
    for step, chunk in enumerate(result.outputs["thinker:text"]):
        (best,) = chunk.logprobs
        assert len(best) == 50
        tokens = [entry.token_id for entry in best]
        np.testing.assert_allclose([entry.logprob for entry in best], expected[step, tokens], atol=1e-4)
        np.testing.assert_allclose(np.sort(expected[step])[:-51:-1], expected[step, tokens], atol=1e-4)


def test_the_tokenizer_gives_a_byte_a_token(workshop: Any) -> None:
    """What all of these tests rest on."""
    folder = workshop.engines("llama")
    with opened(folder) as executor:
        (result,) = answers(executor, [request(0, "abc")])
    assert ids_of(result) == greedy(workshop.reference("llama"), b"abc", COUNT)
    assert result.stages["thinker"].details["prompt_tokens"] == 3
