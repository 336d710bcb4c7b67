"""From a checkpoint to an engine folder: whole or not at all, stale or not, and graphs of engines made elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from framework.checkpoints.checkpoint import open_checkpoint
from framework.compile import builder
from framework.compile.builder import build, family_of, graph_only, resolved, stale
from framework.compile.family import BuildOptions, FloatOptions, options_of
from framework.engines import manifest
from framework.engines.backend import Backend
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.tensorrt.backend import TensorRT
from framework.errors import ConfigError, Problem
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph
from models.llm.topology import LLM
from tests.models.llm.tiny import FAMILIES, OPTIONS, build_tiny, write_tokenizer
from tests.models.running import CPU

HIDDEN, VOCAB = 32, 264
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 259,
}
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    f"{LAYER}.input_layernorm.weight": (HIDDEN,),
    f"{LAYER}.post_attention_layernorm.weight": (HIDDEN,),
    **{f"{LAYER}.self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qkvo"},
    f"{LAYER}.mlp.gate_proj.weight": (64, HIDDEN),
    f"{LAYER}.mlp.up_proj.weight": (64, HIDDEN),
    f"{LAYER}.mlp.down_proj.weight": (HIDDEN, 64),
}
SMALL = attrs.evolve(OPTIONS, max_input_len=16, max_kv_cache_capacity=24, max_batch_size=2, prefill_chunk=8)


def write_checkpoint(folder: Path, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    write_tokenizer(folder)
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with its engines; not to be changed."""
    folder = tmp_path_factory.mktemp("built")
    build_tiny(write_checkpoint(folder / "checkpoint"), folder / "engines", SMALL)
    return folder


# What a build leaves


def test_the_folder_holds_engine_graph_and_text_files(built: Path) -> None:
    names = {path.name for path in (built / "engines").iterdir()}
    assert names == {
        "engine.json",
        "model.onnx",
        "model.onnx.data",
        FILE_NAME,
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    }
    assert not [path for path in built.iterdir() if path.name.startswith(".")], "nothing temporary stays"


def test_the_graph_names_the_caps_of_the_build(built: Path) -> None:
    (stage,) = files.load(built / "engines" / FILE_NAME).stages
    assert (stage.id, stage.runner, stage.max_batch, stage.max_seq) == ("thinker", "llm.backbone", 2, 24)
    assert [str(item.source) for item in stage.inputs] == ["request:messages"]


def test_the_record_names_checkpoint_options_and_versions(built: Path) -> None:
    record = manifest.read(built / "engines")
    assert record.checkpoint == open_checkpoint(built / "checkpoint").fingerprint
    assert record.options["precision"] == "fp32" and record.options["max_kv_cache_capacity"] == 24
    assert {"onnxruntime", "onnx", "onnx_ir"} <= record.versions.keys()


def test_an_older_folder_is_replaced_whole(built: Path, tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "stranger").write_text("old")
    (tmp_path / "engines" / "engine.json").write_text("{}")
    build_tiny(built / "checkpoint", tmp_path / "engines", SMALL)
    assert not (tmp_path / "engines" / "stranger").exists()


def test_hidden_layers_become_ports(checkpoint: Path, tmp_path: Path) -> None:
    graph = build_tiny(checkpoint, tmp_path / "engines", attrs.evolve(SMALL, hidden_layers=(0, 1)))
    ports = {port.id: port.binding for port in graph.stages[0].emits}
    assert ports == {"text": "", "embeddings": "hidden.0", "accept_hidden": "hidden.1"}
    assert graph.stages[0].config == {"accept_hidden_layer": 1}


