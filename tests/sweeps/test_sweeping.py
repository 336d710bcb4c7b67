"""`multistage-inference -m` end to end, with runners that need no engine, and `multistage-report` on what it left."""

from __future__ import annotations

import copy
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from framework.cli import app, inference, report
from framework.execution.runner import OpenContext
from tests.cli import fakes
from tests.cli.fakes import BEEP, ECHO, engines, infer


class Counting(fakes.Echo):
    """An echo that counts how often it is opened and closed."""

    opened: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    def open(self, context: OpenContext) -> None:
        type(self).opened += 1

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Counting.opened = Counting.closed = 0


@pytest.fixture
def echo(tmp_path: Path) -> list[str]:
    return [
        f"engine_dir={engines(tmp_path / 'engines' / 'echo', ECHO)}",
        f"runners.test.echo._target_={__name__}.Counting",
    ]


@pytest.fixture
def speech(tmp_path: Path) -> str:
    return f"engine_dir={engines(tmp_path / 'engines' / 'speech', ECHO, BEEP)}"


def sweep_folder() -> Path:
    (folder,) = Path("outputs/sweeps").glob("*/*")
    return folder


def record(job: int | str) -> dict[str, Any]:
    return dict(json.loads((sweep_folder() / str(job) / "result.json").read_text()))


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader((sweep_folder() / "table.csv").open()))


# --- one load ------------------------------------------------------------------------------------------------------


def test_the_jobs_of_a_sweep_share_their_engines(echo: list[str]) -> None:
    assert infer(*echo, "-m", "prompt=a,b", "sampling.temperature=0.1,0.9") == 0
    assert len(rows()) == 4
    assert (Counting.opened, Counting.closed) == (1, 1)
    assert [record(job)["timings"]["load_s"] >= 0 for job in range(4)] == [True] * 4


@pytest.mark.parametrize(
    ("setting", "opened"),
    [
        ("stages.echo.config.shout=true,false", 2),
        ("backend.threads=1,2", 2),
        ("batching.size=1,2", 2),
        ("stream_capacity=8,16", 1),
        ("batching=cohort,inflight", 1),
    ],
)
def test_what_engines_are_opened_with_opens_them_again(setting: str, opened: int, echo: list[str]) -> None:
    assert infer(*echo, "-m", "prompt=hi,ho", setting) == 0
    assert (Counting.opened, Counting.closed) == (opened, opened)


def test_a_sweep_over_several_settings_at_once(echo: list[str]) -> None:
    assert infer(*echo, "-m", "prompt=hi", "+sampling={temperature:0.3,top_k:5},{temperature:0.9}") == 0
    told = [json.loads((sweep_folder() / job / "predictions.json").read_text())["responses"][0] for job in "01"]
    assert [entry["stages"]["echo"]["temperature"] for entry in told] == [0.3, 0.9]


def test_keep_loaded_bounds_them(echo: list[str]) -> None:
    order = "sampling.seed=1,2", "stages.echo.config.shout=true,false"
    assert infer(*echo, "-m", "prompt=hi", *order, "keep_loaded=1") == 0
    assert (Counting.opened, Counting.closed) == (4, 4)


def test_engines_are_released_when_a_job_fails_and_loaded_again_after_a_bug(echo: list[str]) -> None:
    assert infer(*echo, "-m", "prompt=a,fail,b") == 1
    assert (Counting.opened, Counting.closed) == (1, 1), "a failed request is no reason to load again"


# --- what each job leaves ------------------------------------------------------------------------------------------


