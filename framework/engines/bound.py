"""What every backend shares: states, checks, and which buffer stands for which tensor of a call."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from framework.engines.base import Array, Call, Engine, EngineSpec, States, TensorSpec
from framework.engines.memory import Buffer, Memory, numpy_dtype


class BufferStates(States):
    """State tensors by input name, each [batch, ...].

    Attributes:
        dims: value of every symbolic dimension of the states.
    """

    def __init__(self, buffers: Mapping[str, Buffer], batch: int, dims: Mapping[str, int]) -> None:
        self.buffers = buffers
        self.batch = batch
        self.dims = dims

    def clear(self, rows: slice, names: Collection[str] | None = None) -> None:
        start, stop = row_range(rows, self.batch)
        for name in self.buffers if names is None else names:
            self.buffers[name].rows(start, stop).zero()

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers.values())


@attrs.frozen(kw_only=True, eq=False)
class Bindings:
    """Buffers of one call.

    Attributes:
        inputs, outputs: every tensor the backend is given, states among them, by the engine's own names.
        copies: (to, from) pairs to copy after each run, for fed-back tensors that may not share one buffer.
    """

    inputs: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]
    copies: tuple[tuple[Buffer, Buffer], ...]

    def fed_back(self) -> list[Buffer]:
        """Inputs that a run changes: states, and what `shared` feeds back."""
        written = {id(buffer) for buffer in [*self.outputs.values(), *(target for target, _ in self.copies)]}
        return [buffer for buffer in self.inputs.values() if id(buffer) in written]


class BufferCall(Call):
    """A call over `Bindings`; a backend adds how to launch it."""

    def __init__(self, spec: EngineSpec, bindings: Bindings) -> None:
        self._inputs = {tensor.name: bindings.inputs[tensor.name] for tensor in spec.inputs}
        self._outputs = {tensor.name: bindings.outputs[tensor.name] for tensor in spec.outputs}
        self._copies = bindings.copies

    def write(self, name: str, value: Any) -> None:
        buffer = self._find(name, self._inputs, "input")
        shape = getattr(value, "shape", None)
        if shape != buffer.shape:
            raise ValueError(f"input {name!r}: got shape {shape}, expected {buffer.shape}")
        if value.dtype != buffer.dtype:
            raise ValueError(f"input {name!r}: got dtype {value.dtype}, expected {buffer.dtype}")
        buffer.write(value)

    def __call__(self) -> None:
        self._launch()
        for target, source in self._copies:
            target.copy_from(source)

    def read(self, name: str) -> Array:
        return self._find(name, self._outputs, "output").read()

    def device(self, name: str) -> Any:
        return self._find(name, {**self._inputs, **self._outputs}, "tensor").device()

    @abc.abstractmethod
    def _launch(self) -> None:
        """Run the network over the bound buffers."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the engine; running the call again is a ValueError."""

    @staticmethod
    def _find(name: str, buffers: Mapping[str, Buffer], what: str) -> Buffer:
        try:
            return buffers[name]
        except KeyError:
            raise ValueError(f"no {what} {name!r}; there are {', '.join(buffers)}") from None


