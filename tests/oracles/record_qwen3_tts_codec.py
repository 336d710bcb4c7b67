"""Records what the package qwen-tts makes of codes and of sound, for tests/models/qwen3_codec/codec.{json,npz}.

    PYTHONPATH=. python tests/oracles/record_qwen3_tts_codec.py

Needs qwen-tts 0.1.1 (`pip install --no-deps`) with transformers 4.57.3, torch and librosa.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.models.qwen3_codec import tiny
from tests.oracles import empty_audio


def main() -> None:
    empty_audio.install()

    import torch
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSSpeakerEncoder, mel_spectrogram
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

    parts = {key: value for key, value in tiny.CONFIG.items() if key.endswith("_config")}
    codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**parts)).eval()
    speaker = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**tiny.SPEAKER_CONFIG, **tiny.SPEAKER_SIZES)).eval()
    shapes = {
        "codec": {name: list(tensor.shape) for name, tensor in codec.state_dict().items()},
        "speaker": {f"speaker_encoder.{name}": list(tensor.shape) for name, tensor in speaker.state_dict().items()},
    }
    lines = {
        part: ",\n".join(f"  {json.dumps(name)}: {shape}" for name, shape in found.items())
        for part, found in shapes.items()
    }
    text = ",\n".join(f' "{part}": {{\n{found}\n }}' for part, found in lines.items())
    (tiny.HERE / "codec.json").write_text(f"{{\n{text}\n}}\n")
    _load(codec, tiny.random_weights(shapes["codec"]))
    weights = tiny.random_weights(shapes["speaker"])
    _load(speaker, {name.removeprefix("speaker_encoder."): value for name, value in weights.items()})

    outputs: dict[str, Any] = {}
    with torch.no_grad():
        for frames in (1, 110):  # the second is longer than the window of 72
            codes = torch.from_numpy(tiny.random_codes(frames).astype(np.int64))
            audio = codec.decoder(codes.T[None])[0, 0]
            print(f"{frames} frames: {len(audio)} samples, rms {audio.pow(2).mean().sqrt():.3f}", end=", ")
            print(f"{(audio.abs() == 1).float().mean():.1%} clamped")
            outputs[f"audio.{frames}"] = audio.numpy()[:: tiny.SAMPLED]
        for samples in (4800, 48_000, 30_001, 300_000):  # 0.2 s, 2 s, no whole number of frames, more than 250 steps
            sound = torch.from_numpy(tiny.noise(samples))[None]
            codes = codec.encode(sound, torch.ones_like(sound, dtype=torch.long)).audio_codes[0]
            print(f"{samples} samples: {tuple(codes.shape)} codes, {len(codes.unique())} different")
            outputs[f"codes.{samples}"] = codes.numpy().astype(np.int32)
        for samples in (4800, 48_000):
            sound = torch.from_numpy(tiny.noise(samples))[None]
            mel = mel_spectrogram(
                sound, n_fft=1024, num_mels=128, sampling_rate=24000, hop_size=256, win_size=1024, fmin=0, fmax=12000
            )
            outputs[f"mel.{samples}"] = mel[0].numpy()
            outputs[f"speaker.{samples}"] = speaker(mel.transpose(1, 2))[0].numpy()
            print(f"{samples} samples: mel {tuple(mel.shape)}, speaker rms {np.std(outputs[f'speaker.{samples}']):.3f}")
    np.savez_compressed(tiny.HERE / "codec.npz", **outputs)


def _load(module: Any, weights: dict[str, Any]) -> None:
    import torch

    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})


if __name__ == "__main__":
    main()
