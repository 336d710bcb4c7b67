"""Weights in the order in which the kernel reads them."""

from __future__ import annotations

import attrs
import numpy as np

from framework.engines.base import Array
from framework.engines.cuda.kernels.shape import DecoderShape, padded
from framework.engines.memory import numpy_dtype

TILE_ROWS = 8
_GROUP = 32  # neighbouring columns of a tile's row that lie together


@attrs.frozen(kw_only=True, eq=False)
class DecoderWeights:
    """Weights of a `DecoderShape`, in any float dtype; layers (or steps) are the first axis.

    Attributes:
        qkv: [layers, (heads + 2 * kv_heads) * head_dim, width], queries first, then keys, then values.
        out: [layers, width, heads * head_dim].
        gate, up: [layers, mlp, width].
        down: [layers, width, mlp].
        norm_attention, norm_mlp: [layers, width].
        norm_query, norm_key: [layers, head_dim]; None without `qk_norm`.
        norm: [width], after the last layer.
        head: [steps, vocab, width]; [1, vocab, width] with `one_head`.
        table: what a code is read as by the next step; same shape as `head`.
        cosine, sine: rotary angles [capacity, head_dim / 2]; a head's halves are rotated against each other.
    """

    qkv: Array
    out: Array
    gate: Array
    up: Array
    down: Array
    norm_attention: Array
    norm_mlp: Array
    norm_query: Array | None = None
    norm_key: Array | None = None
    norm: Array
    head: Array
    table: Array
    cosine: Array
    sine: Array


def packed_matrix(matrix: Array, dtype: str) -> Array:
    """Matrices [n, rows, columns] as tiles uint16 [n, tiles, padded columns / 32, 8 rows, 32 columns], bits of
    `dtype`: what 32 threads read at once, 16 bytes each, is one piece of memory."""
    count, rows, columns = matrix.shape
    whole = np.zeros((count, -(-rows // TILE_ROWS) * TILE_ROWS, padded(columns)), numpy_dtype(dtype))
    whole[:, :rows, :columns] = matrix
    tiles = whole.reshape(count, whole.shape[1] // TILE_ROWS, TILE_ROWS, whole.shape[2] // _GROUP, _GROUP)
    return np.ascontiguousarray(tiles.transpose(0, 1, 3, 2, 4)).view(np.uint16)


def packed(shape: DecoderShape, weights: DecoderWeights) -> dict[str, Array]:
    """Every weight as the kernel reads it, by the kernel's own name for it.

    Raises:
        ValueError: a weight of another shape than `shape` says.
    """
    heads = 1 if shape.one_head else shape.steps
    layers, half = shape.layers, shape.head_dim // 2
    expected = {
        "qkv": (layers, shape.qkv, shape.width),
        "out": (layers, shape.width, shape.queries),
        "gate": (layers, shape.mlp, shape.width),
        "up": (layers, shape.mlp, shape.width),
        "down": (layers, shape.width, shape.mlp),
        "norm_attention": (layers, shape.width),
        "norm_mlp": (layers, shape.width),
        "norm": (shape.width,),
        "head": (heads, shape.vocab, shape.width),
        "table": (heads, shape.vocab, shape.width),
        "cosine": (shape.capacity, half),
        "sine": (shape.capacity, half),
    }
    if shape.qk_norm:
        expected |= {"norm_query": (layers, shape.head_dim), "norm_key": (layers, shape.head_dim)}
    given = {name: getattr(weights, name) for name in expected}
    wrong = [
        f"{name}: got {None if given[name] is None else given[name].shape}, expected {want}"
        for name, want in expected.items()
        if given[name] is None or given[name].shape != want
    ]
    if wrong:
        raise ValueError("; ".join(wrong))
    # Gate and up take turns, so that one thread group has both of an element.
    gate_up = np.stack([given["gate"], given["up"]], axis=2).reshape(layers, 2 * shape.mlp, shape.width)
    matrices = {name: given[name] for name in ("qkv", "out", "down", "head")} | {"gate_up": gate_up}
    result = {name: packed_matrix(matrix, shape.dtype) for name, matrix in matrices.items()}
    result["table"] = np.ascontiguousarray(given["table"], numpy_dtype(shape.dtype)).view(np.uint16)
    names = {"norm1": "norm_attention", "norm2": "norm_mlp", "norm": "norm", "cosine": "cosine", "sine": "sine"}
    if shape.qk_norm:
        names |= {"q_norm": "norm_query", "k_norm": "norm_key"}
    for name, source in names.items():
        value = np.asarray(given[source], np.float32)
        if name in ("norm1", "norm2", "norm"):  # read beside a padded vector
            value = np.pad(value, [*[(0, 0)] * (value.ndim - 1), (0, padded(shape.width) - shape.width)])
        result[name] = np.ascontiguousarray(value)
    return result
