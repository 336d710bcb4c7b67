"""The codec's part of a build: the vocoder, and for cloning a voice the codec's and the speaker encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint, open_checkpoint
from framework.compile.family import Component, EngineOptions
from framework.errors import ConfigError, Problem
from framework.graph.model import Input, Port, Source, Stage
from models.qwen3_codec.config import HOP, MAX_FRAMES, CodecConfig, SpeakerConfig
from models.qwen3_codec.processing import SHORTEST

VOCODER, ENCODER, SPEAKER = "code2wav", "speech_tokenizer_encoder", "speaker_encoder"
FOLDER = "speech_tokenizer"  # of the codec, in the checkpoint
MAX_REFERENCE = 500  # frames of a voice to clone: 40 s


def codec_components(checkpoint: Checkpoint, options: EngineOptions) -> list[Component]:
    """`code2wav`, and for a Base checkpoint `speech_tokenizer_encoder` and `speaker_encoder`.

    Raises ConfigError when there is no `speech_tokenizer/` in the checkpoint, or it cannot be read.
    """
    from models.qwen3_codec.network import CodecDecoder

    codec = open_codec(checkpoint)
    where = f"{codec.path}: config"
    config = CodecConfig.from_checkpoint(codec.config, where)
    rows = options.max_batch_size
    # Only states' names are wanted here.
    states = {state.name: f"{state.name}.next" for state in CodecDecoder(config.decoder, dtype="float32").histories}
    components = [
        Component(
            name=VOCODER,
            artifact=VOCODER,
            model=lambda dtype: kept(_decoder(config, codec, dtype), options),
            states=states,
            caps={"batch": rows, "frames": MAX_FRAMES},
            opt={"frames": 25},
            most={"frames": 25},
        )
    ]
    if checkpoint.config.get("tts_model_type") == "base":
        speaker = SpeakerConfig.from_checkpoint(checkpoint.config, f"{checkpoint.path}: config")
        components += [
            Component(
                name=ENCODER,
                artifact=ENCODER,
                model=lambda dtype: kept(_encoder(config, codec, dtype), options),
                states={},
                caps={"batch": 1, "frames": MAX_REFERENCE},
            ),
            Component(
                name=SPEAKER,
                artifact=SPEAKER,
                model=lambda dtype: kept(_speaker(speaker, checkpoint, dtype), options),
                states={},
                caps={"steps": MAX_REFERENCE * 8},
                least={"steps": SHORTEST // HOP},
            ),
        ]
    return components


def code2wav_stage(artifact: str, options: EngineOptions | None, *, clones: bool = False) -> Stage:
    """The vocoder behind a talker; one that clones hands on the recording's frames too."""
    context = [Input(name="context", source=Source("talker", "context"))] if clones else []
    return Stage(
        id=VOCODER,
        runner="qwen3_omni.code2wav",
        artifact=artifact,
        kind="iterative",
        inputs=(Input(name="codes", source=Source("talker", "codes")), *context),
        emits=(Port(id="audio", kind="audio", terminal=True),),
        max_batch=options.max_batch_size if options else 1,
        # The first sound after 0.3 s of it: a chunk costs its own frames alone, so small ones are no waste.
        config={"first_chunk_frames": 4, "chunk_frames": 8},
    )


def open_codec(checkpoint: Checkpoint) -> Checkpoint:
    """The codec's own checkpoint, inside the talker's."""
    folder = checkpoint.path / FOLDER
    if not folder.is_dir():
        expected = "the folder with the codec that the checkpoint is published with"
        raise ConfigError(Problem(where=str(checkpoint.path), got=f"no {FOLDER}/", expected=expected))
    return open_checkpoint(folder)


def kept(model: Any, options: EngineOptions) -> Any:
    """Sound comes out of convolutions, which no precision of 4 or 8 bits touches; nor should it the little else."""
    if options.precision in ("int4", "int8"):
        model.metadata_props["precision"] = "fp32"
    return model


def _decoder(config: CodecConfig, codec: Checkpoint, dtype: str) -> Any:
    from models.qwen3_codec.network import CodecDecoder
    from models.qwen3_codec.weights import DECODER, codec_weights

    network = CodecDecoder(config.decoder, dtype=dtype)
    weights = codec_weights(network, codec, prefix=DECODER, where=f"{codec.path}: {VOCODER}")
    return exported(network, weights, dtype, VOCODER)


def _encoder(config: CodecConfig, codec: Checkpoint, dtype: str) -> Any:
    from models.qwen3_codec.encoder import CodecEncoder
    from models.qwen3_codec.weights import ENCODER as PREFIX
    from models.qwen3_codec.weights import codec_weights

    network = CodecEncoder(config.encoder, max_frames=MAX_REFERENCE, dtype=dtype)
    weights = codec_weights(network, codec, prefix=PREFIX, where=f"{codec.path}: {ENCODER}")
    return exported(network, weights, dtype, ENCODER)


def _speaker(config: SpeakerConfig, checkpoint: Checkpoint, dtype: str) -> Any:
    from models.qwen3_codec.speaker_encoder import SpeakerEncoder
    from models.qwen3_codec.weights import speaker_weights

    network = SpeakerEncoder(config, dtype=dtype)
    return exported(
        network, speaker_weights(network, checkpoint, where=f"{checkpoint.path}: {SPEAKER}"), dtype, SPEAKER
    )


def exported(network: Any, weights: Mapping[str, Any], dtype: str, name: str) -> Any:
    """`framework.nn.export` of a network that says its inputs and outputs itself."""
    from framework.nn import export

    return export(network, network.inputs(), network.outputs(), weights, dtype=dtype, name=name)
