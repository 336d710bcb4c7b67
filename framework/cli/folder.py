"""The folder of a run: made for it alone, and what lies in it beside the results.

.hydra/                  the composed config, and the overrides
multistage_config.json   the graph as it was run, with the changes to its stages
versions.json            what ran it
command.txt              what runs it again
"""

from __future__ import annotations

import json
import os
import platform
from functools import cache
from importlib import metadata
from itertools import count
from pathlib import Path

from framework.graph.files import save
from framework.graph.model import FILE_NAME, Graph
from framework.writing import write_bytes, write_text

_PACKAGES = (
    "multistage", "attrs", "cuda-python", "hydra-core", "jinja2", "numpy", "omegaconf", "onnx", "onnx-ir",
    "onnxruntime", "onnxruntime-gpu", "safetensors", "soundfile", "soxr", "tensorrt", "tensorrt-rtx", "tokenizers",
)  # fmt: skip


def own(path: Path) -> Path:
    """Make a folder that nobody else has: `path`, or where that is there `path` with a number behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in count():
        folder = path.with_name(f"{path.name}-{number}") if number else path
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("numbers do not end")


def describe(folder: Path, graph: Graph, command: str) -> None:
    """Write what this run is into its folder.

    Args:
        command: of a shell.
    """
    save(graph, folder / FILE_NAME)
    write_text(folder / "versions.json", [json.dumps(versions(), indent=2), "\n"])
    write_bytes(folder / "command.txt", os.fsencode(command + "\n"))  # names of folders may be any bytes


@cache
def versions() -> dict[str, str]:
    """Of Python, the system, and those of the packages that decide a result which are installed."""
    installed = {"python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed
