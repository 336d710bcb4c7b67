"""Weights of a network out of a checkpoint: renamed, stacked, checked, and still on disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from framework.build.checkpoint import Checkpoint, check_weights
from framework.build.tensor import Tensor, numpy_dtype

_SMALL = 4096  # bytes
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


def _tensor(tensor: Tensor) -> Any:
    # ONNX's checker is given tensors up to 1,000 bytes and looks for the file of an external one in the working folder.
    found: Any = tensor.external() if tensor.nbytes > _SMALL else None
    if found is None:
        found = ir.LazyTensor(
            lambda: ir.tensor(np.ascontiguousarray(tensor.array())),
            dtype=ir.DataType.from_numpy(numpy_dtype(tensor.dtype)),
            shape=ir.Shape(tensor.shape),
            name=tensor.name,
        )
    found.meta["blocks"] = tensor.blocks
    return found


def _stack(tensors: Sequence[Tensor]) -> Any:
    first = tensors[0]
    return ir.LazyTensor(
        lambda: ir.tensor(np.stack([tensor.array() for tensor in tensors])),
        dtype=ir.DataType.from_numpy(numpy_dtype(first.dtype)),
        shape=ir.Shape((len(tensors), *first.shape)),
        name=first.name,
    )
