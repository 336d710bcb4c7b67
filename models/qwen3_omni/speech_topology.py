"""The speaking part of a Qwen3-Omni build: talker with code predictor, what it makes of media, and the vocoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import BuildOptions, Component
from framework.graph.model import Input, Port, Source, Stage
from models.llm.topology import own_sampling
from models.qwen3_omni.talker_config import OmniSpeechConfig, vocoder_config
from models.qwen3_tts.codec_config import MAX_FRAMES, VOCODER_FILE, VocoderConfig
from models.qwen3_tts.codec_topology import VOCODER, code2wav_stage, exported, kept
from models.qwen3_tts.topology import NAME as TALKER
from models.qwen3_tts.topology import talker_component

PROJECTION = "hidden_projection"
WEIGHTS = "code2wav."  # prefix of the vocoder's


def speech_components(checkpoint: Checkpoint, options: BuildOptions) -> list[Component]:
    """`talker`, `hidden_projection` and `code2wav` of a checkpoint with a talker.

    Raises ConfigError for one that cannot be read.
    """
    config = _config(checkpoint)
    talker = talker_component(
        config,
        checkpoint,
        options,
        lambda capacity, dtype: _talker(config, checkpoint, options, capacity, dtype),
        media=options.prefill_chunk,
    )
    projection = Component(
        name=PROJECTION,
        artifact=PROJECTION,
        model=lambda dtype: _projection(config, checkpoint, dtype),
        states={},
        caps={"rows": options.prefill_chunk},
    )
    return [talker, projection, _vocoder(checkpoint, options)]


def speech_stages(
    components: Mapping[str, str], checkpoint: Checkpoint, options: BuildOptions | None
) -> tuple[Stage, ...]:
    """The stages behind a thinker; none where talker or vocoder were not built."""
    if TALKER not in components or VOCODER not in components:
        return ()
    talker = _talker_stage(components, checkpoint, options)
    return (talker, code2wav_stage(components[VOCODER], options))


def _talker_stage(components: Mapping[str, str], checkpoint: Checkpoint, options: BuildOptions | None) -> Stage:
    """With the checkpoint's own sampling, and its first voice, as its defaults."""
    settings: dict[str, Any] = {"prefill_builder": "segments", "code_predictor_artifact": "."}
    settings |= own_sampling(checkpoint.generation_config, "talker_")
    settings["speaker"] = _config(checkpoint).default_speaker
    if PROJECTION in components:
        settings["projection_artifact"] = f"../{components[PROJECTION]}"
    return Stage(
        id=TALKER,
        runner="qwen3_omni.talker",
        artifact=components[TALKER],
        kind="autoregressive",
        inputs=(
            Input(name="hidden", source=Source("thinker", "accept_hidden")),
            Input(name="text_ids", source=Source("thinker", "text")),
            Input(name="voice", source=Source("request", "voice"), on_missing="skip"),
        ),
        emits=(Port(id="codes", kind="codec", transport="chunk_stream"),),
        max_batch=options.max_batch_size if options else 1,
        max_seq=options.max_kv_cache_capacity if options else 0,
        config=settings,
    )


def _config(checkpoint: Checkpoint) -> OmniSpeechConfig:
    return OmniSpeechConfig.from_checkpoint(checkpoint.config, where=f"{checkpoint.path}: config")


def _talker(config: OmniSpeechConfig, checkpoint: Checkpoint, options: BuildOptions, capacity: int, dtype: str) -> Any:
    from framework.nn import weight_shapes
    from models.qwen3_omni.talker_network import AnswerSpeech
    from models.qwen3_omni.talker_weights import talker_weights

    network = AnswerSpeech(config, capacity=capacity, dtype=dtype, candidates=options.candidates or 0)
    weights = talker_weights(weight_shapes(network), config, checkpoint, where=f"{checkpoint.path}: {TALKER}")
    return exported(network, weights, dtype, TALKER)


def _projection(config: OmniSpeechConfig, checkpoint: Checkpoint, dtype: str) -> Any:
    from framework.nn import weight_shapes
    from models.qwen3_omni.talker_network import MediaProjection
    from models.qwen3_omni.talker_weights import projection_weights

    network = MediaProjection(config, dtype=dtype)
    weights = projection_weights(weight_shapes(network), checkpoint, where=f"{checkpoint.path}: {PROJECTION}")
    return exported(network, weights, dtype, PROJECTION)


def _vocoder(checkpoint: Checkpoint, options: BuildOptions) -> Component:
    from models.qwen3_omni.code2wav import Code2WavNetwork, late

    config = vocoder_config(checkpoint.config, where=f"{checkpoint.path}: config")
    # Only states' names are wanted here.
    states = {state.name: f"{state.name}.next" for state in Code2WavNetwork(config, dtype="float32").histories}
    return Component(
        name=VOCODER,
        artifact=VOCODER,
        model=lambda dtype: kept(_vocoder_model(config, checkpoint, dtype), options),
        states=states,
        caps={"batch": options.max_batch_size, "frames": MAX_FRAMES},
        opt={"frames": 25},
        most={"frames": 25},
        files={VOCODER_FILE: json.dumps({"late": late(config)}).encode()},
    )


def _vocoder_model(config: VocoderConfig, checkpoint: Checkpoint, dtype: str) -> Any:
    from models.qwen3_omni.code2wav import Code2WavNetwork
    from models.qwen3_tts.codec_weights import codec_weights

    network = Code2WavNetwork(config, dtype=dtype)
    where = f"{checkpoint.path}: {VOCODER}"
    weights = codec_weights(network, checkpoint, prefix=WEIGHTS, where=where, unused=("thinker.*", "talker.*"))
    return exported(network, weights, dtype, VOCODER)
