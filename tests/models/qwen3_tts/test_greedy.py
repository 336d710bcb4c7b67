"""Greedy codes equal qwen-tts's in fp32, for every sort of prompt, whatever the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.execution.policies import Cohort, InFlight, Policy
from framework.execution.request import Request
from tests.models.qwen3_tts.running import answers, codes_said, details, opened, request
from tests.models.qwen3_tts.talker_tiny import CASES, END, FRAMES, Case, codes_of, recording

POLICIES = [
    pytest.param(Cohort(1), 256, id="alone"),
    pytest.param(Cohort(4), 256, id="cohort"),
    pytest.param(InFlight(3), 7, id="3 in flight, chunks of 7"),
]


def requests_of(case: Case, folder: Path) -> list[Request]:
    import soundfile

    sound = folder / "recording.wav"
    if case.samples:
        soundfile.write(sound, recording(case.samples), 24000, subtype="FLOAT")
    count = len(case.texts)
    fields: list[dict[str, str]] = [
        {
            "voice": case.voices[i] if case.voices else "",
            "language": case.languages[i % len(case.languages)],
            "instruct": case.instruct,
            "ref_audio": str(sound) if case.samples else "",
            "ref_text": case.ref_text,
        }
        for i in range(count)
    ]
    return [request(i, text, most=FRAMES, **fields[i]) for i, text in enumerate(case.texts)]


@pytest.mark.parametrize(("policy", "chunk"), POLICIES)
@pytest.mark.parametrize("name", CASES)
def test_codes_equal_qwen_tts(workshop: Any, tmp_path: Path, name: str, policy: Policy, chunk: int) -> None:
    case = CASES[name]
    text = "streaming" if case.streaming else "whole"
    with opened(workshop.engines(case.checkpoint), policy, prefill_chunk=chunk, text=text) as executor:
        results = answers(executor, requests_of(case, tmp_path))
    for result, expected in zip(results, codes_of(name), strict=True):
        np.testing.assert_array_equal(codes_said(result), expected)
        ended = len(expected) < FRAMES
        assert details(result)["finish_reason"] == ("end-of-sequence" if ended else "max-length")


def test_the_cases_say_different_things() -> None:
    """What the comparison rests on."""
    said = [codes.tobytes() for name in CASES for codes in codes_of(name)]
    assert len(set(said)) == len(said)
    lengths = {len(codes) for name in CASES for codes in codes_of(name)}
    assert len(lengths) > 5 and min(lengths) == 2 and max(lengths) == FRAMES
    assert not any((codes == END).any() for name in CASES for codes in codes_of(name))


def test_the_recording_goes_to_the_vocoder(workshop: Any, tmp_path: Path) -> None:
    """Its frames come before those said, and are not part of them."""
    name = "clone with a text shorter than the recording"
    with opened(workshop.engines("base-0b6")) as executor:
        (result,) = answers(executor, requests_of(CASES[name], tmp_path))
    (context,) = result.outputs["talker:context"]
    assert context.shape == (53, 16)
    assert len(codes_said(result)) == len(codes_of(name)[0])
