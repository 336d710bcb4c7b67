"""Tiny random checkpoints in the official layout, built and run through the real executor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.compile.family import BuildOptions
from framework.execution.executor import Executor
from framework.execution.policies import Policy
from framework.execution.request import Request, Result
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph
from framework.io.tokens import _byte_alphabet
from models.language.runners import Backbone, BackboneConfig
from models.llm.topology import LLM
from tests.models.running import built, executor

VOCAB = 264  # wider than the tokenizer's 260, as published models are
END = 259
FAMILIES = dict.fromkeys(("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"), LLM())
OPTIONS = BuildOptions(max_input_len=320, max_kv_cache_capacity=352, max_batch_size=4, prefill_chunk=256)

COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": END,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
MOE: Mapping[str, Any] = {
    **COMMON,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
# What each checkpoint has of its own: transformers' class, its config, and the size of a shard.
CHECKPOINTS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "llama": ("Llama", {**COMMON, "rms_norm_eps": 1e-5}, "1GB"),
    "llama-tied-llama3": ("Llama", {**COMMON, "tie_word_embeddings": True, "rope_parameters": LLAMA3}, "1GB"),
    "llama-bias-linear": (
        "Llama",
        {
            **COMMON,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        },
        "60KB",
    ),
    "qwen3": ("Qwen3", {**COMMON, "head_dim": 32, "tie_word_embeddings": True}, "1GB"),
    "qwen3-moe": ("Qwen3Moe", {**MOE, "norm_topk_prob": True, "mlp_only_layers": [1]}, "100KB"),
    "qwen3-moe-unnormed": ("Qwen3Moe", {**MOE, "norm_topk_prob": False, "decoder_sparse_step": 2}, "1GB"),
}


def save_checkpoint(name: str, folder: Path) -> Path:
    """Write it as transformers does, with a tokenizer of one token a byte."""
    import torch
    import transformers

    kind, settings, shard = CHECKPOINTS[name]
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # Norms and biases off 1 and 0; matrices so large that the layers, not the embedding, decide what follows.
            one = 1.0 if parameter.dim() == 1 and parameter.mean() == 1 else 0.0
            spread = 0.2 if parameter.dim() == 1 else 1.6 / parameter.shape[-1] ** 0.5
            parameter.copy_(one + spread * noise)
    model.save_pretrained(folder, max_shard_size=shard)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    vocab = {char: byte for char, byte in _byte_alphabet().items()}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|start|>", "<|user|>", "<|assistant|>", "<|end|>"]  # 256 to 259
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    backend.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": template}))


def reference(folder: Path) -> Any:
    """transformers' model of a checkpoint, in fp32."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(model: Any, ids: Sequence[int], count: int) -> list[int]:
    """What transformers generates, up to the end token and with it."""
    import torch

    prompt = torch.tensor([list(ids)])
    written = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=END,
        pad_token_id=0,
    )
    return [int(token) for token in written[0, len(ids) :]]


def text_of(length: int, seed: int = 0) -> str:
    """As many tokens as characters, and each the byte of its character."""
    rng = np.random.default_rng([seed, length])
    return "".join(chr(c) for c in rng.integers(ord("a"), ord("z") + 1, length))


def build_tiny(checkpoint: Path, engine_dir: Path, options: BuildOptions = OPTIONS) -> Graph:
    return built(checkpoint, engine_dir, FAMILIES, options)


def opened(engine_dir: Path, policy: Policy | None = None, **config: Any) -> Executor:
    """An executor over the engines of a folder; `config` is that of the stage."""
    graph = files.load(engine_dir / FILE_NAME)
    # Hidden states are asked for as the caller asks for text: at terminals.
    stages = tuple(
        attrs.evolve(stage, emits=tuple(attrs.evolve(port, terminal=True) for port in stage.emits))
        for stage in graph.stages
    )
    terminals = tuple(
        attrs.evolve(graph.terminals[0], owner=stage.id, name=port.id) for stage in stages for port in stage.emits
    )
    graph = attrs.evolve(graph, stages=stages, terminals=terminals)
    runners = {s.id: Backbone(stage=s, config=BackboneConfig(**{**s.config, **config})) for s in stages}
    return executor(graph, runners, engine_dir, policy)


def request(index: int, text: str, *, hidden: bool = False, **sampling: Any) -> Request:
    """`text` as it is; greedy where `sampling` says nothing else."""
    return Request(
        index=index,
        fields={"messages": [{"role": "user", "content": text}]},
        sampling={"default": {"temperature": 0.0, "max_generate_length": 12, **sampling}},
        kinds=frozenset({"text", "hidden"}) if hidden else frozenset({"text"}),
        options={"apply_chat_template": False},
    )


def answers(executor: Executor, requests: Sequence[Request]) -> list[Result]:
    """Results in the order of the requests."""
    return sorted(executor.run(requests), key=lambda result: result.request.index)


def ids_of(result: Result) -> list[int]:
    assert result.ok, result.error
    return [token for chunk in result.outputs["thinker:text"] for token in chunk.ids]


def text_written(result: Result) -> str:
    return "".join(chunk.text for chunk in result.outputs["thinker:text"])


def hidden_of(result: Result, port: str) -> Any:
    """[tokens, hidden] of prompt and reply."""
    assert result.ok, result.error
    return np.concatenate([chunk.values for chunk in result.outputs[f"thinker:{port}"]])


def details(result: Result) -> Mapping[str, Any]:
    return result.stages["thinker"].details
