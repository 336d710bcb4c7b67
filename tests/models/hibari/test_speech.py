"""What hibari says, against the package itself and through the real executor."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx_ir as ir
import pytest

from framework.compile.builder import build
from framework.engines import manifest
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.tensorrt.backend import TensorRT
from framework.errors import ConfigError
from framework.execution.executor import Executor
from framework.execution.policies import InFlight
from framework.execution.request import Request, Result
from framework.execution.runner import OpenContext
from framework.graph.files import load
from framework.graph.model import FILE_NAME
from models.hibari import network
from models.hibari.config import MAX_PHONEMES
from models.hibari.processing import FrontEnd, Part, joined, pack
from models.hibari.runners import Speaker
from models.hibari.topology import Hibari
from tests.models.hibari.writer import CPU, INT8

Speak = Callable[..., list[Result]]
TEXT = "The quick brown fox jumps over the lazy dog. What is your name? It is 7:30 already!"
LONG = (
    "We walked along the river " + "and saw the house, the tree, the bridge and the mill " * 20 + "until it was night."
)


def sound(result: Result) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert result.ok, result.error
    return np.concatenate([chunk.samples for chunk in result.outputs["tts:audio"]])


# The package's own voice


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("text", ["Hello there.", "Qzxv met Bjorn on July 4, 1976, e.g. in Rome.", TEXT], ids=len)
def test_it_gives_the_samples_of_the_package(speak: Speak, package: Any, text: str, seed: int) -> None:
    (result,) = speak(text, seed=seed)
    assert np.array_equal(sound(result), package(text, seed=seed))
    assert {chunk.sample_rate for chunk in result.outputs["tts:audio"]} == {package.sample_rate}


@pytest.mark.parametrize("speed", [0.5, 1.3, 2])
def test_speed_is_the_package_s_too(speak: Speak, package: Any, speed: float) -> None:
    (result,) = speak("Hello there.", speed=speed)
    assert np.array_equal(sound(result), package("Hello there.", speed=speed, seed=0))


def test_the_seed_chooses_the_noise_and_nothing_else(speak: Speak) -> None:
    (one,), (same,), (other,) = speak("Hello there."), speak("Hello there."), speak("Hello there.", seed=1)
    assert np.array_equal(sound(one), sound(same))
    assert len(sound(one)) == len(sound(other)) and not np.array_equal(sound(one), sound(other))


# Streaming


@pytest.mark.parametrize("size", [1, 3, 17])
def test_text_that_comes_in_pieces_sounds_as_the_whole(speak: Speak, size: int) -> None:
    (whole,), (pieces,) = speak(TEXT), speak([TEXT[i : i + size] for i in range(0, len(TEXT), size)])
    assert np.array_equal(sound(whole), sound(pieces))


def test_a_sentence_is_spoken_while_the_next_is_being_written(executor: Executor) -> None:
    order: list[str] = []
    request = Request(
        index=0, fields={"chunks": ["Hello there. ", "How", " are", " you?"]}, kinds=frozenset({"text", "audio"})
    )
    list(executor.run([request], on_chunk=lambda _, terminal, __: order.append(terminal.split(":")[1])))
    assert order == ["text", "text", "audio", "text", "text", "audio"]


def test_requests_sound_alike_alone_and_together(speak: Speak) -> None:
    texts = [TEXT, "Yes.", "Three of them. Or four.", "Nobody knows.", "And a fifth one."]
    together = speak(*texts)
    for text, result in zip(texts, together, strict=True):
        assert np.array_equal(sound(result), sound(speak(text)[0]))


# Long text


def test_a_sentence_too_long_for_the_network_is_said_in_parts_with_a_short_silence_between(speak: Speak) -> None:
    (result,) = speak(LONG)
    chunks = [chunk.samples for chunk in result.outputs["tts:audio"]]
    assert len(chunks) > 2 and result.stages["tts"].details["sentences"] == 1
    for left, right in pairwise(chunks):
        joint = np.concatenate([left[-1000:], right[:1000]])
        assert np.abs(joint).max() < 1e-3  # no click
        silence = np.flatnonzero(np.abs(np.concatenate([left, right])) > 1e-3)
        assert np.diff(silence).max() < 0.5 * 24_000  # no gap as between sentences


@pytest.mark.parametrize("limit", [1, 5, 12, 400])
@pytest.mark.parametrize(
    "phonemes", ["", "həlˈO", "ə, b; c: d", "ə" * 50, "wˈʌn, tˈu θɹˈi fˈɔɹ — fˈIv; sˈɪks.", LONG], ids=len
)
def test_parts_fit_and_hold_every_phoneme_in_order(phonemes: str, limit: int) -> None:
    pieces = pack(phonemes, limit)
    assert all(0 < len(piece) <= limit for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(phonemes.split())
    assert len(phonemes) > limit or pieces == [phonemes] * bool(phonemes)


def test_parts_end_behind_clauses_where_they_can() -> None:
    assert pack("ab cd, ef gh, ij", 10) == ["ab cd,", "ef gh, ij"]


def test_no_phoneme_of_a_long_text_is_lost(package: Any) -> None:
    front_end, read = FrontEnd(), []
    parts = front_end.parts(LONG)
    assert max(part.ids.size for part in parts) <= MAX_PHONEMES + 2
    characters = {number: char for char, number in package.vocab.items()}
    for part in parts:
        assert part.ids[0, 0] == part.ids[0, -1] == 0
        read.append("".join(characters[number] for number in part.ids[0, 1:-1]))
    assert " ".join(read) == package.g2p(LONG)


def test_only_silence_is_cut_away() -> None:
    ids = np.zeros((1, 3), np.int64)
    samples = np.zeros(24_000, np.float32)
    samples[8_000:16_000] = 0.1
    whole = joined(samples, Part(ids=ids, first=True, last=True))
    inner = joined(samples, Part(ids=ids, first=False, last=False))
    assert len(whole) == 24_000 and (len(inner), int((inner > 0).sum())) == (8_000 + 2 * 2_400, 8_000)
    assert len(joined(samples, Part(ids=ids, first=True, last=False))) == 16_000 + 2_400
    assert len(joined(np.zeros(9, np.float32), Part(ids=ids, first=False, last=False))) == 9


# Bad input


@pytest.mark.parametrize(
    "text", ["😀", "... !?", "— *** —", "你好。", ""], ids=["emoji", "dots", "signs", "Chinese", "empty"]
)
def test_nothing_to_say_is_an_error_of_that_request_alone(speak: Speak, text: str) -> None:
    silent, spoken = speak(text, "Hello there.")
    assert not silent.ok and "expected something to say" in str(silent.error)
    assert len(sound(spoken))


def test_sentences_without_words_are_passed_over(speak: Speak) -> None:
    (plain,), (mixed,) = speak("Hello there. Goodbye."), speak("😀! \n\n Hello there. \n --- \n Goodbye. \n 🎉")
    assert np.array_equal(sound(plain), sound(mixed))
    assert mixed.stages["tts"].details["sentences"] == 2


@pytest.mark.parametrize(
    "text",
    ["a-" * 300, "'" * 400, "9" * 60, "1," * 200, "Qzxv" * 100],
    ids=["hyphens", "quotes", "digits", "commas", "word"],
)
def test_what_is_no_language_is_said_all_the_same(speak: Speak, text: str) -> None:
    assert len(sound(speak(f"Well, {text}.")[0]))


@pytest.mark.parametrize("speed", [0.4, 2.1, "fast", True, float("nan")])
def test_a_speed_that_it_cannot_speak_at_is_refused(speak: Speak, speed: Any) -> None:
    (result,) = speak("Hello there.", speed=speed)
    assert not result.ok and "style.speed" in str(result.error) and "from 0.5 to 2.0" in str(result.error)


# Alone


def alone(engines: Path, fields: dict[str, Any]) -> Result:
    graph = load(engines / FILE_NAME)
    (stage,) = graph.stages
    context = OpenContext(engine_dir=engines, artifact=engines / stage.artifact, backend=CPU, batch=1)
    runners = {stage.id: Speaker(stage=stage)}
    with Executor(graph, runners, policy=InFlight(1), make_context=lambda _: context) as executor:
        (result,) = executor.run([Request(index=0, fields=fields)])
    return result


def test_alone_it_says_what_the_user_writes(engines: Path, speak: Speak) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "You are a parrot."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hello there."}]},
        {"role": "user", "content": "Goodbye."},
    ]
    expected = sound(speak("Hello there. Goodbye.")[0])
    assert np.array_equal(sound(alone(engines, {"messages": messages})), expected)
    assert np.array_equal(sound(alone(engines, {"messages": "Hello there. Goodbye."})), expected)


# The build


def test_a_build_is_two_engines_of_the_published_weights(engines: Path, published: Path) -> None:
    encoder, decoder = (manifest.read(engines / place) for place in ("tts/text_encoder", "tts"))
    assert [tensor.name for tensor in encoder.spec.outputs] == [*network.ENCODINGS, "durations"]
    assert [tensor.name for tensor in decoder.spec.inputs] == [*network.ENCODINGS, "alignment"]
    stored = sum(file.bytes for record in (encoder, decoder) for file in record.files.values())
    assert stored < 1.3 * published.stat().st_size  # still 8 bits a weight


def test_other_precisions_are_refused(published: Path, tmp_path: Path) -> None:
    options = attrs.evolve(INT8, precision="fp16")
    with pytest.raises(ConfigError, match=r'build\.precision: got "fp16", expected "int8"'):
        build(published, tmp_path / "e", families={"hibari": Hibari()}, options=options, backend=CPU)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("backend", [OnnxRuntimeCuda(), TensorRT()], ids=lambda backend: backend.name)
def test_it_is_for_the_cpu(published: Path, tmp_path: Path, backend: Any) -> None:
    with pytest.raises(ConfigError, match=f"got int8 on {backend.name}"):
        build(published, tmp_path / "e", families={"hibari": Hibari()}, options=INT8, backend=backend)


def test_another_network_under_its_name_is_refused(tmp_path: Path) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((1,)))
    node = ir.node("Neg", [x])
    node.outputs[0].name = "y"
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 17}, name="other")
    ir.save(ir.Model(graph, ir_version=8), tmp_path / "hibari.onnx")
    with pytest.raises(ConfigError, match="a network of x, y"):
        build(tmp_path / "hibari.onnx", tmp_path / "e", families={"hibari": Hibari()}, options=INT8, backend=CPU)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hibari", None)
    with pytest.raises(ConfigError, match=r"pip install 'multistage\[hibari\]'"):
        FrontEnd()
