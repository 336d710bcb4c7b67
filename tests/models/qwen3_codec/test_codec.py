"""The codec and the speaker encoder against the published ones, on recorded outputs of tiny random checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from framework.checkpoints.checkpoint import open_checkpoint
from framework.compile.family import BuildOptions
from framework.engines import manifest
from framework.engines.backend import Backend, compile_engine, open_engine
from framework.engines.base import Engine
from framework.engines.tensorrt.backend import TensorRT
from framework.errors import ConfigError, StageError
from models.qwen3_codec.config import FRAME, CodecConfig, SpeakerConfig
from models.qwen3_codec.network import CodecDecoder
from models.qwen3_codec.processing import VoiceEncoder, log_mel
from models.qwen3_codec.topology import codec_components
from models.qwen3_codec.weights import DECODER, codec_weights
from tests.models.qwen3_codec import tiny
from tests.models.running import CPU

ADA = TensorRT(module="tensorrt_rtx", compute_capability="8.9")
OPTIONS = BuildOptions(max_batch_size=4)
COMPONENTS = ("code2wav", "speech_tokenizer_encoder", "speaker_encoder")
CODES = tiny.random_codes(110)  # longer than the window of 72


def compiled(
    checkpoint: Path, folder: Path, name: str, backend: Backend, dtype: str = "float32", **options: Any
) -> Path:
    components = codec_components(open_checkpoint(checkpoint), attrs.evolve(OPTIONS, **options))
    component = next(component for component in components if component.name == name)
    folder = folder / name
    folder.mkdir(parents=True)
    model = component.model(dtype)
    model.metadata_props.setdefault("precision", options.get("precision", "fp32"))
    states, caps, opt = component.states, component.caps, component.opt
    compile_engine(model, folder, backend, states=states, caps=caps, opt=opt)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny.save_codec(folder / "speech_tokenizer")
    return tiny.save_speaker(folder)


@pytest.fixture(scope="module")
def engines(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    for name in COMPONENTS:
        compiled(checkpoint, folder, name, CPU)
    return folder


@pytest.fixture(scope="module")
def vocoder(engines: Path) -> Iterator[Engine]:
    with open_engine(engines / "code2wav", CPU) as engine:
        yield engine


@pytest.fixture(scope="module")
def voice(engines: Path) -> Iterator[VoiceEncoder]:
    with VoiceEncoder(engines / "speech_tokenizer_encoder", engines / "speaker_encoder", CPU) as encoder:
        yield encoder


def decode(engine: Engine, utterances: Sequence[tiny.Array], calls: Sequence[Sequence[int]]) -> list[tiny.Array]:
    """Sound of each row; a call gives how many frames each row brings, and shorter rows are padded with noise."""
    rng = np.random.default_rng(2)
    rows, states = len(utterances), engine.new_states(len(utterances))
    done = np.zeros(rows, np.int64)
    parts: list[list[tiny.Array]] = [[] for _ in utterances]
    for counts in calls:
        call = engine.bind({"frames": max(counts)}, states)
        codes = rng.integers(0, 2048, (rows, max(counts), 16))
        for row, count in enumerate(counts):
            codes[row, :count] = utterances[row][done[row] : done[row] + count]
        call.write("codes", codes)
        call.write("past_lengths", done)
        call.write("frame_counts", np.array(counts, np.int64))
        call()
        for row, count in enumerate(counts):
            parts[row].append(call.read("audio")[row, :count].reshape(-1).copy())
        done = done + counts
    return [np.concatenate(part) for part in parts]


@pytest.mark.parametrize("frames", [1, 110])
def test_sound_is_that_of_the_published_decoder(vocoder: Engine, frames: int) -> None:
    [sound] = decode(vocoder, [tiny.random_codes(frames)], [[frames]])
    assert len(sound) == frames * 1920
    np.testing.assert_allclose(sound[:: tiny.SAMPLED], tiny.expected()[f"audio.{frames}"], atol=2e-5)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([1] * 110, id="frame by frame"),
        pytest.param([25, 25, 25, 25, 10], id="chunks of 25"),
        pytest.param([4, 25, 25, 25, 25, 6], id="a small first chunk"),
        pytest.param([100, 10], id="long, then short"),
        pytest.param([2, 71, 37], id="up to the window's edge"),
    ],
)
def test_any_cut_gives_the_same_samples(vocoder: Engine, calls: list[int]) -> None:
    [whole] = decode(vocoder, [CODES], [[110]])
    [cut] = decode(vocoder, [CODES], [[count] for count in calls])
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_rows_bring_unequal_numbers_of_frames_and_rest(vocoder: Engine) -> None:
    utterances = [tiny.random_codes(length, seed) for seed, length in enumerate((40, 23, 31))]
    together = decode(vocoder, utterances, [(25, 3, 0), (15, 20, 6), (0, 0, 25)])
    for codes, sound in zip(utterances, together, strict=True):
        [alone] = decode(vocoder, [codes], [[len(codes)]])
        np.testing.assert_allclose(sound, alone, atol=1e-5)


def test_states_do_not_grow_with_the_utterance(vocoder: Engine) -> None:
    """5 minutes, 3,750 frames, are as much as 1; the frames that are heard at the end are the last ones."""
    states = vocoder.new_states(1)
    assert {dim for state in vocoder.spec.states for dim in state.input.shape if isinstance(dim, str)} == {"batch"}
    assert states.nbytes < 300_000
    long = np.concatenate([tiny.random_codes(3600, 5), CODES])
    [sound] = decode(vocoder, [long], [[250]] * 14 + [[210]])
    [ending] = decode(vocoder, [long[-250:]], [[250]])  # two layers of 72 see back less than 150 frames
    np.testing.assert_allclose(sound[-90 * FRAME :], ending[-90 * FRAME :], atol=1e-5)


@pytest.mark.parametrize("samples", [4800, 48_000, 30_001, 300_000])
def test_codes_of_a_voice_are_those_of_the_published_encoder(voice: VoiceEncoder, samples: int) -> None:
    np.testing.assert_array_equal(voice.codes(tiny.noise(samples)), tiny.expected()[f"codes.{samples}"])


def test_padding_behind_a_voice_is_not_heard(engines: Path) -> None:
    samples = tiny.noise(30_001)
    padded = np.random.default_rng(1).standard_normal((1, 20, FRAME)).astype(np.float32)
    padded.reshape(-1)[: len(samples)] = samples
    with open_engine(engines / "speech_tokenizer_encoder", CPU) as engine:
        codes = engine.run({"samples": padded, "lengths": np.array([len(samples)])})["codes"]
    np.testing.assert_array_equal(codes[0, :16], tiny.expected()["codes.30001"])


@pytest.mark.parametrize("samples", [4800, 48_000])
def test_the_speaker_is_that_of_the_published_encoder(voice: VoiceEncoder, samples: int) -> None:
    np.testing.assert_allclose(log_mel(tiny.noise(samples)), tiny.expected()[f"mel.{samples}"], atol=1e-4)
    np.testing.assert_allclose(voice.speaker(tiny.noise(samples)), tiny.expected()[f"speaker.{samples}"], atol=1e-4)


@pytest.mark.parametrize(("seconds", "got"), [(0.05, "0.05 s"), (41, "41.00 s")])
def test_a_voice_too_short_or_too_long_is_refused(voice: VoiceEncoder, seconds: float, got: str) -> None:
    with pytest.raises(StageError, match=f"requests\\[3\\].ref_audio: got {got}, expected 0.1 to 40 s of a voice"):
        voice.codes(np.zeros(int(seconds * 24_000), np.float32), "requests[3].ref_audio")


def test_a_codebook_is_sums_by_how_often_each_entry_was_used(tmp_path: Path) -> None:
    folder = tiny.save_codec(tmp_path)
    weights = load_file(folder / "model.safetensors")
    layer = "decoder.quantizer.rvq_first.vq.layers.0._codebook"
    weights[f"{layer}.cluster_usage"][:2] = 0, 4  # one was never used
    save_file(weights, folder / "model.safetensors")
    network = CodecDecoder(CodecConfig.from_checkpoint(tiny.CONFIG, "config").decoder, dtype="float32")
    read = codec_weights(network, open_checkpoint(folder), prefix=DECODER, where="codec")
    expected = weights[f"{layer}.embedding_sum"][:2] / np.array([[1e-5], [4]], np.float32)
    np.testing.assert_allclose(read["quantizer.rvq_first.codebook"].numpy()[0, :2], expected, rtol=1e-6)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_the_codec_keeps_its_precision_where_a_talker_is_rounded(
    checkpoint: Path, tmp_path: Path, precision: str
) -> None:
    folder = compiled(checkpoint, tmp_path, "code2wav", CPU, precision=precision)
    with open_engine(folder, CPU) as engine:
        [sound] = decode(engine, [tiny.random_codes(1)], [[1]])
    np.testing.assert_allclose(sound[:: tiny.SAMPLED], tiny.expected()["audio.1"], atol=2e-5)


def test_only_a_base_checkpoint_clones(checkpoint: Path, tmp_path: Path) -> None:
    base = codec_components(open_checkpoint(checkpoint), OPTIONS)
    assert tuple(component.name for component in base) == COMPONENTS
    tiny.save_codec(tmp_path / "speech_tokenizer")
    tiny.save_speaker(tmp_path)
    (tmp_path / "config.json").write_text('{"tts_model_type": "custom_voice"}')
    custom = codec_components(open_checkpoint(tmp_path), OPTIONS)
    assert [component.name for component in custom] == ["code2wav"]


def test_a_checkpoint_without_its_codec_is_refused(tmp_path: Path) -> None:
    tiny.save_speaker(tmp_path)
    with pytest.raises(ConfigError, match="got no speech_tokenizer/, expected the folder with the codec"):
        codec_components(open_checkpoint(tmp_path), OPTIONS)


def test_every_fault_of_a_codec_config_is_found() -> None:
    config = json.loads(json.dumps(tiny.CONFIG))
    config["decoder_config"] |= {"upsample_rates": [8, 5, 4, 4], "num_quantizers": 8, "hidden_act": "gelu"}
    config["encoder_config"] |= {"pad_mode": "reflect", "num_filters": "four"}
    del config["decoder_config"]["codebook_dim"]
    with pytest.raises(ConfigError) as error:
        CodecConfig.from_checkpoint(config, "config.json")
    assert {problem.where for problem in error.value.problems} == {
        "config.json: decoder_config.codebook_dim",
        "config.json: decoder_config.upsampling_ratios",
        "config.json: decoder_config.num_quantizers",
        "config.json: decoder_config.hidden_act",
        "config.json: encoder_config.num_filters",
        "config.json: encoder_config.pad_mode",
    }


def test_a_speaker_encoder_of_another_mel_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"speaker_encoder_config\.mel_dim: got 80, expected 128"):
        SpeakerConfig.from_checkpoint({"speaker_encoder_config": {"mel_dim": 80}}, "config.json")


@pytest.mark.parametrize(
    ("name", "dtype"), [("code2wav", "float32"), ("code2wav", "bfloat16"), *((name, "float16") for name in COMPONENTS)]
)
def test_every_network_becomes_a_plan(checkpoint: Path, tmp_path: Path, name: str, dtype: str) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")
    folder = compiled(checkpoint, tmp_path, name, ADA, dtype)
    assert manifest.read(folder).files["engine.plan"].bytes > 10_000
