"""A Qwen3-Omni checkpoint of the published widths and few layers, with random weights: 2 GB made on the spot.

Six layers of 32 experts in thinker and talker instead of 48 and 20 of 128, four in the audio encoder, six in the visual
one; code predictor and vocoder are whole. Weights decide nothing here but how long an answer takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import tts_checkpoint
from tests.models.qwen3_omni import tiny

HIDDEN, VOCAB = 1024, 32768
END = 2150  # the code that ends a speech
# What transformers 5 calls some parts, and the names they are published under.
MOVED = {
    "thinker.model.audio_tower.": "thinker.audio_tower.",
    "thinker.model.visual.": "thinker.visual.",
    "thinker.model.language_model.": "thinker.model.",
}


def config() -> dict[str, Any]:
    """config.json, for the tiny checkpoint's tokenizer."""
    found = tiny.config()
    thinker, talker = found["thinker_config"], found["talker_config"]
    decoder = {"hidden_size": HIDDEN, "num_hidden_layers": 6, "head_dim": 128, "moe_intermediate_size": 384}
    rope = {**thinker["text_config"]["rope_parameters"], "mrope_section": [24, 20, 20]}
    thinker["text_config"] |= decoder | {
        "vocab_size": VOCAB,
        "intermediate_size": 3072,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_experts": 32,
        "num_experts_per_tok": 8,
        "rope_parameters": rope,
    }
    thinker["audio_config"] |= {
        "d_model": 1280,
        "output_dim": HIDDEN,
        "downsample_hidden_size": 480,
        "encoder_layers": 4,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
    }
    thinker["vision_config"] |= {
        "depth": 6,
        "hidden_size": 1152,
        "out_hidden_size": HIDDEN,
        "intermediate_size": 4304,
        "num_heads": 16,
        "deepstack_visual_indexes": [1, 3, 5],
    }
    talker["text_config"] |= decoder | {
        "intermediate_size": 2048,
        "shared_expert_intermediate_size": 768,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "num_experts": 32,
        "num_experts_per_tok": 6,
        "rope_parameters": rope,
    }
    talker["code_predictor_config"] |= {
        "hidden_size": HIDDEN,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    talker["thinker_hidden_size"] = HIDDEN
    found["code2wav_config"] |= {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "decoder_dim": 1536,
    }
    return found


def save_checkpoint(folder: Path) -> Path:
    """Write it in bf16, as it is published. Neither an answer nor a speech ends of itself when it is greedy: what would
    end them has the logit 0."""
    import ml_dtypes
    import numpy as np

    folder.mkdir(parents=True)
    tiny.save_texts(folder, config())
    ends = {"thinker.lm_head.weight": tiny.END, "talker.codec_head.weight": END}
    shapes = shapes_of(config())
    tts_checkpoint.save(folder / "model.safetensors", shapes, np.dtype(ml_dtypes.bfloat16), "BF16", zeroed=ends)
    return folder


def shapes_of(official: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of a checkpoint, by its official name; none of them is made."""
    import torch
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**official))
    return dict(_official({name: tuple(weight.shape) for name, weight in model.state_dict().items()}))


def _official(shapes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """transformers stacks a layer's experts, with gate and up in one; a checkpoint has a matrix for each."""
    for name, shape in shapes.items():
        for inside, outside in MOVED.items():
            name = name.replace(inside, outside)
        prefix, found, stacked = name.rpartition(".experts.")
        if not found:
            yield name, tuple(shape)
            continue
        experts, rows, columns = shape
        gated = stacked == "gate_up_proj"
        for expert in range(experts):
            for projection in ("gate_proj", "up_proj") if gated else (stacked,):
                yield f"{prefix}.experts.{expert}.{projection}.weight", (rows // 2 if gated else rows, columns)
