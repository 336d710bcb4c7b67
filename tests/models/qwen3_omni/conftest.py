"""The checkpoint, transformers' model of it and engines are made once for all tests of the family."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.models.qwen3_omni import speaking, thinking, tiny


class Workshop:
    """Each made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.thinker = cache(self._thinker)

    @cached_property
    def checkpoint(self) -> Path:
        return tiny.save_checkpoint(self._folder / "checkpoint")

    @cached_property
    def reference(self) -> thinking.Reference:
        return thinking.Reference(self.checkpoint)

    @cached_property
    def engines(self) -> Path:
        """Engines of everything."""
        folder = self._folder / "engines"
        thinking.build_tiny(self.checkpoint, folder, speaking.OPTIONS)
        return folder

    @cached_property
    def speaker(self) -> speaking.Reference:
        return speaking.Reference(self.reference)

    def _thinker(self, **options: Any) -> Path:
        """Engines of a thinker alone."""
        folder = self._folder / "-".join(["thinker", *(f"{k}={v}" for k, v in options.items())])
        thinking.build_tiny(self.checkpoint, folder, attrs.evolve(thinking.THINKER, **options))
        return folder


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Tiny models gain nothing from more, and threads that spin on a busy machine lose seconds."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("qwen3_omni"))
