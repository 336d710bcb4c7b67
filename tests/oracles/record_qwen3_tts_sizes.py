"""Records names and shapes of a Qwen3-TTS 0.6B checkpoint's weights, for tests/bench/tts_shapes.json.

    PYTHONPATH=. python tests/oracles/record_qwen3_tts_sizes.py

Needs what `record_qwen3_tts.py` needs.
"""

from __future__ import annotations

import json
from typing import Any

from tests.bench import tts_checkpoint
from tests.oracles import empty_audio


def main() -> None:
    empty_audio.install()

    import torch
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

    parts = {key: value for key, value in tts_checkpoint.codec_config().items() if key.endswith("_config")}
    with torch.device("meta"):
        talker: Any = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**tts_checkpoint.config()))
        codec: Any = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**parts))
    found = {
        part: {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        for part, model in (("talker", talker), ("codec", codec))
    }
    lines = {
        part: ",\n".join(f"  {json.dumps(name)}: {shape}" for name, shape in shapes.items())
        for part, shapes in found.items()
    }
    text = ",\n".join(f' "{part}": {{\n{shapes}\n }}' for part, shapes in lines.items())
    tts_checkpoint.SHAPES.write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main()