class BufferEngine(Engine):
    """An engine over buffers of one memory; a backend adds `_call`.

    Attributes:
        in_place: output name -> inputs it may share a buffer with (see `verify.in_place`).
    """

    def __init__(self, spec: EngineSpec, memory: Memory, in_place: Mapping[str, tuple[str, ...]]) -> None:
        self.spec = spec
        self.in_place = in_place
        self.memory = memory
        self._calls: weakref.WeakSet[BufferCall] = weakref.WeakSet()

    def new_states(self, batch: int, **dims: int) -> BufferStates:
        known = {**self.spec.caps, **dims, "batch": batch}
        _within_caps(known, self.spec.caps)
        symbols = {dim for state in self.spec.states for dim in state.input.shape if isinstance(dim, str)}
        unknown = set(dims) - symbols
        if unknown:
            raise ValueError(f"no state has dimension {sorted(unknown)[0]!r}; there are {', '.join(sorted(symbols))}")
        buffers = {
            state.input.name: self.memory.zeros(_resolve(state.input, known), state.input.dtype)
            for state in self.spec.states
        }
        return BufferStates(buffers, batch, {name: known[name] for name in symbols})

    def bind(
        self,
        dims: Mapping[str, int],
        states: States | None = None,
        rows: slice | None = None,
        shared: Mapping[str, str] | None = None,
    ) -> Call:
        known = dict(dims)
        inputs: dict[str, Buffer] = {}
        if self.spec.states:
            names = {state.input.name for state in self.spec.states}
            if not isinstance(states, BufferStates) or states.buffers.keys() != names:
                raise ValueError("bind needs the states this engine made (new_states)")
            start, stop = row_range(rows or slice(None), states.batch)
            for name, size in {**states.dims, "batch": stop - start}.items():
                if known.setdefault(name, size) != size:
                    raise ValueError(f"dimension {name!r}: got {known[name]}, but the states have {size}")
            inputs = {name: buffer.rows(start, stop) for name, buffer in states.buffers.items()}
        elif rows is not None:
            start, stop = row_range(rows, self.spec.caps.get("batch", rows.stop or 1))
            known.setdefault("batch", stop - start)
        _within_caps(known, self.spec.caps)
        inputs |= {t.name: self.memory.zeros(_resolve(t, known), t.dtype) for t in self.spec.inputs}
        call = self._call(self._pair(inputs, known, shared or {}))
        self._calls.add(call)
        return call

    def close(self) -> None:
        for call in self._calls:
            call.close()

    def _pair(self, inputs: dict[str, Buffer], dims: Mapping[str, int], shared: Mapping[str, str]) -> Bindings:
        """Give each output a buffer: that of the input it is fed back to where both may be one, else its own."""
        outputs: dict[str, Buffer] = {}
        copies: list[tuple[Buffer, Buffer]] = []
        own = {tensor.name: tensor for tensor in self.spec.outputs}
        free = {tensor.name for tensor in self.spec.inputs}
        for output, source in shared.items():
            if output not in own or source not in free:
                raise ValueError(f"shared {output!r} -> {source!r}: not an output and a free input of this engine")
            free.remove(source)
            shape, dtype = _resolve(own[output], dims), numpy_dtype(own[output].dtype)
            if (shape, dtype) != (inputs[source].shape, inputs[source].dtype):
                raise ValueError(
                    f"shared {output!r} -> {source!r}: {dtype}{list(shape)} is fed back to "
                    f"{inputs[source].dtype}{list(inputs[source].shape)}"
                )
        for output, source in {**{state.output: state.input.name for state in self.spec.states}, **shared}.items():
            target = inputs[source]
            if source in self.in_place.get(output, ()):
                outputs[output] = target
            else:
                outputs[output] = self.memory.zeros(target.shape, target.dtype.name)
                copies.append((target, outputs[output]))
        for name, tensor in own.items():
            if name not in outputs:
                outputs[name] = self.memory.zeros(_resolve(tensor, dims), tensor.dtype)
        return Bindings(inputs=inputs, outputs=outputs, copies=tuple(copies))

    @abc.abstractmethod
    def _call(self, bindings: Bindings) -> BufferCall:
        """The backend's call over these buffers."""


def row_range(rows: slice, batch: int) -> tuple[int, int]:
    """Start and stop of contiguous rows; ValueError when they are none, or outside `batch`."""
    start = 0 if rows.start is None else rows.start
    stop = batch if rows.stop is None else rows.stop
    if rows.step not in (None, 1) or not 0 <= start < stop <= batch:
        raise ValueError(f"rows: got {rows}, expected a contiguous part of 0:{batch}")
    return start, stop


def _resolve(tensor: TensorSpec, dims: Mapping[str, int]) -> tuple[int, ...]:
    try:
        return tensor.resolve(dims)
    except KeyError as missing:
        raise ValueError(f"dimension {missing} of {tensor.name!r} is not given; its shape is {tensor.shape}") from None


def _within_caps(dims: Mapping[str, int], caps: Mapping[str, int]) -> None:
    for name, size in dims.items():
        if size > caps.get(name, size):
            raise ValueError(f"dimension {name!r}: got {size}, but the engine was built for at most {caps[name]}")
        if size < 0:
            raise ValueError(f"dimension {name!r}: got {size}")
