"""What a build of a Qwen3-TTS checkpoint makes: the talker, its codec, and a graph of the two stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import Component, PromptOptions, Topology
from framework.engines import frames
from framework.graph.model import Input, Port, Source, Stage
from models.language.topology import own_sampling
from models.qwen3_codec.topology import ENCODER, SPEAKER, VOCODER, code2wav_stage, codec_components
from models.qwen3_talker.config import TTSConfig
from models.qwen3_talker.topology import NAME, talker_component

# What a request may bring beside its text, and the stage's input for it.
FIELDS = ("voice", "language", "instruct", "ref_audio", "ref_text")


class Qwen3TTS:
    """The `qwen3_tts` family: see `framework.compile.family.Family`."""

    options = PromptOptions
    places: Mapping[str, Sequence[str]] = {}

    def components(self, checkpoint: Checkpoint, options: PromptOptions) -> Sequence[Component]:
        config = TTSConfig.from_checkpoint(checkpoint.config, where=f"{checkpoint.path}: config")
        talker = talker_component(
            config, checkpoint, options, lambda capacity, dtype: _model(config, checkpoint, options, capacity, dtype)
        )
        return [talker, *codec_components(checkpoint, options)]

    def topology(
        self, components: Mapping[str, str], checkpoint: Checkpoint, options: PromptOptions | None
    ) -> Topology | str:
        if strangers := sorted(components.keys() - {NAME, VOCODER, ENCODER, SPEAKER}):
            return f"no stage runs the component {', '.join(strangers)}"
        if lacking := sorted({NAME, VOCODER} - components.keys()):
            return f"no {' and no '.join(lacking)} component was built"
        config = TTSConfig.from_checkpoint(checkpoint.config, where=f"{checkpoint.path}: config")
        talker = talker_stage(components, config, checkpoint.generation_config, options)
        stages = (talker, code2wav_stage(components[VOCODER], options, clones=config.kind == "base"))
        return Topology(stages=stages, terminals=(Source(VOCODER, "audio"),))


def talker_stage(
    components: Mapping[str, str], config: TTSConfig, generation: Mapping[str, Any], options: PromptOptions | None
) -> Stage:
    """The talker's stage, with the checkpoint's own sampling as its defaults."""
    settings: dict[str, Any] = {"prefill_builder": "tts", "code_predictor_artifact": "."}
    settings |= own_sampling(generation)
    predictor = own_sampling(generation, "subtalker_", do_sample="dosample")
    settings |= {f"cp_{name}": value for name, value in predictor.items()}
    if config.kind == "custom_voice" and config.speakers:
        settings["speaker"] = next(iter(config.speakers))
    encoders = {"speaker_encoder": SPEAKER, "speech_tokenizer_encoder": ENCODER}
    settings |= {f"{name}_artifact": f"../{components[key]}" for name, key in encoders.items() if key in components}
    fields = FIELDS if config.kind == "base" else FIELDS[:3]
    return Stage(
        id=NAME,
        runner="qwen3_omni.talker",
        artifact=components[NAME],
        kind="autoregressive",
        inputs=(
            Input(name="text", source=Source("request", "messages")),
            *(Input(name=field, source=Source("request", field), on_missing="skip") for field in fields),
        ),
        emits=(
            Port(id="codes", kind="codec"),
            *([Port(id="context", kind="codec")] if config.kind == "base" else []),
        ),
        max_batch=options.max_batch_size if options else 1,
        max_seq=options.max_kv_cache_capacity if options else 0,
        config=settings,
    )


def _model(config: TTSConfig, checkpoint: Checkpoint, options: PromptOptions, capacity: int, dtype: str) -> Any:
    from framework.nn import export, weight_shapes
    from models.qwen3_tts.network import TextSpeech
    from models.qwen3_tts.weights import talker_weights

    network = TextSpeech(
        config,
        capacity=capacity,
        dtype=dtype,
        candidates=options.candidates or 0,
        clones=config.kind == "base",
    )
    weights = talker_weights(weight_shapes(network), config, checkpoint, where=f"{checkpoint.path}: {NAME}")
    loop = network.frame_loop()
    model = export(network, network.inputs(), network.outputs(), weights, dtype=dtype, name=NAME)
    if loop is not None:
        frames.note(model, loop)
    return model
