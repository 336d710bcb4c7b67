"""Whisper tiny.en with its real weights: transformers' ids (see tests/oracles/record_whisper.py), and real words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest
import soundfile

from framework.execution.payloads import AudioChunk
from framework.execution.policies import InFlight
from framework.io.audio import load_audio
from models.whisper.runners import TranscriberConfig
from tests.models.whisper import tiny
from tests.models.whisper.tiny import RATE

DATA = Path(__file__).parents[2] / "data"
RECORDED = json.loads((Path(__file__).parent / "tiny_en.json").read_text(encoding="utf-8"))["cases"]
STORY = (
    "The old lighthouse stood at the end of a long stone pier. Every evening, the keeper climbed two hundred steps to "
    "light the lamp. Sailors far out at sea looked for its warm glow, and they knew that they were close to home. One "
    "winter night, a terrible storm came from the north. The waves rose as high as houses, and the wind tore the roof "
    "from the boat shed. The keeper did not sleep. He carried oil up the stairs again and again, so that the light "
    "would not go out. At four in the morning, a small fishing boat appeared between the waves. Its captain had seen "
    "the lamp, and he steered straight for the harbor. When the boat was finally safe, the whole crew climbed the "
    "tower to thank the old man."
)
SPEECH = TranscriberConfig(sampling="default")


@pytest.fixture(scope="module")
def story() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """44.4 s of synthetic speech at 16 kHz."""
    return load_audio(DATA / "story.ogg", RATE)


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9' ]", " ", text.lower().replace("200", "two hundred")).split()


def heard(engines: Path, *sounds: AudioChunk | tuple[str, ...], config: TranscriberConfig = SPEECH) -> list[str]:
    with tiny.opened(engines, config) as executor:
        results = tiny.answers(executor, [tiny.request(index, sound) for index, sound in enumerate(sounds)])
    return [tiny.text_of(result) for result in results]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['start']} s, timed={case['timed']}")
def test_greedy_ids_equal_transformers(
    tiny_en: Callable[[str], Path], story: np.ndarray, case: dict[str, object]
) -> None:
    start, stop = (round(float(case[key]) * RATE) for key in ("start", "stop"))  # type: ignore[arg-type]
    config = attrs.evolve(SPEECH, timestamps=bool(case["timed"]))
    with tiny.opened(tiny_en("fp32"), config) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(story[start:stop]))])
    assert tiny.ids_of(result) == case["words"]
    if case["timed"]:
        lines = tiny.text_of(result).splitlines()
        assert [line[1:24] for line in lines] == case["spans"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_story_longer_than_a_window_is_written_word_for_word(
    tiny_en: Callable[[str], Path], story: np.ndarray, precision: str
) -> None:
    assert [words(text) for text in heard(tiny_en(precision), tiny.sound(story))] == [words(STORY)]


@pytest.mark.parametrize("timestamps", [False, True], ids=["text", "timestamps"])
def test_no_word_is_lost_or_said_twice_at_the_joints(
    tiny_en: Callable[[str], Path], story: np.ndarray, timestamps: bool
) -> None:
    """Three times the story, begun at another place of it: joints fall on other words."""
    cut = round(14.1 * RATE)  # behind "close to home."
    long = np.concatenate([story[cut:], story, story])
    first = words(STORY)[words(STORY).index("one") :]
    (text,) = heard(tiny_en("int8"), tiny.sound(long), config=attrs.evolve(SPEECH, timestamps=timestamps))
    spans = re.findall(r"\[(\S+) --> (\S+)\]", text)
    assert words(re.sub(r"\[.*?\]", "", text)) == [*first, *words(STORY), *words(STORY)]
    assert bool(spans) is timestamps
    assert spans == sorted(spans)
    if timestamps:
        assert abs(seconds(spans[-1][1]) - len(long) / RATE) < 1.0


def seconds(clock: str) -> float:
    minutes, rest = clock.split(":")
    return 60 * int(minutes) + float(rest)


@pytest.mark.parametrize(
    ("name", "rate", "channels", "options"),
    [
        ("a.wav", 96000, 2, {"subtype": "PCM_24"}),
        ("a.wav", 8000, 1, {"subtype": "PCM_U8"}),
        ("a.flac", 44100, 1, {}),
        ("a.mp3", 48000, 2, {}),
        ("a.ogg", 22050, 1, {}),
    ],
    ids=["wav 96 kHz stereo 24 bit", "wav 8 kHz 8 bit", "flac 44.1 kHz", "mp3 48 kHz stereo", "ogg 22.05 kHz"],
)
def test_every_kind_of_file_is_heard(
    tiny_en: Callable[[str], Path],
    story: np.ndarray,
    tmp_path: Path,
    name: str,
    rate: int,
    channels: int,
    options: dict[str, str],
) -> None:
    import soxr

    samples = soxr.resample(story[: 4 * RATE], RATE, rate)
    soundfile.write(tmp_path / name, np.stack([samples] * channels, axis=1), rate, **options)
    (text,) = heard(tiny_en("int8"), (str(tmp_path / name),))
    assert words(text) == words(STORY)[:12]


def test_bad_sounds_are_errors_of_their_own_requests(tiny_en: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "empty.wav").write_bytes(b"")
    soundfile.write(tmp_path / "none.wav", np.zeros(0, np.float32), RATE)
    soundfile.write(tmp_path / "nan.wav", np.array([0.1, np.nan], np.float32), RATE, subtype="FLOAT")
    expected = {
        (str(tmp_path / "text.wav"),): "expected a sound file",
        (str(tmp_path / "empty.wav"),): "got an empty file, expected a sound file",
        (str(tmp_path / "none.wav"),): "got no samples",
        (str(tmp_path / "nan.wav"),): "got 1 samples that are no numbers",
        (str(tmp_path / "missing.wav"),): "expected a file that exists",
        ("a.wav", "b.wav"): "got 2 sounds, expected one",
        (str(DATA / "story.ogg"),): "",
    }
    with tiny.opened(tiny_en("int8"), policy=InFlight(3)) as executor:
        results = tiny.answers(executor, [tiny.request(i, audio) for i, audio in enumerate(expected)])
    for result, message in zip(results, expected.values(), strict=True):
        assert result.ok is not bool(message)
        assert message in str(result.error or "")


@pytest.mark.parametrize("length", [1, 800, 5 * RATE, 65 * RATE], ids=["a sample", "50 ms", "5 s", "65 s"])
@pytest.mark.parametrize("level", [0.0, 0.0003, 0.1], ids=["silence", "faint hiss", "loud hiss"])
def test_no_words_are_made_up(tiny_en: Callable[[str], Path], length: int, level: float) -> None:
    samples = level * np.random.default_rng(0).standard_normal(length)
    with tiny.opened(tiny_en("int8"), SPEECH) as executor:
        (result,) = tiny.answers(executor, [tiny.request(0, tiny.sound(samples))])
    assert not result.outputs["asr:text"]
    assert str(result.error) == "request 0: audio: got no speech in it, expected something said"
    assert result.stages["asr"].details["finish_reason"] == "no-speech"


def test_pauses_before_between_and_behind_words_are_skipped(tiny_en: Callable[[str], Path], story: np.ndarray) -> None:
    hush = np.random.default_rng(0).standard_normal(40 * RATE).astype(np.float32) * 2e-4
    sentence = story[: 4 * RATE]
    (text,) = heard(tiny_en("int8"), tiny.sound(np.concatenate([hush, sentence, hush, sentence, hush])))
    assert words(text) == words(STORY)[:12] * 2
