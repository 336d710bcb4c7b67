"""A backend whose engines say how long each of their calls takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from framework.engines.backend import Backend
from framework.engines.base import Array, Call, Engine, States
from framework.engines.manifest import Manifest


@attrs.define
class Watch:
    """Calls of engines: seconds of each by the engine's folder, and the bytes of weights of those that were opened.

    A call's time is that of running it and of waiting for the outputs that are read of it; on a device it may have
    begun before.
    """

    calls: dict[Path, list[float]] = attrs.field(factory=dict)
    weights: dict[Path, int] = attrs.field(factory=dict)

    def clear(self) -> None:
        """Forget the calls so far."""
        for times in self.calls.values():
            times.clear()


def watched(backend: Backend, watch: Watch) -> Backend:
    """The same backend, its engines watched."""
    kind = type(backend)

    class Watched(kind):  # type: ignore[valid-type, misc]
        def load(self, folder: Path, record: Manifest) -> Engine:
            times = watch.calls.setdefault(folder, [])
            watch.weights[folder] = record.weights or sum(file.bytes for file in record.files.values())
            return _Engine(super().load(folder, record), times)

    settings = {field.name: getattr(backend, field.name) for field in attrs.fields(kind)}  # type: ignore[arg-type]
    made: Backend = Watched(**settings)
    return made


class _Engine(Engine):
    def __init__(self, inner: Engine, times: list[float]) -> None:
        self._inner, self._times = inner, times
        self.spec, self.captures = inner.spec, inner.captures

    def new_states(self, batch: int, **dims: int) -> States:
        return self._inner.new_states(batch, **dims)

    def bind(
        self,
        dims: Mapping[str, int],
        states: States | None = None,
        rows: slice | None = None,
        shared: Mapping[str, str] | None = None,
    ) -> Call:
        return _Call(self._inner.bind(dims, states, rows, shared), self._times)

    def close(self) -> None:
        self._inner.close()


class _Call(Call):
    def __init__(self, inner: Call, times: list[float]) -> None:
        self._inner, self._times = inner, times

    def write(self, name: str, value: Any) -> None:
        self._inner.write(name, value)

    def __call__(self) -> None:
        start = time.perf_counter()
        self._inner()
        self._times.append(time.perf_counter() - start)

    def read(self, name: str) -> Array:
        start = time.perf_counter()
        found = self._inner.read(name)
        if self._times:
            self._times[-1] += time.perf_counter() - start
        return found

    def device(self, name: str) -> Any:
        return self._inner.device(name)

    def capture(self) -> None:
        self._inner.capture()
