"""Checkpoints and engines are made once for all tests of the family."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.models.llm import tiny


class Workshop:
    """Tiny checkpoints, transformers' models of them, and engines; each made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checkpoint = cache(self._checkpoint)
        self.reference = cache(lambda name: tiny.reference(self.checkpoint(name)))
        self.engines = cache(self._engines)
        self.greedy = cache(lambda name, text, count: tiny.greedy(self.reference(name), text.encode(), count))

    def _checkpoint(self, name: str) -> Path:
        return tiny.save_checkpoint(name, self._folder / name)

    def _engines(self, name: str, **options: Any) -> Path:
        folder = self._folder / "engines" / "-".join([name, *(f"{k}={v}" for k, v in options.items())])
        tiny.build_tiny(self.checkpoint(name), folder, attrs.evolve(tiny.OPTIONS, **options))
        return folder


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tiny models gain nothing from more, and threads that spin on a busy machine lose seconds."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("llm"))
