"""The deployment presets there are, the user's own among them: what each is and needs, and what of it is here."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from framework.cli.composition import Composer, values_of
from framework.cli.text import columns
from framework.deployment.config import Paths, Preset
from framework.deployment.instances import safe_instantiate
from framework.deployment.presets import engines_state, weights_state
from framework.errors import ConfigError
from framework.schema import structure

GROUP = "deployment"
_HEADINGS = ("deployment", "what it is", "needs", "size", "weights", "engines")
_WIDTH = 44  # of a text in the table


@attrs.frozen(kw_only=True)
class Listed:
    """A row of the list: one preset.

    Attributes:
        description, needs, size: as the preset has them; of one that cannot be read, the reason.
        weights: `cached`, `not fetched`, or which are not; `by hand` where no package carries them.
        engines: `built`, `not built`, or in what those that are there differ from the preset.
    """

    name: str
    description: str
    needs: str = ""
    size: str = ""
    weights: str = ""
    engines: str = ""


def deployments(composer: Composer) -> list[Listed]:
    """Every preset by name, as the other overrides have its paths and its backend.

    Raises ConfigError for an override that does not fit; a preset that does not is a row that says so.
    """
    names = [name for name in composer.options(GROUP) if name != "none"]
    try:
        values = _composed(composer, names)  # all at once, which takes a third of the time
        nodes: dict[str, Any] = values["presets"]
    except ConfigError:
        values = values_of(composer.compose())
        nodes = {name: _alone(composer, name) for name in names}
    paths = structure(Paths, values["paths"], where="paths")
    backend = safe_instantiate(values["backend"], "backend")
    return [_preset(name, nodes[name], paths, backend) for name in names]


def overview(presets: Sequence[Listed]) -> str:
    """A table of them."""
    rows = [[_wrapped(cell) for cell in attrs.astuple(preset)] for preset in presets]
    return columns([_HEADINGS, *rows])


def _composed(composer: Composer, names: Sequence[str]) -> dict[str, Any]:
    return values_of(composer.compose([f"+{GROUP}@presets.{name}={name}" for name in names]))


def _alone(composer: Composer, name: str) -> Mapping[str, Any] | ConfigError:
    try:
        node: Mapping[str, Any] = _composed(composer, [name])["presets"][name]
        return node
    except ConfigError as error:
        return error


def _preset(name: str, node: Mapping[str, Any] | ConfigError, paths: Paths, backend: Any) -> Listed:
    try:
        if isinstance(node, ConfigError):
            raise node
        preset = structure(Preset, node, where=f"{GROUP}.{name}")
        return Listed(
            name=name,
            description=preset.description,
            needs=preset.needs,
            size=preset.size,
            weights=weights_state(preset, paths),
            engines=engines_state(preset, backend),
        )
    except ConfigError as error:
        return Listed(name=name, description=f"cannot be read: {error}")


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH, break_long_words=False)) or ""
