"""What a build of a Qwen3-Omni checkpoint makes: up to six engines, and a graph of thinker, talker and vocoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import BackboneOptions, Component, Topology
from framework.graph.model import Input, Port, Source, Stage
from models.language.topology import NAME, PLACES, backbone_component, backbone_stage, own_sampling
from models.qwen3_codec.config import MAX_FRAMES, VOCODER_FILE, VocoderConfig
from models.qwen3_codec.topology import VOCODER, code2wav_stage, exported, kept
from models.qwen3_encoders.topology import AUDIO, VISUAL, encoder_components
from models.qwen3_omni.config import OmniConfig, OmniSpeechConfig, vocoder_config
from models.qwen3_talker.topology import NAME as TALKER
from models.qwen3_talker.topology import talker_component

THINKER, CODE2WAV = "thinker.", "code2wav."  # prefixes of the weights of thinker and vocoder
OTHERS = ("thinker.audio_tower.*", "thinker.visual.*", "talker.*", "code2wav.*")
ENCODED = ((AUDIO, "audio"), (VISUAL, "image"), (VISUAL, "video"))
PROJECTION = "hidden_projection"


class Qwen3Omni:
    """The `qwen3_omni` family: see `framework.compile.family.Family`."""

    options = BackboneOptions
    places: Mapping[str, Sequence[str]] = PLACES

    def components(self, checkpoint: Checkpoint, options: BackboneOptions) -> Sequence[Component]:
        config = _config(checkpoint)
        return [
            backbone_component(
                config.thinker,
                checkpoint,
                _with_accepted(options, config),
                prefix=THINKER,
                unused=OTHERS,
                files={"config.json": json.dumps(checkpoint.config, indent=2).encode()},
            ),
            *encoder_components(checkpoint, options),
            *(speech_components(checkpoint, options) if config.speaks else ()),
        ]

    def topology(
        self, components: Mapping[str, str], checkpoint: Checkpoint, options: BackboneOptions | None
    ) -> Topology | str:
        speech = {TALKER, VOCODER}
        if strangers := sorted(components.keys() - {NAME, AUDIO, VISUAL, PROJECTION} - speech):
            return f"no stage runs the component {', '.join(strangers)}"
        if NAME not in components:
            return f"no {NAME} component was built"
        speaks = speech & components.keys()
        if speaks and speaks != speech:
            return f"{', '.join(speaks)} was built without {', '.join(speech - speaks)}"
        text = Source("thinker", "text")
        thinker = thinker_stage(components, checkpoint, options)
        if not speaks:
            return Topology(stages=(thinker,), terminals=(text,))
        stages = (thinker, *speech_stages(components, checkpoint, options))
        return Topology(stages=stages, terminals=(text, Source(VOCODER, "audio")))


def thinker_stage(components: Mapping[str, str], checkpoint: Checkpoint, options: BackboneOptions | None) -> Stage:
    """The thinker and its encoders; its defaults are those of the checkpoint."""
    stage = backbone_stage(components, options, encoded=ENCODED)
    if TALKER in components and "accept_hidden" not in {port.id for port in stage.emits}:
        heard = Port(id="accept_hidden", kind="hidden")
        stage = attrs.evolve(stage, emits=(*stage.emits, heard))
    return attrs.evolve(stage, config={**stage.config, **_settings(components, checkpoint.generation_config)})


def _settings(components: Mapping[str, str], generation: Mapping[str, Any]) -> dict[str, Any]:
    settings = own_sampling(generation)
    if components[NAME] != "." and components.keys() & {AUDIO, VISUAL}:
        settings["multimodal_artifact"] = ".."
    return settings


def _config(checkpoint: Checkpoint) -> OmniConfig:
    return OmniConfig.from_checkpoint(checkpoint.config, where=f"{checkpoint.path}: config")


def _with_accepted(options: BackboneOptions, config: OmniConfig) -> BackboneOptions:
    """With the hidden states that the talker hears."""
    if not config.speaks or config.accept_layer in options.hidden_layers:
        return options
    return attrs.evolve(options, hidden_layers=(*options.hidden_layers, config.accept_layer))


def speech_components(checkpoint: Checkpoint, options: BackboneOptions) -> list[Component]:
    """`talker`, `hidden_projection` and `code2wav` of a checkpoint with a talker.

    Raises ConfigError for one that cannot be read.
    """
    config = _speech_config(checkpoint)
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
    components: Mapping[str, str], checkpoint: Checkpoint, options: BackboneOptions | None
) -> tuple[Stage, ...]:
    """The stages behind a thinker; none where talker or vocoder were not built."""
    if TALKER not in components or VOCODER not in components:
        return ()
    talker = _talker_stage(components, checkpoint, options)
    return (talker, code2wav_stage(components[VOCODER], options))


def _talker_stage(components: Mapping[str, str], checkpoint: Checkpoint, options: BackboneOptions | None) -> Stage:
    """With the checkpoint's own sampling, and its first voice, as its defaults."""
    settings: dict[str, Any] = {"prefill_builder": "segments", "code_predictor_artifact": "."}
    settings |= own_sampling(checkpoint.generation_config, "talker_")
    settings["speaker"] = _speech_config(checkpoint).default_speaker
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
        emits=(Port(id="codes", kind="codec"),),
        max_batch=options.max_batch_size if options else 1,
        max_seq=options.max_kv_cache_capacity if options else 0,
        config=settings,
    )


def _speech_config(checkpoint: Checkpoint) -> OmniSpeechConfig:
    return OmniSpeechConfig.from_checkpoint(checkpoint.config, where=f"{checkpoint.path}: config")


def _talker(
    config: OmniSpeechConfig, checkpoint: Checkpoint, options: BackboneOptions, capacity: int, dtype: str
) -> Any:
    from framework.nn import weight_shapes
    from models.qwen3_omni.network import AnswerSpeech
    from models.qwen3_omni.weights import talker_weights

    network = AnswerSpeech(config, capacity=capacity, dtype=dtype, candidates=options.candidates or 0)
    weights = talker_weights(weight_shapes(network), config, checkpoint, where=f"{checkpoint.path}: {TALKER}")
    return exported(network, weights, dtype, TALKER)


def _projection(config: OmniSpeechConfig, checkpoint: Checkpoint, dtype: str) -> Any:
    from framework.nn import weight_shapes
    from models.qwen3_omni.network import MediaProjection
    from models.qwen3_omni.weights import projection_weights

    network = MediaProjection(config, dtype=dtype)
    weights = projection_weights(weight_shapes(network), checkpoint, where=f"{checkpoint.path}: {PROJECTION}")
    return exported(network, weights, dtype, PROJECTION)


def _vocoder(checkpoint: Checkpoint, options: BackboneOptions) -> Component:
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
    from models.qwen3_codec.weights import codec_weights
    from models.qwen3_omni.code2wav import Code2WavNetwork

    network = Code2WavNetwork(config, dtype=dtype)
    where = f"{checkpoint.path}: {VOCODER}"
    weights = codec_weights(network, checkpoint, prefix=CODE2WAV, where=where, unused=("thinker.*", "talker.*"))
    return exported(network, weights, dtype, VOCODER)
