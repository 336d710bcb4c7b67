"""A build holds a piece of the weights at a time, whatever it makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.models.llm.tiny import write_tokenizer

ROOT = Path(__file__).parents[2]
EXPERTS, HIDDEN, INNER, LAYERS = 64, 512, 256, 3
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 264,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
    "eos_token_id": 259,
    "tie_word_embeddings": True,
}
# What is imported and opened before the build is no part of it: the first build is of another precision.
SCRIPT = """
import sys
from pathlib import Path
from framework.compile.builder import build
from framework.compile.family import BuildOptions
from tests.models.llm.tiny import FAMILIES
from tests.models.running import CPU

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

checkpoint, small, target, precision = sys.argv[1:]
type(CPU).free_memory = lambda backend: 0  # so the engine is not tried: it may be larger than the memory
sizes = {"max_input_len": 16, "max_kv_cache_capacity": 24, "max_batch_size": 1, "prefill_chunk": 8}
options = BuildOptions(precision=precision, **sizes)
build(Path(small), Path(target + "_first"), families=FAMILIES, options=options, backend=CPU)
before = peak()
build(Path(checkpoint), Path(target), families=FAMILIES, options=options, backend=CPU)
print(peak() - before)
"""


def write_checkpoint(folder: Path, experts: int, layers: int) -> Path:
    """In bf16, a matrix for each expert, in a file for each layer."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    files: dict[str, dict[str, tuple[int, ...]]] = {
        "model-0.safetensors": {"model.embed_tokens.weight": (264, HIDDEN), "model.norm.weight": (HIDDEN,)}
    }
    for layer in range(layers):
        name = f"model.layers.{layer}"
        files[f"model-{layer + 1}.safetensors"] = {
            **{f"{name}.{norm}_layernorm.weight": (HIDDEN,) for norm in ("input", "post_attention")},
            **{f"{name}.self_attn.{p}_proj.weight": (256, HIDDEN) for p in "qkv"},
            f"{name}.self_attn.o_proj.weight": (HIDDEN, 256),
            **{f"{name}.self_attn.{p}_norm.weight": (64,) for p in "qk"},
            f"{name}.mlp.gate.weight": (experts, HIDDEN),
            **{
                f"{name}.mlp.experts.{expert}.{p}_proj.weight": (HIDDEN, INNER) if p == "down" else (INNER, HIDDEN)
                for expert in range(experts)
                for p in ("gate", "up", "down")
            },
        }
    for file, shapes in files.items():
        weights = {name: rng.standard_normal(s, np.float32).astype(ml_dtypes.bfloat16) for name, s in shapes.items()}
        save_file(weights, folder / file)
    index = {name: file for file, shapes in files.items() for name in shapes}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(
        json.dumps({**CONFIG, "num_experts": experts, "num_hidden_layers": layers, "num_experts_per_tok": 1})
    )
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One of 150 MB and one of the same kind and few weights."""
    folder = tmp_path_factory.mktemp("mixtures")
    return write_checkpoint(folder / "large", EXPERTS, LAYERS), write_checkpoint(folder / "small", 2, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says how much memory a process had at its peak")
@pytest.mark.parametrize("precision", ["bf16", "int4"])
def test_a_build_takes_a_fraction_of_the_weights_it_writes(
    checkpoints: tuple[Path, Path], tmp_path: Path, precision: str
) -> None:
    target = tmp_path / "engines"
    command = [sys.executable, "-c", SCRIPT, *map(str, checkpoints), str(target), precision]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    written = (target / "model.onnx.data").stat().st_size
    assert written > 35_000_000
    assert int(ran.stdout) < 0.8 * written  # a piece for each thread, and a session of ONNX Runtime
