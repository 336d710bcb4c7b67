"""What a build of Whisper makes: an encoder and a decoder engine, and a graph of one stage that runs both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import Component, DecoderOptions, Topology
from framework.graph.model import Input, Port, Source, Stage
from models.whisper.config import WhisperConfig

ENCODER, DECODER = "audio", "decoder"
STAGE = "asr"


class Whisper:
    """The `whisper` family: see `framework.compile.family.Family`."""

    options = DecoderOptions
    places: Mapping[str, Sequence[str]] = {}

    def components(self, checkpoint: Checkpoint, options: DecoderOptions) -> Sequence[Component]:
        where = f"{checkpoint.path}: config"
        config = WhisperConfig.from_checkpoint(checkpoint.config, checkpoint.generation_config, where)
        layers = range(config.decoder_layers)
        cross = [f"cross_{kind}.{layer}" for layer in layers for kind in ("key", "value")]
        own = ["history", *(f"{kind}_cache.{layer}" for layer in layers for kind in ("key", "value"))]
        return [
            Component(
                name=ENCODER,
                artifact=ENCODER,
                model=lambda dtype: _encoder(config, checkpoint, options, dtype),
                states={name: f"{name}.next" for name in cross},
                caps={"batch": options.max_batch_size},
                opt={"batch": 1},
                most={"batch": 1},
            ),
            Component(
                name=DECODER,
                artifact=DECODER,
                model=lambda dtype: _decoder(config, checkpoint, options, dtype),
                states={name: f"{name}.next" for name in [*own, *cross]},
                caps={"batch": options.max_batch_size, "candidates": options.candidates or config.vocab},
                files=checkpoint.tokenizer_files(),
            ),
        ]

    def topology(
        self, components: Mapping[str, str], checkpoint: Checkpoint, options: DecoderOptions | None
    ) -> Topology | str:
        for name in (ENCODER, DECODER):
            if name not in components:
                return f"no {name} component was built"
        if strangers := sorted(components.keys() - {ENCODER, DECODER}):
            return f"no stage runs the component {', '.join(strangers)}"
        config = WhisperConfig.from_checkpoint(checkpoint.config, checkpoint.generation_config)
        stage = Stage(
            id=STAGE,
            runner="whisper.transcriber",
            artifact=components[DECODER],
            kind="autoregressive",
            inputs=(Input(name="audio", source=Source("request", "audio")),),
            emits=(Port(id="text", kind="text", terminal=True),),
            max_batch=options.max_batch_size if options else 1,
            max_seq=_capacity(config, options) if options else 0,
            config={"sampling": "default"},  # the only stage that samples
        )
        return Topology(stages=(stage,), terminals=(Source(STAGE, "text"),))


def _capacity(config: WhisperConfig, options: DecoderOptions) -> int:
    return min(config.context, options.max_kv_cache_capacity)


def _encoder(config: WhisperConfig, checkpoint: Checkpoint, options: DecoderOptions, dtype: str) -> Any:
    from framework.nn.integer import integer_matmuls
    from models.whisper.network import AudioEncoder
    from models.whisper.weights import DECODER_ONLY

    model = _model(AudioEncoder(config, dtype=dtype), checkpoint, DECODER_ONLY, dtype, ENCODER)
    # 1,500 frames in a call: integers are several times faster than blocks of weights.
    return integer_matmuls(model) if options.precision in ("int8", "int4") else model


def _decoder(config: WhisperConfig, checkpoint: Checkpoint, options: DecoderOptions, dtype: str) -> Any:
    from models.whisper.network import TextDecoder
    from models.whisper.weights import ENCODER_ONLY

    capacity = _capacity(config, options)
    network = TextDecoder(config, capacity=capacity, dtype=dtype, candidates=options.candidates or 0)
    return _model(network, checkpoint, ENCODER_ONLY, dtype, DECODER)


def _model(network: Any, checkpoint: Checkpoint, others: Sequence[str], dtype: str, name: str) -> Any:
    from framework.checkpoints.weights import load_weights
    from framework.nn import export, weight_shapes
    from models.whisper.weights import TIED, official_names

    parameters = weight_shapes(network)
    weights = load_weights(
        parameters,
        checkpoint,
        names=official_names(parameters),
        ignore=(*others, *TIED),
        where=f"{checkpoint.path}: {name}",
    )
    return export(network, network.inputs(), network.outputs(), weights, dtype=dtype, name=name)
