"""What of a deployment preset is on this machine, in words."""

from __future__ import annotations

from pathlib import Path

from framework.deployment import building
from framework.deployment.config import Paths, Preset
from framework.engines.backend import Backend


def weights_state(preset: Preset, paths: Paths) -> str:
    """`cached`, `not fetched`, `there`, or which are not; `by hand` where no package carries them."""
    from framework.checkpoints.fetch import cached

    if not preset.parts:
        if preset.model_dir is not None:
            return "there" if preset.model_dir.expanduser().exists() else f"{preset.model_dir} is not there"
        if preset.source is None:
            return "by hand"
        return "cached" if cached(preset.source, paths.weights.expanduser()) else "not fetched"
    found = {name: weights_state(part, paths) for name, part in preset.parts.items()}
    several = set(found.values())
    return several.pop() if len(several) == 1 else ", ".join(f"{name}: {state}" for name, state in found.items())


def engines_state(preset: Preset, backend: Backend) -> str:
    """`built`, `not built`, or in what those that are there differ from the preset."""
    if preset.engine_dir is None:
        return "no engine_dir"
    folder: Path = preset.engine_dir.expanduser()
    if not building.has_graph(folder):
        return "not built"
    reason = building.stale_preset(preset, folder, backend)
    return "built" if reason is None else f"built, but {reason}"
