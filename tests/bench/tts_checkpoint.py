"""A Qwen3-TTS 0.6B CustomVoice checkpoint of the published size, with random weights: 2.4 GB made on the spot.

`tts_shapes.json` holds the names and shapes of the published classes' weights at these sizes (recorded by
`tests/oracles/record_qwen3_tts_sizes.py`). Weights decide nothing here but how long a text takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.qwen3_codec import tiny as codec_tiny
from tests.models.qwen3_tts import talker_tiny

SHAPES = Path(__file__).parent / "tts_shapes.json"
BLOCK = 1 << 22  # random numbers that are used over and over


def config() -> dict[str, Any]:
    """config.json as published, but for a tokenizer of one token a byte."""
    found = talker_tiny.config("custom-0b6")
    decoder = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    talker = found["talker_config"]
    rope = {**talker["rope_scaling"], "mrope_section": [24, 20, 20]}
    talker.update(decoder, num_hidden_layers=28, text_hidden_size=2048, text_vocab_size=151936, rope_scaling=rope)
    talker["code_predictor_config"].update(decoder, num_hidden_layers=5)
    return found


def codec_config() -> dict[str, Any]:
    """speech_tokenizer/config.json as published; of its encoder the class's own sizes."""
    decoder = {
        "codebook_dim": 512,
        "latent_dim": 1024,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "decoder_dim": 1536,
    }
    tiny = codec_tiny.CONFIG
    encoder = {"num_quantizers": 32, "frame_rate": 12.5, "use_causal_conv": True, "sliding_window": 250}
    return {**tiny, "decoder_config": {**tiny["decoder_config"], **decoder}, "encoder_config": encoder}


def save_checkpoint(folder: Path) -> Path:
    """Write it as it is published: the talker in bf16, the codec in fp32."""
    import ml_dtypes

    talker_tiny.save_checkpoint("custom-0b6", folder)  # tokenizer and generation_config.json
    shapes: Mapping[str, Any] = json.loads(SHAPES.read_text())
    (folder / "config.json").write_text(json.dumps(config()))
    save(folder / "model.safetensors", shapes["talker"], np.dtype(ml_dtypes.bfloat16), "BF16")
    codec = folder / "speech_tokenizer"
    (codec / "config.json").write_text(json.dumps(codec_config()))
    save(codec / "model.safetensors", shapes["codec"], np.dtype(np.float32), "F32")
    return folder


def save(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    dtype: np.dtype[Any],
    name: str,
    zeroed: Mapping[str, int] | None = None,
) -> None:
    """Random weights, tensor by tensor, so that it needs no memory of its size; `zeroed` is a row of zeros in some."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for key, shape in shapes.items():
        size = dtype.itemsize * int(np.prod(shape))
        header[key] = {"dtype": name, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    block = rng.standard_normal(BLOCK, dtype=np.float32)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key, shape in shapes.items():
            count = int(np.prod(shape))
            if len(shape) < 2:  # norms, scales, biases, how often a code is used
                values = 1.0 + 0.1 * np.abs(block[:count])
            else:
                values = np.resize(np.roll(block, int(rng.integers(BLOCK))), count) / np.sqrt(np.prod(shape[1:]))
            if zeroed and key in zeroed:
                values.reshape(shape)[zeroed[key]] = 0
            file.write(values.astype(dtype).tobytes())