def test_every_third_point_fails(echo: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(*echo, "-m", "prompt=one,two,'x fail',three,four,'y fail'") == 1
    assert [row["status"] for row in rows()] == ["ok", "ok", "failed"] * 2
    assert record(2)["exit_status"] == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["one", "two", "x ", "three", "four", "y "]
    table = captured.err[captured.err.index("point  prompt") :]
    assert "2, 5: request 0: prompt: got 'fail', expected a word that works" in table, "told once"


def test_the_record_of_a_job(echo: list[str]) -> None:
    assert infer(*echo, "-m", "prompt=hi there", "sampling.seed=1,2") == 0
    found = record(1)
    assert (found["status"], found["exit_status"], found["error"]) == ("ok", 0, [])
    assert "sampling.seed=2" in found["overrides"]
    assert (found["predictions"], found["stages"]) == ("predictions.json", {"text": "echo"})
    assert found["timings"].keys() == {"load_s", "run_s", "wall_s"}
    (request,) = found["requests"]
    assert (request["index"], request["ok"], request["finish_reason"]) == (0, True, "end-of-sequence")


def test_a_point_with_an_unknown_key_fails_alone(echo: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert infer(*echo, "-m", "prompt=hi", "sampling=greedy,gready,precise") == 2
    assert [row["status"] for row in rows()] == ["ok", "error", "ok"]
    (fault,) = record(1)["error"]
    assert (fault["where"], fault["got"], fault["hint"]) == ("sampling", "'gready'", "did you mean 'greedy'?")
    assert "did you mean 'greedy'?" in capsys.readouterr().err


def test_a_point_that_its_graph_refuses_fails_alone(echo: list[str]) -> None:
    assert infer(*echo, "-m", "prompt=hi", "stages.echo.config={shout:true},{shoot:true}") == 2
    assert [row["status"] for row in rows()] == ["ok", "error"]
    assert record(1)["error"][0]["hint"] == "did you mean 'shout'?"


def test_what_is_wrong_with_every_point_is_refused_before_the_first(
    echo: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(*echo, "-m", "prompt=hi", "sampling.temprature=0.1,0.2") == 2
    error = capsys.readouterr().err
    assert error.count("did you mean 'sampling.temperature'?") == 1
    assert Counting.opened == 0
    assert not [*Path("outputs/sweeps").glob("*/*")], "nothing is left of it"


@pytest.mark.parametrize(
    "wrong", ["+sampling.foo=1,2", "+stylo=1,2", "stream_capacity=1,2 sampling.top_p=2", "out_audio=a.mp3"]
)
def test_a_value_that_no_point_can_have_is_told_once(
    wrong: str, echo: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(*echo, "-m", "prompt=a,b", *wrong.split()) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert Counting.opened == 0
    assert not [*Path("outputs/sweeps").glob("*/*")], "nothing is left of it"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sampling.top_k=range(3,3)", "sweep: got no point, expected at least one value for each setting"),
        ("sampling.top_k=range(3,3) hydra.sweeper.max_batch_size=1", "sweep: got no point, expected at least"),
        ("hydra.sweeper.max_batch_size=0", "hydra.sweeper.max_batch_size: got 0, expected 1 or more"),
        ("sampling.top_p=interval(0,1)", "sampling.top_p: got 'interval(0,1)', expected values to try (hydra/sweeper="),
        ("+hydra.sweeper.params={sampling.top_p:'interval(0,1)'}", ", expected values to try (hydra/sweeper=optuna"),
        ("+hydra.sweeper.params={sampling.top_k:'range('}", "sampling.top_k: got 'range(', expected a value, a list"),
        ("+hydra.sweeper.params={sampling.topk:'1,2'}", "sampling.topk: got an unknown setting, expected one that"),
        ("hydra.sweeper.max_batches=2", "did you mean 'hydra.sweeper.max_batch_size'?"),
        ("~report", "report: got nothing, expected a mapping"),
    ],
)
def test_a_sweep_that_cannot_be_leaves_nothing(
    arguments: str, message: str, echo: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(*echo, "-m", "prompt=a", *arguments.split()) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not [*Path("outputs").glob("sweeps/*/*")]


def test_settings_of_a_sweep_as_an_experiment_has_them(echo: list[str]) -> None:
    assert infer(*echo, "-m", "prompt=a", "+hydra.sweeper.params={sampling.top_k:'1,2'}") == 0
    assert [row["sampling.top_k"] for row in rows()] == ["1", "2"]


def test_a_bug_in_one_job_leaves_the_others_running(
    echo: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(graph: Any, config: Any, kinds: Any) -> None:
        if config.prompt == "b":
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(inference, "check_outputs", check)
    assert infer(*echo, "-m", "prompt=a,b,c") == 1
    assert [row["status"] for row in rows()] == ["ok", "failed", "ok"]
    assert record(1)["error"][0]["got"] == "a bug"
    assert "ZeroDivisionError" in capsys.readouterr().err, "whoever mends it needs the traceback"


def test_an_interrupt_ends_the_sweep_and_keeps_what_is_done(
    echo: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(*echo, "-m", "prompt=a,interrupt,b") == 130
    assert [(job, record(job)["status"]) for job in (0, 1)] == [(0, "ok"), (1, "interrupted")]
    assert not (sweep_folder() / "2").exists()
    assert Counting.closed == 1
    capsys.readouterr()
    assert run_report(str(sweep_folder())) == 1
    assert "interrupted" in capsys.readouterr().out


def test_outputs_lie_in_the_folder_of_each_job(speech: str) -> None:
    assert infer(speech, "-m", "prompt='one two','one'", "out_audio=said/it.wav") == 0
    assert [row["audio_s"] for row in rows()] == ["0.025", "0.0125"]
    assert (sweep_folder() / "1" / "said" / "it.wav").is_file()


def test_an_output_that_all_jobs_would_write_is_refused(speech: str, tmp_path: Path) -> None:
    assert infer(speech, "-m", "prompt=a,b", f"out_audio={tmp_path}/it.wav") == 2
    assert record(0)["error"][0]["hint"] == "a relative name lies in the folder of each job"


def test_a_sweep_over_a_request_file(speech: str) -> None:
    requests = [{"prompt": "one two three"}, {"prompt": "x fail"}]
    Path("requests.json").write_text(json.dumps({"requests": requests}))
    given = ("input_file=requests.json", "output_audio_dir=audio", "batching.size=2")
    assert infer(speech, "-m", *given, "sampling.seed=1,2") == 1
    assert [(row["requests"], row["ok"], row["failed"]) for row in rows()] == [("2", "1", "1")] * 2
    assert (sweep_folder() / "0" / "audio" / "audio_req0.wav").is_file()
    assert (sweep_folder() / "index.html").is_file()


# --- folders -------------------------------------------------------------------------------------------------------


def test_two_sweeps_do_not_share_a_folder(echo: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = (*echo, "-m", "prompt=a,b", "hydra.sweep.dir=mine")
    assert infer(*given) == 0
    before = Path("mine/0/result.json").read_text()
    assert infer(*given) == 2
    assert "hydra.sweep.dir: got" in capsys.readouterr().err
    assert Path("mine/0/result.json").read_text() == before


def test_a_full_disk_is_named_before_the_first_point(echo: list[str]) -> None:
    code = (
        "import resource, sys; from tests.cli.fakes import infer; limit = int(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)); sys.exit(infer(*sys.argv[2:]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    for limit in ("10", "2000"):  # the sweep's mark, then its config
        command = [sys.executable, "-c", code, limit, *echo, "-m", "prompt=a", "hydra.sweep.dir=mine"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {Path('mine').absolute()}")
        assert done.stderr.endswith("got File too large, expected a place to write to\n")
        assert not Path("mine").exists(), "nothing is left of it"


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text")
def test_a_folder_whose_name_is_no_text_holds_runs_and_sweeps(echo: list[str], tmp_path: Path) -> None:
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    folder.mkdir()
    os.chdir(folder)
    assert infer(*echo, "-m", "prompt=a,b", "hydra.sweep.dir=mine") == 0
    assert os.fsencode(folder) in Path("mine/0/command.txt").read_bytes()
    os.chdir(tmp_path)
    assert run_report(".") == 0
    lines = Path("table.csv").read_text().splitlines()
    assert [row["point"] for row in csv.DictReader(lines)] == [f"\\udcff/mine/{n}" for n in "01"]


def test_two_points_do_not_share_a_folder(echo: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = ("prompt=a,b,../../../../b", "sampling.top_k=1,2", "hydra.sweep.subdir=${prompt}")
    assert infer(*echo, "-m", *given) == 2
    assert {row["point"]: row["prompt"] for row in rows()} == {"a": "a", "b": "b"}
    assert [record(point)["overrides"][-1] for point in "ab"] == ["sampling.top_k=1", "sampling.top_k=1"]
    error = capsys.readouterr().err
    assert error.count("hydra.sweep.subdir: got '") == 4
    assert error.count("which another point has") == error.count("which is not in the sweep's") == 2


def test_a_killed_sweep_can_be_looked_at(echo: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*echo, "-m", "prompt=a,sleep,b", "runners.test.echo._target_=tests.sweeps.sleeper.Sleeper"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.fakes", *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "a\n"
    assert process.stdout.readline() == "asleep\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert run_report(str(sweep_folder())) == 1
    assert [row["status"] for row in rows()] == ["ok", "unfinished"]
    assert "1 of 3 points are missing: running, or killed" in capsys.readouterr().out


# --- multistage-report ---------------------------------------------------------------------------------------------


def run_report(*arguments: str) -> int:
    return app.call("report", report.task, report.with_folder(arguments))


def test_report_prints_the_table_on_stdout(echo: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    infer(*echo, "-m", "prompt=a,b", "report.page=false")
    assert not (sweep_folder() / "index.html").exists()
    capsys.readouterr()
    assert run_report(str(sweep_folder())) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split()[:3] == ["point", "prompt", "ok"]
    assert captured.err == f"page: {sweep_folder() / 'index.html'}\n"


def test_report_of_a_single_run(echo: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("requests.json").write_text('{"requests": [{"prompt": "one two"}, {"prompt": "fail"}]}')
    assert infer(*echo, "input_file=requests.json") == 1
    (run,) = Path("outputs/runs").glob("*/*")
    capsys.readouterr()
    assert run_report(f"folder={run}") == 1
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == [".", "1/2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "folder: got nothing, expected the folder of a sweep or run"),
        (["nowhere"], "nowhere: got no such folder, expected a sweep, or a run"),
        (["engines"], "engines: got a folder without a run in it"),
        (["engines", "report.pages=1"], "report.pages: got an unknown setting, expected one that exists"),
        (["engines", "report.embed_mb=-1"], "report.embed_mb: got -1, expected a number >= 0"),
    ],
)
def test_report_of_what_is_none(
    arguments: list[str], message: str, echo: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_report(*arguments) == 2
    assert message in capsys.readouterr().err


def test_jobs_compose_as_hydra_composes_them() -> None:
    """Files read once give what files read for each job give."""
    from omegaconf import OmegaConf

    from framework.cli.composition import Composer
    from framework.cli.sweeping import ParsedOnce

    with Composer("inference", ["deployment=voice_assistant"]) as composer:
        cfg, loader = composer.compose(), composer.hydra.config_loader
        quick: Any = copy.copy(loader)
        quick.repository = ParsedOnce(loader.repository)  # type: ignore[attr-defined]
        for overrides in (
            ["sampling=greedy", "deployment=smollm2"],
            ["experiment=smollm2_greedy"],
            ["sampling=greedy"],
        ):
            both = [each.load_sweep_config(cfg, [*overrides]) for each in (loader, quick)]
            plain, parsed = (OmegaConf.to_container(each, resolve=False) for each in both)
            assert parsed == plain


def test_a_transcriber_that_cannot_be_had_takes_nothing_else_away(
    speech: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nowhere = ("report.transcribe=none", f"paths.cache={tmp_path}/cache")
    assert infer(speech, "-m", "prompt=one,two", "out_audio=it.wav", *nowhere) == 2
    assert "error: " in capsys.readouterr().err
    assert len(rows()) == 2
    assert (sweep_folder() / "index.html").is_file()


def test_a_misspelled_transcriber_is_refused_before_the_first_job(
    speech: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(speech, "-m", "prompt=one,two", "out_audio=it.wav", "report.transcribe=wisper_tiny_en") == 2
    error = capsys.readouterr().err
    assert "report.transcribe: got 'wisper_tiny_en'" in error
    assert "did you mean 'whisper_tiny_en'?" in error
    assert not [*Path("outputs").glob("sweeps/*/*")], "nothing is left of it"


def test_a_misspelled_transcriber_is_told_where_there_is_nothing_to_hear(
    echo: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(*echo, "-m", "prompt=a,b", "report.page=false") == 0
    capsys.readouterr()
    assert run_report(str(sweep_folder()), "report.transcribe=wisper_tiny_en") == 2
    captured = capsys.readouterr()
    assert "report.transcribe: got 'wisper_tiny_en'" in captured.err
    assert "did you mean 'whisper_tiny_en'?" in captured.err
    assert captured.out.splitlines()[0].split()[:3] == ["point", "prompt", "ok"], "the table needs no ears"
    assert run_report(str(sweep_folder()), "report.transcribe=whisper_tiny_en") == 0, "nothing to hear, nothing built"


def test_a_deployment_that_hears_nothing_cannot_transcribe(
    speech: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert infer(speech, "-m", "prompt=one,two", "out_audio=it.wav", "report.page=false") == 0
    folder = engines(tmp_path / "deaf", {**ECHO, "runner": "llm.backbone"})
    (tmp_path / "mine/deployment").mkdir(parents=True)
    preset = f"defaults: [none, _self_]\nengine_dir: {folder}\n"
    (tmp_path / "mine/deployment/deaf.yaml").write_text(preset)
    monkeypatch.setenv("MULTISTAGE_CONFIG_DIR", str(tmp_path / "mine"))
    capsys.readouterr()
    assert run_report(str(sweep_folder()), "report.transcribe=deaf") == 2
    assert "report.transcribe: got 'deaf', expected a deployment that hears sound" in capsys.readouterr().err
