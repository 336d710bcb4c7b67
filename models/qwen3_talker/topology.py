"""The engine of a talker with a code predictor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from framework.checkpoints.checkpoint import Checkpoint
from framework.compile.family import Component, PromptOptions
from models.language.topology import state_names, tokenizer_files
from models.qwen3_talker.config import SpeechConfig

NAME = "talker"


def talker_component(
    config: SpeechConfig,
    checkpoint: Checkpoint,
    options: PromptOptions,
    model: Callable[[int, str], Any],
    media: int = 0,
) -> Component:
    """The talker of either family, with its tokenizer and config beside it.

    Args:
        model: from the capacity of the caches and the dtype to the network.
        media: rows of media features a call may bring; 0 for a talker that reads none.

    Raises ConfigError where the checkpoint has no tokenizer.
    """
    # The last call of a row may write up to a whole chunk behind its last token.
    capacity = options.max_kv_cache_capacity + options.prefill_chunk
    return Component(
        name=NAME,
        artifact=NAME,
        model=lambda dtype: model(capacity, dtype),
        states=state_names(config.talker.layers),
        caps={"batch": options.max_batch_size, "tokens": options.prefill_chunk, **({"media": media} if media else {})},
        opt={"tokens": 1, **({"media": 1} if media else {})},
        files={**tokenizer_files(checkpoint), "config.json": json.dumps(checkpoint.config, indent=2).encode()},
    )
