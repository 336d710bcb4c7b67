"""Every shipped config composes into its typed class; nothing in it is named wrongly."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import attrs
import pytest

from framework.checkpoints.fetch import Source
from framework.cli.composition import Composer, values_of
from framework.compile.family import BuildOptions
from framework.deployment.config import BenchConfig, BuildConfig, FetchConfig, InferenceConfig, ReportConfig
from framework.deployment.instances import class_of, safe_instantiate
from framework.execution.sampling import Sampling
from framework.io.sampling import OWNER, ROLES, by_role
from framework.schema import structure
from framework.serve.settings import ServeConfig

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
ROOTS = {
    "inference": InferenceConfig,
    "build": BuildConfig,
    "fetch": FetchConfig,
    "report": ReportConfig,
    "serve": ServeConfig,
    "bench": BenchConfig,
}
GROUPS = (
    "deployment", "backend", "backends", "sampling", "style", "report", "batching", "paths", "build", "runners",
    "families",
)  # fmt: skip
# The seed's flags and the setting that each became.
FLAGS = {
    "--config": "engine_dir", "--prompt": "prompt", "--audio": "audio", "--image": "image", "--voice": "voice",
    "--out-audio": "out_audio", "--out-video": "out_video", "--input-file": "input_file",
    "--output-file": "output_file", "--output-audio-dir": "output_audio_dir",
    "--output-video-dir": "output_video_dir", "--batch-size": "batching.size", "--whole-utterance": "whole_utterance",
    "--sampling": "sampling", "--style": "style", "--dump-profile": "dump_profile",
    "--validate-config": "validate_config", "--spec-decode": "spec_decode",
    "--enable-context-reuse": "enable_context_reuse", "--visual-prune": "visual_prune",
    "--model-dir": "model_dir", "--graph-only": "build.graph_only", "--components": "build.components",
    "--max-input-len": "build.max_input_len", "--max-kv-cache-capacity": "build.max_kv_cache_capacity",
    "--max-batch-size": "build.max_batch_size", "--tp-size": "build.tp_size",
}  # fmt: skip


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(command: str, *overrides: str) -> dict[str, Any]:
    with Composer(command, overrides) as composer:
        return values_of(composer.compose())


@pytest.mark.parametrize("command", ROOTS)
def test_each_root_is_its_class(command: str) -> None:
    assert structure(ROOTS[command], composed(command), where="").explain is False


@pytest.mark.parametrize(
    "choice",
    [f"{group}={option}" for group in GROUPS for option in options(group)],
)
def test_each_preset_composes(choice: str) -> None:
    config = structure(InferenceConfig, composed("inference", choice), where="")
    assert by_role(config.sampling, "sampling")[1] == []


@pytest.mark.parametrize("experiment", options("experiment"))
def test_each_experiment_composes(experiment: str) -> None:
    structure(InferenceConfig, composed("inference", f"experiment={experiment}"), where="")


@pytest.mark.parametrize("backend", options("backend"))
def test_each_backend_is_written_out_in_full(backend: str) -> None:
    """So that every setting can be overridden without a plus, and explained."""
    node = composed("inference", f"backend={backend}")["backend"]
    made = safe_instantiate(node, "backend")
    assert {"_target_", *attrs.fields_dict(type(made))} == set(node)
    assert attrs.asdict(made) == attrs.asdict(type(made)(**({"module": made.module} if "module" in node else {})))


@pytest.mark.parametrize("batching", options("batching"))
def test_each_way_of_batching(batching: str) -> None:
    node = composed("inference", f"batching={batching}")["batching"]
    assert safe_instantiate({**node, "size": 4}, "batching").size == 4


@pytest.mark.parametrize("table", ["runners", "families"])
def test_each_row_names_a_class(table: str) -> None:
    def rows(node: dict[str, Any]) -> list[dict[str, Any]]:
        return [node] if "_target_" in node else [row for child in node.values() for row in rows(child)]

    assert all(class_of(row, table) for row in rows(composed("inference")[table]))


def test_each_folder_that_a_runner_reads_is_one_of_its_settings() -> None:
    rows = composed("inference")["runners"]
    for row in (row for family in rows.values() for row in family.values()):
        decl = class_of(row, "runners").decl
        settings = {*attrs.fields_dict(decl.config)} if decl.config else set()
        assert {*decl.folders} <= settings
        assert {name for name in settings if name.endswith(("_artifact", "_dir"))} <= {*decl.folders} | {
            "code_predictor_artifact"  # which can be "." alone
        }


def test_every_sampling_setting_can_be_overridden() -> None:
    node = composed("inference")["sampling"]
    settings = [field.name for field in attrs.fields(Sampling)]
    assert list(node) == [*settings, OWNER, *ROLES]
    assert all(list(node[name]) == settings for name in [OWNER, *ROLES])


def test_every_build_option_can_be_set_by_a_preset_and_by_an_override() -> None:
    values = composed("build")
    fields = set(attrs.fields_dict(BuildOptions))
    assert (set(values["deployment"]["build"]), set(values["build"])) == (fields, fields | {"graph_only"})
    assert structure(BuildConfig, values, where="").build.options == BuildOptions(), "none.yaml has the defaults"


def test_greedy_is_greedy() -> None:
    roles, _ = by_role(composed("inference", "sampling=greedy")["sampling"], "sampling")
    assert roles == {"default": {"temperature": 0.0}}


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_of_the_original_has_a_setting(flag: str) -> None:
    node: Any = composed("inference")
    for part in FLAGS[flag].split("."):
        assert part in node
        node = node[part]


@pytest.mark.parametrize("deployment", [name for name in options("deployment") if name != "none"])
def test_each_preset_says_what_it_is_and_where_its_weights_come_from(deployment: str) -> None:
    config = structure(FetchConfig, composed("fetch", f"deployment={deployment}"), where="")
    assert config.deployment.description and config.deployment.size
    families = composed("inference")["families"]
    for part in config.deployment.parts.values() or [config.deployment]:
        assert part.architectures and {*part.architectures} <= {*families}, "which checkpoints it is for"
    if deployment.startswith(("qwen3_tts", "qwen3_omni")):
        assert config.deployment.source is None and "model_dir" in config.deployment.needs, "no package carries them"
        return
    assert all(isinstance(part.source, Source) for part in config.deployment.parts.values() or [config.deployment])


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda path: path.relative_to(CONF).as_posix())
def test_each_file_says_what_it_is_for(path: Path) -> None:
    first, *rest = path.read_text().splitlines()
    assert first.startswith("# ")
    assert first.startswith("# @package _global_") == (path.parent.name == "experiment")
    assert not any("@package" in line for line in rest)


def test_a_wheel_carries_the_configs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    code, assets = (ROOT / "framework").rglob("*.py"), [*(ROOT / "framework" / "sweeps" / "assets").iterdir()]
    for path in [*ROOT.glob("*.toml"), ROOT / "LICENSE", *CONF.rglob("*.*"), *code, *assets]:
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (source / "README.md").write_text("")
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = tmp_path.glob("multistage-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {path.relative_to(ROOT).as_posix() for path in [*CONF.rglob("*.yaml"), *CONF.rglob("*.json"), *assets]}
    assert shipped and shipped <= names
    assert {"conf/__init__.py", "framework/cli/inference.py", "framework/execution/executor.py"} <= names
