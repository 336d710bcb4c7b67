"""A mixture of experts: each token's best `top_k` gated MLPs, weighted (Shazeer et al., 2017)."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.passes.moe import NOTE, Mixture
from framework.nn.layers import GatedMLP


class Experts(nn.Module):
    """All experts' weights, stacked: [experts, out, in]."""

    def __init__(self, experts: int, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter([experts, intermediate, hidden])
        self.up_proj = nn.Parameter([experts, intermediate, hidden])
        self.down_proj = nn.Parameter([experts, hidden, intermediate])

    def forward(self, op: OpBuilder, x: ir.Value, share: ir.Value) -> ir.Value:
        """x [n, hidden], share [n, experts] (zero for experts not chosen) -> [n, hidden].

        Every expert sees every token in three batched products: a node count that does not grow with the number
        of experts. A backend with a grouped kernel replaces this block by it (`framework.engines.passes.moe`).
        """
        x = op.Unsqueeze(x, [0])  # [1, n, hidden]
        gate = op.MatMul(x, op.Transpose(self.gate_proj, perm=[0, 2, 1]))  # [experts, n, intermediate]
        up = op.MatMul(x, op.Transpose(self.up_proj, perm=[0, 2, 1]))
        y = op.MatMul(op.Mul(op.Mul(gate, op.Sigmoid(gate)), up), op.Transpose(self.down_proj, perm=[0, 2, 1]))
        share = op.Unsqueeze(op.Transpose(share, perm=[1, 0]), [2])  # [experts, n, 1]
        return op.ReduceSum(op.Mul(y, share), [0], keepdims=0)


class Router(nn.Module):
    """Logits of the experts; as Gemm, which no pass stores in fewer bits: rounding would choose other experts."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter([experts, hidden])

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.Gemm(x, self.weight, transB=1)  # [n, hidden] -> [n, experts]


class MoE(nn.Module):
    """Router and experts. Reference: transformers' Qwen3MoeSparseMoeBlock.

    Args:
        norm_topk: whether the chosen experts' probabilities are scaled to sum to one.
    """

    def __init__(self, hidden: int, intermediate: int, *, experts: int, top_k: int, norm_topk: bool) -> None:
        super().__init__()
        self.top_k, self.norm_topk = top_k, norm_topk
        self.hidden, self.count = hidden, experts
        self.gate = Router(hidden, experts)
        self.experts = Experts(experts, hidden, intermediate)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        flat = op.Reshape(x, [-1, self.hidden])  # [n, hidden]
        logits = self.gate(op, flat)  # [n, experts]
        # The router decides in fp32: ties broken by rounding would send tokens to other experts.
        probability = op.Softmax(op.Cast(logits, to=ir.DataType.FLOAT), axis=-1)
        best, index = op.TopK(probability, [self.top_k], axis=-1, _outputs=2)
        if self.norm_topk:
            best = op.Div(best, op.ReduceSum(best, [-1], keepdims=1))
        share = op.ScatterElements(op.Mul(probability, 0.0), index, best, axis=1)  # zero but for the chosen
        y = self.experts(op, flat, op.CastLike(share, flat))
        experts = self.experts
        y.producer().meta[NOTE] = Mixture(
            x=flat,
            logits=logits,
            share=share,
            gate=experts.gate_proj,
            up=experts.up_proj,
            down=experts.down_proj,
            top_k=self.top_k,
            norm_topk=self.norm_topk,
        )
        return op.Reshape(y, op.Shape(x))


class SharedMoE(MoE):
    """A mixture beside one MLP that every token goes through, by its sigmoid gate.

    Reference: transformers' Qwen3OmniMoeTalkerTextSparseMoeBlock.

    Args:
        shared: width of the shared MLP.
    """

    def __init__(
        self, hidden: int, intermediate: int, *, shared: int, experts: int, top_k: int, norm_topk: bool
    ) -> None:
        super().__init__(hidden, intermediate, experts=experts, top_k=top_k, norm_topk=norm_topk)
        self.shared_expert = GatedMLP(hidden, shared)
        self.shared_expert_gate = Router(hidden, 1)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        flat = op.Reshape(x, [-1, self.hidden])  # [n, hidden]
        gate = op.Sigmoid(self.shared_expert_gate(op, flat))  # [n, 1]
        shared = op.Reshape(op.Mul(gate, self.shared_expert(op, flat)), op.Shape(x))
        return op.Add(super().forward(op, x), shared)
