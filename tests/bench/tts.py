"""Qwen3-TTS beside the package qwen-tts: one text of the same length said in turn, from its letters to its sound.

Random weights of the published 0.6B size decide nothing but the length, which both are told. The package needs an
older transformers than the other peers and so an environment of its own: `QWEN_TTS` names its python.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import attrs

from tests.bench import commands
from tests.bench.line import Line, paired
from tests.bench.ours import configured
from tests.bench.tts_checkpoint import save_checkpoint
from tests.bench.worker import Missing, Worker

Say = Callable[[str], None]
DEPLOYMENT = "deployment=qwen3_tts_0_6b"
PYTHON = "QWEN_TTS"  # environment variable
TEXT = "Hello, how are you?"  # a token a byte here: as many as a real tokenizer makes of 2 s of speech, and some
FRAMES, RATE = 25, 12.5  # frames said, and frames a second of sound
ROWS = 4
BLOCKS = 128  # `build.block_size` of the second build; the preset's is 32
END, SPECIAL = 2150, 2048  # the code that ends a speech
DTYPES = ("bfloat16", "float32")
OVERHEAD = 300e6  # bytes that a run may need beside engine and caches


class Maker:
    """Of the checkpoint, in a process of its own: what a process starts counts its starter's memory as its own."""

    def __init__(self, folder: Path) -> None:
        save_checkpoint(folder)


class Ours:
    """The deployment's own graph over the engines in `folder`; `rows` requests fit in a cohort."""

    def __init__(self, folder: Path, threads: int, rows: int) -> None:
        from framework.deployment.system import deployed, make_executor

        config = configured(
            f"engine_dir={folder}", f"backend.threads={threads}", f"batching.size={rows}", deployment=DEPLOYMENT
        )
        self._executor = make_executor(config, deployed(config), rows)
        self._folder = folder

    def say(self, rows: int = 1) -> dict[str, float]:
        """`audio_s`: seconds of sound made a second. Of one request also `frame_s`, seconds of each frame of codes and
        its sound, and `first`, how many such it takes from the end of the prompt to the first sound."""
        from framework.execution.request import Request

        message = [{"role": "assistant", "content": TEXT}]
        sampling = {"talker": {"max_generate_length": FRAMES, "logit_bias": {END: -100.0}}}
        requests = [
            Request(
                index=index,
                fields={"messages": message, "voice": "ryan"},
                sampling={**sampling, "default": {"seed": index}},
                kinds=frozenset({"audio"}),
            )
            for index in range(rows)
        ]
        results = list(self._executor.run(requests))
        for result in results:
            if result.error is not None:
                raise result.error
            if (frames := result.stages["code2wav"].details["frames"]) != FRAMES:
                raise ValueError(f"{frames} frames said instead of {FRAMES}")
        talker, vocoder = results[0].stages["talker"], results[0].stages["code2wav"]
        wall = max(result.wall_s for result in results)
        frame = (vocoder.end_s - talker.first_output_s) / (FRAMES - 1)
        return {
            "audio_s": rows * FRAMES / RATE / wall,
            "frame_s": frame,
            "first": (vocoder.first_output_s - talker.first_output_s) / frame,
        }

    def needed(self) -> int:
        """Bytes of engines, and of the states that a row of `say` fills."""
        from framework.engines import manifest

        size = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        built = manifest.read(self._folder / "talker")
        cache = 0
        for state in built.spec.states:
            if len(state.input.shape) == 4:
                _, heads, _, width = state.input.shape
                cache += int(heads) * int(width) * 4 * (FRAMES + len(TEXT) + 16)
        return size + cache


PEER_CODE = """
import importlib.machinery, json, sys, time, types
for name in ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
sys.modules["torchaudio"].compliance = sys.modules["torchaudio.compliance"]
sys.modules["torchaudio.compliance"].kaldi = sys.modules["torchaudio.compliance.kaldi"]
import torch
from qwen_tts import Qwen3TTSModel
from transformers import EncodecFeatureExtractor
folder, text, frames, dtype, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
extractor = EncodecFeatureExtractor(feature_size=1, sampling_rate=24000, padding_value=0.0)
extractor.save_pretrained(folder + "/speech_tokenizer")
model = Qwen3TTSModel.from_pretrained(folder, dtype=getattr(torch, dtype))
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    wavs, rate = model.generate_custom_voice(text=text, speaker="ryan", language="auto", max_new_tokens=int(frames) + 1)
    print("audio_s", len(wavs[0]) / rate / (time.perf_counter() - start), flush=True)
"""


