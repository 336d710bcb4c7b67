"""`validate_config=true` finds what can be known before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.engines import manifest
from framework.engines.base import EngineSpec
from framework.engines.manifest import Manifest
from tests.cli.fakes import BEEP, ECHO, engines, infer


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def engine(folder: Path, backend: str = "cpu") -> Path:
    """The record of an engine for two rows of 64 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = EngineSpec(inputs=(), outputs=(), states=(), caps={"batch": 2})
    options = {"max_kv_cache_capacity": 64}
    record = Manifest(
        backend=backend, spec=spec, in_place={}, checkpoint="", options=options, versions={}, files={}
    )  # fmt: skip
    manifest.write(folder, record)
    return folder


def deployment(tmp_path: Path, backend: str = "cpu", **stage: object) -> str:
    folder = engines(tmp_path / "built", {**ECHO, "artifact": "llm", "max_batch": 2, "max_seq": 64, **stage}, BEEP)
    engine(folder / "llm", backend)
    return f"engine_dir={folder}"


@pytest.mark.parametrize("how", ["validate_config=true", "prompt=x"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stages.echo.max_batch=3"], "stages.echo.max_batch: got 3, expected at most 2, as built"),
        (["stages.echo.max_seq=65"], "stages.echo.max_seq: got 65, expected at most 64, as built"),
        (["stages.echo.artifact=lm"], "built/lm', which is not there, expected a folder with the engine of this stage"),
        (
            ["stages.echo.inputs.prompt.from=request:mesages"],
            "inputs.prompt.from: got request:mesages, expected a field of a request (did you mean 'messages'?",
        ),
        (["sampling.eko.top_k=1"], "sampling.eko: got settings for an unknown stage"),
        (
            ["sampling.beep.top_k=1"],
            "sampling.beep: got settings for a stage that chooses no tokens, expected one of echo",
        ),
        (["style.width=4"], "style.width: got 4, expected a style that a stage reads"),
        (["stages.echo.config.shoot=true"], "did you mean 'shout'?"),
        (["stages.echo.config.shout=loud"], 'stages.echo.config.shout: got "loud", expected true or false'),
    ],
)
def test_a_deployment_that_does_not_fit(
    arguments: list[str], message: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(deployment(tmp_path), how, *arguments) == 2
    assert message in capsys.readouterr().err


def test_one_that_does_fit(tmp_path: Path) -> None:
    own = ["stages.echo.max_batch=1", "sampling.echo.top_k=1", "style.speed=1.5", "sampling.seed=3"]
    assert infer(deployment(tmp_path), "validate_config=true", *own) == 0


def test_everything_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = deployment(tmp_path, max_batch=9, max_seq=99)
    assert infer(where, "validate_config=true", "stages.beep.inputs.voice.from=request:voic") == 2
    assert capsys.readouterr().err.startswith("error: 3 problems:")


def test_an_engine_of_another_backend_is_told_with_the_command_for_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = deployment(tmp_path, backend="tensorrt_rtx")
    assert infer(where, "prompt=x", "deployment=smollm2") == 2
    error = capsys.readouterr().err
    assert (
        "got an engine built for backend 'tensorrt_rtx', expected one for 'cpu' (run with backend=tensorrt_rtx" in error
    )
    command = f"multistage-build deployment=smollm2 backend=cpu engine_dir={tmp_path}/built_cpu"
    assert f"or build another: {command})" in error


def test_settings_of_the_talker_need_a_stage_that_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = deployment(tmp_path)
    assert infer(where, "prompt=x", "sampling=qwen3_tts") == 2
    error = capsys.readouterr().err
    assert "sampling.talker: got settings for an unknown stage, expected one of echo" in error
    assert "sampling.code_predictor: got" in error


@pytest.mark.parametrize("size", [-2, 10**12])
def test_a_record_whose_tensors_were_changed_is_told_before_a_request_runs(
    size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = deployment(tmp_path)
    record = tmp_path / "built" / "llm" / manifest.FILE_NAME
    record.write_text(record.read_text().replace('"batch": 2', f'"batch": {size}'))
    assert infer(where, "prompt=x") == 2
    assert "engine.json: spec: got other tensors, expected the names, dtypes and shapes" in capsys.readouterr().err


def test_a_stage_may_have_a_backend_and_a_device_of_its_own(tmp_path: Path) -> None:
    where = deployment(tmp_path, backend="cuda", device=1)
    assert infer(where, "validate_config=true", "stages.echo.backend=cuda") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stages.echo.backend=cudo"], "stages.echo.backend: got cudo, expected a backend of the configuration (did"),
        (["stages.echo.device=0"], "stages.echo.device: got 0, expected nothing: backend cpu uses no GPU"),
        (["stages.echo.backend=cuda", "stages.echo.device=-1"], "stages.echo.device: got -1, expected an index"),
        (
            ["stages.echo.backend=tensorrt"],
            "got an engine built for backend 'cpu', expected one for 'tensorrt'"
            " (stages.echo.backend=cpu, or the folder of one in stages.echo.artifact)",
        ),
    ],
)
def test_a_backend_of_a_stage_is_checked_before_anything_loads(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert infer(deployment(tmp_path), "prompt=x", *arguments) == 2
    assert message in capsys.readouterr().err
