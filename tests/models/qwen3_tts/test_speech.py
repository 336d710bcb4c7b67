"""Text to sound: talker and vocoder in one graph, as a build writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from framework.errors import ConfigError
from framework.execution.executor import Executor
from framework.execution.policies import Cohort, Policy
from framework.execution.request import Request, Result
from framework.graph import files
from framework.graph.model import FILE_NAME, Source
from framework.graph.validate import check
from framework.schema import structure
from models.qwen3_codec.runners import Code2Wav
from models.qwen3_talker.runners import Talker
from tests.models.qwen3_tts.running import answers, build_tiny, request
from tests.models.qwen3_tts.talker_tiny import HELLO, MIXED, recording
from tests.models.running import CPU, executor

CLASSES: Mapping[str, Any] = {"qwen3_omni.talker": Talker, "qwen3_omni.code2wav": Code2Wav}
SETTINGS: Any = {"talker": {"temperature": 0.9}}


def speaking(engine_dir: Path, policy: Policy, **code2wav: Any) -> Executor:
    graph = files.load(engine_dir / FILE_NAME)
    check(graph, {name: cls.decl for name, cls in CLASSES.items()})
    runners = {}
    for stage in graph.stages:
        cls = CLASSES[stage.runner]
        given = {**stage.config, **(code2wav if stage.id == "code2wav" else {})}
        runners[stage.id] = cls(stage=stage, config=structure(cls.decl.config, given, where=stage.id))
    return executor(graph, runners, engine_dir, policy)


def spoken(index: int, text: str, **fields: Any) -> Request:
    return attrs.evolve(request(index, text, sampling=SETTINGS, **fields), kinds=frozenset({"audio"}))


def sound(result: Result) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert result.ok, result.error
    return np.concatenate([chunk.samples for chunk in result.outputs["code2wav:audio"]])


@pytest.mark.parametrize("settings", [{"chunk_frames": 3}, {"whole_utterance": True}], ids=["in chunks", "whole"])
def test_every_frame_is_heard_for_its_80_ms(workshop: Any, settings: dict[str, Any]) -> None:
    with speaking(workshop.engines("custom-0b6"), Cohort(2), **settings) as executor:
        results = answers(executor, [spoken(0, HELLO, voice="ryan"), spoken(1, MIXED, voice="dylan", most=5)])
    for result in results:
        talker, vocoder = result.stages["talker"].details, result.stages["code2wav"].details
        assert len(sound(result)) == 1920 * talker["frames"] > 0
        assert vocoder["rvq_codes"].shape == (talker["frames"], 16)
        assert talker["finish_reason"] in ("end-of-sequence", "max-length")


def test_sound_begins_while_the_talker_talks(workshop: Any) -> None:
    with speaking(workshop.engines("custom-0b6"), Cohort(1), chunk_frames=2) as executor:
        settings = {"talker": {"logit_bias": {2150: -100.0}}}
        one = attrs.evolve(request(0, HELLO, sampling=settings), kinds=frozenset({"audio"}))
        (result,) = executor.run([one])
    talker, vocoder = result.stages["talker"], result.stages["code2wav"]
    assert vocoder.first_output_s is not None
    assert vocoder.first_output_s < talker.end_s


@pytest.mark.parametrize("chunk", [2, 5])
def test_a_clone_goes_on_from_the_recording_without_saying_it(workshop: Any, tmp_path: Path, chunk: int) -> None:
    import soundfile

    path = tmp_path / "voice.wav"
    soundfile.write(path, recording(48_000), 24000)
    engines = workshop.engines("base-0b6")
    fields = {"ref_audio": str(path), "ref_text": "I said the thing."}
    with speaking(engines, Cohort(1), whole_utterance=True) as executor:
        (whole,) = executor.run([spoken(0, HELLO, **fields)])
    with speaking(engines, Cohort(1), chunk_frames=chunk) as executor:
        (parts,) = executor.run([spoken(0, HELLO, **fields)])
    frames = whole.stages["talker"].details["frames"]
    assert len(sound(whole)) == 1920 * frames
    np.testing.assert_allclose(sound(parts), sound(whole), atol=1e-5)
    codes = whole.stages["code2wav"].details["rvq_codes"]
    assert codes.shape == (frames, 16)
    # Without the frames before them the same codes sound different.
    from framework.engines.backend import open_engine

    with open_engine(engines / "code2wav", CPU) as engine:
        call = engine.bind({"frames": frames}, engine.new_states(1))
        call.write("codes", codes[None].astype(np.int64))
        call.write("frame_counts", np.array([frames]))
        call()
        assert np.abs(call.read("audio").reshape(-1) - sound(whole)).max() > 1e-3


def test_a_checkpoint_without_its_codec_is_refused(workshop: Any, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(workshop.checkpoint("custom-0b6"), tmp_path / "checkpoint")
    shutil.rmtree(folder / "speech_tokenizer")
    with pytest.raises(ConfigError, match="no speech_tokenizer/"):
        build_tiny(folder, tmp_path / "engines")


def test_the_graph_says_what_the_checkpoint_says(workshop: Any) -> None:
    graph = files.load(workshop.engines("custom-1b7") / FILE_NAME)
    talker = graph.stage("talker")
    assert talker is not None
    assert talker.config["prefill_builder"] == "tts"
    assert talker.config["max_generate_length"] == 8192
    assert talker.config["cp_temperature"] == 0.9
    assert talker.config["speaker"] == "serena"
    assert graph.terminals == (Source("code2wav", "audio"),)


@pytest.mark.parametrize("name", ["custom-0b6", "design-1b7"])
def test_voices_and_languages_are_listed_without_an_engine(workshop: Any, name: str) -> None:
    graph = files.load(workshop.engines(name) / FILE_NAME)
    stage = graph.stage("talker")
    assert stage is not None
    found = Talker(stage=stage).choices(workshop.engines(name) / stage.artifact)
    assert found["voice"] == (("serena", "ryan", "eric", "dylan") if name == "custom-0b6" else ())
    assert found["language"][:3] == ("auto", "chinese", "english")
