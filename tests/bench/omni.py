"""Qwen3-Omni beside transformers: one answer of the same length written and said in turn; streaming beside waiting;
encoders beside transformers' own.

Weights are random and of few layers (`omni_checkpoint`); they decide nothing but how long everything takes, and the
lengths are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import numpy as np

from tests.bench import commands
from tests.bench.line import Line, paired
from tests.bench.omni_checkpoint import END, save_checkpoint
from tests.bench.ours import configured
from tests.bench.worker import Missing, Worker
from tests.models.qwen3_omni import tiny

Say = Callable[[str], None]
DEPLOYMENT = "deployment=qwen3_omni_30b_a3b"
SIZES = ("build.max_input_len=1024", "build.max_kv_cache_capacity=1024", "build.max_batch_size=1")
PROMPT = "What is it like to live by the sea?"  # a token a byte here
WORDS, FRAMES = 12, 13  # tokens written and codec frames said: 1 s of speech
PEER_ROUNDS = 3  # at the most: transformers takes most of a minute for each
LONG, LONG_FRAMES = 200, 50  # of an answer that is heard while it is written
WAITING = "+stages.talker.config.wait_for_text=true"  # the seed's order
DTYPES = ("float32", "bfloat16")
SECONDS, RATE = 10, 16_000  # of a sound
WIDTH, HEIGHT = 768, 512  # of a picture


class Maker:
    """The checkpoint, made in a process of its own."""

    def save(self, folder: Path) -> None:
        save_checkpoint(folder)


class Ours:
    """The deployment's own graph over the engines in `folder`; `overrides` as on the command line."""

    deployment = DEPLOYMENT

    def __init__(self, folder: Path, threads: int, *overrides: str) -> None:
        from framework.deployment.system import deployed, make_executor

        config = configured(
            f"engine_dir={folder}", f"backend.threads={threads}", *overrides, deployment=self.deployment
        )
        self._executor = make_executor(config, deployed(config), 1)

    def say(self, words: int, frames: int) -> dict[str, float]:
        """Seconds until all of an answer is said (`wall_s`), and until its first sound (`first_s`)."""
        result = self._run(words, {"text", "audio"}, frames)
        if (said := result.stages["code2wav"].details["frames"]) != frames:
            raise ValueError(f"{said} frames said instead of {frames}")
        return {"wall_s": result.wall_s, "first_s": result.stages["code2wav"].first_output_s}

    def write(self, words: int) -> float:
        """Seconds until an answer is written that is not said."""
        return float(self._run(words, {"text"}, 0).wall_s)

    def _run(self, words: int, kinds: set[str], frames: int) -> Any:
        from framework.execution.request import Request

        sampling: dict[str, dict[str, Any]] = {
            "default": {"temperature": 0.0, "max_generate_length": words, "logit_bias": {tiny.END: -100.0}},
            "talker": {"temperature": 0.0, "max_generate_length": frames, "logit_bias": {END: -100.0}},
            "code_predictor": {"temperature": 0.0},
        }
        fields = {"messages": [{"role": "user", "content": PROMPT}]}
        if "audio" in kinds:
            fields["voice"] = "ethan"  # type: ignore[assignment]
        else:
            del sampling["talker"], sampling["code_predictor"]
        request = Request(index=0, fields=fields, sampling=sampling, kinds=frozenset(kinds))
        (result,) = self._executor.run([request])
        if result.error is not None:
            raise result.error
        if (written := result.stages["thinker"].details["generated_tokens"]) != words:
            raise ValueError(f"{written} tokens written instead of {words}")
        return result


class Silent(Ours):
    """Of a build without a talker, whose settings the preset would bring."""

    deployment = "deployment=none"


