"""The vocoder makes the published network's sound: in one piece, in chunks without a joint, and in its own chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import ConfigError
from models.qwen3_codec.config import FRAME
from models.qwen3_omni.config import vocoder_config
from tests.models.qwen3_codec.test_runner import sound, speak
from tests.models.qwen3_omni import tiny

LATE = 555  # samples that the sound of so many frames lacks


def frames(count: int, seed: int = 0) -> Any:
    return np.random.default_rng([count, seed]).integers(0, 2048, (count, 16)).astype(np.int32)


def published(workshop: Any, codes: Any, chunks: tuple[int, int] | None = None) -> Any:
    """float32 [samples] of transformers' network, whole or in (frames, frames of context)."""
    import torch

    network, given = workshop.reference.model.code2wav, torch.tensor(codes.T[None].astype(np.int64))
    with torch.no_grad():
        found = network(given) if chunks is None else network.chunked_decode(given, *chunks)
    return found[0, 0].numpy()


@pytest.mark.parametrize("count", [1, 2, 7, 110])
def test_a_whole_utterance_is_that_of_the_published_network(workshop: Any, count: int) -> None:
    codes = frames(count)
    [result] = speak(workshop.engines, [codes], whole_utterance=True)
    expected = published(workshop, codes)
    assert np.abs(expected).mean() > 0.05, "nothing to hear"
    assert len(expected) == count * FRAME - LATE == result.stages["code2wav"].details["samples"]
    np.testing.assert_allclose(sound(result), expected, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"chunk_frames": 25},
        {"chunk_frames": 1, "stream_depth": 2},
        {"chunk_frames": 9, "first_chunk_frames": 2},
        {"chunk_frames": 300},
    ],
    ids=["as configured", "by frame", "small first chunk", "one chunk"],
)
def test_streamed_sound_is_the_whole_without_a_joint(workshop: Any, config: dict[str, Any]) -> None:
    codes = frames(110)
    [result] = speak(workshop.engines, [codes], pace=7, **config)
    expected = published(workshop, codes)
    assert len(sound(result)) == len(expected)
    np.testing.assert_allclose(sound(result), expected, atol=1e-4)
    first = result.outputs["code2wav:audio"][0].samples
    assert len(first) == min(110, config.get("first_chunk_frames", config["chunk_frames"])) * FRAME - LATE


def test_longer_than_any_call_there_is_still_no_joint(workshop: Any) -> None:
    codes = frames(340)
    [result] = speak(workshop.engines, [codes], whole_utterance=True)
    np.testing.assert_allclose(sound(result), published(workshop, codes), atol=1e-4)


@pytest.mark.parametrize(
    ("count", "config"),
    [
        pytest.param(299, {}, id="one chunk"),
        pytest.param(300, {"whole_utterance": True}, id="exactly one"),
        pytest.param(301, {}, id="a frame more"),
        pytest.param(640, {"whole_utterance": True}, id="three"),
        pytest.param(640, {"chunk_frames": 70}, id="three, streamed across the joints"),
    ],
)
def test_reference_chunks_are_those_of_transformers(workshop: Any, count: int, config: dict[str, Any]) -> None:
    """With the cut that its every joint has, whatever the chunks in which the sound is handed out."""
    codes = frames(count)
    [result] = speak(workshop.engines, [codes], pace=20, reference_chunks=True, **config)
    expected = published(workshop, codes, (300, 25))
    joints = -(-count // 300) - 1
    assert len(sound(result)) == len(expected) == count * FRAME - LATE * (1 + joints)
    np.testing.assert_allclose(sound(result), expected, atol=1e-4)


@pytest.mark.parametrize("config", [{}, {"reference_chunks": True}], ids=["continuous", "reference chunks"])
def test_a_request_sounds_the_same_beside_others(workshop: Any, config: dict[str, Any]) -> None:
    """Rows are used again while their neighbours go on, so that one begins where another is in the middle."""
    utterances = [frames(count, seed) for seed, count in enumerate((31, 5, 310, 1, 50, 12))]
    together = speak(workshop.engines, utterances, size=3, pace=10, chunk_frames=10, first_chunk_frames=2, **config)
    for codes, result in zip(utterances, together, strict=True):
        expected = published(workshop, codes, (300, 25) if config else None)
        np.testing.assert_allclose(sound(result), expected, atol=1e-4)


def test_no_frames_are_no_sound(workshop: Any) -> None:
    [result] = speak(workshop.engines, [frames(0)])
    assert result.ok and result.outputs["code2wav:audio"] == ()
    assert result.stages["code2wav"].details["samples"] == 0


def test_what_the_network_cannot_be_is_told_at_once() -> None:
    config = tiny.config()
    config["code2wav_config"] |= {"num_quantizers": 8, "upsample_rates": [8, 5, 4], "hidden_act": "gelu"}
    with pytest.raises(ConfigError) as raised:
        vocoder_config(config, where="config.json")
    places = {problem.where for problem in raised.value.problems}
    place = "config.json: code2wav_config"
    assert places == {f"{place}.num_quantizers", f"{place}.hidden_act", f"{place}.upsampling_ratios"}
    with pytest.raises(ConfigError, match="code2wav_config: got 1, expected an object"):
        vocoder_config({"code2wav_config": 1})


@pytest.mark.parametrize(("component", "precision"), [("code2wav", "fp16"), ("talker", "bf16")])
def test_every_network_of_speech_becomes_a_plan(workshop: Any, tmp_path: Path, component: str, precision: str) -> None:
    """For TensorRT-RTX, on a machine that may have no GPU."""
    pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")
    import attrs

    from framework.compile.builder import build
    from framework.engines import manifest
    from framework.engines.tensorrt.backend import TensorRT
    from tests.models.qwen3_omni.speaking import OPTIONS
    from tests.models.qwen3_omni.thinking import FAMILIES

    parts = ("talker", "hidden_projection") if component == "talker" else (component,)
    options = attrs.evolve(
        OPTIONS,
        components=parts,
        precision=precision,
        candidates=64,
        max_input_len=48,
        max_kv_cache_capacity=64,
        prefill_chunk=16,
    )
    ada = TensorRT(module="tensorrt_rtx", compute_capability="8.9")
    build(workshop.checkpoint, tmp_path / "engines", families=FAMILIES, options=options, backend=ada)
    for part in parts:
        record = manifest.read(tmp_path / "engines" / part)
        assert record.files["engine.plan"].bytes > 10_000
