"""Checkpoints and engines are made once for all tests of the family."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.models.qwen3_tts import running
from tests.models.qwen3_tts.talker_tiny import save_checkpoint


class Workshop:
    """Tiny checkpoints and their engines, each made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checkpoint = cache(lambda name: save_checkpoint(name, self._folder / name))
        self.engines = cache(self._engines)

    def _engines(self, name: str, **options: Any) -> Path:
        folder = self._folder / "engines" / "-".join([name, *(f"{k}={v}" for k, v in options.items())])
        running.build_tiny(self.checkpoint(name), folder, attrs.evolve(running.OPTIONS, **options))
        return folder


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("qwen3_tts"))
