"""Everything that needs an NVIDIA GPU, in one command: `python -m tests.gpu [arguments of pytest]`.

Runs every test that is marked `gpu`, then tries each backend for GPUs that is installed (`tests/engines/gpu_check.py`).
Says at the end what was not run, and why.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from tests.engines.cuda.on_gpu import gpu_memory

PACKAGES = {"cuda": "onnxruntime", "tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt_rtx"}


def backends() -> dict[str, str]:
    """Each backend for GPUs, and why it cannot be tried here; "" where it can."""
    found = {}
    for name, package in PACKAGES.items():
        found[name] = "" if importlib.util.find_spec(package) else f"no package {package}"
    if not found["cuda"]:
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            found["cuda"] = "this onnxruntime is not onnxruntime-gpu"
    return found


def main() -> int:
    if gpu_memory() is None:
        print("no NVIDIA GPU of compute capability 9.0 or later: nothing was run")
        return 1
    root = Path(__file__).parents[1]
    runs = {"tests marked gpu": ["-m", "pytest", "-m", "gpu", *sys.argv[1:]]}
    missing = backends()
    runs |= {f"backend {name}": ["tests/engines/gpu_check.py", name] for name, why in missing.items() if not why}
    results = {name: subprocess.run([sys.executable, *run], cwd=root).returncode for name, run in runs.items()}
    for name, code in results.items():
        print(f"{name}: {'passed' if code == 0 else f'FAILED ({code})'}")
    for name, why in missing.items():
        if why:
            print(f"backend {name}: not run, {why}")
    return int(any(results.values()))


if __name__ == "__main__":
    sys.exit(main())
