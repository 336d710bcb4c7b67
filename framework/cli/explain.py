"""Where every value of a composed config came from: which file, which override, or nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from omegaconf import OmegaConf

from framework.cli.composition import Composer
from framework.cli.hydra_private import create_defaults_list, parsed_with_repository
from framework.schema import show


@attrs.frozen
class Origin:
    """A value and where it came from.

    Attributes:
        key: dotted path.
        value: resolved.
        source: `conf/sampling/greedy.yaml`, `command line`, ... and `via ${...}` for an interpolation.
    """

    key: str
    value: Any
    source: str


def origins(composer: Composer, values: Mapping[str, Any]) -> list[Origin]:
    """One entry for each value, in order of the config."""
    last: dict[str, tuple[str, Any]] = {}
    for source, node in _layers(composer):
        for key, raw in _leaves(node):
            # A value set later replaces everything at and below its key.
            for covered in [other for other in last if other.startswith(f"{key}.")]:
                del last[covered]
            last[key] = (source, raw)
    return [Origin(key, value, _describe(key, last)) for key, value in _leaves(values)]


def table(found: list[Origin]) -> str:
    """Three columns of text."""
    rows = [(origin.key, show(origin.value, 50), origin.source) for origin in found]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}" for key, value, source in rows)


def _layers(composer: Composer) -> Iterator[tuple[str, Any]]:
    """(source, tree of what it sets) in the order in which they are merged."""
    loader: Any = composer.hydra.config_loader
    # With the repository that knows `hydra.searchpath`, which only the loader makes.
    parsed, repository = parsed_with_repository(loader, composer.command, composer.overrides)
    defaults = create_defaults_list(
        repo=repository,
        config_name=composer.command,
        overrides_list=parsed,
        prepend_hydra=True,
        skip_missing=False,
    )
    for default in defaults.defaults:
        if default.config_path is None or default.config_path.startswith("hydra"):
            continue
        loaded = repository.load_config(default.config_path)
        if loaded is None:
            continue
        tree: Any = OmegaConf.to_container(loaded.config, resolve=False)
        if isinstance(tree, dict):
            tree.pop("defaults", None)
        package = default.package or ""
        for part in reversed(package.split(".") if package not in ("", "_global_") else []):
            tree = {part: tree}
        where = loaded.path.removeprefix("pkg://").removeprefix("file://")
        yield f"{where}/{default.config_path}.yaml", tree
    for override in parsed:
        if override.is_hydra_override() or repository.group_exists(override.key_or_group):
            continue
        tree = None if override.is_delete() else override.value()
        for part in reversed(override.key_or_group.split(".")):
            tree = {part: tree}
        yield f"command line: {override.input_line}", tree


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything that is no mapping, or an empty one."""
    if isinstance(node, Mapping) and (node or not prefix):
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def _describe(key: str, last: Mapping[str, tuple[str, Any]], seen: tuple[str, ...] = ()) -> str:
    """Where the value of `key` was set; for an interpolation also where that leads."""
    owner = key
    while owner not in last and "." in owner:
        owner = owner.rpartition(".")[0]
    if owner not in last:
        return "default"
    source, raw = last[owner]
    if not (isinstance(raw, str) and raw.startswith("${") and raw.endswith("}")) or owner in seen:
        return source
    target = raw[2:-1]
    inner = target + key.removeprefix(owner) if owner != key else target
    known = any(other == inner or other.startswith(f"{inner}.") or inner.startswith(f"{other}.") for other in last)
    return f"{_describe(inner, last, (*seen, owner))} via {raw}" if known else f"{source}: {raw}"