class Transformers:
    """The published model on the same checkpoint; the tokenizer is read where the engines lie."""

    def __init__(self, checkpoint: Path, engines: Path, threads: int, dtype: str) -> None:
        import torch
        from transformers import Qwen3OmniMoeForConditionalGeneration

        torch.set_num_threads(threads)
        self._model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
        self._model = self._model.eval()
        self._engines = engines

    def say(self, words: int, frames: int) -> float:
        """Seconds until all of an answer is written and said."""
        import torch

        ids = torch.tensor([self._ids()])
        begin = perf_counter()
        with torch.no_grad():
            written, sound = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                speaker="Ethan",
                return_audio=True,
                thinker_max_new_tokens=words,
                thinker_eos_token_id=tiny.END,
                thinker_do_sample=False,
                talker_max_new_tokens=frames + 1,  # the last one is not said
                talker_do_sample=False,
            )
        seconds = perf_counter() - begin
        if written.shape[1] != ids.shape[1] + words or abs(sound.numel() - frames * 1920) > 1920:
            raise ValueError(f"{written.shape[1] - ids.shape[1]} tokens and {sound.numel() / 1920:.1f} frames")
        return seconds

    def hear(self, path: str) -> float:
        """Seconds from a sound file to the rows that the thinker reads."""
        import soundfile
        import torch
        from transformers import WhisperFeatureExtractor

        begin = perf_counter()
        samples, rate = soundfile.read(path, dtype="float32")
        found = WhisperFeatureExtractor(feature_size=tiny.MEL)(
            samples, sampling_rate=rate, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
        )
        with torch.no_grad():
            self._model.thinker.get_audio_features(found.input_features, found.attention_mask)
        return perf_counter() - begin

    def see(self, path: str) -> float:
        """Seconds from a picture's file to the rows that the thinker reads."""
        import torch
        from PIL import Image
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        keys = (
            "image_mean",
            "image_std",
            "patch_size",
            "temporal_patch_size",
            "merge_size",
            "min_pixels",
            "max_pixels",
        )
        begin = perf_counter()
        processor = Qwen2VLImageProcessorPil(**{key: tiny.PREPROCESSOR[key] for key in keys})
        found = processor([Image.open(path)], return_tensors="pt")
        with torch.no_grad():
            self._model.thinker.get_image_features(found.pixel_values, found.image_grid_thw)
        return perf_counter() - begin

    def _ids(self) -> list[int]:
        from framework.io.chat import ChatTemplate
        from framework.io.tokens import Tokenizer

        template = ChatTemplate.load(self._engines)
        assert template is not None
        text = template.render([{"role": "user", "content": PROMPT}], add_generation_prompt=True)
        return Tokenizer.load(self._engines).encode(text)


class Encoders:
    """Ours, from a file to the rows that the thinker reads."""

    def __init__(self, folder: Path, threads: int) -> None:
        from framework.engines.ort.backend import OnnxRuntimeCpu
        from models.qwen3_encoders.perception import Perception

        self._perception = Perception(folder / "audio", folder / "visual", OnnxRuntimeCpu(threads=threads))

    def hear(self, path: str) -> float:
        return self._perceive({"type": "audio", "audio": path})

    def see(self, path: str) -> float:
        return self._perceive({"type": "image", "image": path})

    def _perceive(self, part: Mapping[str, str]) -> float:
        begin = perf_counter()
        self._perception.perceive(part)
        return perf_counter() - begin


def measure(folder: Path, threads: int, rounds: int, say: Say) -> list[Line]:
    """Lines for a checkpoint that is made and built in `folder`, as its preset says."""
    say("making a reduced Qwen3-Omni checkpoint")
    checkpoint, engines, silent = folder / "checkpoint", folder / "engines", folder / "silent"
    with Worker(Maker) as maker:
        maker.call("save", checkpoint)
    say("building its engines")
    given = (DEPLOYMENT, f"model_dir={checkpoint}", *SIZES)
    commands.command(*given, f"engine_dir={engines}", module=commands.BUILD)
    commands.command(*given, f"engine_dir={silent}", "build.components=[llm]", module=commands.BUILD)
    sound, picture = _media(folder)
    return [
        _spoken(checkpoint, engines, threads, min(rounds, PEER_ROUNDS), say),
        _first_sound(engines, threads, rounds, say),
        _written(engines, silent, threads, rounds, say),
        _encoder("hear", f"{SECONDS} s of sound", sound, checkpoint, engines, threads, rounds, say),
        _encoder("see", f"a picture of {WIDTH} x {HEIGHT}", picture, checkpoint, engines, threads, rounds, say),
    ]


