"""Executors that stay open between the jobs of a sweep.

The jobs of a sweep run in one process (or, with a launcher, in a few that take one job after the other), and most of
what they change is no matter of the engines: sampling, style, prompts. So an executor is kept under what it was opened
with: the engine folder as it lies on disk, the graph as run, the runners, the backend and the number of rows.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from framework.execution.executor import Executor
from framework.graph.model import Graph
from framework.schema import unstructure


@attrs.frozen(kw_only=True)
class Opened:
    """What the engines of an executor depend on; equal keys may share one.

    Attributes:
        folder: of the engines, resolved.
        stamp: name, inode, size and time of every engine record in it: a new build is another key.
        graph: as run, with what the run changed in it.
        classes: of the runners, by stage.
        backend: of each stage, with its options.
        rows: what the stages were opened for.
    """

    folder: str
    stamp: tuple[tuple[str, int, int, int], ...]
    graph: str
    classes: tuple[tuple[str, str], ...]
    backend: str
    rows: int


def opened_with(
    folder: Path, graph: Graph, classes: Mapping[str, type[Any]], backends: Iterable[Any], rows: int
) -> Opened:
    """The key of an executor for `graph` over the engines in `folder`."""
    from framework.engines import manifest

    folder = folder.resolve()
    records = [path for stage in graph.stages for path in (folder / stage.artifact).rglob(manifest.FILE_NAME)]
    stamps = {(str(path), (found := path.stat()).st_ino, found.st_size, found.st_mtime_ns) for path in records}
    used = {stage.runner: classes[stage.runner] for stage in graph.stages}
    return Opened(
        folder=str(folder),
        stamp=tuple(sorted(stamps)),
        graph=json.dumps(unstructure(graph), sort_keys=True),
        classes=tuple(sorted((name, f"{cls.__module__}.{cls.__qualname__}") for name, cls in used.items())),
        backend="; ".join(f"{type(b).__qualname__} {attrs.asdict(b) if attrs.has(type(b)) else b!r}" for b in backends),
        rows=rows,
    )


def weight(key: Opened) -> int:
    """Bytes that its engines take, as far as their records tell: their files, and their states for every row."""
    from framework.engines import manifest
    from framework.engines.memory import numpy_dtype

    total = 0
    for path, *_ in key.stamp:
        record = manifest.read(Path(path).parent)
        total += sum(file.bytes for file in record.files.values())
        sizes = {**record.spec.caps, "batch": key.rows}
        total += sum(
            math.prod(state.input.resolve(sizes)) * numpy_dtype(state.input.dtype).itemsize
            for state in record.spec.states
        )
    return total


class Loaded:
    """At most `number` executors of together at most `limit` bytes (0: any), the least recently used given up first;
    none is kept where the number is 0.

    One that is larger than the limit alone is still opened, since the job asks for it, and alone.
    """

    def __init__(self, number: int = 2, limit: int = 0) -> None:
        self.number = number
        self.limit = limit
        self._executors: OrderedDict[Opened, tuple[Executor, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._executors)

    @contextmanager
    def use(self, key: Opened, make: Callable[[], Executor]) -> Iterator[Executor]:
        """The executor of this key, from the jobs before or from `make`; what no longer fits is closed first.

        It is not kept when the block raises, or when a stage of it did not open: the next job begins anew.
        """
        kept = self._executors.get(key)
        if kept is None:
            size = weight(key)
            self.shrink(self.number - 1, self.limit - size)
            kept = self._executors[key] = make(), size
        self._executors.move_to_end(key)
        try:
            yield kept[0]
        except BaseException:
            self.drop(key)
            raise
        if kept[0].broken or self.number < 1:
            self.drop(key)

    def shrink(self, number: int, limit: int) -> None:
        """Close the least recently used until at most so many are left, and bytes where there is a limit at all."""
        while self._executors and (
            len(self._executors) > number or (self.limit and sum(size for _, size in self._executors.values()) > limit)
        ):
            self.drop(next(iter(self._executors)))

    def drop(self, key: Opened) -> None:
        executor, _ = self._executors.pop(key)
        with suppress(Exception):  # what does not close is not used again either
            executor.close()

    def close(self) -> None:
        for key in [*self._executors]:
            self.drop(key)


# Of this process. A worker of a parallel launcher has its own, which lives as long as the worker.
process = Loaded()
