"""Three real models in one graph: Whisper hears, SmolLM2 answers, hibari speaks.

The weights are downloaded once, into the cache; without a network and a filled cache these tests are skipped. Speech is
judged by writing it down again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import soundfile

from framework.cli import app, inference
from framework.cli.composition import Composer, values_of
from framework.compile.joining import join
from framework.deployment import building
from framework.deployment.config import InferenceConfig
from framework.deployment.requested import single_request
from framework.deployment.system import deployed, make_executor
from framework.execution.executor import Executor
from framework.execution.request import Request, Result
from framework.execution.results import speech_of, text_of
from framework.graph import files
from framework.graph.model import FILE_NAME
from framework.schema import structure
from tests.models import published

DATA = Path(__file__).parents[1] / "data"
PRESET = "deployment=voice_assistant"
FRANCE = "What is the capital of France?"
PLANTS = "What do plants need to grow?"  # answered in several sentences


def configured(*overrides: str) -> InferenceConfig:
    with Composer("inference", [PRESET, "sampling=greedy", "backend.threads=2", *overrides]) as composer:
        return structure(InferenceConfig, values_of(composer.compose()), where="")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Engines of the preset."""
    pytest.importorskip("hibari")
    folder = tmp_path_factory.mktemp("voice_assistant") / "engines"
    config = configured(f"engine_dir={folder}")
    with published.skipping():
        building.fetch_all(config.deployment, config.paths)
    building.build(config)
    return folder


@pytest.fixture(scope="module")
def ask(engines: Path) -> Callable[..., int]:
    """The command, in this process; its exit status."""

    def ask(*arguments: str) -> int:
        settings = [
            PRESET,
            f"engine_dir={engines}",
            "sampling=greedy",
            "backend.threads=2",
            "backend.spin=in_call",
            *arguments,
        ]
        return app.call("inference", inference.task, settings, inference.HOOKS)

    return ask


@pytest.fixture(scope="module")
def executor(engines: Path) -> Iterator[Executor]:
    config = configured(f"engine_dir={engines}")
    with make_executor(config, deployed(config), 1) as executor:
        yield executor


@pytest.fixture(scope="module")
def question(engines: Path) -> Path:
    """FRANCE, spoken: a part of a joined deployment runs alone from its own folder."""
    path = engines.parent / "question.wav"
    assert (
        app.call(
            "inference",
            inference.task,
            ["deployment=hibari", f"engine_dir={engines / 'tts'}", f"prompt={FRANCE}", f"out_audio={path}"],
        )
        == 0
    )
    return path


def request(engines: Path, *overrides: str) -> Request:
    (found,) = single_request(configured(f"engine_dir={engines}", *overrides)).good
    return found


def answer(executor: Executor, engines: Path, *overrides: str) -> Result:
    (result,) = executor.run([request(engines, *overrides)])
    assert result.ok, result.error
    return result


def sound(result: Result) -> np.ndarray[Any, np.dtype[np.float32]]:
    speech = speech_of(result)
    assert speech is not None and speech[0] == "tts"
    return speech[1].samples


def written(result: Result) -> str:
    return text_of(result.outputs["thinker:text"])


# One request


