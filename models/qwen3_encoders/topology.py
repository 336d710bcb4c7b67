"""The encoders' part of a build: `audio` and `visual`, each with the files that say how to read media."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import Component, PromptOptions
from framework.parsing import read_object
from models.qwen3_encoders.config import (
    PREPROCESSOR,
    PROCESSOR,
    VIDEO_PREPROCESSOR,
    AudioConfig,
    Preprocessing,
    VisionConfig,
    encoder_configs,
    halved,
)

AUDIO, VISUAL = "audio", "visual"
CONFIG = "config.json"
FRAMES = 4  # of a video in one call


def encoder_components(checkpoint: Checkpoint, options: PromptOptions) -> list[Component]:
    """`audio` and `visual`. What they read at most makes `max_input_len` tokens.

    Raises ConfigError for settings that are missing, malformed or unsupported, also of the preprocessor.
    """
    audio, vision = encoder_configs(checkpoint.config, f"{checkpoint.path}: config")
    found = [checkpoint.path / name for name in (PREPROCESSOR, VIDEO_PREPROCESSOR, PROCESSOR)]
    files: dict[str, bytes | Path] = {path.name: path for path in found if path.exists()}
    Preprocessing.from_files(
        {name: read_object(checkpoint.path / name) for name in files}, mels=audio.num_mel_bins, vision=vision
    )
    files[CONFIG] = json.dumps(checkpoint.config, indent=2).encode()
    tokens = options.max_input_len
    seconds = -(-tokens // halved(audio.chunk))
    return [
        Component(
            name=AUDIO,
            artifact=AUDIO,
            model=lambda dtype: _rounded(_audio(audio, checkpoint, dtype), options),
            states={},
            caps={"chunks": seconds, "frames": audio.chunk, "tokens": tokens, "windows": -(-tokens // audio.window)},
            opt={"chunks": min(10, seconds), "tokens": min(130, tokens), "windows": min(2, -(-tokens // audio.window))},
            files=files,
        ),
        Component(
            name=VISUAL,
            artifact=VISUAL,
            model=lambda dtype: _rounded(_visual(vision, checkpoint, dtype), options),
            states={},
            caps={"frames": FRAMES, "tokens": tokens},
            opt={"frames": 1, "tokens": min(576, tokens)},
            files=files,
        ),
    ]


def _rounded(model: Any, options: PromptOptions) -> Any:
    """In 4 bits a picture would take as long as in fp32: whole numbers of 8 bits take a third of it, and are nearer."""
    from framework.nn.integer import integer_matmuls

    return integer_matmuls(model) if options.precision == "int4" else model


def _audio(config: AudioConfig, checkpoint: Checkpoint, dtype: str) -> Any:
    from framework.nn import export
    from models.qwen3_encoders.audio_encoder import AudioEncoder
    from models.qwen3_encoders.weights import audio_weights

    network = AudioEncoder(config, dtype=dtype)
    weights = audio_weights(network, checkpoint, where=f"{checkpoint.path}: {AUDIO}")
    return export(network, network.inputs(), network.outputs(), weights, dtype=dtype, name=AUDIO)


def _visual(config: VisionConfig, checkpoint: Checkpoint, dtype: str) -> Any:
    from framework.nn import export
    from models.qwen3_encoders.visual_encoder import VisualEncoder
    from models.qwen3_encoders.weights import visual_weights

    network = VisualEncoder(config, dtype=dtype)
    weights = visual_weights(network, config, checkpoint, where=f"{checkpoint.path}: {VISUAL}")
    return export(network, network.inputs(), network.outputs(), weights, dtype=dtype, name=VISUAL)
