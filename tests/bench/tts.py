"""Qwen3-TTS on random weights of the published size: `python -m tests.bench.tts FOLDER [PRECISION ...]`.

Makes a 0.6B checkpoint in FOLDER (1.8 GB, kept), builds the talker in each precision (fp32, int8, int4) and measures
prefill and frames. With PEER=<python of a venv with qwen-tts 0.1.1> in the environment the package says the same text
in turn with ours, prompt included, so that the ratio holds on a machine that others use too. Weights decide nothing
here but the length.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.models.qwen3_tts import talker_tiny

TEXT = "The quick brown fox jumps over the lazy dog, and then it runs away."
FRAMES = 24
ROUNDS = 5


def full_config() -> dict[str, Any]:
    """config.json of the published 0.6B CustomVoice checkpoint, but for a tokenizer of one token a byte."""
    found = talker_tiny.config("custom-0b6")
    decoder = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    talker = found["talker_config"]
    rope = {**talker["rope_scaling"], "mrope_section": [24, 20, 20]}
    talker.update(decoder, num_hidden_layers=28, text_hidden_size=2048, text_vocab_size=151936, rope_scaling=rope)
    talker["code_predictor_config"].update(decoder, num_hidden_layers=5)
    return found


def shapes_of(config: dict[str, Any]) -> dict[str, list[int]]:
    """Shapes of the published weights: those of the tiny checkpoint at the other sizes."""
    tiny = talker_tiny.config("custom-0b6")
    small, large = tiny["talker_config"], config["talker_config"]
    sizes: dict[int, int] = {}
    sizes[small["intermediate_size"]] = large["intermediate_size"]
    sizes[small["text_vocab_size"]] = large["text_vocab_size"]
    found: dict[str, list[int]] = {}
    for name, shape in talker_tiny.recorded()["weights"]["custom-0b6"].items():
        found[name] = [_size(name, axis, dim, large, sizes) for axis, dim in enumerate(shape)]
    for prefix, part in (("talker.model", large), ("talker.code_predictor.model", large["code_predictor_config"])):
        layer = {n: s for n, s in found.items() if n.startswith(f"{prefix}.layers.0.")}
        for index in range(part["num_hidden_layers"]):
            found |= {n.replace(".layers.0.", f".layers.{index}."): s for n, s in layer.items()}
    return found


def _size(name: str, axis: int, dim: int, large: dict[str, Any], sizes: dict[int, int]) -> int:
    heads = {"q_proj": large["num_attention_heads"], "k_proj": large["num_key_value_heads"]}
    heads |= {"v_proj": heads["k_proj"], "o_proj": heads["q_proj"]}
    kind = name.split(".")[-2]
    if kind in heads and axis == (1 if kind == "o_proj" else 0):
        return int(heads[kind] * large["head_dim"])
    if kind in ("q_norm", "k_norm"):
        return int(large["head_dim"])
    if "text_embedding" in name and axis == 1:
        return int(large["text_hidden_size"])
    if "text_projection" in name:
        out = "linear_fc2" in name and axis == 0
        return int(large["hidden_size"] if out else large["text_hidden_size"])
    if dim in (2048, 3072):  # entries of the tables of codes
        return dim
    return sizes.get(dim, int(large["hidden_size"]))


def save_checkpoint(folder: Path) -> Path:
    """Write it in bf16, once."""
    if (folder / "model.safetensors").exists():
        return folder
    talker_tiny.save_checkpoint("custom-0b6", folder)
    (folder / "model.safetensors").unlink()
    config = full_config()
    (folder / "config.json").write_text(json.dumps(config))
    shapes, offset, header = shapes_of(config), 0, {}
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    block = rng.standard_normal(1 << 22, dtype=np.float32)
    part = folder / "model.part"
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            count = int(np.prod(shape))
            if len(shape) == 1:
                values = 1.0 + 0.1 * rng.standard_normal(count, dtype=np.float32)
            else:
                values = np.resize(np.roll(block, int(rng.integers(1 << 22))), count) / np.sqrt(shape[-1])
            file.write(values.astype(ml_dtypes.bfloat16).tobytes())
    part.rename(folder / "model.safetensors")
    return folder


def build(checkpoint: Path, folder: Path, precision: str) -> Path:
    from framework.build import builder
    from framework.build.family import BuildOptions
    from framework.engines.backend import OnnxRuntimeCpu
    from models.qwen3_tts.topology import Qwen3TTS

    options = BuildOptions(precision=precision, components=("talker",), max_kv_cache_capacity=2048)  # type: ignore[arg-type]
    if not (folder / "talker" / "engine.json").exists():
        start = time.perf_counter()
        families = {"Qwen3TTSForConditionalGeneration": Qwen3TTS()}
        builder.build(checkpoint, folder, families=families, options=options, backend=OnnxRuntimeCpu())
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{precision}: built in {time.perf_counter() - start:.0f} s, {size / 1e6:,.0f} MB", flush=True)
    return folder


class Ours:
    """The talker's stage in a process of its own size."""

    def __init__(self, folder: Path, rows: int) -> None:
        from framework.engines.backend import OnnxRuntimeCpu
        from framework.execution.runner import OpenContext
        from framework.graph.model import Input, Port, Source, Stage
        from models.qwen3_tts.runners import Talker, TalkerConfig

        self.rows = rows
        inputs = (Input(name="text", source=Source("request", "messages")),)
        emits = (Port(id="codes", kind="codec", transport="chunk_stream"),)
        stage = Stage(id="talker", runner="", kind="autoregressive", inputs=inputs, emits=emits, max_batch=rows)
        self.runner = Talker(stage=stage, config=TalkerConfig(prefill_builder="tts", speaker="ryan", text="whole"))
        backend = OnnxRuntimeCpu(spin="in_call")  # several engines take turns here
        self.runner.open(OpenContext(engine_dir=folder, artifact=folder / "talker", backend=backend, batch=rows))

    def say(self) -> tuple[float, list[float]]:
        """Seconds to the first frame, and of each further step."""
        from framework.execution.request import Request
        from framework.execution.runner import Row
        from framework.execution.streams import Stream, constant

        rows = []
        for index in range(self.rows):
            message = [{"role": "assistant", "content": TEXT}]
            sampling = {"talker": {"max_generate_length": FRAMES, "logit_bias": {2150: -100.0}, "seed": index}}
            request = Request(index=index, fields={"messages": message}, sampling=sampling)
            stream = Stream(1000)
            rows.append(
                Row(index=index, request=request, inputs={"text": constant(message)}, outputs={"codes": stream.writer})
            )
            self.runner.admit(rows[-1])
        times = []
        while not rows[0].finished:
            start = time.perf_counter()
            self.runner.step(rows)
            times.append(time.perf_counter() - start)
        for row in rows:
            self.runner.release(row)
        return times[0], times[1:]