class Package:
    """qwen-tts on the same checkpoint, in the process of another python. A context manager; raises Missing."""

    def __init__(self, checkpoint: Path, dtype: str, threads: int) -> None:
        python = os.environ.get(PYTHON)
        if not python:
            raise Missing(f"no environment with qwen-tts: `make bench` makes one, {PYTHON} names its python")
        arguments = (str(checkpoint), TEXT, str(FRAMES), dtype, str(threads))
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [python, "-c", PEER_CODE, *arguments], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self._answer("ready")

    def say(self) -> float:
        """Seconds of sound made a second."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._answer("audio_s"))

    def __enter__(self) -> Package:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self, word: str) -> str:
        """What follows `word`; the package prints lines of its own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise Missing(f"qwen-tts was ended by status {self._process.wait()}")


def measure(folder: Path, threads: int, rounds: int, say: Say) -> list[Line]:
    """Lines for a checkpoint that is made and built in `folder`, as its preset says."""
    say("making a Qwen3-TTS 0.6B checkpoint")
    checkpoint, engine, coarse = (folder / part for part in ("checkpoint", "engines", "coarse"))
    with Worker(Maker, checkpoint):
        pass
    say("building its engines")
    built = (DEPLOYMENT, f"model_dir={checkpoint}")
    commands.command(*built, f"engine_dir={engine}", module=commands.BUILD)
    commands.command(*built, f"engine_dir={coarse}", f"build.block_size={BLOCKS}", module=commands.BUILD)
    name = "Qwen3-TTS 0.6B, int4"
    peers: dict[str, list[float]] = {}
    alone: list[dict[str, float]] = []
    together: list[float] = []
    quicker: list[float] = []
    missing = ""
    with ExitStack() as stack:
        ours = stack.enter_context(Worker(Ours, engine, threads, ROWS))
        other = stack.enter_context(Worker(Ours, coarse, threads, ROWS))
        needed = ours.call("needed")
        packages = {}
        try:
            packages = {dtype: stack.enter_context(Package(checkpoint, dtype, threads)) for dtype in DTYPES}
        except Missing as reason:
            missing = str(reason)
        for number in range(rounds + 1):
            say(f"{name}: " + ("warming up" if number == 0 else f"round {number} of {rounds}"))
            one, four = ours.call("say"), ours.call("say", ROWS)["audio_s"]
            quick = other.call("say")["audio_s"]
            said = {dtype: package.say() for dtype, package in packages.items()}
            if number:
                alone.append(one)
                together.append(four)
                quicker.append(quick)
                for dtype, speed in said.items():
                    peers.setdefault(dtype, []).append(speed)
    speeds = [one["audio_s"] for one in alone]
    line = Line(name=name, unit="s of sound/s", peer_name="qwen-tts", at_least=3, missing=missing)
    if peers:
        faster = max(peers, key=lambda dtype: median(peers[dtype]))
        line = paired(attrs.evolve(line, peer_name=f"qwen-tts {faster}"), speeds, peers[faster])
    cohort = Line(name=f"{name}, cohort of {ROWS}", unit="s of sound/s", peer_name="one request", at_least=1.7)
    first = Line(name=f"{name}, first sound", unit="frames' time", at_most=6)
    real = Line(name=f"{name}, sound beside real time", unit="s of sound/s", at_least=1)
    blocks = attrs.evolve(real, name=f"{name} in blocks of {BLOCKS}, sound beside real time")
    memory = Line(name=f"{name}, memory", unit="MB", peer_name="engines, caches and 300 MB", at_most=1)
    peak = commands.command(
        DEPLOYMENT,
        f"engine_dir={engine}",
        f"prompt={TEXT}",
        "voice=ryan",
        f"+sampling.talker_max_generate_length={FRAMES}",
        f"out_audio={engine}/hello.wav",
        silent=True,
    ).peak_bytes
    allowed = needed + OVERHEAD
    return [
        line,
        paired(cohort, together, speeds),
        attrs.evolve(first, ours=median(one["first"] for one in alone)),
        attrs.evolve(real, ours=median(speeds)),
        attrs.evolve(blocks, ours=median(quicker)),
        attrs.evolve(memory, ours=peak / 1e6, peer=allowed / 1e6, ratio=peak / allowed),
    ]
