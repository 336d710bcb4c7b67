"""Sweeps with launchers and sweepers that are extras: joblib, submitit (also as Slurm runs it), Ray, Optuna."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framework.cli import report
from framework.deployment.config import Paths
from framework.sweeps.collect import Sweep, collect
from framework.sweeps.transcripts import transcribe
from tests.cli.fakes import BEEP, ECHO, engines, infer
from tests.sweeps.test_transcripts import Ears

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def needs(package: str) -> pytest.MarkDecorator:
    lacking = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(lacking, reason=f"{package} is not installed (multistage[{package}])")


def swept(folder: Path, *arguments: str, path: str = "") -> tuple[int, Sweep, str]:
    """A sweep in a process of its own: exit status, what it left, what it said; its standard output is a file."""
    (folder / "opened").mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FAKES_OPENED": str(folder / "opened")}
    environment["PATH"] = f"{path}:{environment['PATH']}"
    command = [sys.executable, "-m", "tests.cli.fakes", f"engine_dir={engines(folder / 'echo', ECHO)}", "-m"]
    command += ["report.page=false", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    (folder / "said").write_text(done.stdout)
    (sweep,) = (folder / "outputs/sweeps").glob("*/*")
    return done.returncode, collect(sweep), done.stderr


def opened(folder: Path) -> list[int]:
    """How often each process opened its engines."""
    return [len(path.read_text().splitlines()) for path in (folder / "opened").iterdir()]


@needs("joblib")
def test_joblib_workers_keep_their_engines(tmp_path: Path) -> None:
    arguments = [
        "hydra/launcher=joblib",
        "hydra.launcher.n_jobs=2",
        "prompt=a b c d,fail",
        "sampling.temperature=0,1,2",
    ]
    status, sweep, _ = swept(tmp_path, *arguments)
    assert status == 1
    assert [point.status for point in sweep.points] == ["ok"] * 3 + ["failed"] * 3
    assert [point.overrides["sampling.temperature"] for point in sweep.points] == [0, 1, 2] * 2
    assert (tmp_path / "said").read_text().splitlines() == ["a b c d"] * 3, "replies side by side are not mixed"
    assert len(opened(tmp_path)) <= 2 and set(opened(tmp_path)) == {1}, "two processes, each of which opened once"


@needs("submitit")
def test_submitit_runs_each_job_in_a_process_of_its_own(tmp_path: Path) -> None:
    status, sweep, _ = swept(tmp_path, "hydra/launcher=submitit_local", "prompt=a,fail")
    assert (status, [point.status for point in sweep.points]) == (1, ["ok", "failed"])
    assert opened(tmp_path) == [1, 1]


SBATCH = """#!/bin/sh
# The job array of a batch file, a process a job, in the background.
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
grep '^#SBATCH' "$1" >> submitted
for index in $(seq 0 "${last:-0}"); do
    SLURM_JOB_ID=$((1000 + index)) SLURM_ARRAY_JOB_ID=1000 SLURM_ARRAY_TASK_ID=$index SLURM_JOB_NUM_NODES=1 \\
    SLURM_NTASKS=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_JOB_NODELIST=here \\
        nohup sh "$1" >/dev/null 2>&1 &
done
echo Submitted batch job 1000
"""
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do
    case $1 in --output|--error) shift ;; esac
    shift
done
exec "$@"
"""
SACCT = """#!/bin/sh
echo "JobID|State|NodeList"
"""


@needs("submitit")
def test_slurm_gets_a_job_array_with_what_was_asked_for(tmp_path: Path) -> None:
    """With programs in the place of Slurm's own, which do what it does on one machine."""
    (programs := tmp_path / "slurm").mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    arguments = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu", "hydra.launcher.timeout_min=5"]
    status, sweep, _ = swept(tmp_path, *arguments, "prompt=a,fail", path=str(programs))
    assert (status, [point.status for point in sweep.points]) == (1, ["ok", "failed"])
    submitted = (tmp_path / "submitted").read_text()
    assert "--array=0-1%2" in submitted and "--partition=gpu" in submitted and "--time=5" in submitted


