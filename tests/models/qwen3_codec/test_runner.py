"""The vocoder's stage behind a talker that writes frames as a test says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from framework.checkpoints.checkpoint import open_checkpoint
from framework.compile.family import BuildOptions
from framework.engines.backend import compile_engine
from framework.errors import ConfigError
from framework.execution.policies import InFlight
from framework.execution.request import Request, Result
from framework.execution.runner import Row, Runner
from framework.graph.model import Graph, Port, RunnerDecl, Source, Stage
from framework.io.predictions import entry_of
from framework.schema import structure
from models.qwen3_codec.config import FRAME, Code2WavConfig
from models.qwen3_codec.runners import Code2Wav
from models.qwen3_codec.topology import code2wav_stage, codec_components
from tests.models.qwen3_codec import tiny
from tests.models.running import CPU, executor

OPTIONS = BuildOptions(max_batch_size=4)


class Talker(Runner):
    """Writes a request's `codes`, `pace` frames a step."""

    decl = RunnerDecl(kind="autoregressive", inputs={}, ports={"codes": "codec"})

    def __init__(self, *, stage: Stage, pace: int = 1) -> None:
        super().__init__(stage=stage)
        self.pace = pace

    def admit(self, row: Row) -> None:
        row.details["frames"] = 0

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            codes = row.request.options["codes"]
            start = row.details["frames"]
            row.details["frames"] = stop = min(len(codes), start + self.pace)
            if stop > start:
                row.outputs["codes"].write(codes[start:stop])
            if stop == len(codes):
                row.finish()


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tts")
    tiny.save_codec(folder / "speech_tokenizer")
    tiny.save_speaker(folder)
    component = codec_components(open_checkpoint(folder), OPTIONS)[0]
    (folder / "code2wav").mkdir()
    model, states = component.model("float32"), component.states
    compile_engine(model, folder / "code2wav", CPU, states=states, caps=component.caps, opt=component.opt)
    return folder


def speak(
    engine_dir: Path, utterances: Sequence[tiny.Array], *, size: int = 4, pace: int = 1, **config: Any
) -> list[Result]:
    talker = Stage(
        id="talker",
        runner="test.talker",
        kind="autoregressive",
        emits=(Port(id="codes", kind="codec"),),
        max_batch=4,
    )
    vocoder = code2wav_stage("code2wav", OPTIONS)
    graph = Graph(terminals=(Source("code2wav", "audio"),), stages=(talker, vocoder))
    runners: Mapping[str, Runner] = {
        "talker": Talker(stage=talker, pace=pace),
        "code2wav": Code2Wav(stage=vocoder, config=Code2WavConfig(**config)),
    }
    requests = [
        Request(index=i, fields={}, kinds=frozenset({"audio"}), options={"codes": codes})
        for i, codes in enumerate(utterances)
    ]
    with executor(graph, runners, engine_dir, InFlight(size)) as running:
        return sorted(running.run(requests), key=lambda result: result.request.index)


