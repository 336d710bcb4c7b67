"""A tiny random Qwen3-Omni checkpoint in the official layout, and transformers' model of it.

Its vocabulary is a token a byte, a few words, and the marks of the published one under smaller ids.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.models.qwen3_tts import talker_tiny

# Words that are one token each, as they are in the real vocabulary.
WORDS = ("system", "user", "assistant", "the", "ing")
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)
VOCAB = 320  # wider than the tokenizer's, as the published one is
MEL = 128
HIDDEN = 48  # of the thinker
SPEAKERS = {"chelsie": 2301, "ethan": 2302, "aiden": 2303}
PREPROCESSOR: Mapping[str, Any] = {
    "processor_class": "Qwen3OmniMoeProcessor",
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": MEL,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 300,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "left",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 3136,
    "max_pixels": 12845056,
}
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if part.type == 'text' %}{{ part.text }}
{%- elif part.type == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>
{%- elif part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>
{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def token_id(token: str) -> int:
    """Id of a word or mark."""
    vocab, _ = talker_tiny.vocabulary(WORDS)
    return vocab[token] if token in vocab else len(vocab) + SPECIAL.index(token)


END = token_id("<|im_end|>")


def config() -> dict[str, Any]:
    """config.json, with the official keys; every width differs from the others it could be mistaken for."""
    decoder = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False}
    sections = {"mrope_section": [4, 2, 2], "interleaved": True, "mrope_interleaved": True}
    rope = {"rope_type": "default", "rope_theta": 1_000_000.0}
    media = {
        "audio_token_id": token_id("<|audio_pad|>"),
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "audio_start_token_id": token_id("<|audio_start|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }
    thinker = {
        **decoder,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": 0,
        "max_position_embeddings": 65536,
        "rope_parameters": {**rope, **sections},
        "tie_word_embeddings": False,
    }
    audio = {
        "d_model": 32,
        "output_dim": HIDDEN,
        "downsample_hidden_size": 16,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "num_mel_bins": MEL,
        "max_source_positions": 1500,
        "n_window": 50,
        "n_window_infer": 800,
        "conv_chunksize": 500,
    }
    vision = {
        "depth": 4,
        "hidden_size": 32,
        "out_hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [0, 1, 2],
    }
    talker = {
        **decoder,
        "vocab_size": 3072,
        "hidden_size": 32,
        "intermediate_size": 40,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": 65536,
        "rope_parameters": {**rope, **sections},
        "tie_word_embeddings": False,
    }
    predictor = {
        **decoder,
        "vocab_size": 2048,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_code_groups": 16,
        "max_position_embeddings": 32768,
        "rope_parameters": rope,
    }
    return {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "enable_audio_output": True,
        "im_start_token_id": token_id("<|im_start|>"),
        "im_end_token_id": END,
        "system_token_id": token_id("system"),
        "user_token_id": token_id("user"),
        "assistant_token_id": token_id("assistant"),
        "tts_pad_token_id": token_id("<tts_pad>"),
        "tts_bos_token_id": token_id("<tts_text_bos>"),
        "tts_eos_token_id": token_id("<tts_text_eod>"),
        "thinker_config": {
            **media,
            "model_type": "qwen3_omni_moe_thinker",
            "audio_end_token_id": token_id("<|audio_end|>"),
            "vision_end_token_id": token_id("<|vision_end|>"),
            "user_token_id": token_id("user"),
            "text_config": thinker,
            "audio_config": audio,
            "vision_config": vision,
        },
        "talker_config": {
            **media,
            "audio_end_token_id": token_id("<|audio_end|>"),
            "text_config": talker,
            "code_predictor_config": predictor,
            "num_code_groups": 16,
            "thinker_hidden_size": HIDDEN,
            "accept_hidden_layer": 3,
            "spatial_merge_size": 2,
            "speaker_id": SPEAKERS,
            "codec_pad_id": 2148,
            "codec_bos_id": 2149,
            "codec_eos_token_id": 2150,
            "codec_nothink_id": 2155,
            "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157,
        },
        "code2wav_config": {
            "codebook_size": 2048,
            "num_quantizers": 16,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "decoder_dim": 32,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
            "max_position_embeddings": 8000,
            "sliding_window": 72,
            "rms_norm_eps": 1e-5,
            "layer_scale_initial_scale": 0.01,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }


def save_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write it as it is published; the weights depend on `seed` alone."""
    import torch
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    official = config()
    model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**official)).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random(name, parameter, torch.randn(parameter.shape, generator=generator)))
        # So that some answers, and some speeches, end by themselves.
        model.thinker.lm_head.weight[END] *= 2.0
        model.talker.codec_head.weight[official["talker_config"]["codec_eos_token_id"]] *= 4.0
    model.save_pretrained(folder, max_shard_size="2MB")
    save_texts(folder, official)
    return folder


def save_texts(folder: Path, official: Mapping[str, Any]) -> None:
    """All but the weights."""
    (folder / "config.json").write_text(json.dumps(official, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END, "pad_token_id": END - 2}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    _save_tokenizer(folder)


def _random(name: str, parameter: Any, noise: Any) -> Any:
    """Norms around one; matrices so large that the layers, not the embedding, decide what follows."""
    if parameter.dim() == 1:
        if name.startswith("code2wav") and name.endswith(("alpha", "beta", "gamma", "scale")):
            return 0.3 * noise
        return (1.0 if bool((parameter == 1).all()) else 0.0) + 0.1 * noise
    fan_in = parameter.shape[-1] if ".experts." in name else parameter[0].numel()
    gain = 0.75 if name.startswith("code2wav") else 1.2  # so that sound seldom clips
    return gain * noise / fan_in**0.5


def _save_tokenizer(folder: Path) -> None:
    media = {
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
    talker_tiny.save_tokenizer(folder, WORDS, SPECIAL, extra_special_tokens=media, **media)


def reference(folder: Path) -> Any:
    """transformers' model of the checkpoint, in fp32."""
    import torch
    from transformers import Qwen3OmniMoeForConditionalGeneration

    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    # Without it, transformers 5.24 cannot speak about audio and images together.
    model.talker.config.audio_config = model.config.thinker_config.audio_config
    return model


if __name__ == "__main__":
    print(save_checkpoint(Path(sys.argv[1])))
