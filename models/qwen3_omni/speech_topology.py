"""The speaking part of a Qwen3-Omni build: talker with code predictor, what it makes of media, and the vocoder."""

from __future__ import annotations

import json
from typing import Any

from framework.build.checkpoint import Checkpoint
from framework.build.family import BuildOptions, Component
from models.qwen3_omni.talker_config import vocoder_config
from models.qwen3_tts.codec_config import MAX_FRAMES, VOCODER_FILE, VocoderConfig
from models.qwen3_tts.codec_topology import VOCODER, kept

CODE2WAV = "code2wav."  # prefix of its weights


def _vocoder(checkpoint: Checkpoint, options: BuildOptions) -> Component:
    from models.qwen3_omni.code2wav import Code2WavNetwork, late

    config = vocoder_config(checkpoint.config, where=f"{checkpoint.path}: config")
    states = {state.name: f"{state.name}.next" for state in Code2WavNetwork(config, dtype="float32").histories}
    return Component(
        name=VOCODER,
        artifact=VOCODER,
        model=lambda dtype: kept(_vocoder_model(config, checkpoint, dtype), options),
        states=states,
        caps={"batch": options.max_batch_size, "frames": MAX_FRAMES},
        opt={"frames": 25},
        files={VOCODER_FILE: json.dumps({"late": late(config)}).encode()},
    )


def _vocoder_model(config: VocoderConfig, checkpoint: Checkpoint, dtype: str) -> Any:
    from framework.nn import export
    from models.qwen3_omni.code2wav import Code2WavNetwork
    from models.qwen3_tts.codec_weights import codec_weights

    network = Code2WavNetwork(config, dtype=dtype)
    where = f"{checkpoint.path}: {VOCODER}"
    weights = codec_weights(network, checkpoint, prefix=CODE2WAV, where=where, unused=("thinker.*", "talker.*"))
    return export(network, network.inputs(), network.outputs(), weights, dtype=dtype, name=VOCODER)
