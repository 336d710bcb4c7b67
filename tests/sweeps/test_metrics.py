"""What each number says of a text, of a sound, of a request and of a point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framework.execution.payloads import AudioChunk
from framework.io.audio import read_audio, write_wav
from framework.sweeps.metrics import (
    METRICS,
    measure,
    repeated,
    speech_measures,
    summary,
    text_measures,
    word_errors,
    words,
)
from tests.sweeps.folders import entry, spoken


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", 0),
        ("no", 0),
        ("all different words here", 0),
        ("no no no", 2),
        ("the cat the cat the cat sat", 4),
        ("it is what it is", 0),  # a word that comes again is no repetition
        ("a b a b x y x y x y", 4),
    ],
)
def test_repeated_words_are_those_said_again_right_after_themselves(text: str, most: int) -> None:
    assert repeated(text.split()) == most


def test_distinct_pairs_of_words() -> None:
    assert text_measures("a b c")["distinct_2"] == 1.0
    assert text_measures("no no no no")["distinct_2"] == pytest.approx(1 / 3, abs=1e-3)
    assert text_measures("word") == {"repeated_words": 0}
    assert text_measures(" … ") == {}


def test_words_are_compared_without_case_and_punctuation() -> None:
    assert words("It’s 7 o'clock, ISN'T it?") == ["it's", "7", "o'clock", "isn't", "it"]


@pytest.mark.parametrize(
    ("reference", "heard", "errors"),
    [
        ("a b c", "A, b. C!", 0),
        ("a b c", "a c", 1),
        ("a b c", "a x b c", 1),
        ("a b c", "a x c", 1),
        ("a b c", "", 3),
        ("the cat sat down", "a cat that sat", 3),
    ],
)
def test_word_errors_are_the_fewest_edits(reference: str, heard: str, errors: int) -> None:
    assert word_errors(reference, heard) == (errors, len(words(reference)))


def test_silence_is_measured_in_frames_of_20_ms_below_50_db() -> None:
    rate = 1000  # 20 samples a frame
    samples = np.concatenate([np.full(200, 0.5), np.full(100, 1e-3), np.full(200, 0.5), np.zeros(500)])
    found = speech_measures(AudioChunk(samples=samples.astype(np.float32), sample_rate=rate))
    assert found == {"silent_share": 0.6, "longest_silence_s": 0.5, "clipped_share": 0.0}


@pytest.mark.parametrize(("level", "silent"), [(10 ** (-49 / 20), 0.0), (10 ** (-51 / 20), 1.0)])
def test_the_bound_of_silence(level: float, silent: float) -> None:
    samples = np.full(1000, level, np.float32)
    assert speech_measures(AudioChunk(samples=samples, sample_rate=1000))["silent_share"] == silent


def test_samples_that_a_file_had_to_clamp_are_clipped(tmp_path: Path) -> None:
    samples = np.array([0.0, 0.9, 1.5, -1.5] * 100, np.float32)
    write_wav(tmp_path / "loud.wav", AudioChunk(samples=samples, sample_rate=8000))
    assert speech_measures(read_audio(tmp_path / "loud.wav"))["clipped_share"] == 0.5


def test_a_sound_without_samples_has_no_measures() -> None:
    assert speech_measures(AudioChunk(samples=np.zeros(0, np.float32), sample_rate=8000)) == {}


def test_a_request_with_speech(tmp_path: Path) -> None:
    found = measure(spoken(tmp_path), {"text": "thinker", "audio": "tts"}, tmp_path)
    assert (found["tokens"], found["tokens_per_s"]) == (10, 10.0)
    assert (found["first_token_s"], found["first_audio_s"]) == (0.2, 0.4)
    assert (found["audio_s"], found["rtf"], found["speedup"]) == (2.0, 0.75, 1.3333)
    assert (found["silent_share"], found["longest_silence_s"]) == (0.5, 1.0)


def test_what_does_not_apply_is_absent(tmp_path: Path) -> None:
    found = measure(entry(text="hello"), None, tmp_path)
    assert not {"audio_s", "rtf", "silent_share", "wer", "distinct_2"} & found.keys()
    assert measure({}, None, tmp_path) == {"index": 0, "ok": False, "finish_reason": None}


def test_the_text_is_the_thinkers_not_the_transcribers(tmp_path: Path) -> None:
    given = entry()
    given["stages"] = {"asr": {"generated_tokens": 99, "transcript": "hm"}, **given["stages"]}
    assert measure(given, None, tmp_path)["tokens"] == 10
    assert measure(given, {"text": "asr"}, tmp_path)["tokens"] == 99


def test_a_broken_sound_file_takes_no_other_number_away(tmp_path: Path) -> None:
    given = spoken(tmp_path)
    Path(given["audio_file"]).write_bytes(b"RIFF, but no sound")
    found = measure(given, None, tmp_path)
    assert found["tokens"] == 10
    assert "silent_share" not in found


def test_a_point_is_its_requests_together() -> None:
    requests = [
        {"tokens": 10, "audio_s": 1.0, "silent_share": 0.0, "repeated_words": 0, "first_token_s": 0.1,
         "finish_reason": "end-of-sequence", "word_errors": 1, "words": 10},
        {"tokens": 30, "audio_s": 3.0, "silent_share": 0.4, "repeated_words": 5, "first_token_s": 0.3,
         "finish_reason": "max-length", "word_errors": 3, "words": 10},
    ]  # fmt: skip
    found = summary(requests, {"load_s": 1.0, "run_s": 2.0, "wall_s": 4.0})
    assert (found["tokens"], found["tokens_per_s"]) == (40, 20.0)
    assert (found["audio_s"], found["rtf"], found["speedup"]) == (4.0, 0.5, 2.0)
    assert found["silent_share"] == pytest.approx(0.3)
    assert (found["repeated_words"], found["first_token_s"], found["wer"]) == (5, 0.2, 0.2)
    assert found["finish_reasons"] == "end-of-sequence 1, max-length 1"
    assert [*found] == [name for name in [*(metric.name for metric in METRICS), "finish_reasons"] if name in found]
