"""A name in the configuration becomes code only where it is allowed to."""

from __future__ import annotations

import re

import pytest

from framework.deployment.instances import class_of, runner_classes, runner_decls, safe_instantiate, target_problems
from framework.errors import ConfigError
from framework.execution.policies import Cohort
from tests.cli.fakes import ALLOWED, Echo


def test_an_allowed_class_gets_its_settings() -> None:
    node = {"_target_": "framework.execution.policies.Cohort", "size": 3}
    assert safe_instantiate(node, "batching") == Cohort(3)


@pytest.mark.parametrize(
    "target",
    ["os.system", "builtins.eval", "frameworkx.policies.Cohort", "tests.cli.fakes.Echo", "framework", 7, None],
)
def test_a_target_outside_the_prefixes_is_refused(target: object) -> None:
    with pytest.raises(ConfigError, match=r"batching._target_: got .*, expected a path below framework or models"):
        safe_instantiate({"_target_": target, "size": 3}, "batching")


def test_a_hidden_target_is_found_wherever_it_stands() -> None:
    node = {"_target_": "framework.a.B", "x": [{"y": {"_target_": "os.system"}}, {"_target_": "models.c.D"}]}
    assert [problem.where for problem in target_problems(node, "backend")] == ["backend.x[0].y._target_"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("framework.execution.policies.Cohrt", r"a class of framework.execution.policies \(did you mean 'Cohort'"),
        ("framework.nowhere.Cohort", "framework.nowhere.Cohort: No module named 'framework.nowhere', expected a class"),
        ("framework.errors.nearest", 'framework.errors.nearest, which is "<function nearest'),
        ("framework.cli.app.Path", "framework.cli.app.Path, which is \"<class 'pathlib.Path'>\""),
    ],
)
def test_a_target_that_is_not_there(target: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=f"batching._target_: got {target}.*") as raised:
        class_of({"_target_": target}, "batching")
    assert re.search(message, str(raised.value))
    assert capfd.readouterr().err == "", "the error is told once, by whoever asked"


def test_settings_are_checked_with_every_fault_at_once() -> None:
    node = {"_target_": "framework.engines.ort.backend.OnnxRuntimeCpu", "threads": -1, "spinn": "always"}
    with pytest.raises(ConfigError) as raised:
        safe_instantiate(node, "backend")
    assert [problem.where for problem in raised.value.problems] == ["backend.spinn", "backend.threads"]


def test_a_class_that_takes_nothing_is_given_nothing() -> None:
    with pytest.raises(ConfigError, match="backend: got 'size', expected no settings: Echo takes none"):
        safe_instantiate({"_target_": "tests.cli.fakes.Echo", "size": 1}, "backend", ALLOWED)


def test_rows_of_the_runners_table_are_loaded_when_asked_for() -> None:
    node = {"test": {"echo": {"_target_": "tests.cli.fakes.Echo"}}, "gone": {"_target_": "models.gone.Runner"}}
    classes = runner_classes(node, ALLOWED)
    assert list(classes) == ["test.echo", "gone"]
    assert runner_decls(classes)["test.echo"] is Echo.decl
    assert runner_decls(classes).get("test.ecco") is None
    with pytest.raises(ConfigError, match=r"runners.gone._target_: got models.gone.Runner"):
        classes["gone"]


def test_a_row_without_a_target_is_named() -> None:
    with pytest.raises(ConfigError, match=r"runners.llm.backbone: got 3, expected a row with a _target_"):
        runner_classes({"llm": {"backbone": 3}})
