"""A tiny random codec in the official layout, the same bit for bit wherever it is made.

`codec.json` holds the configs and the shapes of the published classes' weights, and `codec.npz` what these classes
compute with the weights made here (recorded by `tests/oracles/record_qwen3_tts_codec.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
HERE = Path(__file__).parent
SAMPLED = 7  # one of so many samples of sound is recorded
CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3TTSTokenizerV2Model"],
    "model_type": "qwen3_tts_tokenizer_12hz",
    "encoder_valid_num_quantizers": 16,
    "input_sample_rate": 24000,
    "output_sample_rate": 24000,
    "decode_upsample_rate": 1920,
    "encode_downsample_rate": 1920,
    "decoder_config": {
        "codebook_size": 2048,
        "codebook_dim": 16,
        "latent_dim": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "num_quantizers": 16,
        "num_semantic_quantizers": 1,
        "decoder_dim": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "sliding_window": 72,
        "rope_theta": 10000,
        "layer_scale_initial_scale": 0.01,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8000,
    },
    "encoder_config": {
        "hidden_size": 32,
        "num_filters": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "intermediate_size": 64,
        "codebook_size": 2048,
        "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8,
        "num_quantizers": 18,
        "num_semantic_quantizers": 1,
        "sampling_rate": 24000,
        "upsampling_ratios": [8, 6, 5, 4],
        "frame_rate": 12.5,
        "audio_channels": 1,
        "sliding_window": 250,
        "use_causal_conv": True,
        "upsample_groups": 32,
    },
}
SPEAKER_CONFIG: Mapping[str, Any] = {"enc_dim": 24, "sample_rate": 24000}
# Its published config has only these two keys; the other sizes are the class's, too large for a test of milliseconds.
SPEAKER_SIZES: Mapping[str, Any] = {
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_attention_channels": 16,
    "enc_se_channels": 16,
}


def recorded() -> Mapping[str, Any]:
    """`codec`, `speaker`: shapes of the published weights by name."""
    found: Mapping[str, Any] = json.loads((HERE / "codec.json").read_text())
    return found


def expected() -> Mapping[str, Array]:
    """What the published classes compute, by the names the recording gives."""
    with np.load(HERE / "codec.npz") as file:
        return dict(file)


def random_weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Each tensor by its own generator, seeded with its name."""
    return {name: _random(name, tuple(shape)) for name, shape in shapes.items()}


def save_codec(folder: Path) -> Path:
    """Write `speech_tokenizer/`."""
    return _save(folder, CONFIG, random_weights(recorded()["codec"]))


def save_speaker(folder: Path) -> Path:
    """Write a checkpoint of which only the speaker encoder is there."""
    config = {"tts_model_type": "base", "speaker_encoder_config": {**SPEAKER_CONFIG, **SPEAKER_SIZES}}
    return _save(folder, config, random_weights(recorded()["speaker"]))


def random_codes(frames: int, seed: int = 0) -> Array:
    """int32 [frames, 16]."""
    return np.random.default_rng([seed, 16]).integers(0, 2048, (frames, 16)).astype(np.int32)


def noise(samples: int, seed: int = 0) -> Array:
    """Something like a voice: float32 [samples] at 24 kHz."""
    rng = np.random.default_rng([seed, 24])
    time = np.arange(samples) / 24000
    sound = sum(np.sin(2 * np.pi * 140 * k * time + rng.uniform(0, 6)) / k for k in range(1, 12))
    sound = sound * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time)) + rng.standard_normal(samples) * 0.1
    return np.asarray(0.2 * sound, np.float32)


def _random(name: str, shape: tuple[int, ...]) -> Array:
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    values = rng.standard_normal(shape)
    if name.endswith("initialized"):
        values = np.ones(shape)
    elif name.endswith("cluster_usage"):
        values = 0.5 + rng.random(shape)
    elif name.endswith(("embedding_sum", "embed_sum")):
        values = 0.5 * values
    elif name.endswith(("norm.weight", "gamma", "scale")):
        values = 0.7 + 0.2 * values
    elif name.endswith(("alpha", "beta")):
        values = 0.4 * values
    elif len(shape) == 1:
        values = 0.1 * values
    else:
        # Transposed convolutions are saved [in, out, kernel] and two of their taps meet in an output.
        fan_in = 2 * shape[0] if ".block.1.conv." in name and name.startswith("decoder") else np.prod(shape[1:])
        gain = 0.6 if name.startswith("decoder.decoder") else 1.0  # so that sound seldom clips
        values = gain * values / np.sqrt(fan_in)
    return np.asarray(values, np.float32)


def _save(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Array]) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(weights), folder / "model.safetensors")
    return folder
