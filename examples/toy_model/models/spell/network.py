"""One step of a gated recurrent unit: id int64 [batch, 1], state [batch, hidden] -> token int64 [batch, 1], state."""

from collections.abc import Mapping

import attrs
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn import Embedding, Linear
from models.spell.config import VOCAB, SpellConfig


class Spell(nn.Module):  # its parameters are named as in the checkpoint
    def __init__(self, config: SpellConfig, dtype: str) -> None:
        super().__init__()
        self.embed = Embedding(VOCAB, config.hidden)
        self.input_gates = Linear(config.hidden, 3 * config.hidden, bias=True)
        self.state_gates = Linear(config.hidden, 3 * config.hidden, bias=True)
        self.head = Linear(config.hidden, VOCAB)
        token = TensorSpec(name="token", dtype="int64", shape=("batch", 1))
        state = TensorSpec(name="state", dtype=dtype, shape=("batch", config.hidden))
        self.inputs = [attrs.evolve(token, name="id"), state]
        self.outputs = [token, attrs.evolve(state, name="state.next")]

    def forward(self, op: OpBuilder, inputs: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        state = inputs["state"]
        x = op.Squeeze(self.embed(op, inputs["id"]), [1])  # [batch, hidden]
        reset, update, new = op.Split(self.input_gates(op, x), axis=-1, num_outputs=3, _outputs=3)
        own_reset, own_update, own_new = op.Split(self.state_gates(op, state), axis=-1, num_outputs=3, _outputs=3)
        reset = op.Sigmoid(op.Add(reset, own_reset))
        update = op.Sigmoid(op.Add(update, own_update))
        new = op.Tanh(op.Add(new, op.Mul(reset, own_new)))
        state = op.Add(new, op.Mul(update, op.Sub(state, new)))  # (1 - update) * new + update * state
        return {"token": op.ArgMax(self.head(op, state), axis=-1, keepdims=1), "state.next": state}