def test_an_engine_that_does_not_run_is_not_built(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ConfigError(Problem(where="llm (cpu)", got="a kernel's words", expected="an engine that runs"))

    monkeypatch.setattr(builder, "run_once", broken)
    with pytest.raises(ConfigError, match="an engine that runs"):
        build(checkpoint, tmp_path / "engines", families=FAMILIES, options=SMALL, backend=CPU)
    assert not (tmp_path / "engines").exists()


def test_an_engine_for_a_gpu_that_is_not_here_is_built_and_not_tried(checkpoint: Path, tmp_path: Path) -> None:
    told: list[str] = []
    options = attrs.evolve(SMALL, candidates=64)
    backend = OnnxRuntimeCuda(device=99)
    build(checkpoint, tmp_path / "e", families=FAMILIES, options=options, backend=backend, progress=told.append)
    assert told[-1].startswith("llm: not tried, for it cannot run here: ")


# Bad checkpoints and options: every fault, before anything is written


def edit_weights(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        edit(weights)
        save_file(weights, folder / "model.safetensors")

    return change


def edit_config(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = {**CONFIG, **changed}
        (folder / "config.json").write_text(json.dumps({key: v for key, v in config.items() if v is not None}))

    return change


def cut_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1000])


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0}
FAULTS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "truncated safetensors": (cut_weights, ["model.safetensors", "bytes of data", "is it truncated?"]),
    "no safetensors": (lambda f: (f / "model.safetensors").unlink(), ["model.safetensors", "no such file"]),
    "no config": (lambda f: (f / "config.json").unlink(), ["expected config.json, or exactly one .gguf file"]),
    "malformed config": (lambda f: (f / "config.json").write_text("{"), ["config.json", "line 1"]),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ["got no tokenizer.json, expected a tokenizer"]),
    "weight of another shape": (
        edit_weights(lambda w: w.update({"model.norm.weight": np.zeros(31, np.float32)})),
        ["llm: model.norm.weight: got shape [31], expected shape [32]"],
    ),
    "weight left over": (
        edit_weights(lambda w: w.update({f"{LAYER}.mlp.extra.weight": np.zeros(2, np.float32)})),
        ["got weight 'model.layers.0.mlp.extra.weight', expected no such weight"],
    ),
    "weight missing": (
        edit_weights(lambda w: w.pop(f"{LAYER}.mlp.down_proj.weight")),
        ["got no weight 'model.layers.0.mlp.down_proj.weight', expected shape [32, 64]"],
    ),
    "two weights wrong": (
        edit_weights(lambda w: (w.pop("model.norm.weight"), w.update({"x": np.zeros(2, np.float32)}))),
        ["2 problems", "'model.norm.weight'", "'x'"],
    ),
    "unsupported architecture": (
        edit_config(architectures=["LlamaForCausalLLM"]),
        ["got LlamaForCausalLLM", "LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM", "did you mean"],
    ),
    "no architecture": (
        edit_config(architectures=None),
        ["architectures: got none, expected a supported architecture"],
    ),
    "keys missing": (
        edit_config(hidden_size=None, vocab_size="many"),
        ["2 problems", "hidden_size: got nothing", 'vocab_size: got "many", expected a whole number of 1 or more'],
    ),
    "unsupported activation": (edit_config(hidden_act="gelu"), ['hidden_act: got "gelu", expected "silu"']),
    "sliding window": (edit_config(use_sliding_window=True), ["use_sliding_window: got true, expected false"]),
    "partly rotary": (edit_config(partial_rotary_factor=0.5), ["partial_rotary_factor: got 0.5, expected 1.0"]),
    "unsupported rotary type": (
        edit_config(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        ["rope_scaling.rope_type: got \"yarn\", expected 'default' or 'linear' or 'llama3'"],
    ),
    "rotary numbers missing": (
        edit_config(rope_parameters=LLAMA3),
        ["rope_parameters.low_freq_factor: got nothing", "high_freq_factor", "original_max_position_embeddings"],
    ),
    "mixture without experts": (
        edit_config(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"]),
        ["num_experts: got nothing", "num_experts_per_tok", "moe_intermediate_size"],
    ),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_a_bad_checkpoint_is_named_and_nothing_is_written(
    checkpoint: Path, tmp_path: Path, fault: Callable[[Path], Any], said: list[str]
) -> None:
    fault(checkpoint)
    with pytest.raises(ConfigError) as error:
        build(checkpoint, tmp_path / "engines", families=FAMILIES, options=SMALL, backend=CPU)
    for text in said:
        assert text in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("options", "backend", "said"),
    [
        pytest.param({"hidden_layers": (2,)}, CPU, r"build\.hidden_layers: got 2, expected -1, or 0 to 1", id="layer"),
        pytest.param({"hidden_layers": (1, -1)}, CPU, "at most one other layer", id="two layers"),
        pytest.param({"tp_size": 2}, CPU, r"build\.tp_size: got 2, expected nothing: LLM does not heed it", id="parts"),
        pytest.param({"components": ("lmm",)}, CPU, "got 'lmm', expected a component .*llm", id="component"),
        pytest.param(
            {"precision": "int4"}, OnnxRuntimeCuda(), "int4 on cuda.*fp32, fp16 or bf16", id="4 bits on a GPU"
        ),
        pytest.param({"precision": "int8"}, TensorRT(), "int8 on tensorrt.*backend=cpu", id="8 bits on TensorRT"),
    ],
)
def test_options_that_cannot_be_had_are_named(
    checkpoint: Path, tmp_path: Path, options: dict[str, Any], backend: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build(
            checkpoint, tmp_path / "engines", families=FAMILIES, options=attrs.evolve(SMALL, **options), backend=backend
        )
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@attrs.frozen(kw_only=True)
class PlainOptions(FloatOptions):
    """`rate` is an option that this family alone has."""

    rate: int = attrs.field(default=1, validator=attrs.validators.ge(1))


class Plain(LLM):
    """A family that heeds little; it is asked for its options alone."""

    options = PlainOptions


def test_options_that_a_family_does_not_heed_are_refused_each_by_name() -> None:
    given = BuildOptions(precision="int8", block_size=64, hidden_layers=(1,), max_batch_size=2, own={"rate": 0})
    with pytest.raises(ConfigError) as raised:
        options_of(Plain(), given)
    assert [(problem.where, problem.got) for problem in raised.value.problems] == [
        ("build.block_size", "64"),
        ("build.hidden_layers", "[1]"),
        ("build.precision", '"int8"'),
        ("build.rate", "0"),
    ]
    block_size, _, precision, _ = raised.value.problems
    assert block_size.expected == "nothing: Plain does not heed it"
    assert block_size.hint == "it has max_batch_size, components, precision, rate"
    assert precision.expected == 'one of "fp32", "fp16", "bf16"'


def test_a_family_gets_its_own_options_and_no_other() -> None:
    given = BuildOptions(precision="fp16", max_batch_size=2, own={"rate": 3})
    assert options_of(Plain(), given) == PlainOptions(precision="fp16", max_batch_size=2, rate=3)
    heeded = {name: getattr(SMALL, name) for name in attrs.fields_dict(LLM.options)}
    assert options_of(LLM(), SMALL) == LLM.options(**heeded)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"rat": 2}, r"build\.rat: got unknown key.*did you mean 'rate'"),
        (
            {"block_size": 64},
            r"build\.own\.block_size: got 64, expected build\.block_size, which other",
        ),
    ],
)
def test_an_own_option_has_a_name_that_the_family_knows(own: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options_of(Plain(), BuildOptions(own=own))


def test_a_failed_build_leaves_the_older_engines(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "copy")
    before = manifest.read(tmp_path / "copy" / "engines")
    edit_weights(lambda w: w.pop("model.norm.weight"))(tmp_path / "copy" / "checkpoint")
    with pytest.raises(ConfigError):
        build_tiny(tmp_path / "copy" / "checkpoint", tmp_path / "copy" / "engines", SMALL)
    assert manifest.read(tmp_path / "copy" / "engines") == before


def test_buffers_and_a_tied_output_layer_may_be_there(checkpoint: Path, tmp_path: Path) -> None:
    def more(weights: dict[str, Any]) -> None:
        weights[f"{LAYER}.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()

    edit_weights(more)(checkpoint)
    build_tiny(checkpoint, tmp_path / "engines", SMALL)


# Precision, and what a build of other options is


@pytest.mark.parametrize(
    ("precision", "backend", "dtype"),
    [
        ("fp16", CPU, "float32"),
        ("int4", CPU, "float32"),
        ("fp32", OnnxRuntimeCuda(), "float32"),
        ("fp16", OnnxRuntimeCuda(), "float16"),
        ("bf16", TensorRT(module="tensorrt_rtx"), "bfloat16"),
    ],
)
def test_the_cpu_computes_in_fp32_and_others_in_the_precision(precision: str, backend: Backend, dtype: str) -> None:
    assert backend.activation_dtype(precision) == dtype


def test_candidates_are_fixed_where_the_backend_needs_it() -> None:
    assert resolved(SMALL, CPU).candidates == 0
    assert resolved(SMALL, TensorRT()).candidates == resolved(SMALL, OnnxRuntimeCuda()).candidates == 1024
    assert resolved(attrs.evolve(SMALL, candidates=64), CPU).candidates == 64


def test_what_was_built_is_not_stale(built: Path) -> None:
    assert stale(built / "engines", options=SMALL, backend=CPU) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"precision": "int8"}, "it was built with precision=fp32, not int8"),
        ({"max_batch_size": 3}, "it was built with max_batch_size=2, not 3"),
        ({"hidden_layers": (0,)}, r"it was built with hidden_layers=\[\], not \[0\]"),
    ],
    ids=["precision", "batch", "hidden layers"],
)
def test_other_options_are_stale(built: Path, changed: dict[str, Any], said: str) -> None:
    reason = stale(built / "engines", options=attrs.evolve(SMALL, **changed), backend=CPU)
    assert reason is not None and re.fullmatch(said, reason)


