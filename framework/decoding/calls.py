"""Bound calls over neighbouring rows, kept from step to step, with the inputs that hold for a whole request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import attrs
import numpy as np

from framework.engines.base import Array, Call, Engine, States

CALLS = 32  # bound calls that are kept


@attrs.define
class _Kept:
    call: Call
    start: int
    stop: int
    stale: bool = True


class RowCalls:
    """Calls of one engine over one set of states.

    Args:
        settings: inputs [rows, ...] that change only from request to request, by name; kept here.
    """

    def __init__(self, engine: Engine, states: States, settings: Mapping[str, Array]) -> None:
        self.settings = settings
        self._engine = engine
        self._states = states
        self._kept: OrderedDict[tuple[object, ...], _Kept] = OrderedDict()

    def set(self, row: int, values: Mapping[str, object]) -> None:
        """New settings of one row."""
        for name, value in values.items():
            self.settings[name][row] = value
        for kept in self._kept.values():
            kept.stale |= kept.start <= row < kept.stop

    def get(
        self,
        start: int,
        stop: int,
        dims: Mapping[str, int],
        fixed: Mapping[str, int] | None = None,
        *,
        repeated: bool = False,
    ) -> Call:
        """The call for rows `start` to `stop`, its settings written.

        Args:
            dims: value of each symbolic dimension but the batch.
            fixed: inputs int64 [1] that belong to the call.
            repeated: it will be run many times, so recording it pays where the backend can.
        """
        fixed = fixed or {}
        key = (start, stop, *sorted(dims.items()), *sorted(fixed.items()))
        new = key not in self._kept
        if new:
            if len(self._kept) >= CALLS:
                self._kept.popitem(last=False)
            call = self._engine.bind(dims, self._states, slice(start, stop))
            for name, value in fixed.items():
                call.write(name, np.array([value], np.int64))
            self._kept[key] = _Kept(call, start, stop)
        self._kept.move_to_end(key)
        kept = self._kept[key]
        if kept.stale:
            for name, array in self.settings.items():
                kept.call.write(name, array[start:stop])
            kept.stale = False
        if new and repeated and self._engine.captures:
            kept.call.capture()
        return kept.call

    def clear(self) -> None:
        self._kept.clear()
