"""Weights made a piece at a time while they are written: none of them ever lies in memory as a whole."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
Piece = Callable[[], Array]
_THREADS = min(8, os.cpu_count() or 1)  # numpy lets others work while it computes


class PiecedTensor(ir.LazyTensor):
    """A tensor whose pieces follow one another along its first axis.

    Args:
        pieces: each makes its part, [n, ...], when it is called, in a thread beside others.
    """

    def __init__(self, pieces: Sequence[Piece], dtype: ir.DataType, shape: Sequence[int], name: str = "") -> None:
        self.pieces = tuple(pieces)
        super().__init__(self._whole, dtype=dtype, shape=ir.Shape(shape), name=name or None)

    def _whole(self) -> ir.TensorProtocol:
        made = list(in_order(self.pieces))
        return ir.tensor(made[0] if len(made) == 1 else np.concatenate(made))

    def tofile(self, file: BinaryIO) -> None:
        for made in in_order(self.pieces):
            file.write(np.ascontiguousarray(made).reshape(-1).view(np.uint8).data)


def pieces_of(tensor: Any) -> Sequence[Piece]:
    """The pieces of a tensor; one of another kind is a single piece."""
    return tensor.pieces if isinstance(tensor, PiecedTensor) else (tensor.numpy,)


def mapped(tensor: Any, function: Callable[[Array], Array], dtype: ir.DataType, name: str = "") -> PiecedTensor:
    """`function`, which keeps shapes and makes `dtype`, of every piece."""
    pieces = [lambda piece=piece: function(piece()) for piece in pieces_of(tensor)]
    return PiecedTensor(pieces, dtype, tensor.shape.numpy(), name)


def in_order(pieces: Sequence[Piece]) -> Iterator[Array]:
    """Every piece, made by several threads that stay a few ahead of the reader."""
    if len(pieces) < 2:
        yield from (piece() for piece in pieces)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[Future[Array]] = deque()
        for piece in pieces:
            waiting.append(pool.submit(piece))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