@needs("ray")
def test_a_file_is_sharded_over_the_workers_of_a_ray_cluster_and_merged(tmp_path: Path) -> None:
    requests = [{"prompt": f"number {number}"} for number in range(9)]
    (tmp_path / "requests.json").write_text(json.dumps({"requests": requests}))
    arguments = ["hydra/launcher=ray", "hydra.launcher.workers=2", f"input_file={tmp_path}/requests.json"]
    status, sweep, _ = swept(tmp_path, *arguments, "shard.count=3", "shard.index=0,1,2")
    assert status == 0
    assert len(opened(tmp_path)) == 2 and set(opened(tmp_path)) == {1}, "two workers, each of which opened once"
    (point,) = sweep.points
    assert [cell.text for cell in point.cells] == [request["prompt"] for request in requests]
    from framework.io.responses import merge_predictions

    shards = sorted(sweep.folder.glob("*/predictions.shard-*.json"))
    assert merge_predictions(shards, tmp_path / "merged.json") == 0
    merged = json.loads((tmp_path / "merged.json").read_text())["responses"]
    assert [entry["output_text"] for entry in merged] == [request["prompt"] for request in requests]


@needs("ray")
def test_a_worker_of_ray_that_dies_takes_only_its_job_with_it(tmp_path: Path) -> None:
    status, sweep, said = swept(tmp_path, "hydra/launcher=ray", "hydra.launcher.workers=1", "prompt=a,kill,b")
    assert status == 1
    assert [point.status for point in sweep.points] == ["ok", "unfinished", "ok"]
    assert "[1] its worker is gone: " in said


@needs("joblib")
def test_a_launcher_whose_worker_dies_says_so_and_what_was_done_is_told(tmp_path: Path) -> None:
    arguments = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    status, sweep, said = swept(tmp_path, *arguments, "prompt=a,b,c,kill")
    assert status == 1 and "Traceback" not in said
    assert "error: hydra/launcher: got A worker process managed by the executor was unexpectedly terminated" in said
    assert "ok" in [point.status for point in sweep.points]


@needs("submitit")
def test_a_launcher_that_cannot_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = engines(tmp_path / "echo", ECHO)
    assert infer(f"engine_dir={folder}", "-m", "hydra/launcher=submitit_slurm", "prompt=a,b") == 2
    error = capsys.readouterr().err
    assert error.startswith('error: hydra/launcher: got Could not detect "srun"') and len(error.splitlines()) == 1


@needs("ray")
def test_a_cluster_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["hydra/launcher=ray", "hydra.launcher.address=auto"]
    assert infer(f"engine_dir={engines(tmp_path / 'echo', ECHO)}", "-m", *cluster, "prompt=a,b") == 2
    expected = "error: hydra.launcher.address: got 'auto', expected a running Ray cluster (Could not find any running"
    assert expected in capsys.readouterr().err
    assert not [*Path("outputs").glob("sweeps/*/*")], "nothing is left of it"


@needs("optuna")
def test_optuna_finds_the_best_point(tmp_path: Path) -> None:
    arguments = ["hydra/sweeper=optuna", "hydra.sweeper.objective=repeated_words"]
    arguments += ["hydra.sweeper.direction=maximize"]
    texts = "prompt=one,two two,three three three,fail"
    status, sweep, said = swept(
        tmp_path, *arguments, "hydra.sweeper.n_trials=12", "hydra.sweeper.n_jobs=3", texts,
        "sampling.temperature=interval(0.1,1)", "sampling.top_k=range(5,20,5)", "sampling.seed=3",
    )  # fmt: skip
    assert len(sweep.points) == 12 and status in (0, 1)
    assert all(0.1 <= point.overrides["sampling.temperature"] <= 1 for point in sweep.points)
    assert {point.overrides["sampling.top_k"] for point in sweep.points} <= {5, 10, 15}
    best = max((p for p in sweep.points if p.status == "ok"), key=lambda p: p.numbers["repeated_words"])
    assert f"best of {sum(p.status == 'ok' for p in sweep.points)}: [" in said
    assert f"prompt='{best.overrides['prompt']}'" in said.partition("best of")[2]
    assert opened(tmp_path) == [1]


