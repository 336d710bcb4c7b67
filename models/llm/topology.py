"""What a build of a decoder-only language model makes: one engine, and a graph of one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import BackboneOptions, Component, Topology
from framework.graph.model import Source
from models.language.config import LLMConfig
from models.language.topology import NAME, PLACES, backbone_component, backbone_stage


class LLM:
    """The `llm` family: see `framework.compile.family.Family`."""

    options = BackboneOptions
    places: Mapping[str, Sequence[str]] = PLACES

    def components(self, checkpoint: Checkpoint, options: BackboneOptions) -> Sequence[Component]:
        config = LLMConfig.from_checkpoint(checkpoint.config, where=f"{checkpoint.path}: config")
        return [backbone_component(config, checkpoint, options)]

    def topology(
        self, components: Mapping[str, str], checkpoint: Checkpoint, options: BackboneOptions | None
    ) -> Topology | str:
        if NAME not in components:
            return "no llm component was built"
        encoders = {"audio", "visual"}
        if strangers := sorted(components.keys() - {NAME} - encoders):
            return f"no stage runs the component {', '.join(strangers)}"
        return Topology(stages=(backbone_stage(components, options),), terminals=(Source("thinker", "text"),))
