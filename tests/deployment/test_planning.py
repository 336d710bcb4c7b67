"""What a deployment will take of the memory, said before anything is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import save_file

from framework.checkpoints.tensor import Tensor
from framework.cli.memory import report, tell
from framework.compile.builder import build, plan
from framework.deployment.planning import Planned, planned, too_much
from framework.engines import manifest
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.footprint import Footprint, footprint
from framework.engines.memory import free_host_memory
from framework.errors import ConfigError, Problem
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph
from tests.models.llm.tiny import FAMILIES, OPTIONS, write_tokenizer
from tests.models.running import CPU

ROOT = Path(__file__).parents[2]
OPTIONS_WIDE = attrs.evolve(OPTIONS, max_kv_cache_capacity=768, max_batch_size=2)
HIDDEN, INNER, LAYERS, VOCAB = 512, 1536, 6, 264


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of 82 MB, with caches of 50 MB."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.{norm}_layernorm.weight": (HIDDEN,) for norm in ("input", "post_attention")}
        shapes |= {f"{name}.self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qkvo"}
        shapes |= {f"{name}.mlp.{p}_proj.weight": (INNER, HIDDEN) for p in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj.weight": (HIDDEN, INNER)}
    weights = {name: rng.standard_normal(s, dtype=np.float32) / s[-1] ** 0.5 for name, s in shapes.items()}
    (folder / "checkpoint").mkdir()
    save_file(weights, folder / "checkpoint" / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 259,
    }
    (folder / "checkpoint" / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder / "checkpoint")
    build(folder / "checkpoint", folder / "engines", families=FAMILIES, options=OPTIONS_WIDE, backend=CPU)
    return folder / "engines"


def command(*arguments: str, cwd: Path, name: str = "inference") -> tuple[subprocess.CompletedProcess[str], int]:
    """What the command printed, and its peak memory in bytes."""
    line = [sys.executable, "-m", f"framework.cli.{name}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    wrapped = "import subprocess, sys, resource; code = subprocess.call(sys.argv[1:]); " + (
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
    )
    whole = [sys.executable, "-c", wrapped, *line]
    ran = subprocess.run(whole, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    return ran, int(ran.stderr.split()[-1]) * (1024 if sys.platform == "linux" else 1)


def test_the_plan_is_near_what_a_full_run_takes(engines: Path, tmp_path: Path) -> None:
    found = planned(files.load(engines / FILE_NAME), engines, CPU, rows=2)
    total = sum(item.takes.total for item in found)
    requests = [{"messages": [{"role": "user", "content": letter * 300}]} for letter in "ab"]
    (tmp_path / "requests.json").write_text(
        json.dumps({"requests": requests, "batch_size": 2, "max_generate_length": 20, "temperature": 0.0})
    )
    ran, peak = command(
        f"engine_dir={engines}", "input_file=requests.json", "output_file=out.json", "backend.threads=1", cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    half = sum(item.takes.states for item in found) * (1 - 512 / 1024)  # cache that these requests do not reach
    assert peak == pytest.approx(total - half, rel=0.2)


def test_the_command_prints_a_table_and_loads_nothing(engines: Path, tmp_path: Path) -> None:
    ran, peak = command(f"engine_dir={engines}", "plan_memory=true", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["stage", "engine", "rows", "weights", "caches", "activations", "total"]
    assert [line.split()[0] for line in lines[2:5]] == ["-", "thinker", "all"]
    assert "; fits (estimated" in lines[5]
    assert peak < 100_000_000 and not any(tmp_path.iterdir())


def test_what_does_not_fit_is_named_and_is_status_1(engines: Path, tmp_path: Path) -> None:
    record = json.loads((engines / "engine.json").read_text())
    copy = tmp_path / "engines"
    copy.mkdir()
    (copy / "engine.json").write_text(json.dumps({**record, "weights": 10**15}))
    (copy / FILE_NAME).write_bytes((engines / FILE_NAME).read_bytes())
    ran, _ = command(f"engine_dir={copy}", "plan_memory=true", cwd=tmp_path)
    assert ran.returncode == 1
    assert "does not fit: thinker (" in ran.stdout and "1000000.00 GB" in ran.stdout


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_a_build_is_planned_without_reading_weights(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    checkpoint, options = engines.parent / "checkpoint", attrs.evolve(OPTIONS_WIDE, precision=precision)
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "raw", lambda tensor: pytest.fail(f"{tensor.name} was read"))
        (foreseen,) = plan(checkpoint, families=FAMILIES, options=options, backend=CPU).values()
    build(checkpoint, tmp_path / "engines", families=FAMILIES, options=options, backend=CPU)
    takes = footprint(manifest.read(tmp_path / "engines"), options.max_batch_size)
    assert (foreseen.states, foreseen.activations) == (takes.states, pytest.approx(takes.activations, rel=0.2))
    assert foreseen.weights == pytest.approx(takes.weights, rel=0.03)


def test_the_build_command_plans_what_is_not_there(engines: Path, tmp_path: Path) -> None:
    checkpoint = engines.parent / "checkpoint"
    ran, _ = command(f"model_dir={checkpoint}", "plan_memory=true", cwd=tmp_path, name="build")
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[1] for line in ran.stdout.splitlines()[2:4]] == ["(process)", "llm"]
    assert not any(tmp_path.iterdir())


def item(stage: str, size: int, engine: str = "e") -> Planned:
    return Planned(stage=stage, engine=engine, takes=Footprint(weights=size, states=0, activations=0))


def test_stages_fit_in_the_order_of_the_graph() -> None:
    found = [
        item("", 5, "(process)"),
        item("thinker", 50),
        item("talker", 40),
        item("code2wav", 10),
        item("", 1, "voice"),
    ]
    assert too_much(found, 106) == []
    assert too_much(found, 105) == ["voice"]
    assert too_much(found, 60) == ["talker", "code2wav", "voice"]
    assert "free on GPU 1: 0 kB; does not fit: talker, code2wav, voice" in report(found, 60, "GPU 1")


def test_engines_that_no_stage_names_are_planned_too(engines: Path) -> None:
    graph = files.load(engines / FILE_NAME)
    alone = planned(Graph(), engines, attrs.evolve(CPU), rows=1)
    assert [(i.stage, i.engine, i.rows) for i in alone] == [("", "(process)", 0), ("", ".", 1)]
    assert [(i.stage, i.engine, i.rows) for i in planned(graph, engines, CPU)] == [
        ("", "(process)", 0),
        ("thinker", ".", 2),
    ]


@pytest.mark.parametrize(
    ("limit", "used", "cache", "free"),
    [(None, 0, 0, 2048), ("max", 0, 0, 2048), ("1500", 700, 100, 900), ("9999999", 10, 0, 2048), ("100", 700, 0, 0)],
    ids=["no group", "no limit", "a limit", "a wide limit", "over the limit"],
)
def test_a_containers_limit_counts(tmp_path: Path, limit: Any, used: int, cache: int, free: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       9 kB\nMemAvailable:       2 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    assert free_host_memory(tmp_path / "meminfo", tmp_path) == free


def test_nothing_is_said_to_fit_where_the_memory_of_one_place_is_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(self: OnnxRuntimeCuda) -> int:
        raise ConfigError(Problem(where="backend", got="no GPU", expected="one"))

    monkeypatch.setattr(OnnxRuntimeCuda, "free_memory", unknown)
    takes = Footprint(weights=1, states=0, activations=0)
    plan = [Planned(stage="a", engine="a", takes=takes, rows=1)]
    assert tell({CPU: plan}) == 0 and "; fits (" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no GPU"):
        tell({CPU: plan, OnnxRuntimeCuda(): plan})
    assert capsys.readouterr().out == ""
