"""SmolLM2-135M-Instruct with its real weights says what transformers says (see tests/oracles/record_smollm2.py).

The weights are downloaded once, into the cache; without a network and a filled cache these tests are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.compile.family import BuildOptions
from framework.execution.policies import Cohort, InFlight, Policy
from models.language.processing import TextProcessor
from tests.models import published
from tests.models.llm.tiny import answers, build_tiny, ids_of, opened, request, text_written

CASES = json.loads((Path(__file__).parent / "smollm2.json").read_text(encoding="utf-8"))["cases"]
OPTIONS = BuildOptions(max_input_len=384, max_kv_cache_capacity=448, max_batch_size=4, prefill_chunk=128)


@pytest.fixture(scope="module")
def weights() -> Path:
    return published.weights("smollm2")


@pytest.fixture(scope="module")
def fp32(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2") / "fp32"
    build_tiny(weights, folder, OPTIONS)
    return folder


def chat(index: int, prompt: str, count: int) -> Any:
    return attrs.evolve(request(index, prompt, max_generate_length=count), options={})


def test_chat_prompts_have_the_recorded_ids(fp32: Path) -> None:
    text = TextProcessor(fp32)
    for case in CASES:
        assert list(text.prompt([{"role": "user", "content": case["prompt"]}], {}).ids) == case["prompt_ids"]


@pytest.mark.parametrize("policy", [Cohort(1), InFlight(4)], ids=["alone", "4 in flight"])
def test_greedy_ids_equal_transformers(fp32: Path, policy: Policy) -> None:
    with opened(fp32, policy) as executor:
        results = answers(executor, [chat(i, case["prompt"], 24) for i, case in enumerate(CASES)])
    assert [ids_of(result) for result in results] == [case["reply_ids"] for case in CASES]
    assert text_written(results[0]) == "The capital of France is Paris."


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_few_bits_name_paris(weights: Path, tmp_path: Path, precision: str) -> None:
    """In fp32 every token of this reply leads by a logarithm of 1.0 or more. That of `CASES[0]` leads by 0.08, which
    the 8-bit activations of these builds may turn over."""
    build_tiny(weights, tmp_path / "engines", attrs.evolve(OPTIONS, precision=precision))
    with opened(tmp_path / "engines") as executor:
        (result,) = answers(executor, [chat(0, "Name the capital of France.", 24)])
    assert text_written(result) == "The capital of France is Paris."
