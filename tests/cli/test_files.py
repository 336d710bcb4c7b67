"""Request files through `multistage-inference`: stopped, gone on with, shared between machines; and their folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framework.cli import folder
from framework.cli.progress import progress
from framework.io.responses import merge_predictions
from tests.cli.fakes import BEEP, ECHO, ROWS, engines, infer


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def echo(tmp_path: Path) -> str:
    return f"engine_dir={engines(tmp_path / 'engines' / 'echo', ECHO)}"


def write_requests(*prompts: str, **top: Any) -> str:
    Path("r.json").write_text(json.dumps({**top, "requests": [{"prompt": prompt} for prompt in prompts]}))
    return "input_file=r.json"


def document(path: str) -> dict[str, Any]:
    """A predictions file without what differs from run to run: times, and which row of a batch was used."""

    def same(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: same(v) for k, v in value.items() if not k.endswith("_s") and k not in ("batch_idx", "record")}
        return [same(item) for item in value] if isinstance(value, list) else value

    return dict(same(json.loads(Path(path).read_text())))


def said(path: str) -> list[str]:
    return [entry["output_text"] for entry in document(path)["responses"]]


# --- going on ------------------------------------------------------------------------------------------------------


def run_apart(*arguments: str, stops_at: int | None = None) -> subprocess.Popen[str]:
    """The command in a process of its own; it prints the request of each word it says, and sleeps at one's first."""
    code = (
        "import sys, time\n"
        "from tests.cli import fakes\n"
        "step = fakes.Echo.step\n"
        "def told(self, rows):\n"
        "    for row in rows: print(row.request.index, flush=True)\n"
        f"    if any(row.request.index == {stops_at} for row in rows): time.sleep(60)\n"
        "    step(self, rows)\n"
        "fakes.Echo.step = told\n"
        "sys.exit(fakes.infer(*sys.argv[1:], rows=[]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


def test_a_run_that_was_killed_is_gone_on_with(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    requests = write_requests(*(f"request {n}" + " fail" * (n == 3) for n in range(60)))
    arguments = [*ROWS, echo, requests, "output_file=p.json", "batching=inflight", "batching.size=4"]
    with run_apart(*arguments, stops_at=20) as process:
        assert process.stdout is not None and "20\n" in process.stdout
        process.send_signal(signal.SIGKILL)
    assert not Path("p.json").exists()
    done = {json.loads(line)["request_idx"] for line in Path("p.json.journal").read_text().splitlines()[1:]}
    assert 3 in done and not done & set(range(20, 60))
    with run_apart(*arguments, "resume=true") as process:
        out, _ = process.communicate()
        assert process.returncode == 1, "request 3 has failed, whichever run it was in"
    assert {int(line) for line in out.splitlines()} == set(range(60)) - done
    assert infer(echo, requests, "output_file=whole.json", "batching=inflight", "batching.size=4") == 1
    assert document("p.json") == document("whole.json")
    assert not Path("p.json.journal").exists()


def test_an_interrupted_run_says_how_to_go_on(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(echo, write_requests("a", "b interrupt", "c"), "output_file=p.json") == 130
    assert "1 of 3 requests are done and kept: output_file=p.json resume=true goes on" in capsys.readouterr().err
    assert said("p.json") == ["a"]
    assert infer(echo, "input_file=r.json", "output_file=p.json") == 2
    assert "p.json: got an unfinished run" in capsys.readouterr().err
    before = Path("p.json.journal").read_bytes()
    assert infer(echo, "input_file=r.json", "output_file=p.json", "resume=true") == 130
    assert Path("p.json.journal").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["sampling.temperature=0.5"], "sampling.temperature: got 0.5, expected "),
        (["stages.echo.config.shout=true"], "stages.echo.config.shout: got true, expected nothing"),
        (["apply_chat_template=false"], "apply_chat_template: got false, expected true"),
        (["output_audio_dir=said"], "output_audio_dir"),
    ],
)
def test_a_changed_config_is_refused_with_what_has_changed(
    changed: list[str], message: str, echo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(echo, write_requests("a", "b interrupt"), "output_file=p.json") == 130
    capsys.readouterr()
    assert infer(echo, "input_file=r.json", "output_file=p.json", "resume=true", *changed) == 2
    assert message in capsys.readouterr().err


def test_a_changed_request_file_is_refused(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(echo, write_requests("a", "b interrupt"), "output_file=p.json") == 130
    assert infer(echo, write_requests("a", "c"), "output_file=p.json", "resume=true") == 2
    assert "input_file: got a request file that has changed" in capsys.readouterr().err


def test_what_cannot_matter_may_change(echo: str) -> None:
    assert infer(echo, write_requests("a", "b interrupt"), "output_file=p.json") == 130
    os.rename("r.json", "s.json")
    other = ["batching.size=2", "dump_profile=true", "paths.cache=x", "stream_capacity=2"]
    assert infer(echo, "input_file=s.json", "output_file=p.json", "resume=true", *other) == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["input_file=r.json", "resume=true"], "output_file: got nothing, expected a file with resume=true"),
        (["prompt=x", "resume=true"], "resume: got true, expected nothing without input_file"),
        (["prompt=x", "shard.count=2"], "shard.count: got 2, expected 1 without input_file"),
        (["input_file=r.json", "shard.index=2", "shard.count=2"], "shard.index: got 2, expected a whole number below"),
        (["input_file=r.json", "shard.count=0"], "shard.count: got 0"),
        (["input_file=r.json", "output_file=./r.json"], "output_file: got 'r.json', which is input_file, expected"),
        (["audio=p.wav,q.wav", "out_audio=x/../q.wav"], "out_audio: got 'x/../q.wav', which is audio, expected"),
    ],
)
def test_what_does_not_go_together(
    arguments: list[str], message: str, echo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_requests("a")
    assert infer(echo, *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_second_run_on_the_same_output_is_refused(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    requests = write_requests("a", "b")
    with run_apart(*ROWS, echo, requests, "output_file=p.json", stops_at=0) as first:
        try:
            assert first.stdout is not None and first.stdout.readline() == "0\n"
            for resume in ("null", "true", "false"):
                assert infer(echo, requests, "output_file=p.json", f"resume={resume}") == 2
                assert "p.json: got a file that another run is writing" in capsys.readouterr().err
        finally:
            first.kill()


def test_a_full_disk_is_named_what_is_done_is_kept_and_resume_works(echo: str) -> None:
    requests = write_requests(*(f"{n} " + "x" * 400 for n in range(12)))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))\n"
    code = limit + "import sys; from tests.cli.fakes import infer; sys.exit(infer(*sys.argv[1:], rows=[]))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, *ROWS, echo, requests, "output_file=p.json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr, "requests have run"
    assert "error: p.json.journal: got File too large, expected a place to write to" in done.stderr
    assert "of 12 requests are done and kept" in done.stderr
    assert infer(echo, requests, "output_file=p.json", "resume=true") == 0
    assert [text.split()[0] for text in said("p.json")] == [str(n) for n in range(12)]


# --- shards --------------------------------------------------------------------------------------------------------


def test_shards_of_a_file_are_merged_into_what_one_run_writes(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    requests = write_requests("a", "b", "c fail", "d", "", "f", "g")
    assert infer(echo, requests, "output_file=whole.json") == 1
    statuses = [infer(echo, requests, "output_file=p.json", f"shard.index={i}", "shard.count=3") for i in range(3)]
    assert statuses == [0, 1, 1]
    paths = [Path(f"p.shard-{index}-of-3.json") for index in range(3)]
    assert [entry["request_idx"] for entry in document(str(paths[1]))["responses"]] == [1, 4]
    assert "1 of 2 requests answered: p.shard-1-of-3.json" in capsys.readouterr().err
    assert merge_predictions(paths, Path("p.json")) == 2
    assert document("p.json") == document("whole.json")
    records = [json.loads(Path(name).read_text())["record"] for name in ("p.json", "whole.json")]
    assert records[0] == records[1]


def test_a_shard_without_requests_is_no_failure(echo: str) -> None:
    assert infer(echo, write_requests("a"), "output_file=p.json", "shard.index=1", "shard.count=2") == 0
    assert document("p.shard-1-of-2.json")["responses"] == []


def test_merge_is_a_command(echo: str) -> None:
    requests = write_requests("a", "b fail")
    for index in range(2):
        infer(echo, requests, "output_file=p.json", f"shard.index={index}", "shard.count=2")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "framework.cli.merge", "p.json", "p.shard-0-of-2.json", "p.shard-1-of-2.json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (1, "1 request failed: p.json\n")
    assert said("p.json") == ["a", "b "]


# --- what is read --------------------------------------------------------------------------------------------------


def test_json_lines_with_a_broken_one(echo: str) -> None:
    Path("r.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"\n{"prompt": "c"}\n')
    assert infer(echo, "input_file=r.jsonl", "output_file=p.json") == 1
    assert said("p.json") == ["a", "", "c"]
    assert document("p.json")["responses"][1]["error"].startswith("r.jsonl, line 2, column 15: got malformed JSON")


def test_no_requests_are_an_error(echo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(echo, write_requests(), "output_file=p.json") == 2
    assert "r.json: requests: got an empty list, expected at least one request" in capsys.readouterr().err


# --- progress ------------------------------------------------------------------------------------------------------


def test_progress_without_a_terminal_is_a_line_every_so_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("framework.cli.progress.monotonic", lambda: now)
    with progress(1000, done=400, failed=1) as advance:
        for index in range(10):
            now += 10.0
            advance(index, "no luck" if index == 4 else None)
    assert capsys.readouterr().err.splitlines() == [
        "403 of 1000 done, 1 failed, 10.0 s each, 1:39:30 left",
        "request 4 failed: no luck",
        "406 of 1000 done, 2 failed, 10.0 s each, 1:39:00 left",
        "409 of 1000 done, 2 failed, 10.0 s each, 1:38:30 left",
    ]


# --- folders -------------------------------------------------------------------------------------------------------


def repeat(command: str) -> str:
    """What a shell prints that runs this command, from another folder and with our fakes for runners."""
    script = Path("bin/multistage-inference")
    script.parent.mkdir()
    code = "import sys; from tests.cli.fakes import infer; sys.exit(infer(*sys.argv[1:], rows=[]))"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    script.chmod(0o755)
    path = f"{script.parent.absolute()}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": path}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_folder_says_what_was_run_and_how(echo: str, tmp_path: Path) -> None:
    arguments = [*ROWS, echo, write_requests("a b"), "stages.echo.config.shout=true"]
    assert infer(*arguments, rows=[]) == 0
    (run,) = Path("outputs/runs").glob("*/*")
    names = {".hydra", "command.txt", "multistage_config.json", "predictions.json", "versions.json"}
    assert set(os.listdir(run)) - {"result.json"} == names
    assert json.loads((run / "multistage_config.json").read_text())["stages"][0]["config"] == {"shout": True}
    assert json.loads((run / "versions.json").read_text())["python"] == sys.version.split()[0]
    command = (run / "command.txt").read_text()
    assert command.splitlines()[0] == f"cd {tmp_path}"
    repeat(command)
    texts = [
        json.loads((found / "predictions.json").read_text())["responses"][0]["output_text"]
        for found in Path("outputs/runs").glob("*/*")
    ]
    assert texts == ["A B", "A B"]


def test_a_job_of_a_sweep_is_repeated_by_its_command(echo: str) -> None:
    swept = ["experiment=smollm2_temperature", "build_if_missing=false", "prompt='hi, you'"]
    assert infer(echo, "-m", *swept, "stages.echo.config.shout=true") == 0
    commands = sorted(path.read_text() for path in Path("outputs/sweeps").glob("*/*/*/command.txt"))
    assert len(commands) == 12
    assert repeat(commands[0]).startswith("HI, YOU\n")
    assert len(list(Path("outputs/sweeps").glob("*/*/*/command.txt"))) == 13


def test_runs_that_start_at_once_have_folders_of_their_own(echo: str) -> None:
    requests = write_requests("a")
    for _ in range(3):
        assert infer(echo, requests, "hydra.run.dir='runs/${now:%Y}'") == 0
    found = sorted(path.name.partition("-")[2] for path in Path("runs").iterdir())
    assert found == ["", "1", "2"]
    assert all((path / "predictions.json").exists() for path in Path("runs").iterdir())


def test_a_folder_that_the_user_names_is_that_folder(echo: str) -> None:
    requests = write_requests("a")
    for _ in range(2):
        assert infer(echo, requests, "hydra.run.dir=mine") == 0
    assert said("mine/predictions.json") == ["a"]
    assert not Path("mine-1").exists()


def test_an_own_folder_is_made_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: folder.own(tmp_path / "a" / "run"), range(20)))
    assert len(set(made)) == 20


def test_an_interrupt_while_a_command_is_loading_is_one_word(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(60)\n")
    code = (
        "import importlib, sys\n"
        "from framework.cli import start\n"
        "start.import_module = lambda name: importlib.import_module('slow')\n"
        "start.inference()\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "interrupted\n")


def test_speech_of_a_resumed_file(tmp_path: Path) -> None:
    speech = f"engine_dir={engines(tmp_path / 'engines' / 'speech', ECHO, BEEP)}"
    arguments = [speech, write_requests("a", "b interrupt", "c"), "output_file=p.json", "output_audio_dir=said"]
    assert infer(*arguments) == 130
    assert infer(*arguments, "resume=true") == 130
    assert os.listdir("said") == ["audio_req0.wav"]
