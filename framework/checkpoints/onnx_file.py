"""An ONNX file as a checkpoint: a network that is published ready-made, with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.checkpoints.tensor import Array, Tensor
from framework.errors import ConfigError, Problem


@attrs.frozen(kw_only=True, eq=False)
class OnnxTensor(Tensor):
    """An initializer; its bytes are read with the file."""

    value: Any

    @property
    def in_file(self) -> bool:
        return False

    def raw(self) -> Array:
        return np.ascontiguousarray(self.value.numpy()).reshape(-1).view(np.uint8)

    def array(self) -> Array:
        array: Array = self.value.numpy()
        return array


def read_onnx(path: Path) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """Config and weights of an ONNX file. ONNX knows no architectures: the file's name is taken for one
    (`hibari.onnx`: `hibari`). Raises ConfigError for a file that is no ONNX."""
    import onnx_ir as ir

    try:
        model = ir.load(path)
        weights = {name: value.const_value for name, value in model.graph.initializers.items() if value.const_value}
    except Exception as error:  # protobuf's own classes, and onnx_ir's
        raise ConfigError(Problem(where=str(path), got=str(error), expected="an ONNX file")) from error
    tensors: dict[str, Tensor] = {
        name: OnnxTensor(
            name=name,
            dtype=value.dtype.numpy().name,
            shape=value.numpy().shape,
            file=path,
            offset=0,
            nbytes=value.nbytes,
            value=value,
        )
        for name, value in weights.items()
    }
    return {"architectures": [path.stem]}, tensors
