"""Records what the package qwen-tts says, greedily, for tests/models/qwen3_tts/talker.json.

    PYTHONPATH=. python tests/oracles/record_qwen3_tts.py

Needs qwen-tts 0.1.1 (`pip install --no-deps`) with transformers 4.57.3, torch, attrs and librosa; as
`record_qwen3_tts_codec.py`, which has to be run before.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.models.qwen3_tts import talker_tiny as tiny
from tests.oracles import empty_audio


def main() -> None:
    empty_audio.install()

    import torch
    from qwen_tts import Qwen3TTSModel
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
    from transformers import EncodecFeatureExtractor

    torch.set_num_threads(1)
    weights, models = {}, {}
    for name in tiny.CHECKPOINTS:
        empty = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**tiny.config(name)))
        state = {key: list(value.shape) for key, value in empty.state_dict().items()}
        weights[name] = {key: shape for key, shape in state.items() if not key.startswith("speaker_encoder.")}
        folder = tiny.save_checkpoint(name, Path(tempfile.mkdtemp()) / name, weights[name])
        EncodecFeatureExtractor(feature_size=1, sampling_rate=24000, padding_value=0.0).save_pretrained(
            folder / "speech_tokenizer"
        )
        models[name] = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32)
    codes = {name: said(models[case.checkpoint], case) for name, case in tiny.CASES.items()}
    text = json.dumps({"weights": weights, "codes": codes}, indent=None, separators=(",", ":"))
    (tiny.HERE / "talker.json").write_text(text.replace('"talker.', '\n"talker.').replace("]]],", "]]],\n") + "\n")


def said(model: Any, case: tiny.Case) -> list[list[list[int]]]:
    """Codes of every request. The codec is asked for sound last: what it is given is what was said."""
    found: list[Any] = []
    tokenizer = model.model.speech_tokenizer
    decode = tokenizer.decode

    def listen(encoded: list[dict[str, Any]]) -> Any:
        found.extend(entry["audio_codes"] for entry in encoded)
        return decode(encoded)

    tokenizer.decode = listen
    count = len(case.texts)
    same = {
        "text": list(case.texts),
        "language": list(case.languages) if len(case.languages) == count else list(case.languages) * count,
        "non_streaming_mode": not case.streaming,
        "do_sample": False,
        "subtalker_dosample": False,
        # Its last token makes no frame.
        "max_new_tokens": tiny.FRAMES + 1,
    }
    kind = tiny.CHECKPOINTS[case.checkpoint].type
    skipped = 0
    if kind == "custom_voice":
        model.generate_custom_voice(speaker=list(case.voices), instruct=case.instruct or None, **same)
    elif kind == "voice_design":
        model.generate_voice_design(instruct=case.instruct, **same)
    else:
        sound = (tiny.recording(case.samples), 24000)
        vector = not case.ref_text
        model.generate_voice_clone(ref_audio=sound, ref_text=case.ref_text or None, x_vector_only_mode=vector, **same)
        skipped = 0 if vector else len(tokenizer.encode(sound[0], sr=24000).audio_codes[0])
    tokenizer.decode = decode
    codes = [entry[skipped:].tolist() for entry in found]
    print([len(entry) for entry in codes], skipped, case.texts[0][:30], codes[0][1][:5], flush=True)
    return codes


if __name__ == "__main__":
    main()
