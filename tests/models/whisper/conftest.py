"""Checkpoints and engines are made once for all tests of the family."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.models import published
from tests.models.whisper import tiny


class Workshop:
    """Tiny checkpoints, transformers' models of them, and engines; each made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checkpoint = cache(self._checkpoint)
        self.reference = cache(lambda name: tiny.reference(self.checkpoint(name)))
        self.engines = cache(self._engines)

    def _checkpoint(self, name: str) -> Path:
        settings: dict[str, Any] = {"en": {}, "multilingual": {"multilingual": True}, "128 mels": {"mels": 128}}[name]
        return tiny.save_checkpoint(self._folder / name, **settings)

    def _engines(self, name: str, **options: Any) -> Path:
        folder = self._folder / "engines" / "-".join([name, *(f"{k}={v}" for k, v in options.items())])
        return tiny.build_tiny(self.checkpoint(name), folder, **options)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def weights() -> Path:
    return published.weights("whisper_tiny_en")


@pytest.fixture(scope="session")
def tiny_en(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engines of Whisper tiny.en by precision."""
    folder = tmp_path_factory.mktemp("tiny_en")
    return cache(lambda precision: tiny.build_tiny(weights, folder / precision, precision=precision, max_batch_size=3))