PEER_CODE = """
import importlib.machinery, sys, time, types
for name in ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
sys.modules["torchaudio"].compliance = sys.modules["torchaudio.compliance"]
sys.modules["torchaudio.compliance"].kaldi = sys.modules["torchaudio.compliance.kaldi"]
import torch
from qwen_tts import Qwen3TTSModel
from transformers import EncodecFeatureExtractor
folder, text, frames, dtype = sys.argv[1:]
extractor = EncodecFeatureExtractor(feature_size=1, sampling_rate=24000, padding_value=0.0)
extractor.save_pretrained(folder + "/speech_tokenizer")
model = Qwen3TTSModel.from_pretrained(folder, dtype=getattr(torch, dtype))
made = []
def decode(codes):
    made.append(len(codes[0]["audio_codes"]))
    return [entry["audio_codes"].float().numpy() for entry in codes], 24000
model.model.speech_tokenizer.decode = decode  # the talker alone is measured
for line in sys.stdin:
    start = time.perf_counter()
    model.generate_custom_voice(text=text, speaker="ryan", language="auto", max_new_tokens=int(frames) + 1)
    print("seconds a frame", (time.perf_counter() - start) / made[-1], flush=True)
"""


def main() -> None:
    root = Path(sys.argv[1])
    precisions = sys.argv[2:] or ["int4", "int8", "fp32"]
    checkpoint = save_checkpoint(root / "checkpoint")
    peers = {}
    if python := os.environ.get("PEER"):
        for dtype in os.environ.get("DTYPES", "bfloat16 float32").split():
            command = [python, "-c", PEER_CODE, str(checkpoint), TEXT, str(FRAMES), dtype]
            peers[dtype] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ours = {
        (precision, rows): Ours(build(checkpoint, root / precision, precision), rows)
        for precision in precisions
        for rows in (1, 4)
    }
    firsts: dict[Any, list[float]] = {}
    steps: dict[Any, list[float]] = {}
    for turn in range(ROUNDS + 1):
        for key, engine in ours.items():
            first, more = engine.say()
            if turn:
                firsts.setdefault(key, []).append(first)
                steps.setdefault(key, []).append(float(np.median(more)))
        for dtype, process in peers.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            while not (line := process.stdout.readline()).startswith("seconds"):
                pass
            if turn:
                steps.setdefault(dtype, []).append(float(line.split()[-1]))
    for key, values in steps.items():
        each = f"{1e3 * min(values):.0f} to {1e3 * float(np.median(values)):.0f} ms a frame (best, median)"
        first = f", first frame {1e3 * float(np.median(firsts[key])):.0f} ms" if key in firsts else ""
        print(key, each + first, flush=True)


if __name__ == "__main__":
    main()