def _spoken(checkpoint: Path, engines: Path, threads: int, rounds: int, say: Say) -> Line:
    """Seconds of an answer in text and speech: transformers' over ours."""
    line = Line(name="Qwen3-Omni, int4: text and speech, faster by", unit="s", peer_name="ours", at_least=3)
    try:
        with ExitStack() as stack:
            ours = stack.enter_context(Worker(Ours, engines, threads))
            peers = {
                name: stack.enter_context(Worker(Transformers, checkpoint, engines, threads, name)) for name in DTYPES
            }
            times: dict[str, list[float]] = {name: [] for name in ("ours", *DTYPES)}
            for number in range(rounds + 1):
                _tell(line, number, rounds, say)
                times["ours"].append(ours.call("say", WORDS, FRAMES)["wall_s"])
                for name, peer in peers.items():
                    times[name].append(peer.call("say", WORDS, FRAMES))
    except Missing as reason:
        return attrs.evolve(line, missing=str(reason))
    faster = min(DTYPES, key=lambda name: median(times[name][1:]))
    line = attrs.evolve(line, name=f"{line.name} than transformers {faster}")
    return paired(line, times[faster][1:], times["ours"][1:])


def _first_sound(engines: Path, threads: int, rounds: int, say: Say) -> Line:
    """How much sooner one hears something than when all is written before it is said."""
    name = f"Qwen3-Omni, first sound of {LONG} tokens, sooner by"
    line = Line(name=name, unit="s", peer_name="streamed", at_least=3)
    contenders = ((Ours, engines, threads, WAITING), (Ours, engines, threads))
    return _turns(line, contenders, ("say", LONG, LONG_FRAMES), rounds, say, value=lambda found: found["first_s"])


def _written(engines: Path, silent: Path, threads: int, rounds: int, say: Say) -> Line:
    """An answer that is only written, where a talker stands by and where none was built."""
    line = Line(name="Qwen3-Omni, text alone", unit="s", peer_name="without a talker", at_most=1.05)
    return _turns(line, ((Ours, engines, threads), (Silent, silent, threads)), ("write", LONG), rounds, say)


def _encoder(
    method: str, what: str, path: Path, checkpoint: Path, engines: Path, threads: int, rounds: int, say: Say
) -> Line:
    line = Line(name=f"Qwen3-Omni, {what}", unit="s", peer_name="transformers float32", at_most=1.2)
    contenders = ((Encoders, engines, threads), (Transformers, checkpoint, engines, threads, "float32"))
    return _turns(line, contenders, (method, str(path)), rounds, say)


def _turns(
    line: Line,
    contenders: tuple[tuple[Any, ...], tuple[Any, ...]],
    call: tuple[Any, ...],
    rounds: int,
    say: Say,
    value: Callable[[Any], float] = float,
) -> Line:
    samples: tuple[list[float], list[float]] = ([], [])
    try:
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(*make)) for make in contenders]
            for number in range(rounds + 1):
                _tell(line, number, rounds, say)
                for worker, taken in zip(workers, samples, strict=True):
                    taken.append(value(worker.call(*call)))
    except Missing as reason:
        return attrs.evolve(line, missing=str(reason))
    return paired(line, samples[0][1:], samples[1][1:])


def _tell(line: Line, number: int, rounds: int, say: Say) -> None:
    say(f"{line.name}: " + ("warming up" if number == 0 else f"round {number} of {rounds}"))


def _media(folder: Path) -> tuple[Path, Path]:
    """A sound and a picture."""
    import soundfile
    from PIL import Image

    rng = np.random.default_rng(0)
    sound, picture = folder / "sound.wav", folder / "picture.png"
    soundfile.write(sound, 0.1 * rng.standard_normal(SECONDS * RATE), RATE)
    Image.fromarray(rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)).save(picture)
    return sound, picture
