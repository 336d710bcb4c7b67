"""The vocoder of Qwen3-Omni as a graph: codes, past_lengths, frame_counts, histories -> audio, histories.

Upstream: transformers' Qwen3OmniMoeCode2Wav; parameter names are its. Frames are the means of their codes' embeddings.
Its transposed convolutions are cropped on both sides, so every one looks a step ahead; here they answer a step later
instead. The sound is `late` samples late in all, which the runner drops at its start, so that of n frames there are
n * 1,920 - 555 samples, as of the published network.

| official sizes | |
|---|---|
| codes | 16 of 2,048, 1,024 wide |
| transformer | 8 layers, 1,024, 16 heads of 64, window 72 |
| rates | x2 x2 (1,024 wide), x8 x5 x4 x3 (1,536 to 96) |
| parameters | 216 M |
"""

from __future__ import annotations

import attrs
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from framework.nn import Embedding, RMSNorm
from framework.nn.attention import ones_like
from framework.nn.streaming import Continuation, Window, history_states
from models.qwen3_codec.config import VocoderConfig
from models.qwen3_codec.network import TransformerLayer, Vocoder


class FrameTransformer(nn.Module):
    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TransformerLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, op: OpBuilder, x: ir.Value, at: Window, call: Continuation) -> ir.Value:
        """x [batch, frames, hidden] -> [batch, hidden, frames]."""
        for layer in self.layers:
            x = layer(op, x, at, call)
        return op.Transpose(self.norm(op, x), perm=[0, 2, 1])


class Code2WavNetwork(Vocoder):
    """Sound of every row's next frames, `late` samples late."""

    def __init__(self, config: VocoderConfig, *, dtype: str) -> None:
        super().__init__(config, latent=config.hidden_size, ahead=True, dtype=dtype)
        self.first = [group * config.codebook_size for group in range(config.num_quantizers)]
        self.code_embedding = Embedding(config.num_quantizers * config.codebook_size, config.hidden_size)
        self.pre_transformer = FrameTransformer(config)
        self.histories = history_states(self, dtype)

    def _latent(
        self, op: OpBuilder, codes: ir.Value, past: ir.Value, at: Window, call: Continuation
    ) -> tuple[ir.Value, Continuation]:
        rows = self.code_embedding(op, op.Add(codes, self.first))  # [batch, frames, quantizers, hidden]
        x = self.pre_transformer(op, op.ReduceMean(rows, [2], keepdims=0), at, call)
        ids = op.Squeeze(op.Slice(codes, [0], [1], [2]), [2])  # [batch, frames]
        index = op.Add(op.CumSum(ones_like(op, ids), 1, exclusive=1), op.Unsqueeze(past, [1]))
        return x, attrs.evolve(call, index=index)


def late(config: VocoderConfig) -> int:
    """Samples that the sound is late: a step of every transposed convolution, in samples."""
    steps = 0
    for rate in config.upsample_rates:
        steps = steps * rate + rate
    return steps
