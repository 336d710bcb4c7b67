"""What the numbers were measured on, and with."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from time import perf_counter

PACKAGES = (
    "multistage", "onnxruntime", "numpy", "llama-cpp-python", "torch", "transformers", "faster-whisper", "hibari-tts",
)  # fmt: skip


class Memory:
    def bandwidth(self, mebibytes: int = 128, repeats: int = 8) -> float:
        """Bytes a second that one thread reads and writes while copying; the best of several copies."""
        import numpy as np

        source = np.ones(mebibytes << 20, np.uint8)
        target = np.zeros_like(source)
        seconds = []
        for _ in range(repeats):
            begin = perf_counter()
            np.copyto(target, source)
            seconds.append(perf_counter() - begin)
        return 2 * source.nbytes / min(seconds)


def machine() -> dict[str, str]:
    """The processor, its cores, and how busy others keep them."""
    return {
        "cpu": _model() or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    }


def versions() -> dict[str, str]:
    """Version of each package that is measured, `-` where it is not installed."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


def _model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
