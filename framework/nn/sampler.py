"""Choosing the next token inside the engine, so that one integer a row is all that a step returns.

Order: repetition penalty, bias, then as transformers' logits processors temperature, top-k, top-p, min-p, then one
draw by inverse transform from one uniform number a row. All filters keep a prefix of the sorted candidates, and all
sums run over that prefix in order, so the choice does not depend on how many candidates a call looks at.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import TensorSpec
from framework.nn.attention import ones_like


def sampler_inputs(vocab: int, *, candidates: int = 0, draws: int = 1) -> tuple[TensorSpec, ...]:
    """Inputs a network with a `Sampler` has. `noise` is new in each call, the rest holds for a whole request."""
    return (
        TensorSpec(name="noise", dtype="float32", shape=("batch", draws)),
        *(() if candidates else (TensorSpec(name="candidates", dtype="int64", shape=(1,)),)),
        TensorSpec(name="temperature", dtype="float32", shape=("batch",)),
        TensorSpec(name="top_k", dtype="int64", shape=("batch",)),
        TensorSpec(name="top_p", dtype="float32", shape=("batch",)),
        TensorSpec(name="min_p", dtype="float32", shape=("batch",)),
        TensorSpec(name="repetition_penalty", dtype="float32", shape=("batch",)),
        TensorSpec(name="logit_bias", dtype="float32", shape=("batch", vocab)),
    )


def sampler_outputs(*, candidates: int = 0) -> tuple[TensorSpec, ...]:
    """What a `Sampler` returns, in order."""
    best = ("batch", candidates or "candidates")
    return (
        TensorSpec(name="token", dtype="int64", shape=("batch", 1)),
        TensorSpec(name="candidate_ids", dtype="int64", shape=best),
        TensorSpec(name="candidate_logprobs", dtype="float32", shape=best),
    )


class Sampler(nn.Module):
    """Next token of each row.

    Args:
        candidates: best tokens a draw looks at, fixed for an accelerator (TensorRT sorts at most 3,840); 0 lets every
            call say how many, by the input `candidates`.

    Returns `token` int64 [batch, 1] and, best first after penalty and bias, `candidate_ids` int64 and
    `candidate_logprobs` float32 [batch, candidates]: log-probabilities of the network's own distribution.
    """

    def __init__(self, candidates: int = 0) -> None:
        super().__init__()
        self.candidates = candidates

    def forward(
        self,
        op: OpBuilder,
        logits: ir.Value,
        history: ir.Value | None,
        lengths: ir.Value | None,
        given: Mapping[str, ir.Value],
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """logits [batch, vocab]; history int64 [batch, entries], of which the first `lengths` int64 [batch], at least
        one, are tokens the penalty applies to, or None for no penalty; `given` by the names of `sampler_inputs`, of
        which `logit_bias` may be left out."""
        scores = raw = op.Cast(logits, to=ir.DataType.FLOAT)
        if history is not None and lengths is not None:
            scores = self._penalised(op, raw, history, lengths, given["repetition_penalty"])
        if "logit_bias" in given:
            scores = op.Add(scores, given["logit_bias"])
        count = [self.candidates] if self.candidates else given["candidates"]
        best, ids = op.TopK(scores, count, axis=-1, largest=1, sorted=1, _outputs=2)  # [batch, k]

        temperature = op.Unsqueeze(given["temperature"], [1])
        greedy = op.LessOrEqual(temperature, 0.0)
        top = op.Slice(best, [0], [1], [1])  # [batch, 1]
        weight = op.Exp(op.Div(op.Sub(best, top), op.Where(greedy, op.CastLike(1.0, temperature), temperature)))
        top_k = op.Unsqueeze(given["top_k"], [1])
        rank = op.CumSum(ones_like(op, ids), 1, exclusive=1)  # [batch, k]: 0, 1, 2 ...
        within_k = op.Or(op.Less(rank, top_k), op.Equal(top_k, 0))
        weight = op.Where(within_k, weight, 0.0)
        before = op.CumSum(weight, 1, exclusive=1)
        total = self._last(op, op.Add(before, weight))  # over the top-k set
        within_p = op.Less(before, op.Mul(total, op.Unsqueeze(given["top_p"], [1])))
        likely = op.GreaterOrEqual(weight, op.Unsqueeze(given["min_p"], [1]))  # the best one has weight 1
        keep = op.And(op.And(within_k, within_p), likely)
        mass = op.CumSum(op.Where(keep, weight, 0.0), 1)
        target = op.Mul(given["noise"], self._last(op, mass))  # [batch, 1]
        passed = op.ReduceSum(op.Cast(op.LessOrEqual(mass, target), to=ir.DataType.INT64), [1], keepdims=1)
        # Rounding may carry the target to the very end: the last kept candidate is then the one.
        last = op.Sub(op.ReduceSum(op.Cast(keep, to=ir.DataType.INT64), [1], keepdims=1), 1)
        choice = op.Where(greedy, op.Mul(passed, 0), op.Min(passed, last))
        token = op.GatherElements(ids, choice, axis=1)  # [batch, 1]

        logprobs = op.GatherElements(op.LogSoftmax(raw, axis=-1), ids, axis=1)
        return token, ids, logprobs

    def _penalised(
        self, op: OpBuilder, raw: ir.Value, history: ir.Value, lengths: ir.Value, penalty: ir.Value
    ) -> ir.Value:
        # Only tokens of the history are touched; its unused entries repeat the first token, which changes nothing.
        entry = op.CumSum(ones_like(op, history), 1, exclusive=1)
        first = op.Slice(history, [0], [1], [1])
        ids = op.Where(op.Less(entry, op.Unsqueeze(lengths, [1])), history, first)  # [batch, entries]
        found = op.GatherElements(raw, ids, axis=1)
        penalty = op.Unsqueeze(penalty, [1])
        changed = op.Where(op.Greater(found, 0.0), op.Div(found, penalty), op.Mul(found, penalty))
        return op.ScatterElements(raw, ids, changed, axis=1)

    def _last(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.Slice(x, [-1], [2**31 - 1], [1])  # [batch, k] -> [batch, 1]
