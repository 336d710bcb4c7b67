"""What a build of hibari makes: two engines in one folder, and a graph of the one stage that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import Component, EngineOptions, Topology
from framework.graph.model import Input, Port, Source, Stage
from models.hibari import network
from models.hibari.config import ENCODER, MAX_STEPS, MAX_TOKENS

NAME = "tts"


@attrs.frozen(kw_only=True)
class HibariOptions(EngineOptions):
    """The network is published in int8, and has no other precision."""

    precision: Literal["int8"] = "int8"


class Hibari:
    """The `hibari` family: see `framework.compile.family.Family`. The checkpoint is the package's ONNX file."""

    options = HibariOptions
    places: Mapping[str, Sequence[str]] = {}

    def components(self, checkpoint: Checkpoint, options: HibariOptions) -> Sequence[Component]:
        where = str(checkpoint.path)
        return [
            Component(
                name=NAME,
                artifact=NAME,
                model=lambda dtype: network.decoder(_published(checkpoint), where),
                states={},
                caps={"tokens": MAX_TOKENS, "steps": MAX_STEPS, "frames": network.FRAMES_PER_STEP * MAX_STEPS},
                least={"frames": network.FRAMES_PER_STEP},
            ),
            Component(
                name=ENCODER,
                artifact=f"{NAME}/{ENCODER}",
                model=lambda dtype: network.text_encoder(_published(checkpoint), where),
                states={},
                caps={"tokens": MAX_TOKENS},
            ),
        ]

    def topology(
        self, components: Mapping[str, str], checkpoint: Checkpoint, options: HibariOptions | None
    ) -> Topology | str:
        if NAME not in components:
            return f"no {NAME} component was built"
        if strangers := sorted(components.keys() - {NAME, ENCODER}):
            return f"no stage runs the component {', '.join(strangers)}"
        stage = speaker_stage(components[NAME], Source("request", "messages"), options)
        return Topology(stages=(stage,), terminals=(Source(NAME, "audio"),))


def speaker_stage(artifact: str, text: Source, options: HibariOptions | None) -> Stage:
    """The stage that speaks what comes from `text`: a request field, or the text port of another stage."""
    return Stage(
        id=NAME,
        runner="hibari.speaker",
        artifact=artifact,
        kind="iterative",
        inputs=(Input(name="text", source=text),),
        emits=(Port(id="audio", kind="audio", terminal=True),),
        max_batch=options.max_batch_size if options else 1,
    )


def _published(checkpoint: Checkpoint) -> Any:
    import onnx_ir as ir

    return ir.load(checkpoint.path)