def chunks(result: Result) -> list[int]:
    """Frames of each chunk of sound."""
    assert result.ok, result.error
    return [len(chunk.samples) // FRAME for chunk in result.outputs["code2wav:audio"]]


def sound(result: Result) -> tiny.Array:
    assert result.ok, result.error
    return np.concatenate([chunk.samples for chunk in result.outputs["code2wav:audio"]])


@pytest.fixture(scope="module")
def whole(engine_dir: Path) -> Iterator[Result]:
    [result] = speak(engine_dir, [tiny.random_codes(110)], whole_utterance=True)
    yield result


def test_a_whole_utterance_is_one_chunk_and_that_of_the_published_decoder(whole: Result) -> None:
    assert chunks(whole) == [110]
    np.testing.assert_allclose(sound(whole)[:: tiny.SAMPLED], tiny.expected()["audio.110"], atol=2e-5)


@pytest.mark.parametrize(
    ("config", "pace", "expected"),
    [
        ({}, 1, [25, 25, 25, 25, 10]),
        ({}, 7, [25, 25, 25, 25, 10]),
        ({"chunk_frames": 40, "first_chunk_frames": 3}, 1, [3, 40, 40, 27]),
        ({"chunk_frames": 110}, 110, [110]),
        ({"chunk_frames": 300}, 4, [110]),
        ({"chunk_frames": 1, "stream_depth": 2}, 50, [1] * 110),
    ],
    ids=["as configured", "uneven pace", "small first chunk", "exactly one", "fewer frames than a chunk", "by frame"],
)
def test_streamed_sound_equals_the_whole(
    engine_dir: Path, whole: Result, config: dict[str, Any], pace: int, expected: list[int]
) -> None:
    [result] = speak(engine_dir, [tiny.random_codes(110)], pace=pace, **config)
    assert chunks(result) == expected
    np.testing.assert_allclose(sound(result), sound(whole), atol=1e-5)
    assert result.outputs["code2wav:audio"][0].sample_rate == 24_000


def test_sound_begins_while_the_talker_talks(engine_dir: Path) -> None:
    [result] = speak(engine_dir, [tiny.random_codes(60)], first_chunk_frames=4)
    first, end = result.stages["code2wav"].first_output_s, result.stages["talker"].end_s
    assert first is not None and end is not None and first < end


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_request_sounds_the_same_beside_others(engine_dir: Path, size: int) -> None:
    """Seven of unequal length through fewer rows, so that rows are used again while their neighbours go on."""
    utterances = [tiny.random_codes(length, seed) for seed, length in enumerate((31, 5, 60, 26, 1, 50, 12))]
    together = speak(engine_dir, utterances, size=size, chunk_frames=10, first_chunk_frames=2)
    for codes, result in zip(utterances, together, strict=True):
        [alone] = speak(engine_dir, [codes], whole_utterance=True)
        np.testing.assert_allclose(sound(result), sound(alone), atol=1e-5)


def test_no_frames_are_no_sound(engine_dir: Path) -> None:
    [result] = speak(engine_dir, [tiny.random_codes(0)])
    assert result.ok and result.outputs["code2wav:audio"] == ()
    assert result.stages["code2wav"].details["frames"] == 0


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.full((2, 16), 2048, np.int32), "request 1: codes: got 2048 to 2048, expected codes 0 to 2047"),
        (np.full((2, 16), -1, np.int32), "request 1: codes: got -1 to -1, expected codes 0 to 2047"),
        (np.zeros((2, 8), np.int32), r"request 1: codes: got shape \[1, 8\], expected \[frames, 16\]"),
    ],
    ids=["beyond the codebook", "negative", "too few codes a frame"],
)
def test_wrong_frames_fail_their_own_request(engine_dir: Path, codes: tiny.Array, message: str) -> None:
    good, bad = speak(engine_dir, [tiny.random_codes(30), codes])
    assert good.ok and not bad.ok
    with pytest.raises(Exception, match=message):
        raise bad.error or AssertionError


def test_frames_are_written_beside_the_sound(engine_dir: Path, tmp_path: Path) -> None:
    codes = tiny.random_codes(30)
    [result] = speak(engine_dir, [codes])
    entry = entry_of(result, {"audio": tmp_path})
    assert entry["rvq_file"] == str(tmp_path / "rvq_req0.safetensors")
    [written] = load_file(entry["rvq_file"]).items()
    assert written[0] == "rvq_codes" and written[1].dtype == np.int32
    np.testing.assert_array_equal(written[1], codes)
    assert (entry["audio_samples"], entry["audio_sample_rate"]) == (30 * 1920, 24_000)
    assert entry["stages"]["code2wav"]["frames"] == 30 and "rvq_codes" not in entry["stages"]["code2wav"]
    assert "rvq_file" not in entry_of(result)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"chunk_frames": 0}, "chunk_frames: got 0"),
        ({"chunk_frames": 301}, "chunk_frames: got 301"),
        ({"stream_depth": 1}, "stream_depth: got 1"),
        ({"left_context": 25}, "left_context"),
    ],
)
def test_settings_out_of_range_are_refused(config: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        structure(Code2WavConfig, config, where="stages.code2wav.config")
