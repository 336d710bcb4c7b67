"""Overrides that do not fit are told in plain words, all of them, with the nearest name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from framework.cli.composition import CONFIG_DIR, Composer, own_folders, values_of
from framework.cli.explain import origins, table
from framework.errors import ConfigError


def faults(*overrides: str, command: str = "inference") -> list[str]:
    with Composer(command, overrides) as composer, pytest.raises(ConfigError) as raised:
        composer.compose()
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engin_dir=x", "engin_dir: got an unknown setting, expected one that exists (did you mean 'engine_dir'?)"),
        ("sampling.temprature=1", "(did you mean 'sampling.temperature'?)"),
        ("sampling.talker.topk=1", "(did you mean 'sampling.talker.top_k'?)"),
        ("smapling=greedy", "(did you mean 'sampling'?)"),
        ("sampling=greddy", "sampling: got 'greddy', expected a file of conf/sampling (did you mean 'greedy'?)"),
        ("sampling=", "sampling: got '', expected a file of conf/sampling (valid: "),
        ("deployment=gpt", "deployment: got 'gpt', expected a file of conf/deployment (valid: "),
        ("+experiment=smollm2_greddy", "(did you mean 'smollm2_greedy'?)"),
        ("sampling.top_k=f(", "sampling.top_k: got 'f(', expected a value, a list or a mapping"),
        ("What is up?", "command line: got 'What is up?', expected key=value (--help lists the keys"),
        ("=", "command line: got '=', expected key=value"),
        ("sampling.thinker={topk:2}", "sampling.thinker.topk: got an unknown setting, expected one that exists ("),
        ("sampling.top_k=1,2", "sampling.top_k: got '1,2', expected one value (-m runs each of several"),
    ],
)
def test_an_override_that_does_not_fit(override: str, expected: str) -> None:
    (fault,) = faults(override)
    assert expected in fault


def test_every_override_is_told_at_once() -> None:
    found = faults("sampling=greddy", "engin_dir=x", "batching.sise=2", "prompt=hi")
    assert [fault.partition(":")[0] for fault in found] == ["sampling", "engin_dir", "batching.sise"]


def test_an_interpolation_that_leads_nowhere() -> None:
    with Composer("inference", ["engine_dir=${nowhere}"]) as composer, pytest.raises(ConfigError) as raised:
        values_of(composer.compose())
    assert "engine_dir: got Interpolation key 'nowhere' not found" in str(raised.value)


# --- presets of the user's own ---------------------------------------------------------------------------------------


def write(folder: Path, **presets: str) -> Path:
    """Presets, `group__name="text"`."""
    for place, text in presets.items():
        path = folder / f"{place.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_presets_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = "defaults: [default, _self_]\ntop_k: 3\n"
    mine = "defaults: [smollm2, _self_]\nengine_dir: /engines/mine\n"
    one, other = write(tmp_path / "it's one", sampling__cold=cold), write(tmp_path / "other", deployment__mine=mine)
    monkeypatch.setenv(CONFIG_DIR, f"{other}{os.pathsep}{one}")
    folders = own_folders(str(one))
    assert folders == [one, other]
    with Composer("inference", ["sampling=cold", "deployment=mine"], folders=folders) as composer:
        values = values_of(composer.compose())
        sources = {origin.key: origin.source for origin in origins(composer, values)}
        assert re.search(r"sampling: .*cold, .*greedy", composer.help())
    assert (values["sampling"]["top_k"], values["engine_dir"]) == (3, "/engines/mine")
    assert sources["sampling.top_k"] == f"{one}/sampling/cold.yaml"
    assert sources["build.precision"] == "conf/deployment/smollm2.yaml via ${deployment.build.precision}"


def test_folders_that_would_go_wrong_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = write(tmp_path / "one", sampling__greedy="top_k: 1\n", sampling__mine="top_k: 1\n")
    two = write(tmp_path / "two", sampling__mine="top_k: 2\n")
    monkeypatch.setenv(CONFIG_DIR, f"{one}{os.pathsep}{two}{os.pathsep}{tmp_path / 'none'}")
    with pytest.raises(ConfigError) as raised:
        own_folders(None)
    taken, twice, missing = raised.value.problems
    assert taken.got == f"{one}/sampling/greedy.yaml" and taken.expected.endswith("conf/sampling/greedy.yaml")
    assert (twice.got, twice.expected) == (f"{two}/sampling/mine.yaml", f"another name than {one}/sampling/mine.yaml")
    assert str(missing) == f"{CONFIG_DIR}: got '{tmp_path}/none', expected a folder"


def test_a_preset_of_ones_own_names_no_code_but_ours(tmp_path: Path) -> None:
    text = "# @package _global_\nhydra: {callbacks: {mine: {_target_: shutil.copytree}}}\n"
    folder = write(tmp_path, experiment__mine=text)
    with Composer("inference", ["experiment=mine"], folders=[folder]) as composer, pytest.raises(ConfigError) as raised:
        composer.compose()
    assert 'hydra.callbacks.mine._target_: got "shutil.copytree", expected a path below hydra' in str(raised.value)


def test_a_preset_without_a_base_says_what_is_missing(tmp_path: Path) -> None:
    folder = write(tmp_path, deployment__mine="description: my own\n")
    with Composer("inference", ["deployment=mine"], folders=[folder]) as composer, pytest.raises(ConfigError) as raised:
        values_of(composer.compose())
    assert "a preset of deployment/ begins with: defaults: [none, _self_]" in str(raised.value)


def test_a_preset_that_is_no_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path, sampling__mine="defaults: [default\ntop_k: 3\n")
    with Composer("inference", ["sampling=mine"], folders=[folder]) as composer, pytest.raises(ConfigError) as raised:
        composer.compose()
    assert re.match(rf"{tmp_path}/sampling/mine.yaml, line 2, column 6: got malformed YAML", str(raised.value))
    assert "expected expected" not in str(raised.value)


def test_explain_names_the_file_the_override_and_the_interpolation() -> None:
    overrides = ["experiment=smollm2_greedy", "sampling.top_k=7", "++stages.llm.max_batch=2"]
    with Composer("inference", overrides) as composer:
        values = values_of(composer.compose())
        found = origins(composer, values)
    sources = {origin.key: origin.source for origin in found}
    assert sources["prompt"] == "conf/inference.yaml"
    assert sources["sampling.temperature"] == "conf/sampling/greedy.yaml"
    assert sources["sampling.min_p"] == "conf/sampling/default.yaml"
    assert sources["sampling.max_generate_length"] == "conf/experiment/smollm2_greedy.yaml"
    assert sources["sampling.top_k"] == "command line: sampling.top_k=7"
    assert sources["stages.llm.max_batch"] == "command line: ++stages.llm.max_batch=2"
    assert sources["engine_dir"] == "conf/deployment/smollm2.yaml via ${deployment.engine_dir}"
    assert sources["build.precision"] == "conf/deployment/smollm2.yaml via ${deployment.build.precision}"
    assert sources["build.tp_size"] == "conf/deployment/none.yaml via ${deployment.build.tp_size}"
    lines = [line.split("  ") for line in table(found).splitlines()]
    assert ["sampling.top_k", "7", "command line: sampling.top_k=7"] in [
        [c.strip() for c in line if c] for line in lines
    ]


def test_explain_covers_every_value() -> None:
    with Composer("inference") as composer:
        values = values_of(composer.compose())
        assert not [origin for origin in origins(composer, values) if origin.source == "default"]


def test_help_shows_groups_and_commented_settings() -> None:
    with Composer("inference") as composer:
        text = composer.help()
    assert re.search(r"deployment: .*none, .*smollm2", text)
    assert "prompt: null # text; any punctuation may stand in it" in text
    assert "$" not in text.replace("${", "")


@pytest.mark.parametrize(
    ("command", "settings", "others"),
    [
        ("inference", ["prompt: null # text", "  speed: null # 1 is as trained", "  transcribe: null"], []),
        ("build", ["  # neighbours that share a scale", "  block_size: ${deployment.build.block_size}"], ["sampling:"]),
        (
            "report",
            ["  # deployment that writes down what was said", "  transcribe: null"],
            ["deployment:", "backend:"],
        ),
        (
            "fetch",
            ["  weights: ${paths.cache}/weights # that were fetched", "deployment: hibari, "],
            ["backend:", "report:"],
        ),
    ],
)
def test_help_tells_every_setting_of_its_command_and_no_others(
    command: str, settings: list[str], others: list[str]
) -> None:
    with Composer(command) as composer:
        lines = composer.help().splitlines()
    for setting in settings:
        assert any(line.startswith(setting) for line in lines), setting
    assert not [line for line in lines for other in others if line.startswith(other)]
