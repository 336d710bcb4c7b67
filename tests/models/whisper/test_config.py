"""What is wrong with a config of Whisper."""

from __future__ import annotations

import pytest

from framework.errors import ConfigError
from models.whisper.config import WhisperConfig


def test_every_fault_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        WhisperConfig.from_checkpoint({"vocab_size": 51865, "activation_function": "relu", "scale_embedding": True})
    absent = ("num_mel_bins", "d_model", "decoder_start_token_id", "eos_token_id")
    parts = (f"{part}_{key}" for part in ("encoder", "decoder") for key in ("layers", "attention_heads", "ffn_dim"))
    expected = {*absent, *parts, "activation_function", "scale_embedding"}
    assert {problem.where.removeprefix("config.json: ") for problem in caught.value.problems} == expected