@needs("optuna")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "hydra.sweeper.objective: got nothing, expected a column of the report"),
        (["hydra.sweeper.objective=tokens_per_sec"], "did you mean 'tokens_per_s'?"),
        (["hydra.sweeper.objective=load_s"], "hydra.sweeper.direction: got nothing, expected maximize or minimize"),
        (
            ["hydra.sweeper.objective=rtf", "hydra.sweeper.n_trials=0"],
            "hydra.sweeper.n_trials: got 0, expected a whole",
        ),
        (["hydra.sweeper.objective=rtf"], "hydra/sweeper: got no range, expected something to try"),
        (["hydra.sweeper.objective=rtf", "hydra.sweeper.seed=x"], "hydra.sweeper.seed: got 'x', expected a whole"),
        (
            ["hydra.sweeper.objective=wall_s", "sampling.top_p=interval(1,0)"],
            "sampling.top_p: got 'interval(1,0)', expected values to try (",
        ),
        (["hydra.sweeper.objective=wall_s", "sampling.top_k=range(0,0)"], "sampling.top_k: got 'range(0,0)', expected"),
        (
            ["hydra.sweeper.objective=wall_s", "sampling.top_k=1,2", "hydra.sweeper.storage=cupboard"],
            "hydra.sweeper.storage: got 'cupboard', expected a storage of Optuna, such as sqlite:///study.db (",
        ),
    ],
)
def test_a_search_that_cannot_be(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = engines(tmp_path / "echo", ECHO)
    assert infer(f"engine_dir={folder}", "-m", "hydra/sweeper=optuna", "prompt=a", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@needs("optuna")
def test_a_search_that_goes_on_the_other_way_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = [f"engine_dir={engines(tmp_path / 'echo', ECHO)}", "-m", "hydra/sweeper=optuna", "report.page=false"]
    search += ["hydra.sweeper.storage=sqlite:///study.db", "hydra.sweeper.study_name=mine", "hydra.sweeper.n_trials=1"]
    search += ["prompt=a,b", "hydra.sweeper.objective=wall_s"]
    assert infer(*search) == 0
    assert infer(*search, "hydra.sweeper.direction=maximize") == 2
    expected = "hydra.sweeper.study_name: got 'mine', which is there to minimize, expected a study to maximize"
    assert expected in capsys.readouterr().err


@needs("optuna")
@pytest.mark.parametrize(
    ("stages", "arguments", "message"),
    [
        ([ECHO], ["hydra.sweeper.objective=rtf"], "hydra.sweeper.objective: got 'rtf', expected a column of what this"),
        (
            [{**BEEP, "inputs": [{"name": "text", "from": "request:messages"}]}],
            ["hydra.sweeper.objective=tokens_per_s", "out_audio=a.wav"],
            "expected a column of what this graph gives, audio (valid: audio_s, ",
        ),
        ([ECHO, BEEP], ["hydra.sweeper.objective=rtf"], "got 'rtf', and replies that are not spoken"),
        (
            [ECHO, BEEP],
            ["hydra.sweeper.objective=wer", "out_audio=a.wav"],
            "report.transcribe: got nothing, expected a deployment that hears, for hydra.sweeper.objective=wer",
        ),
    ],
)
def test_an_objective_that_no_point_can_have_is_refused_before_the_first(
    stages: list[dict[str, Any]],
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = engines(tmp_path / "system", *stages)
    tried = "prompt=choice(a,b)"
    assert infer(f"engine_dir={folder}", "-m", "hydra/sweeper=optuna", tried, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not [*Path("outputs").glob("sweeps/*/*")], "nothing is left of it"


@needs("optuna")
def test_a_search_for_what_is_heard_best_hears_each_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ears = Ears("one")

    def hear(sweep: Sweep, name: str, paths: Paths) -> int:
        transcribe(sweep, name, ears)
        return 0

    monkeypatch.setattr(report, "_transcribe", hear)
    arguments = ["hydra.sweeper.objective=wer", "report.transcribe=whisper_tiny_en", "hydra.sweeper.n_trials=6"]
    speech = [f"engine_dir={engines(tmp_path / 'speech', ECHO, BEEP)}", "out_audio=it.wav", "prompt='one two',one"]
    assert infer(*speech, "-m", "hydra/sweeper=optuna", "report.page=false", *arguments) == 0
    assert "prompt='one', with wer 0\n" in capsys.readouterr().err.partition("best of 6: ")[2]
    assert len(ears.heard) == 6


@pytest.mark.parametrize(
    ("argument", "package", "message"),
    [
        (
            "hydra/launcher=ray",
            "ray",
            "hydra/launcher: got ray, expected ray installed (pip install 'multistage[ray]')",
        ),
        ("hydra/sweeper=optuna", "optuna", "hydra/sweeper: got optuna, expected optuna installed (pip install"),
        ("hydra/launcher=slurm", "", "hydra/launcher: got 'slurm', expected a file of conf/hydra/launcher"),
        (
            "hydra.launcher._target_=os.system",
            "",
            'hydra.launcher._target_: got "os.system", expected a path below hydra',
        ),
    ],
)
def test_what_is_not_there_is_told_with_the_way_to_it(
    argument: str, package: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    assert infer("-m", argument, "prompt=a,b") == 2
    assert message in capsys.readouterr().err
