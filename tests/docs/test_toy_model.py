"""The family that docs/extending/model.md adds: it touches its folder and `conf/`, and says what it should."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TOY = ROOT / "examples" / "toy_model"
PAGE = ROOT / "docs" / "extending" / "model.md"
ROWS = ("families", "runners")


def command(name: str, clone: Path, *overrides: str) -> str:
    """What a command of the clone prints."""
    code = f"import sys; sys.argv[0] = 'multistage'; from framework.cli.start import {name}; sys.exit({name}())"
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    run = [sys.executable, "-c", code, *overrides]
    done = subprocess.run(run, cwd=clone, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def git(clone: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", "-C", str(clone), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the family in its place, not yet committed."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("conf", "framework", "models"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    git(folder, "add", "conf", "framework", "models")
    git(folder, "commit", "--quiet", "-m", "before")
    shutil.copytree(TOY / "models", folder / "models", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for table in ROWS:
        with (folder / "conf" / table / "default.yaml").open("a", encoding="utf-8") as file:
            file.write((TOY / f"{table}.yaml").read_text("utf-8"))
    git(folder, "add", "--all")
    return folder


@pytest.fixture(scope="module")
def checkpoints() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_checkpoint", TOY / "make_checkpoint.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_touches_its_folder_and_conf_in_under_150_lines(clone: Path) -> None:
    stat = git(clone, "diff", "--cached", "--stat")
    files = re.findall(r"^ (\S+) +\|", stat, re.MULTILINE)
    assert all(name.startswith(("models/spell/", "conf/")) for name in files)
    added = re.search(r"(\d+) insertions\(\+\)$", stat.strip())
    assert added is not None and int(added[1]) < 150, "and nothing is deleted"
    assert stat in PAGE.read_text("utf-8"), f"docs/extending/model.md shows another diff than:\n{stat}"


def test_a_checkpoint_that_knows_the_alphabet_says_it(clone: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(TOY / "make_checkpoint.py"), str(tmp_path / "abc")], check=True)
    command("build", clone, f"model_dir={tmp_path / 'abc'}", f"engine_dir={tmp_path / 'engines'}")
    found = command(
        "inference", clone, f"engine_dir={tmp_path / 'engines'}", "prompt=uvw", "stages.speller.config.length=5"
    )
    assert found == "xyzab\n"


@pytest.mark.parametrize("batching", ["cohort", "inflight"])
def test_a_random_checkpoint_says_what_numpy_says(
    batching: str, clone: Path, tmp_path: Path, checkpoints: ModuleType
) -> None:
    noise = np.random.default_rng(0)
    shapes = {name: value[..., :32].shape for name, value in checkpoints.weights().items()}
    shapes.update({f"{gates}_gates.weight": (96, 32) for gates in ("input", "state")})
    shapes.update({f"{gates}_gates.bias": (96,) for gates in ("input", "state")})
    weights = {name: noise.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    checkpoints.save(tmp_path / "random", weights)
    command("build", clone, f"model_dir={tmp_path / 'random'}", f"engine_dir={tmp_path / 'engines'}")

    prompts = ["a", "Hello", "multistage", "x" * 40]
    requests = [{"messages": [{"role": "user", "content": prompt}]} for prompt in prompts]
    (tmp_path / "requests.json").write_text(json.dumps({"requests": requests}))
    command(
        "inference",
        clone,
        f"engine_dir={tmp_path / 'engines'}",
        f"input_file={tmp_path / 'requests.json'}",
        f"output_file={tmp_path / 'predictions.json'}",
        f"batching={batching}",
        "batching.size=3",
    )
    replies = json.loads((tmp_path / "predictions.json").read_text())["responses"]
    assert [reply["output_text"] for reply in replies] == [said(weights, prompt) for prompt in prompts]
    assert len({reply["output_text"] for reply in replies}) > 1


def said(weights: dict[str, np.ndarray], prompt: str, length: int = 8) -> str:
    """A gated recurrent unit as torch.nn.GRU defines it, greedy."""

    def gates(name: str, x: np.ndarray) -> list[np.ndarray]:
        return np.split(weights[f"{name}_gates.weight"] @ x + weights[f"{name}_gates.bias"], 3)

    unread, written = list(prompt.encode()), list[int]()
    state = np.zeros(weights["head.weight"].shape[1], np.float32)
    while len(written) < length:
        inputs = gates("input", weights["embed.weight"][unread.pop(0) if unread else written[-1]])
        own = gates("state", state)
        reset, update = (1 / (1 + np.exp(-(inputs[gate] + own[gate]))) for gate in (0, 1))
        state = (1 - update) * np.tanh(inputs[2] + reset * own[2]) + update * state
        if not unread:
            written.append(int(np.argmax(weights["head.weight"] @ state)))
    return "".join(map(chr, written))
