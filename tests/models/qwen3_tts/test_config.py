"""What is wrong with a config of Qwen3-TTS."""

from __future__ import annotations

import pytest

from framework.errors import ConfigError
from models.qwen3_talker.config import TTSConfig


def test_every_fault_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        TTSConfig.from_checkpoint(
            {"tts_model_type": "singer", "talker_config": {"rope_scaling": {"rope_type": "yarn"}}}
        )
    said = {problem.where.removeprefix("config.json: "): problem.expected for problem in caught.value.problems}
    assert said["tts_model_type"] == "'custom_voice' or 'voice_design' or 'base'"
    assert said["talker_config.code_predictor_config"] == "an object"
    assert {"talker_config.head_dim", "talker_config.rope_theta", "talker_config.rope_scaling.rope_type"} <= said.keys()
