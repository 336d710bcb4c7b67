"""What a build of a Qwen3-Omni checkpoint makes: up to five engines, and a graph of thinker, talker and vocoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import BuildOptions, Component, Topology
from framework.graph.model import Port, Source, Stage
from models.llm.topology import NAME, backbone_component, backbone_stage, own_sampling
from models.qwen3_omni.config import OmniConfig
from models.qwen3_omni.encoder_topology import AUDIO, VISUAL, encoder_components
from models.qwen3_omni.speech_topology import PROJECTION, TALKER, VOCODER, speech_components, speech_stages

THINKER = "thinker."  # prefix of its weights
OTHERS = ("thinker.audio_tower.*", "thinker.visual.*", "talker.*", "code2wav.*")
ENCODED = ((AUDIO, "audio"), (VISUAL, "image"), (VISUAL, "video"))


class Qwen3Omni:
    """The `qwen3_omni` family: see `framework.compile.family.Family`."""

    def components(self, checkpoint: Checkpoint, options: BuildOptions) -> Sequence[Component]:
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
        self, components: Mapping[str, str], checkpoint: Checkpoint, options: BuildOptions | None
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


def thinker_stage(components: Mapping[str, str], checkpoint: Checkpoint, options: BuildOptions | None) -> Stage:
    """The thinker and its encoders; its defaults are those of the checkpoint."""
    stage = backbone_stage(components, options, encoded=ENCODED)
    if TALKER in components and "accept_hidden" not in {port.id for port in stage.emits}:
        heard = Port(id="accept_hidden", kind="hidden", transport="chunk_stream")
        stage = attrs.evolve(stage, emits=(*stage.emits, heard))
    return attrs.evolve(stage, config={**stage.config, **_settings(components, checkpoint.generation_config)})


def _settings(components: Mapping[str, str], generation: Mapping[str, Any]) -> dict[str, Any]:
    settings = own_sampling(generation)
    if components[NAME] != "." and components.keys() & {AUDIO, VISUAL}:
        settings["multimodal_artifact"] = ".."
    return settings


def _config(checkpoint: Checkpoint) -> OmniConfig:
    return OmniConfig.from_checkpoint(checkpoint.config, where=f"{checkpoint.path}: config")


def _with_accepted(options: BuildOptions, config: OmniConfig) -> BuildOptions:
    """With the hidden states that the talker hears."""
    if not config.speaks or config.accept_layer in options.hidden_layers:
        return options
    return attrs.evolve(options, hidden_layers=(*options.hidden_layers, config.accept_layer))
