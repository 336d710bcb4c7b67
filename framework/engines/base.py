"""The engine contract: one compiled network, called with fixed shapes at fixed addresses.

    engine = open_engine(folder, backend)          # backend.py
    states = engine.new_states(batch=4)            # caches, on the backend's memory, zeroed
    call = engine.bind({"tokens": 1}, states, rows=slice(0, 4))
    call.write("ids", ids); call(); token = call.read("token")

`bind` is the only place that allocates. A `Call` may be run any number of times, and `capture()` lets a GPU
backend record it as one launch. State tensors are updated in place and never leave the backend's memory.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping
from typing import Any

import attrs
import numpy as np

Array = np.ndarray[Any, Any]
Dim = int | str  # a number, or the name of a symbolic dimension


@attrs.frozen(kw_only=True)
class TensorSpec:
    """An input or output of an engine: name, numpy dtype name (`float32`, `bfloat16`, `int64` ...), dims."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    def resolve(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Shape with every symbolic dimension replaced; KeyError names one that `dims` lacks."""
        return tuple(dims[dim] if isinstance(dim, str) else dim for dim in self.shape)


@attrs.frozen(kw_only=True)
class StateSpec:
    """A tensor the engine reads as `input` and writes as `output`: after a call the state is the output, in the same
    memory where the network allows it. Dim 0 is the row and is named `batch`."""

    input: TensorSpec
    output: str


@attrs.frozen(kw_only=True)
class EngineSpec:
    """Names, dtypes and shapes of an engine.

    Attributes:
        inputs: written before each call; states are not among them.
        outputs: read after each call; states are not among them.
        states: updated in place.
        caps: largest value of each symbolic dimension that the build allows, e.g. {"batch": 4, "tokens": 256}.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...] = ()
    caps: Mapping[str, int] = attrs.field(factory=dict)


class States(abc.ABC):
    """The state tensors of up to `batch` rows."""

    batch: int

    @abc.abstractmethod
    def clear(self, rows: slice, names: Collection[str] | None = None) -> None:
        """Zero the given rows of all states, or of those whose inputs are named."""

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Memory they take, in bytes."""


class Call(abc.ABC):
    """An engine bound to fixed shapes and addresses."""

    @abc.abstractmethod
    def write(self, name: str, value: Any) -> None:
        """Copy `value` into an input: numpy, or what `device` of another call of this backend gives, which then does
        not pass through the host. ValueError names the tensor when shape or dtype differ."""

    @abc.abstractmethod
    def __call__(self) -> None:
        """Run once; returns when the outputs may be read (a device backend may still be running)."""

    @abc.abstractmethod
    def read(self, name: str) -> Array:
        """An output on the host. On the CPU this is a view that the next run overwrites."""

    @abc.abstractmethod
    def device(self, name: str) -> Any:
        """An input or output where it lies: numpy on the CPU, else an object with `__cuda_array_interface__`."""

    def capture(self) -> None:  # noqa: B027 - optional, nothing to do on the CPU
        """Record the call as one launch where the backend can; after it, `__call__` replays. States and inputs are
        afterwards what they were, so it may be done in the middle; outputs are not."""


class Engine(abc.ABC):
    """One compiled network on one backend; a context manager.

    Attributes:
        captures: whether `Call.capture` makes repeated calls of one shape cheaper.
    """

    spec: EngineSpec
    captures: bool = False

    @abc.abstractmethod
    def new_states(self, batch: int, **dims: int) -> States:
        """Zeroed states of `batch` rows; `dims` gives other symbolic dimensions (default: their caps)."""

    @abc.abstractmethod
    def bind(
        self,
        dims: Mapping[str, int],
        states: States | None = None,
        rows: slice | None = None,
        shared: Mapping[str, str] | None = None,
    ) -> Call:
        """Fix shapes and addresses.

        Args:
            dims: value of each symbolic dimension of the inputs and outputs; `batch` comes from `rows` when given.
            states: needed when the spec has states.
            rows: the contiguous rows of `states` that the call works on; default all.
            shared: output name -> input name of the same shape and dtype that is fed back: after the call the input
                holds the output. Both take one buffer, and no copy is needed, where the network allows it.
        """

    def run(self, feeds: Mapping[str, Array], dims: Mapping[str, int] | None = None) -> dict[str, Array]:
        """One call of an engine without states: numpy in, numpy copies out. Dims are read off the feeds;
        `dims` gives those that only outputs have."""
        known = dict(dims or {})
        for spec in self.spec.inputs:
            if len(feeds[spec.name].shape) != len(spec.shape):
                raise ValueError(f"input {spec.name!r}: got shape {feeds[spec.name].shape}, expected {spec.shape}")
            known.update({d: n for d, n in zip(spec.shape, feeds[spec.name].shape, strict=True) if isinstance(d, str)})
        call = self.bind(known)
        for name, value in feeds.items():
            call.write(name, value)
        call()
        return {spec.name: np.array(call.read(spec.name)) for spec in self.spec.outputs}

    @abc.abstractmethod
    def close(self) -> None:
        """Free the engine; further calls are errors."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
