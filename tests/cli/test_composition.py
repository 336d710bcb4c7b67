"""Overrides that do not fit are told in plain words, all of them, with the nearest name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from framework.cli.composition import Composer, values_of
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
        ("deployment=gpt", "deployment: got 'gpt', expected a file of conf/deployment (valid: "),
        ("+experiment=smollm2_greddy", "(did you mean 'smollm2_greedy'?)"),
        ("sampling.top_k=f(", "sampling.top_k: got 'f(', expected a value, a list or a mapping"),
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


def test_presets_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "sampling").mkdir()
    (tmp_path / "sampling" / "mine.yaml").write_text("defaults: [default]\ntop_k: 3\n")
    with Composer("inference", [f"hydra.searchpath=['file://{tmp_path}']", "sampling=mine"]) as composer:
        values = values_of(composer.compose())
        sources = {origin.key: origin.source for origin in origins(composer, values)}
    assert values["sampling"]["top_k"] == 3
    assert sources["sampling.top_k"] == f"{tmp_path}/sampling/mine.yaml"


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
