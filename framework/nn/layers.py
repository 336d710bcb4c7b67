"""Linear, Embedding, RMSNorm, the gated feed-forward block, and constants."""

from __future__ import annotations

import ml_dtypes
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.engines.base import Array


class Linear(nn.Module):
    """y = x Wᵀ + b, weight stored [out, in] as in torch.nn.Linear."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter([out_features, in_features])
        self.bias = nn.Parameter([out_features]) if bias else None

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        y = op.MatMul(x, op.Transpose(self.weight, perm=[1, 0]))  # [..., in] @ [in, out]
        return op.Add(y, self.bias) if self.bias is not None else y


class Embedding(nn.Module):
    """Rows of a table, weight [entries, width] as in torch.nn.Embedding."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter([entries, width])

    def forward(self, op: OpBuilder, ids: ir.Value) -> ir.Value:
        return op.Gather(self.weight, ids, axis=0)  # [...] -> [..., width]


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis, in fp32 whatever the input (Zhang & Sennrich, 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter([width])
        self.eps = eps

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.RMSNormalization(x, self.weight, axis=-1, epsilon=self.eps, stash_type=1)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, "GLU Variants Improve Transformer", 2020)."""

    def __init__(self, hidden: int, intermediate: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate, bias=bias)
        self.up_proj = Linear(hidden, intermediate, bias=bias)
        self.down_proj = Linear(intermediate, hidden, bias=bias)

    def forward(self, op: OpBuilder, x: ir.Value) -> ir.Value:
        gate = self.gate_proj(op, x)  # [..., intermediate]
        return self.down_proj(op, op.Mul(op.Mul(gate, op.Sigmoid(gate)), self.up_proj(op, x)))


def constant(values: Array, dtype: str | None = None) -> nn.Parameter:
    """A parameter that needs no weight: `values`, as `dtype` where one is given."""
    if dtype is not None:
        values = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return nn.Parameter(values.shape, dtype=ir.DataType.from_numpy(values.dtype), data=ir.tensor(values))
