"""A backend's own rewrites of a network: model in, the same model changed. Networks never know of them.

Each pass looks for one structure that `framework.nn` writes and leaves everything else alone. The precision a build
asked for stands in the model's metadata (`precision`, `block_size`), put there by the builder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

Pass = Callable[["ir.Model"], "ir.Model"]


def for_backend(name: str) -> list[Pass]:
    """Passes of one backend, in order. TensorRT takes the standard operators as they are."""
    if name == "cpu":
        from framework.engines.passes.attention import fuse_attention
        from framework.engines.passes.conv import widen_convolutions
        from framework.engines.passes.flash import tile_attention
        from framework.engines.passes.moe import group_experts
        from framework.engines.passes.norm import fuse_skip_norm
        from framework.engines.passes.pack import pack_siblings
        from framework.engines.passes.weights import store_weights

        return [
            group_experts,
            widen_convolutions,
            pack_siblings,
            fuse_attention,
            tile_attention,
            fuse_skip_norm,
            store_weights,
        ]
    if name == "cuda":  # cuDNN 9.19 has no kernel for some dilated fp16 convolutions over [time, 1], but over [1, time]
        from framework.engines.passes.conv import widen_convolutions
        from framework.engines.passes.moe import group_experts_cuda

        return [group_experts_cuda, widen_convolutions]
    return []
