"""What a model family gives the builder: its components (networks with weights) and its topology.

A family is a class in `models/<family>/topology.py`, named by a row of the `families` config table:

    LlamaForCausalLM: {_target_: models.llm.topology.LLM}       # key: config.json's `architectures[0]`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs

from framework.graph.model import Source, Stage

Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]


@attrs.frozen(kw_only=True)
class BuildOptions:
    """Caps and precision of a build.

    Attributes:
        precision: fp32, fp16, bf16, or 8- and 4-bit weights (CPU; activations stay fp32).
        block_size: neighbours that share a scale where weights are rounded to 8 or 4 bits: 32, 64 or 128. Of a
            matrix whose rows it does not divide, the largest power of two that does.
        max_input_len: longest prompt, in tokens.
        max_kv_cache_capacity: prompt plus reply, in tokens.
        max_batch_size: rows that run together.
        prefill_chunk: tokens read in one call; longer prompts are read in several.
        candidates: best tokens a sampler may look at, 0 for all; None is 0 on the CPU and 1,024 elsewhere, where the
            number must be fixed.
        components: names to build, or ("all",).
        hidden_layers: decoder layers whose hidden states become outputs (`hidden.<layer>`); 0 is the embedding, -1 the
            stream after the last norm.
        tp_size: more than 1 is tensor parallel, which runs without a graph.
    """

    precision: Precision = "fp32"
    block_size: int = attrs.field(default=32, validator=attrs.validators.in_((32, 64, 128)))
    max_input_len: int = attrs.field(default=1024, validator=attrs.validators.ge(1))
    max_kv_cache_capacity: int = attrs.field(default=4096, validator=attrs.validators.ge(1))
    max_batch_size: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    prefill_chunk: int = attrs.field(default=256, validator=attrs.validators.ge(1))
    candidates: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    components: tuple[str, ...] = ("all",)
    hidden_layers: tuple[int, ...] = ()
    tp_size: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@attrs.frozen(kw_only=True, eq=False)
class Component:
    """One engine to build.

    Attributes:
        name: llm, audio, visual, talker, code_predictor, code2wav ...
        artifact: its folder below the engine folder ("." for the backbone).
        model: makes the ONNX model (`onnx_ir.Model`) for a dtype of activations and states (float32, float16,
            bfloat16), weights referenced by offset, for a backend-neutral network.
        states: state input name -> state output name.
        caps: largest value of each symbolic dimension; `opt` the value to tune for where a backend asks.
        opt: see caps.
        most: dims of the largest call that its runner makes, where those are less than the caps: what its activations
            are planned for.
        files: sidecar files to lie beside the engine: name -> bytes, or a path to copy.
    """

    name: str
    artifact: str
    model: Callable[[str], Any]
    states: Mapping[str, str]
    caps: Mapping[str, int]
    opt: Mapping[str, int] = attrs.field(factory=dict)
    most: Mapping[str, int] = attrs.field(factory=dict)
    files: Mapping[str, bytes | Path] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Topology:
    """Stages and terminals a set of components makes."""

    stages: tuple[Stage, ...]
    terminals: tuple[Source, ...]


class Family(Protocol):
    """What `models/<family>/topology.py` implements."""

    def components(self, checkpoint: Any, options: BuildOptions) -> Sequence[Component]:
        """Everything the checkpoint can be built into. Raises ConfigError for a checkpoint it cannot read."""

    def topology(self, components: Mapping[str, str], checkpoint: Any, options: BuildOptions | None) -> Topology | str:
        """Stages for the components that exist (name -> artifact folder), or the reason why they make no graph.
        `options` are those of the build; of the backbone's own build when the graph of existing engines is written
        (`build.graph_only=true`), and None when nothing is known of it."""
