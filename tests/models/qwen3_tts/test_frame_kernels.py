"""A talker's frames by the kernels of the CUDA backend, beside the same network on ONNX Runtime's CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from framework.compile.builder import build
from framework.compile.family import BuildOptions
from framework.engines import frames, manifest
from framework.engines.backend import open_engine
from framework.engines.base import EngineSpec
from framework.engines.bound import Bindings, BufferCall, BufferEngine
from framework.engines.cuda.backend import OnnxRuntimeCuda
from framework.engines.cuda.kernels import frame
from framework.engines.cuda.kernels.pack import packed
from framework.engines.cuda.memory import DeviceMemory
from framework.engines.manifest import Manifest
from tests.engines.cuda.on_gpu import gpu, gpu_memory
from tests.models.qwen3_tts import talker_tiny
from tests.models.qwen3_tts.running import FAMILIES
from tests.models.running import CPU

HEAD_DIM = 32  # kernels want it; the tiny checkpoint has 16
GROUPS, FRAMES, ROWS = 16, 12, 3
OPTIONS = BuildOptions(
    max_input_len=128, max_kv_cache_capacity=192, max_batch_size=4, prefill_chunk=64, components=("talker",)
)


def checkpoint(folder: Path) -> Path:
    """The tiny one with wider heads, its weights such that fp16 holds them exactly."""

    def wider(name: str, size: list[int]) -> list[int]:
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight", "k_norm.weight")):
            return [size[0] * 2, *size[1:]]
        return [size[0], size[1] * 2] if name.endswith("o_proj.weight") else size

    shapes = talker_tiny.recorded()["weights"]["custom-0b6"]
    talker_tiny.save_checkpoint("custom-0b6", folder, {name: wider(name, size) for name, size in shapes.items()})
    config = json.loads((folder / "config.json").read_text())
    for part in (config["talker_config"], config["talker_config"]["code_predictor_config"]):
        part["head_dim"] = HEAD_DIM
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    exact = {name: value.astype(np.float16).astype(np.float32) for name, value in weights.items()}
    save_file(exact, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The talker's engine folder for each backend."""
    root = tmp_path_factory.mktemp("frames")
    source = checkpoint(root / "checkpoint")
    build(source, root / "cpu", families=FAMILIES, options=OPTIONS, backend=CPU)
    cuda = attrs.evolve(OPTIONS, precision="fp16", candidates=64)
    build(source, root / "cuda", families=FAMILIES, options=cuda, backend=OnnxRuntimeCuda())
    return {name: root / name / "talker" for name in ("cpu", "cuda")}


def test_the_network_notes_its_frame_loop_by_names_that_the_engine_has(folders: dict[str, Path]) -> None:
    import onnx_ir as ir

    model = ir.load(folders["cuda"] / "model.onnx")
    loop = frames.noted(model)
    assert loop is not None and len(loop.heads) == GROUPS - 1 and loop.candidates == 64
    weights = {name: value.const_value.numpy() for name, value in model.graph.initializers.items() if value.const_value}
    for stack, heads in ((loop.talker, 1), (loop.predictor, GROUPS - 1)):
        head = np.zeros((heads, stack.vocab, stack.width), np.float16)
        shape = frame.decoder_shape(stack, "float16", capacity=20, steps=heads, shaped=False)
        packed(shape, frame.decoder_weights(stack, weights, 20, head, head))  # raises where a name is missing
    others = {loop.head, *loop.heads, loop.codes, loop.text, f"{loop.fc1}.weight", f"{loop.fc2}.bias"}
    assert others <= weights.keys()


class KernelEngine(BufferEngine):
    """An engine of nothing but the kernels, so that it needs no ONNX Runtime for GPUs."""

    def __init__(self, record: Manifest, memory: DeviceMemory, kernels: frame.FrameKernels) -> None:
        super().__init__(record.spec, memory, record.in_place)
        self.memory, self.kernels = memory, kernels

    def _call(self, bindings: Bindings) -> BufferCall:
        assert self.kernels.fits(bindings)
        return frame.FrameCall(self.spec, bindings, self.kernels, self.memory)


def settings(spec: EngineSpec, rows: int, temperature: float) -> dict[str, Any]:
    """Inputs that stay the same in all frames."""
    values = {"temperature": temperature, "top_k": 50, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.3}
    found = {}
    for tensor in spec.inputs:
        name = tensor.name.removeprefix("cp_")
        if name in values:
            found[tensor.name] = np.full(rows, values[name], tensor.dtype)
        elif name == "logit_bias":
            found[name] = np.zeros((rows, tensor.shape[1]), np.float32)
        elif name == "candidates":
            found[name] = np.array([64], np.int64)
    return found


def said(call: Any, given: dict[str, Any]) -> Any:
    for name, value in given.items():
        call.write(name, value)
    call()
    return call.read("frame").copy()


@gpu
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_kernels_say_the_frames_that_the_network_says(
    folders: dict[str, Path], temperature: float, captured: bool
) -> None:
    memory = gpu_memory()
    assert memory is not None
    record = manifest.read(folders["cuda"])
    kernels = frame.load(memory, folders["cuda"], record)
    assert kernels is not None
    engine = KernelEngine(record, memory, kernels)
    oracle = open_engine(folders["cpu"], CPU)
    dims = {"tokens": 1}
    ours = engine.bind(dims, engine.new_states(ROWS))
    known = dims if "candidates" not in {t.name for t in oracle.spec.inputs} else {**dims, "candidates": 64}
    theirs = oracle.bind({k: v for k, v in known.items() if k in _symbols(oracle.spec)}, oracle.new_states(ROWS))
    for call, spec in ((ours, engine.spec), (theirs, oracle.spec)):
        for name, value in settings(spec, ROWS, temperature).items():
            call.write(name, value)
    if captured:
        ours.capture()

    rng = np.random.default_rng(5)
    codes = np.full((ROWS, 1, GROUPS), -1, np.int64)
    equal = 0
    for at in range(FRAMES):
        given = {
            "text": rng.integers(0, 300, (ROWS, 1)),
            "codes": codes,
            "past_lengths": np.full(ROWS, at, np.int64),
            "token_counts": np.ones(ROWS, np.int64),
            "frames": np.full(ROWS, at, np.int64),
            "noise": rng.random((ROWS, GROUPS), np.float32),
        }
        expected, got = said(theirs, given), said(ours, given)
        equal += int((expected == got).all(1).sum())
        codes = expected[:, None]
        # Both go on from the same history, also after a frame that rounding made another.
        ours.write("codes", codes)
    assert equal >= 0.9 * ROWS * FRAMES  # the cache is fp16 in one and fp32 in the other
    engine.close()
    oracle.close()


def _symbols(spec: EngineSpec) -> set[str]:
    return {dim for tensor in (*spec.inputs, *spec.outputs) for dim in tensor.shape if isinstance(dim, str)}