def test_an_option_younger_than_the_engine_had_its_default(built: Path, tmp_path: Path) -> None:
    engines = shutil.copytree(built / "engines", tmp_path / "engines")
    for path in engines.rglob("engine.json"):
        record = json.loads(path.read_text())
        del record["options"]["block_size"]
        path.write_text(json.dumps(record))
    assert stale(engines, options=SMALL, backend=CPU) is None
    reason = stale(engines, options=attrs.evolve(SMALL, block_size=64), backend=CPU)
    assert reason == "it was built with block_size=32, not 64"


def test_the_same_checkpoint_elsewhere_is_not_stale(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built / "checkpoint", tmp_path / "copy")
    assert stale(built / "engines", options=SMALL, backend=CPU, model_path=tmp_path / "copy") is None
    assert stale(built / "engines", options=SMALL, backend=CPU, model_path=tmp_path / "deleted since") is None


def test_a_changed_tokenizer_is_stale(built: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(built / "checkpoint", tmp_path / "copy")
    config = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "{{ messages }}"}))
    reason = stale(built / "engines", options=SMALL, backend=CPU, model_path=copy)
    assert reason == f"it was built from another tokenizer or chat template than '{copy}' has now"


@pytest.mark.parametrize("changed", ["weights", "config"])
def test_a_changed_checkpoint_is_stale(built: Path, tmp_path: Path, changed: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(built / "checkpoint", copy)
    if changed == "weights":
        weights = load_file(copy / "model.safetensors")
        save_file(weights | {"model.norm.weight": weights["model.norm.weight"] * 2}, copy / "model.safetensors")
    else:
        edit_config(rms_norm_eps=1e-6)(copy)
    reason = stale(built / "engines", options=SMALL, backend=CPU, model_path=copy)
    assert reason == f"it was built from other weights or another config than '{copy}' has now"


def test_another_backend_is_stale(built: Path) -> None:
    assert stale(built / "engines", options=SMALL, backend=TensorRT()) == "it was built for backend cpu, not tensorrt"


def test_a_folder_without_engines_is_stale(tmp_path: Path) -> None:
    assert stale(tmp_path / "nowhere", options=SMALL, backend=CPU) == "there are no engines yet"


# The graph of engines that are there


def place(built: Path, engines: Path, *folders: str) -> Path:
    """Copies of the engine in the given folders, each a component made elsewhere."""
    for folder in folders:
        shutil.copytree(built / "engines", engines / folder, dirs_exist_ok=True)
        (engines / folder / FILE_NAME).unlink()
    return engines


@pytest.mark.parametrize("folder", [".", "thinker", "llm"])
def test_the_backbone_is_found_in_its_folders(built: Path, tmp_path: Path, folder: str) -> None:
    engines = place(built, tmp_path / "engines", folder)
    graph = graph_only(built / "checkpoint", engines, families=FAMILIES)
    assert isinstance(graph, Graph)
    (stage,) = graph.stages
    assert (stage.artifact, stage.max_batch, stage.max_seq) == (folder, 2, 24)
    assert files.load(engines / FILE_NAME) == graph


@pytest.mark.parametrize(
    ("folders", "inputs"),
    [
        (("audio",), ["messages", "audio"]),
        (("visual",), ["messages", "image"]),
        (("multimodal/audio", "multimodal/visual"), ["messages", "audio", "image"]),
        (("audio", "multimodal/visual"), ["messages", "audio", "image"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_encoders_make_inputs_of_the_one_stage(
    built: Path, tmp_path: Path, folders: tuple[str, ...], inputs: list[str]
) -> None:
    engines = place(built, tmp_path / "engines", "thinker", *folders)
    graph = graph_only(built / "checkpoint", engines, families=FAMILIES)
    assert isinstance(graph, Graph)
    (stage,) = graph.stages
    assert [item.source.name for item in stage.inputs] == inputs
    assert [item.on_missing for item in stage.inputs] == ["fail"] + ["skip"] * (len(inputs) - 1)


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (("audio",), "no llm component was built"),
        (("talker",), "no llm component was built"),
        (("llm", "action"), "no stage runs the component action"),
    ],
    ids=["no backbone", "another component alone", "a component that no stage runs"],
)
def test_why_there_is_no_graph(built: Path, tmp_path: Path, folders: tuple[str, ...], reason: str) -> None:
    engines = place(built, tmp_path / "engines", *folders)
    assert graph_only(built / "checkpoint", engines, families=FAMILIES) == reason
    assert not (engines / FILE_NAME).exists()


def test_an_engine_anywhere_else_is_left_out(built: Path, tmp_path: Path) -> None:
    engines = place(built, tmp_path / "engines", "llm", "old/llm", "multimodal/talker")
    graph = graph_only(built / "checkpoint", engines, families=FAMILIES)
    assert isinstance(graph, Graph) and [stage.artifact for stage in graph.stages] == ["llm"]


def test_hidden_states_that_an_engine_gives_are_ports_of_its_graph(checkpoint: Path, tmp_path: Path) -> None:
    written = build_tiny(checkpoint, tmp_path / "engines", attrs.evolve(SMALL, hidden_layers=(0, -1)))
    assert graph_only(checkpoint, tmp_path / "engines", families=FAMILIES) == written


def test_a_folder_without_engines_says_where_they_are_looked_for(built: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no engine, expected engine\.json in it, in thinker, llm, audio,"):
        graph_only(built / "checkpoint", tmp_path, families=FAMILIES)


def test_family_is_the_first_architecture_that_is_supported(checkpoint: Path) -> None:
    edit_config(architectures=["Unknown", "LlamaForCausalLM"])(checkpoint)
    assert family_of(open_checkpoint(checkpoint), FAMILIES) is FAMILIES["LlamaForCausalLM"]


def test_defaults_of_a_build_are_those_of_the_documentation() -> None:
    options = BuildOptions()
    assert (options.max_input_len, options.max_kv_cache_capacity, options.max_batch_size) == (1024, 4096, 4)