def test_a_spoken_question_is_answered_in_text_and_in_speech(
    ask: Callable[..., int], question: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoken = tmp_path / "answer.wav"
    assert ask(f"audio={question}", f"out_audio={spoken}", "dump_profile=true") == 0
    captured = capfd.readouterr()
    assert captured.out == "The capital of France is Paris.\n"
    assert f"asr heard: {FRANCE}\n" in captured.err
    assert "real-time factor" in captured.err
    info = soundfile.info(spoken)
    assert (info.samplerate, info.channels, info.subtype) == (24000, 1, "PCM_16")
    assert 1.0 < info.duration < 6.0


@pytest.mark.parametrize(
    ("asked", "wanted", "stages"),
    [
        ("prompt", "text", {"thinker"}),
        ("prompt", "audio", {"thinker", "tts"}),
        ("audio", "text", {"asr", "thinker"}),
        ("audio", "audio", {"asr", "thinker", "tts"}),
    ],
    ids=["typed, text", "typed, speech", "spoken, text", "spoken, speech"],
)
def test_only_the_stages_a_request_needs_are_opened(
    engines: Path, question: Path, asked: str, wanted: str, stages: set[str]
) -> None:
    given = f"prompt={FRANCE}" if asked == "prompt" else f"audio={question}"
    config = configured(f"engine_dir={engines}", given, *(["out_audio=a.wav"] if wanted == "audio" else []))
    with make_executor(config, deployed(config), 1) as executor:
        (result,) = executor.run(single_request(config).good)
        assert executor.opened == stages == result.stages.keys()
    assert written(result) == "The capital of France is Paris."


def test_a_question_that_is_neither_typed_nor_spoken_is_refused(
    ask: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask("out_audio=a.wav") == 2
    assert "prompt: got nothing, expected a request" in capfd.readouterr().err


def test_speech_with_nowhere_to_go_is_refused(engines: Path, capfd: pytest.CaptureFixture[str]) -> None:
    alone = ["deployment=hibari", f"engine_dir={engines / 'tts'}"]
    assert app.call("inference", inference.task, [*alone, "prompt=Hello."]) == 2
    assert "out_audio: got nothing, expected a place for what this graph gives: audio" in capfd.readouterr().err


def test_an_answer_is_drawn_over_the_time_line_of_its_stages(
    ask: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture, spoken = tmp_path / "answer.svg", tmp_path / "answer.wav"
    assert ask(f"prompt={FRANCE}", f"out_audio={spoken}", f"out_timeline={picture}") == 0
    assert picture.read_text().count("<image") == 1  # the spectrogram
    assert ask(f"prompt={FRANCE}", "out_timeline=answer.gif") == 2
    assert "out_timeline: got 'answer.gif', expected a file name in .png, .svg, .pdf" in capfd.readouterr().err


# While it speaks


def test_it_speaks_while_it_writes(executor: Executor, engines: Path) -> None:
    result = answer(executor, engines, f"prompt={PLANTS}", "out_audio=a.wav")
    assert result.stages["tts"].details["sentences"] > 1
    assert (result.stages["tts"].first_output_s or 9e9) < result.stages["thinker"].end_s


def test_it_sounds_the_same_when_it_waits_for_the_whole_answer(executor: Executor, engines: Path) -> None:
    config = configured(f"engine_dir={engines}", "whole_utterance=true", f"prompt={PLANTS}", "out_audio=a.wav")
    with make_executor(config, deployed(config), 1) as waiting:
        (late,) = waiting.run(single_request(config).good)
    streamed = answer(executor, engines, f"prompt={PLANTS}", "out_audio=a.wav")
    assert len(late.outputs["tts:audio"]) == 1 < len(streamed.outputs["tts:audio"])
    assert (late.stages["tts"].first_output_s or 0) > late.stages["thinker"].end_s
    assert np.array_equal(sound(late), sound(streamed))


def test_speed_is_a_setting(executor: Executor, engines: Path) -> None:
    typed = (f"prompt={FRANCE}", "out_audio=a.wav")
    normal, fast = answer(executor, engines, *typed), answer(executor, engines, *typed, "style.speed=1.5")
    assert len(sound(normal)) / len(sound(fast)) == pytest.approx(1.5, rel=0.1)


# A file of requests


@pytest.mark.parametrize(
    ("batching", "spoken"), [("cohort", False), ("inflight", True)], ids=["cohort, text out", "in flight, speech out"]
)
def test_spoken_and_typed_questions_in_one_file(
    ask: Callable[..., int], question: Path, tmp_path: Path, batching: str, spoken: bool
) -> None:
    (tmp_path / "text.wav").write_text("no sound")
    soundfile.write(tmp_path / "stereo.wav", np.repeat(soundfile.read(question)[0][:, None], 2, axis=1), 24000)
    requests = [
        {"audio": str(question)},
        {"prompt": FRANCE},
        {"audio": str(tmp_path / "text.wav")},
        {"audio": str(tmp_path / "stereo.wav")},
        {"system": "You are a helpful AI assistant."},
    ]
    (tmp_path / "requests.json").write_text(json.dumps({"requests": requests}))
    out, said = tmp_path / "predictions.json", tmp_path / "said"
    places = [f"input_file={tmp_path / 'requests.json'}", f"output_file={out}"]
    assert ask(*places, f"batching={batching}", "batching.size=4", *[f"output_audio_dir={said}"] * spoken) == 1
    entries = json.loads(out.read_text())["responses"]
    assert [entry["ok"] for entry in entries] == [True, True, False, True, False]
    assert [entry["output_text"] for entry in entries if entry["ok"]] == ["The capital of France is Paris."] * 3
    assert "text.wav" in entries[2]["error"] and "expected a sound file" in entries[2]["error"]
    assert entries[0]["stages"]["asr"]["transcript"] == entries[3]["stages"]["asr"]["transcript"] == FRANCE
    assert "asr" not in entries[1]["stages"]
    names = ["audio_req0.wav", "audio_req1.wav", "audio_req3.wav"] if spoken else []
    assert sorted(path.name for path in said.glob("*")) == names
    for name in names:
        assert soundfile.info(said / name).samplerate == 24000


def test_silence_is_an_error_of_its_own_request(ask: Callable[..., int], tmp_path: Path) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(16000), 16000)
    (tmp_path / "requests.json").write_text(
        json.dumps({"requests": [{"audio": str(tmp_path / "silence.wav")}, {"prompt": FRANCE}]})
    )
    assert ask(f"input_file={tmp_path / 'requests.json'}", f"output_file={tmp_path / 'p.json'}", "batching.size=2") == 1
    silent, typed = json.loads((tmp_path / "p.json").read_text())["responses"]
    assert silent["error"] == "request 0: audio: got no speech in it, expected something said"
    assert typed["ok"]


# Judged by ear


@pytest.fixture(scope="module")
def dictate(engines: Path) -> Iterator[Callable[..., list[str]]]:
    """What Whisper writes when hibari says the texts: the two parts, joined the other way round."""
    parts = {name: files.load(engines / name / FILE_NAME) for name in ("tts", "asr")}
    silent = {"emits": {"audio": {"terminal": False}}}
    graph = join(parts, {"asr": {"inputs": {"audio": {"from": "tts:audio"}}}, "tts": silent})
    config = configured(f"engine_dir={engines}", "batching=inflight")
    system = attrs.evolve(deployed(config), graph=graph)
    with make_executor(config, system, 4) as executor:

        def dictate(*texts: str) -> list[str]:
            requests = [Request(index=index, fields={"messages": text}) for index, text in enumerate(texts)]
            results = sorted(executor.run(requests), key=lambda result: result.request.index)
            assert [result.error for result in results if not result.ok] == []
            return [text_of(result.outputs["asr:text"]) for result in results]

        yield dictate


def words(text: str) -> list[str]:
    """As the authors of Whisper compare texts: numbers in digits, no punctuation, contractions written out."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return list(EnglishTextNormalizer({})(text.replace("*", "").replace("-", " ")).split())


def wrong(said: str, heard: str) -> tuple[int, int]:
    """Words to change, insert or leave out, and words said."""
    left, right = words(said), words(heard)
    row = np.arange(len(right) + 1)
    for index, word in enumerate(left, 1):
        change = row[:-1] + np.array([word != other for other in right], int)
        best = np.minimum(change, row[1:] + 1) if len(right) else change
        new = [index]
        for value in best:
            new.append(min(int(value), new[-1] + 1))
        row = np.array(new)
    return int(row[-1]), len(left)


def test_errors_are_counted_in_words() -> None:
    assert wrong("It's 25 cats!", "It is twenty five cats.") == (0, 4)
    assert wrong("a cat sat", "the cat sat down") == (2, 3)
    assert wrong("a cat sat", "") == (3, 3)


def test_what_hibari_says_whisper_writes_word_for_word(dictate: Callable[..., list[str]]) -> None:
    lines = (DATA / "sentences.txt").read_text(encoding="utf-8").splitlines()
    pairs = [(line.partition("\t")[0], line.partition("\t")[2] or line) for line in lines]
    assert len(pairs) == 50
    heard = dictate(*(text for text, _ in pairs))
    counts = [wrong(said, text) for (_, said), text in zip(pairs, heard, strict=True)]
    rate = sum(faults for faults, _ in counts) / sum(total for _, total in counts)
    faulty = [f"{said!r} -> {text!r}" for (_, said), text, (n, _) in zip(pairs, heard, counts, strict=True) if n]
    assert rate <= 0.05, f"word error rate {rate:.1%}\n" + "\n".join(faulty)


def test_the_spoken_answer_is_the_written_one(
    executor: Executor, engines: Path, question: Path, tmp_path: Path, dictate: Callable[..., list[str]]
) -> None:
    for asked in (f"audio={question}", f"prompt={PLANTS}"):
        result = answer(executor, engines, asked, "out_audio=a.wav")
        soundfile.write(tmp_path / "answer.wav", sound(result), 24000)
        heard = answer(executor, engines, f"audio={tmp_path / 'answer.wav'}").stages["asr"].details["transcript"]
        faults, total = wrong(written(result), heard)
        assert faults <= 0.1 * total, f"{written(result)!r} -> {heard!r}"
