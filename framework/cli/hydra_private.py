"""What is used of Hydra beside its public API, in one place: what a new version of Hydra may break.

`hydra.main` composes, runs and prints in one go and leaves no way between; these are its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser

__all__ = [
    "BASIC_LAUNCHER",
    "CachingConfigRepository",
    "Callbacks",
    "Hydra",
    "create_defaults_list",
    "get_args_parser",
    "parsed_with_repository",
]

BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def parsed_with_repository(loader: Any, command: str, overrides: Sequence[str]) -> tuple[Any, Any]:
    """The parsed overrides, and the files on the search path of a config loader, each read once."""
    parsed, repository = loader._parse_overrides_and_create_caching_repo(command, [*overrides])
    return parsed, repository
