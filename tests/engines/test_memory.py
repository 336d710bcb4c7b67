"""Where tensors live."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from framework.engines.memory import HostMemory


def resident() -> int:
    """Bytes of memory that this process really has; `statm` is less exact the more cores there are."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Rss:"))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory is in use")
def test_a_cache_takes_memory_only_where_it_is_used() -> None:
    before = resident()
    cache = HostMemory().zeros([4, 8, 4096, 128], "float32")  # 67 MB
    cache.array[:, :, :10] = 1.0  # the first ten positions of every head: 5 KB each, in 2 MiB of its own

    assert resident() - before < 4e6
    assert cache.pointer % 64 == 0
    assert cache.array[:, :, 10:].sum() == 0


@pytest.mark.parametrize("shape", [[1], [3, 5], [1 << 19]], ids=["one", "few", "large"])
def test_tensors_start_at_a_cache_line_and_are_zero(shape: list[int]) -> None:
    buffer = HostMemory().zeros(shape, "float32")

    assert buffer.pointer % 64 == 0
    assert buffer.array.shape == tuple(shape)
    assert not np.any(buffer.read())
