"""What a model family gives the builder: its components (networks with weights) and its topology.

A family is a class in `models/<family>/topology.py`, named by a row of the `families` config table:

    MyModelForCausalLM: {_target_: models.my_family.topology.MyFamily}  # key: config.json's `architectures[0]`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs

from framework.errors import ConfigError, Problem
from framework.graph.model import Source, Stage
from framework.schema import attempt, show, unstructure

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


@attrs.frozen(kw_only=True)
class EngineOptions:
    """Options of a build that every family has; a family that has more declares a class of its own below this one.

    Attributes:
        precision: fp32, fp16, bf16, or 8- and 4-bit weights (CPU; activations stay fp32). A family whose weights
            cannot be rounded declares the values that it has.
        max_batch_size: rows that run together.
        components: names to build, or ("all",).
    """

    precision: Precision = "fp32"
    max_batch_size: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    components: tuple[str, ...] = ("all",)


@attrs.frozen(kw_only=True)
class FloatOptions(EngineOptions):
    """Of a family whose weights are not rounded to integers."""

    precision: Literal["fp32", "fp16", "bf16"] = "fp32"


@attrs.frozen(kw_only=True)
class RoundedOptions(EngineOptions):
    """Of a family whose weights may be rounded.

    Attributes:
        block_size: neighbours that share a scale where weights are rounded to 8 or 4 bits: 32, 64 or 128. Of a
            matrix whose rows it does not divide, the largest power of two that does.
    """

    block_size: int = attrs.field(default=32, validator=attrs.validators.in_((32, 64, 128)))


@attrs.frozen(kw_only=True)
class DecoderOptions(RoundedOptions):
    """Of a family that writes tokens behind a cache.

    Attributes:
        max_kv_cache_capacity: prompt plus reply, in tokens.
        candidates: best tokens a sampler may look at, 0 for all; None is 0 on the CPU and 1,024 elsewhere, where the
            number must be fixed.
    """

    max_kv_cache_capacity: int = attrs.field(default=4096, validator=attrs.validators.ge(1))
    candidates: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))


@attrs.frozen(kw_only=True)
class PromptOptions(DecoderOptions):
    """Of a decoder that reads prompts of any length.

    Attributes:
        max_input_len: longest prompt, in tokens.
        prefill_chunk: tokens read in one call; longer prompts are read in several.
    """

    max_input_len: int = attrs.field(default=1024, validator=attrs.validators.ge(1))
    prefill_chunk: int = attrs.field(default=256, validator=attrs.validators.ge(1))


@attrs.frozen(kw_only=True)
class BackboneOptions(PromptOptions):
    """Of a decoder whose hidden states other stages may read.

    Attributes:
        hidden_layers: decoder layers whose hidden states become outputs (`hidden.<layer>`); 0 is the embedding, -1 the
            stream after the last norm.
    """

    hidden_layers: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class BuildOptions(BackboneOptions):
    """What a build can be given, of which a family takes what it has (`options_of`).

    Attributes:
        tp_size: parts that the weights are split into; no family can be split yet, so that more than 1 is refused.
        own: options that one family alone has, by name.
    """

    tp_size: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    own: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True, eq=False)
class Component:
    """One engine to build.

    Attributes:
        name: what `components` of a build's options calls it.
        artifact: its folder below the engine folder ("." for the backbone).
        model: makes the ONNX model (`onnx_ir.Model`) for a dtype of activations and states (float32, float16,
            bfloat16), weights referenced by offset, for a backend-neutral network.
        states: state input name -> state output name.
        caps: largest value of each symbolic dimension; `opt` the value to tune for where a backend asks.
        opt: see caps.
        most: dims of the largest call that its runner makes, where those are less than the caps: what its activations
            are planned for.
        least: dims of the smallest call that its runner makes, where those are more than 1.
        files: sidecar files to lie beside the engine: name -> bytes, or a path to copy.
    """

    name: str
    artifact: str
    model: Callable[[str], Any]
    states: Mapping[str, str]
    caps: Mapping[str, int]
    opt: Mapping[str, int] = attrs.field(factory=dict)
    most: Mapping[str, int] = attrs.field(factory=dict)
    least: Mapping[str, int] = attrs.field(factory=dict)
    files: Mapping[str, bytes | Path] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Topology:
    """Stages and terminals a set of components makes."""

    stages: tuple[Stage, ...]
    terminals: tuple[Source, ...]


def only(families: Mapping[str, Family], architectures: Sequence[str]) -> Mapping[str, Family]:
    """The families of these architectures, so that a checkpoint of another is refused by name; all for none."""
    if not architectures:
        return families
    return {name: family for name, family in families.items() if name in architectures}


class Family(Protocol):
    """What `models/<family>/topology.py` implements.

    Attributes:
        options: class of its build options, below `EngineOptions`; an option that it lacks is refused when it is given.
        places: where a component of a build made elsewhere may lie below the engine folder, by component, the first
            that is there; one that is not named lies in a folder of its own name.
    """

    options: type[Any]
    places: Mapping[str, Sequence[str]]

    def components(self, checkpoint: Any, options: Any) -> Sequence[Component]:
        """Everything the checkpoint can be built into. Raises ConfigError for a checkpoint it cannot read."""

    def topology(self, components: Mapping[str, str], checkpoint: Any, options: Any | None) -> Topology | str:
        """Stages for the components that exist (name -> artifact folder), or the reason why they make no graph.
        `options` are those of the build; of the backbone's own build when the graph of existing engines is written
        (`build.graph_only=true`), and None when nothing is known of it."""


def options_of(family: Family, given: BuildOptions) -> Any:
    """What was given as the family's own options.

    Raises:
        ConfigError: an option that the family lacks, or a value that it does not have; all of them.
    """
    names = attrs.fields_dict(family.options)
    shared = attrs.fields_dict(BuildOptions)
    usual = BuildOptions()
    hint = f"it has {', '.join(names)}"
    unheeded = [
        Problem(
            where=f"build.{name}",
            got=show(getattr(given, name)),
            expected=f"nothing: {type(family).__name__} does not heed it",
            hint=hint,
        )
        for name in shared
        if name not in names and name != "own" and getattr(given, name) != getattr(usual, name)
    ]
    unheeded += [
        Problem(where=f"build.own.{name}", got=show(value), expected=f"build.{name}, which other families have too")
        for name, value in given.own.items()
        if name in shared
    ]
    heeded = {name: unstructure(getattr(given, name)) for name in shared if name in names}
    own = {name: value for name, value in given.own.items() if name not in shared}
    options, problems = attempt(family.options, {**heeded, **own}, where="build")
    if unheeded or problems:
        raise ConfigError([*unheeded, *problems])
    return options
