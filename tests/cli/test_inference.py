"""`multistage-inference` end to end, with runners that need no engine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import soundfile

from tests.cli.fakes import BEEP, COUNTER, ECHO, engines, infer


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def echo(tmp_path: Path) -> str:
    return f"engine_dir={engines(tmp_path / 'engines' / 'echo', ECHO)}"


@pytest.fixture
def speech(tmp_path: Path) -> str:
    return f"engine_dir={engines(tmp_path / 'engines' / 'speech', ECHO, BEEP)}"


def write_requests(*requests: Any, **top: Any) -> str:
    Path("requests.json").write_text(json.dumps({**top, "requests": list(requests)}))
    return "input_file=requests.json"


def responses(path: str | Path = "predictions.json") -> list[dict[str, Any]]:
    document = json.loads(Path(path).read_text())
    assert document["input_file"] == "requests.json"
    return list(document["responses"])


# --- one request ---------------------------------------------------------------------------------------------------


def test_the_reply_is_all_that_stands_on_stdout(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(echo, "prompt=Hello, you (there) = 'x'") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("Hello, you (there) = 'x'\n", "")
    assert os.listdir() == ["engines"], "one request leaves nothing behind"


def test_a_prompt_from_a_file(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("question.txt").write_text("from a file\n")
    assert infer(echo, "prompt_file=question.txt") == 0
    assert capsys.readouterr().out == "from a file\n"


def write_late(pipe: Path, text: str) -> None:
    """Write to a FIFO a while after it was opened for reading."""
    while True:
        try:
            end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            time.sleep(0.01)
        else:
            time.sleep(0.2)
            os.write(end, text.encode())
            return os.close(end)


def test_a_pipe_that_nobody_writes_to_is_told_and_waited_for(
    echo: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.io.reading.WAIT_S", 0.01)
    for setting, content in {
        "input_file": '{"requests": [{"prompt": "from a pipe"}]}',
        "prompt_file": "from a pipe\n",
        "sampling": "seed: 1\n",
    }.items():
        pipe = Path(f"{setting}.yaml")
        os.mkfifo(pipe)
        writer = threading.Thread(target=write_late, args=[pipe, content])
        writer.start()
        other = ["prompt=from a pipe"] * (setting == "sampling")
        assert infer(echo, f"{setting}={pipe}", *other) == 0
        assert f"waiting for what is written to '{pipe}', which is a FIFO\n" in capsys.readouterr().err
        writer.join()


def test_a_recording_that_is_a_pipe_is_refused(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("question.wav")
    assert infer(echo, "audio=question.wav") == 2
    error = capsys.readouterr().err
    assert error == "error: request.audio: got 'question.wav', expected a regular file, not a pipe or device\n"


def test_a_prompt_that_is_no_text(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("question.txt").write_bytes(b"caf\xe9\n")
    assert infer(echo, "prompt_file=question.txt") == 2
    assert capsys.readouterr().err == (
        "error: prompt_file question.txt: got byte 0xe9 at offset 3, expected text in UTF-8\n"
    )


@pytest.mark.parametrize(
    ("given", "status", "out", "err"),
    [
        (b"one\r\n", 0, b"one\n", b""),
        (b"caf\xe9", 2, b"", b"error: prompt_file -: got byte 0xe9 at offset 3, expected text in UTF-8\n"),
    ],
    ids=["text", "bytes"],
)
def test_a_prompt_on_standard_input(given: bytes, status: int, out: bytes, err: bytes, echo: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "tests.cli.fakes", echo, "prompt_file=-"]
    done = subprocess.run(command, input=given, capture_output=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_speech_is_written_only_when_asked_for(speech: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(speech, "prompt=one two") == 0
    assert infer(speech, "prompt=one two", "out_audio=said/it.wav", "voice=ann") == 0
    assert capsys.readouterr().out == "one two\none two\n"
    info = soundfile.info("said/it.wav")
    assert (info.frames, info.samplerate, info.channels, info.subtype) == (200, 8000, 1, "PCM_16")


def test_a_reply_without_a_sound_is_a_request_that_failed(speech: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(speech, "prompt=mute", "out_audio=it.wav") == 1
    captured = capsys.readouterr()
    got = "a reply without audio, echo ended with end-of-sequence"
    assert (captured.out, captured.err) == (
        "mute\n",
        f"error: request 0: audio: got {got}, expected audio\n",
    )
    assert not Path("it.wav").exists()


def test_so_it_is_in_a_file_and_what_was_written_stays(speech: str) -> None:
    file = write_requests({"prompt": "a b"}, {"prompt": "mute"}, {"prompt": "mute", "modalities": ["text"]})
    assert infer(speech, file, "output_file=p.json", "output_audio_dir=said") == 1
    spoken, mute, text = responses("p.json")
    assert (spoken["ok"], text["ok"]) == (True, True)
    assert (mute["ok"], mute["output_text"], mute["finish_reason"]) == (False, "mute", "error")
    assert mute["error"].startswith("request 1: audio: got a reply without audio")


@pytest.mark.parametrize("spoken", [[], ["out_audio=it.wav"]], ids=["text alone", "spoken"])
def test_a_voice_that_is_not_there_is_told_also_where_nothing_is_spoken(
    spoken: list[str], speech: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(speech, "prompt=one", "voice=anne", *spoken) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: voice: got 'anne', expected ann\n")
    file = write_requests({"prompt": "one", "voice": "bob"}, {"prompt": "two", "voice": "ann"})
    assert infer(speech, file, "output_file=p.json") == 1
    assert [entry["error"] for entry in responses("p.json")] == ["voice: got 'bob', expected ann", None]


def test_a_refused_request_has_failed_whatever_other_stages_did_before(
    speech: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(speech, "prompt=refuse", "out_audio=it.wav") == 1, "no stage had worked"
    assert infer(speech, "prompt=hoarse", "out_audio=it.wav") == 1, "one had"
    assert infer(speech, write_requests({"prompt": "refuse"}), "output_file=p.json") == 1
    assert "error: text: got 'hoarse', expected another word" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["out_audio=locked/a.wav", "input_file=r.json output_audio_dir=locked/in/a"])
def test_a_place_that_may_not_be_written_to_is_told_before_a_request_runs(
    output: str, speech: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("locked").mkdir()
    access = os.access  # for root, whom no mode keeps out
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked" and access(path, mode))
    Path("r.json").write_text('{"requests": [{"prompt": "one"}]}')
    assert infer(speech, *output.split(), *["prompt=one"] * ("input_file" not in output)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"', and {Path('locked').absolute()} may not be written to, expected a place" in captured.err


@pytest.mark.parametrize(
    ("setting", "special"),
    [
        ("out_audio=special.wav", "special.wav"),
        ("out_timeline=special.png", "special.png"),
        ("output_file=special.json", "special.json"),
        ("output_file=p.json", "p.json.journal"),
        ("output_audio_dir=said", "said/audio_req0.wav"),
    ],
)
def test_an_output_never_takes_the_place_of_a_fifo(
    setting: str, special: str, speech: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("said").mkdir()
    os.mkfifo(special)
    given = "prompt=never said" if setting.startswith("out_") else write_requests({"prompt": "never said"})
    assert infer(speech, given, setting) == 2
    out, err = capsys.readouterr()
    assert f"got '{special}', which is a FIFO, expected a regular file, or a name that is free" in err
    assert (out, Path("p.json").exists()) == ("", False)
    assert stat.S_ISFIFO(os.lstat(special).st_mode)


def test_an_output_through_a_symlink_lies_where_it_points_to(speech: str) -> None:
    Path("link.wav").symlink_to("real.wav")
    assert infer(speech, "prompt=Hello", "out_audio=link.wav") == 0
    assert Path("link.wav").is_symlink()
    assert soundfile.info("real.wav").frames > 0


def test_stage_settings_are_overrides(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(echo, "prompt=hi", "stages.echo.config.shout=true") == 0
    assert capsys.readouterr().out == "HI\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["prompt="], 2, "request: got an empty prompt, expected text"),
        ([], 2, "prompt: got nothing, expected a request"),
        (["prompt=x fail"], 1, "prompt: got 'fail', expected a word that works"),
        (["prompt=x refuse"], 1, "prompt: got 'refuse', expected another word"),
        (["prompt=x", "image=requests.json"], 2, "request.image: got 'requests.json', expected a file that exists"),
        (
            ["prompt=x", "image=engines/echo/multistage_config.json"],
            2,
            "request 0: got image, expected only what a stage reads: messages",
        ),
        (["prompt=x", "voice=ann"], 2, "request 0: got voice, expected only what a stage reads: messages"),
        (["prompt=x", "out_audio=a.wav"], 2, "out_audio: got 'a.wav', expected nothing: this graph gives text"),
        (["prompt=x", "out_video=a.rgb"], 2, "out_video: got 'a.rgb', expected nothing: no model here makes video"),
        (["prompt=x", "spec_decode=true"], 2, "spec_decode: got true, expected nothing: speculative decoding"),
        (["prompt=x", "whole_utterance=true"], 2, "no stage of this graph vocodes in windows"),
        (["list_voices=true"], 2, "list_voices: got true, expected nothing: no stage of this graph has voices"),
        (["prompt=x", "input_file="], 2, 'input_file: got "", expected a path'),
        (["prompt=x", "input_file=r.json"], 2, "prompt: got 'x', expected nothing beside input_file"),
        (["prompt=x", "output_file=p.json"], 2, "output_file: got 'p.json', expected nothing without input_file"),
        (["prompt=x", "batching.size=0"], 2, "batching.size: got 0, expected a whole number of 1 or more"),
        (["prompt=x", "sampling.top_p=0"], 2, "sampling.top_p: got 0, expected a number > 0"),
        (
            ["prompt=x", "sampling.tinker.top_k=1"],
            2,
            "sampling.tinker: got settings for an unknown stage, expected one of",
        ),
        (["prompt=x", "sampling.ecco.top_k=1"], 2, "expected one of echo (did you mean 'echo'?)"),
        (["prompt=x", "sampling.echo.topk=1"], 2, 'sampling.echo.topk: got unknown key "topk", expected a known key'),
        (["prompt=x", "sampling.talker.top_k=1"], 2, "sampling.talker: got settings for an unknown stage"),
        (["prompt=x", "style.speed=fast"], 2, 'style.speed: got "fast", expected a number'),
        (["prompt=x", "style.speed=0"], 2, "style.speed: got 0, expected a number or null > 0"),
        (
            ["prompt=x", "style.width=640"],
            2,
            "style.width: got 640, expected a style that a stage reads (valid: speed)",
        ),
        (["prompt=x", "style.sped=1"], 2, "style.sped: got an unknown setting, expected one that exists"),
        (["prompt=x", "stream_capacity=much"], 2, 'stream_capacity: got "much", expected an integer'),
        (["prompt=x", "stages.ecco.max_batch=1"], 2, "stages.ecco: got unknown stage"),
        (["prompt=x", "stages.echo.config.shoot=1"], 2, "did you mean 'shout'?"),
        (["prompt=x", "backend._target_=os.system"], 2, 'backend._target_: got "os.system", expected a path below'),
        (["prompt=x", "engin_dir=y"], 2, "engin_dir: got an unknown setting"),
        (["input_file=no.json"], 2, "no.json: got No such file or directory"),
    ],
)
def test_what_cannot_be_done(
    arguments: list[str], status: int, message: str, echo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(echo, *arguments) == status
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert "Error executing job" not in captured.err


def test_without_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer("prompt=x") == 2
    assert infer("prompt=x", "engine_dir=nowhere") == 2
    assert infer("prompt=x", "deployment=smollm2", f"paths.cache={tmp_path}/cache") == 2
    errors = capsys.readouterr().err.splitlines()
    assert "engine_dir: got nothing, expected a folder of engines (deployment=NAME brings one" in errors[0]
    assert "got 'nowhere', which is not there, expected a folder of engines" in errors[1]
    assert "build_if_missing=true builds them" in errors[2]


# --- the graph -----------------------------------------------------------------------------------------------------


def test_validate_config_shows_a_sound_graph(speech: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(speech, "validate_config=true") == 0
    out = capsys.readouterr().out
    assert "text <- echo:text (fail)" in out
    assert "graph LR" in out


def test_validate_config_lists_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    echo = {**ECHO, "runner": "test.ecco", "max_batch": 0}
    beep = {**BEEP, "kind": "autoregressive", "inputs": [{"name": "text", "from": "ecoh:text"}], "colour": "red"}
    folder = engines(tmp_path / "broken", echo, beep)
    assert infer(f"engine_dir={folder}", "validate_config=true") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 5 problems:")
    for text in ("'test.echo'", "max_batch", "autoregressive", "ecoh", "colour"):
        assert text in error


# --- a request file ------------------------------------------------------------------------------------------------


def test_one_bad_request_among_four_gives_three_answers_and_one_error(
    echo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = write_requests({"prompt": "one two"}, {"prompt": "b", "temprature": 1}, {"prompt": "c"}, {"prompt": "d"})
    assert infer(echo, requests, "output_file=predictions.json", "batching.size=4") == 1
    found = responses()
    assert [entry["ok"] for entry in found] == [True, False, True, True]
    assert [entry["output_text"] for entry in found] == ["one two", "", "c", "d"]
    assert [entry["request_idx"] for entry in found] == [0, 1, 2, 3]
    assert "requests[1].temprature" in found[1]["error"] and "did you mean 'temperature'?" in found[1]["error"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "3 of 4 requests answered: predictions.json" in captured.err


def test_a_request_that_fails_while_running_keeps_what_it_said(echo: str) -> None:
    assert infer(echo, write_requests({"prompt": "well fail"}, {"prompt": "fine"}), "output_file=p.json") == 1
    failed, fine = responses("p.json")
    assert (failed["ok"], failed["output_text"], failed["finish_reason"]) == (False, "well ", "error")
    assert failed["error"] == "prompt: got 'fail', expected a word that works"
    assert (fine["ok"], fine["error"], fine["finish_reason"]) == (True, None, "end-of-sequence")
    assert fine["stages"]["echo"]["steps"] == 1


def test_sampling_of_the_request_wins_over_the_file_and_the_file_over_the_command_line(echo: str) -> None:
    own = {"prompt": "a", "sampling": {"temperature": 0.3}}
    requests = write_requests({"prompt": "a"}, own, temperature=0.2)
    assert infer(echo, requests, "output_file=p.json", "sampling.temperature=0.1") == 0
    assert [entry["stages"]["echo"]["temperature"] for entry in responses("p.json")] == [0.2, 0.3]
    assert infer(echo, write_requests({"prompt": "a"}), "output_file=q.json", "sampling.temperature=0.1") == 0
    assert [entry["stages"]["echo"]["temperature"] for entry in responses("q.json")] == [0.1]


def test_the_file_may_set_the_cohort_and_the_command_line_wins(echo: str) -> None:
    requests = write_requests({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}, batch_size=2)
    assert infer(echo, requests, "output_file=p.json") == 0
    assert [entry["batch_idx"] for entry in responses("p.json")] == [0, 1, 0]
    assert infer(echo, requests, "output_file=q.json", "batching.size=3") == 0
    assert [entry["batch_idx"] for entry in responses("q.json")] == [0, 1, 2]


def test_in_flight_batching_is_a_choice_of_config(echo: str) -> None:
    requests = write_requests({"prompt": "a b c d"}, {"prompt": "x"}, {"prompt": "y"}, batch_size=2)
    assert infer(echo, requests, "output_file=p.json", "batching=inflight") == 0
    assert [entry["batch_idx"] for entry in responses("p.json")] == [0, 1, 1]


def test_spoken_replies_of_a_file(speech: str) -> None:
    assert infer(speech, write_requests({"prompt": "a b"}), "output_file=p.json", "output_audio_dir=said") == 0
    (entry,) = responses("p.json")
    assert entry["audio_file"] == "said/audio_req0.wav"
    assert (entry["audio_samples"], entry["audio_sample_rate"], entry["audio_duration_ms"]) == (200, 8000, 25)
    assert soundfile.info(entry["audio_file"]).frames == 200


# --- a kind of payload that a family brings ---------------------------------------------------------------------------


@pytest.fixture
def counting(tmp_path: Path) -> str:
    return f"engine_dir={engines(tmp_path / 'engines' / 'counting', ECHO, COUNTER)}"


def test_an_output_of_a_familys_own_kind_is_written(counting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(counting, "prompt=one two three", "outputs.count=counts.json") == 0
    assert capsys.readouterr() == ("one two three\n", "3 words: counts.json\n")
    assert json.loads(Path("counts.json").read_text()) == [1, 1, 1]


def test_of_a_file_each_request_has_its_own_and_may_leave_it_out(counting: str) -> None:
    file = write_requests({"prompt": "a b"}, {"prompt": "c", "modalities": ["text"]})
    assert infer(counting, file, "output_file=predictions.json", "outputs.count=counts") == 0
    counted, left_out = responses()
    assert (counted["counted"], counted["count_file"], counted["count_words"]) == (2, "counts/count_req0.json", 2)
    assert left_out["counted"] == 0 and "count_file" not in left_out
    assert os.listdir("counts") == ["count_req0.json"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("outputs.cuont=c.json", "outputs.cuont: got 'c.json', expected nothing: this graph gives count, text"),
        ("outputs.text=c.txt", "outputs.text: got 'c.txt', expected nothing: text has no file of its own"),
        ("outputs.count=c.wav", "outputs.count: got 'c.wav', expected a file name in .json"),
        ("out_audio=c.wav", "out_audio: got 'c.wav', expected nothing: this graph gives count, text"),
    ],
)
def test_an_output_that_is_not_there_is_refused(
    setting: str, said: str, counting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(counting, "prompt=one", setting) == 2
    assert said in capsys.readouterr().err
    assert os.listdir() == ["engines"]


def test_a_file_gets_a_run_folder_of_its_own(echo: str) -> None:
    requests = write_requests({"prompt": "a"})
    assert infer(echo, requests) == infer(echo, requests) == 0
    folders = list(Path("outputs/runs").glob("*/*"))
    assert len(folders) == 2
    for folder in folders:
        assert responses(folder / "predictions.json")[0]["output_text"] == "a"
        assert "input_file='requests.json'" in (folder / ".hydra" / "overrides.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"requests": [\n  {"prompt": "a",}\n]}', "requests.json, line 2, column 18: got malformed JSON"),
        ('{"requests": [], "temprature": 1}', "requests.json: temprature: got unknown key"),
        ('{"request": []}', "requests.json: requests: got nothing, expected a list of requests"),
        ("[1]", "requests.json: got [1], expected an object"),
    ],
)
def test_a_fault_of_the_whole_file(text: str, message: str, echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("requests.json").write_text(text)
    assert infer(echo, "input_file=requests.json", "output_file=p.json") == 2
    assert message in capsys.readouterr().err
    assert not Path("p.json").exists()


def test_an_output_that_cannot_be_written(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").touch()
    assert infer(echo, write_requests({"prompt": "a"}), "output_file=taken/p.json") == 2
    error = capsys.readouterr().err
    assert "output_file: got 'taken/p.json', and " in error
    assert "taken is no folder, expected a place to write to" in error


def test_an_interrupt_keeps_what_is_finished(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    requests = write_requests({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c interrupt"}, {"prompt": "d"})
    assert infer(echo, requests, "output_file=p.json") == 130
    assert [entry["output_text"] for entry in responses("p.json")] == ["a", "b"]
    assert sorted(os.listdir()) == ["engines", "outputs", "p.json", "p.json.journal", "requests.json"]
    assert "interrupted" in capsys.readouterr().err


def test_a_termination_signal_keeps_what_is_finished(echo: str) -> None:
    code = (
        "import sys, time\n"
        "from tests.cli import fakes\n"
        "from framework.cli import app, inference\n"
        "from functools import partial\n"
        "step = fakes.Echo.step\n"
        "def slow(self, rows):\n"
        "    if fakes.words_of(rows[0].request) == ['wait']: print('waiting', flush=True); time.sleep(60)\n"
        "    step(self, rows)\n"
        "fakes.Echo.step = slow\n"
        "task = partial(inference.task, prefixes=fakes.ALLOWED)\n"
        "app.main('inference', task, inference.HOOKS)\n"
    )
    from tests.cli.fakes import ROWS

    arguments = [*ROWS, echo, write_requests({"prompt": "a"}, {"prompt": "wait"}), "output_file=p.json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
    assert [entry["output_text"] for entry in responses("p.json")] == ["a"]


def test_profile(speech: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(speech, "prompt=a b", "dump_profile=true", "out_audio=a.wav") == 0
    error = capsys.readouterr().err
    assert [line.split()[:3] for line in error.splitlines() if line.startswith(("echo", "beep"))] == [
        ["echo", "1", "2"],
        ["beep", "1", "3"],
    ]
    assert "peak memory" in error


# --- sweeps --------------------------------------------------------------------------------------------------------


def test_a_sweep_keeps_every_reply(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(echo, "-m", "prompt=hi,'now, fail',ho", "sampling.temperature=0.1") == 1
    assert capsys.readouterr().out == "hi\nnow, \nho\n"
    (sweep,) = Path("outputs/sweeps").glob("*/*")
    found = {int(path.parent.name): json.loads(path.read_text()) for path in sweep.glob("*/predictions.json")}
    assert [found[job]["responses"][0]["output_text"] for job in range(3)] == ["hi", "now, ", "ho"]


def test_an_experiment_can_be_a_sweep(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(echo, "experiment=smollm2_temperature", "build_if_missing=false", "prompt=hi") == 0
    assert capsys.readouterr().out == "hi\n" * 12  # four temperatures, three seeds


# --- starting ------------------------------------------------------------------------------------------------------


def test_nothing_heavy_is_imported_for_help_and_validation(echo: str) -> None:
    heavy = ["onnxruntime", "onnx", "onnx_ir", "onnxscript", "tokenizers", "jinja2", "soundfile", "rich", "gguf"]
    code = (
        "import sys\n"
        "from tests.cli.fakes import infer\n"
        f"assert infer({echo!r}, 'validate_config=true') == 0\n"
        "assert infer('--help') == 0\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("command", ["inference", "build", "fetch"])
def test_help_of_every_command(command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [sys.executable, "-m", f"framework.cli.{command}", "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith(f"multistage-{command} ")
    assert done.stderr == ""
