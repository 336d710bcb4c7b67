"""The engine of a decoder-only language model, and the stage that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import BackboneOptions, Component
from framework.errors import ConfigError, Problem
from framework.graph.model import Input, Port, Source, Stage
from models.language.config import LLMConfig

NAME = "llm"
TOKENIZER = "tokenizer.json"
# Settings of a stage that samples, and what generation_config.json calls them.
SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "max_generate_length": "max_new_tokens",
}
ENCODED = (("audio", "audio"), ("visual", "image"))  # encoders in front of a backbone, and the field each reads


# Where the engines of a build made elsewhere may lie.
PLACES = {
    NAME: (".", "thinker", "llm"),
    **{name: (name, f"multimodal/{name}") for name, _ in ENCODED},
}


def backbone_component(
    config: LLMConfig,
    checkpoint: Checkpoint,
    options: BackboneOptions,
    *,
    prefix: str = "",
    unused: Sequence[str] = (),
    files: Mapping[str, bytes | Path] | None = None,
) -> Component:
    """The engine of a backbone.

    Args:
        prefix: of its weights' names in the checkpoint.
        unused: patterns of weights that belong to other engines.
        files: to lie beside it, with those of the tokenizer.
    """
    _check_layers(config, options)
    tokenizer = tokenizer_files(checkpoint)
    # The last call of a row may write up to a whole chunk behind its last token.
    capacity = options.max_kv_cache_capacity + options.prefill_chunk
    return Component(
        name=NAME,
        artifact=".",
        model=lambda dtype: _model(config, checkpoint, options, capacity, dtype, prefix, unused),
        states=state_names(config.layers),
        caps={
            "batch": options.max_batch_size,
            "tokens": options.prefill_chunk,
            "candidates": _candidates(config, options) or config.vocab,
            **({"media": options.prefill_chunk} if config.media else {}),
        },
        opt={"tokens": 1, **({"media": 1} if config.media else {})},
        files={**tokenizer, **(files or {})},
    )


def backbone_stage(
    components: Mapping[str, str],
    options: BackboneOptions | None,
    *,
    encoded: Sequence[tuple[str, str]] = ENCODED,
) -> Stage:
    """The stage of a backbone and the encoders in front of it.

    Args:
        encoded: encoders, and a field of the request that each reads.
    """
    inputs = [Input(name="prompt", source=Source("request", "messages"))]
    inputs += [
        Input(name=field, source=Source("request", field), on_missing="skip")
        for name, field in encoded
        if name in components
    ]
    emits = [Port(id="text", kind="text", terminal=True)]
    config: dict[str, Any] = {}
    for layer in options.hidden_layers if options else ():
        port = "embeddings" if layer == 0 else "accept_hidden"
        emits.append(Port(id=port, kind="hidden", binding=f"hidden.{layer}"))
        if layer:
            config["accept_hidden_layer"] = layer
    return Stage(
        id="thinker",
        runner="llm.backbone",
        artifact=components[NAME],
        kind="autoregressive",
        inputs=tuple(inputs),
        emits=tuple(emits),
        max_batch=options.max_batch_size if options else 1,
        max_seq=options.max_kv_cache_capacity if options else 0,
        config=config,
    )


def tokenizer_files(checkpoint: Checkpoint) -> dict[str, bytes | Path]:
    """Those of a checkpoint that has to have a tokenizer. Raises ConfigError for one without."""
    files = checkpoint.tokenizer_files()
    if TOKENIZER not in files:
        raise ConfigError(Problem(where=str(checkpoint.path), got=f"no {TOKENIZER}", expected="a tokenizer"))
    return files


def state_names(layers: int) -> dict[str, str]:
    """Names of a decoder's states before and after a call: its tokens so far, and the caches of every layer."""
    names = ["history", *(f"{kind}_cache.{layer}" for layer in range(layers) for kind in ("key", "value"))]
    return {name: f"{name}.next" for name in names}


def own_sampling(generation: Mapping[str, Any], prefix: str = "", do_sample: str = "do_sample") -> dict[str, Any]:
    """Settings of a stage that samples as generation_config.json says, under keys with a prefix."""
    settings = {name: generation[prefix + key] for name, key in SAMPLING.items() if prefix + key in generation}
    return settings | ({"temperature": 0.0} if generation.get(prefix + do_sample) is False else {})


def _candidates(config: LLMConfig, options: BackboneOptions) -> int:
    """Best tokens that every call looks at; 0 when each call says it."""
    return min(options.candidates or 0, config.vocab)


def _check_layers(config: LLMConfig, options: BackboneOptions) -> None:
    where = "build.hidden_layers"
    problems = [
        Problem(where=where, got=str(layer), expected=f"-1, or 0 to {config.layers}")
        for layer in options.hidden_layers
        if not -1 <= layer <= config.layers
    ]
    if sum(layer != 0 for layer in options.hidden_layers) > 1:
        got = str(list(options.hidden_layers))
        problems.append(Problem(where=where, got=got, expected="0 (the embeddings) and at most one other layer"))
    if problems:
        raise ConfigError(problems)


def _model(
    config: LLMConfig,
    checkpoint: Checkpoint,
    options: BackboneOptions,
    capacity: int,
    dtype: str,
    prefix: str,
    unused: Sequence[str],
) -> Any:
    from framework.checkpoints.weights import load_weights
    from framework.nn import export, weight_shapes
    from models.language.network import CausalLM
    from models.language.weights import IGNORED, IGNORED_WHEN_TIED, official_names

    network = CausalLM(
        config,
        capacity=capacity,
        dtype=dtype,
        hidden_layers=options.hidden_layers,
        candidates=_candidates(config, options),
    )
    parameters = weight_shapes(network)
    weights = load_weights(
        parameters,
        checkpoint,
        names=official_names(parameters, checkpoint.tensors.keys(), prefix),
        ignore=(*IGNORED, *(IGNORED_WHEN_TIED if config.tied else ()), *unused),
        where=f"{checkpoint.path}: {NAME}",
    )
    return export(network, network.inputs(), network.outputs(), weights, dtype=dtype, name=NAME)
