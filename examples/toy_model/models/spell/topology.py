"""What a build makes: one engine, and a graph of one stage."""

from collections.abc import Mapping, Sequence

from framework.checkpoints.checkpoint import Checkpoint
from framework.checkpoints.weights import load_weights
from framework.compile.family import Component, FloatOptions, Topology
from framework.graph.model import Input, Port, Source, Stage
from framework.nn import export, weight_shapes
from framework.schema import structure
from models.spell.config import SpellConfig
from models.spell.network import Spell


class Family:
    options = FloatOptions  # int8 and int4 are refused
    places: Mapping[str, Sequence[str]] = {}

    def components(self, checkpoint: Checkpoint, options: FloatOptions) -> Sequence[Component]:
        config = structure(SpellConfig, checkpoint.config, where=f"{checkpoint.path}: config")

        def model(dtype: str) -> object:
            network = Spell(config, dtype)
            weights = load_weights(weight_shapes(network), checkpoint, where=f"{checkpoint.path}: spell")
            return export(network, network.inputs, network.outputs, weights, dtype=dtype, name="spell")

        states, caps = {"state": "state.next"}, {"batch": options.max_batch_size}
        return [Component(name="llm", artifact=".", model=model, states=states, caps=caps)]

    def topology(self, components: Mapping[str, str], checkpoint: Checkpoint, options: FloatOptions | None) -> Topology:
        stage = Stage(
            id="speller",
            runner="spell.speller",
            artifact=components["llm"],
            kind="autoregressive",
            inputs=(Input(name="prompt", source=Source("request", "messages")),),
            emits=(Port(id="text", terminal=True),),
            max_batch=options.max_batch_size if options else 1,
        )
        return Topology(stages=(stage,), terminals=(Source("speller", "text"),))
