"""Weights of a network out of a checkpoint: renamed, stacked, checked, and still on disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from framework.checkpoints.checkpoint import Checkpoint, check_weights
from framework.checkpoints.tensor import Tensor, numpy_dtype
from framework.engines.pieces import Piece, PiecedTensor

_PIECE = 32 * 1024 * 1024  # bytes that are read at a time
Names = Sequence[str] | str  # one weight, or several that are stacked along a new first axis


def load_weights(
    parameters: Mapping[str, Sequence[int]],
    checkpoint: Checkpoint,
    *,
    names: Mapping[str, Names] | None = None,
    ignore: Collection[str] = (),
    where: str,
) -> dict[str, Any]:
    """Tensors for a network's parameters.

    Args:
        parameters: shape of each parameter that needs a weight, by parameter name.
        names: official names behind a parameter where they differ from its own.
        ignore: patterns of weights that may be in the checkpoint and are not used.
        where: names what the weights are for.

    Returns:
        onnx_ir tensors by parameter name. `meta["blocks"]` of one gives its quantised blocks, where the checkpoint has
        any.

    Raises:
        ConfigError: every weight missing, left over or of another shape.
    """
    names = {parameter: (names or {}).get(parameter, parameter) for parameter in parameters}
    expected: dict[str, tuple[int, ...]] = {}
    for parameter, shape in parameters.items():
        official = names[parameter]
        if isinstance(official, str):
            expected[official] = tuple(shape)
        else:
            expected.update({name: tuple(shape[1:]) for name in official})
    check_weights(expected, checkpoint, ignore=ignore, where=where)
    tensors = checkpoint.tensors
    return {
        parameter: _tensor(tensors[official]) if isinstance(official, str) else _stack([tensors[n] for n in official])
        for parameter, official in names.items()
    }


def _tensor(tensor: Tensor) -> PiecedTensor:
    rows = tensor.shape[0] if tensor.shape else 1
    step = max(1, _PIECE * rows // max(1, tensor.nbytes))
    if not tensor.in_file or step >= rows:
        pieces: list[Piece] = [tensor.array]
    else:
        pieces = [lambda start=start: tensor.array()[start : start + step] for start in range(0, rows, step)]  # type: ignore[misc]
    found = PiecedTensor(pieces, _dtype(tensor), tensor.shape, tensor.name)
    found.meta["blocks"] = tensor.blocks
    return found


def _stack(tensors: Sequence[Tensor]) -> PiecedTensor:
    first = tensors[0]
    pieces = [lambda tensor=tensor: tensor.array()[None] for tensor in tensors]
    return PiecedTensor(pieces, _dtype(first), (len(tensors), *first.shape), first.name)


def _dtype(tensor: Tensor) -> ir.DataType:
    return ir.DataType.from_numpy(numpy_dtype(tensor.dtype))
