"""A tiny random Whisper in the official layout, its greedy ids by transformers, and runs through the real executor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framework.compile.family import BuildOptions
from framework.execution.executor import Executor
from framework.execution.payloads import AudioChunk
from framework.execution.policies import InFlight, Policy
from framework.execution.request import Request, Result
from framework.graph.files import load
from framework.graph.model import FILE_NAME
from models.whisper.runners import Transcriber, TranscriberConfig
from models.whisper.topology import Whisper
from tests.models.running import CPU, built, executor

Array = np.ndarray[Any, Any]
RATE = 16000
FRAMES = 50  # one window is a second
FAMILIES = {"WhisperForConditionalGeneration": Whisper()}
# 480 words, end, start, 11 languages, translate, transcribe, startoflm, startofprev, nospeech, notimestamps, times
VOCAB, END, START, NO_TIMESTAMPS = 2000, 480, 481, 498
WINDOW = TranscriberConfig(
    sampling="default", fallback=(), max_compression=1e9, min_logprob=-1e9, max_tokens=24, cut=0.2
)


def save_checkpoint(folder: Path, *, multilingual: bool = False, mels: int = 80) -> Path:
    import torch
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=mels,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=FRAMES,
        max_target_positions=64,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
    )
    model = transformers.WhisperForConditionalGeneration(config).float()
    generator = torch.Generator().manual_seed(5 + mels)
    with torch.no_grad():
        for parameter in model.parameters():
            one = 1.0 if parameter.dim() == 1 and parameter.mean() == 1 else 0.0
            spread = 0.2 if parameter.dim() == 1 else 1.6 / parameter[0].numel() ** 0.5
            parameter.copy_(one + spread * torch.randn(parameter.shape, generator=generator))
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
        bos_token_id=END,
        no_timestamps_token_id=NO_TIMESTAMPS,
        is_multilingual=multilingual,
        suppress_tokens=[3, 7, 11, START, *range(START + 12, NO_TIMESTAMPS)],
        begin_suppress_tokens=[5, END],
        max_initial_timestamp_index=50,
    )
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    import tokenizers
    from tokenizers import decoders, models

    names = [*(f"Ġw{i}" for i in range(END)), "<|endoftext|>", "<|startoftranscript|>"]
    names += [f"<|l{i}|>" for i in range(11)]
    names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"]
    names += ["<|notimestamps|>"]
    backend = tokenizers.Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in names[END:]])
    backend.save(str(folder / "tokenizer.json"))


def reference(folder: Path) -> Any:
    import torch
    import transformers

    return transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(model: Any, samples: Array, prompt: Sequence[int], *, timed: bool, count: int) -> list[int]:
    """Ids that transformers' model and its own logits processors write, the end token not among them."""
    import torch
    from transformers import WhisperFeatureExtractor
    from transformers.generation import logits_process as lp

    config, settings = model.config, model.generation_config
    seconds = config.max_source_positions // 50
    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=seconds)
    features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    begin = len(prompt)
    processors = [
        lp.SuppressTokensLogitsProcessor(settings.suppress_tokens, device="cpu"),
        lp.SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, begin, device="cpu"),
    ]
    if timed:
        processors.append(lp.WhisperTimeStampLogitsProcessor(settings, begin_index=begin))
    else:  # the project closes timestamps where the prompt says that there are none
        times = list(range(settings.no_timestamps_token_id + 1, config.vocab_size))
        processors.append(lp.SuppressTokensLogitsProcessor(times, device="cpu"))
    ids = torch.tensor([list(prompt)])
    with torch.no_grad():
        encoded = model.model.encoder(features)
        for _ in range(count):
            scores = model(encoder_outputs=encoded, decoder_input_ids=ids).logits[:, -1]
            for processor in processors:
                scores = processor(ids, scores)
            token = scores.argmax(dim=-1, keepdim=True)
            if int(token) == settings.eos_token_id:
                break
            ids = torch.cat([ids, token], dim=1)
    return [int(token) for token in ids[0, begin:]]


def build_tiny(checkpoint: Path, folder: Path, **options: Any) -> Path:
    backend = options.pop("backend", CPU)
    built(checkpoint, folder, FAMILIES, BuildOptions(**options), backend)
    return folder


def opened(folder: Path, config: TranscriberConfig = WINDOW, policy: Policy | None = None) -> Executor:
    graph = load(folder / FILE_NAME)
    (stage,) = graph.stages
    runner = Transcriber(stage=stage, config=config)
    return executor(graph, {stage.id: runner}, folder, policy or InFlight(1))


def sound(samples: Any, rate: int = RATE) -> AudioChunk:
    return AudioChunk(samples=np.asarray(samples, np.float32), sample_rate=rate)


def chirps(seconds: float, seed: int = 0) -> Array:
    """Bursts that rise and fall, so that it could be speech; float32 at 16 kHz."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    pitch = rng.uniform(100, 900) + rng.uniform(50, 400) * np.sin(2 * np.pi * rng.uniform(1, 5) * time)
    envelope = np.clip(np.sin(2 * np.pi * rng.uniform(2, 4) * time), 0.01, 1)
    return (0.3 * envelope * np.sin(2 * np.pi * np.cumsum(pitch) / RATE)).astype(np.float32)


def request(index: int, audio: Any, **sampling: Any) -> Request:
    return Request(index=index, fields={"audio": audio}, sampling={"default": sampling} if sampling else {})


def answers(executor: Executor, requests: Sequence[Request]) -> list[Result]:
    return sorted(executor.run(requests), key=lambda result: result.request.index)


def text_of(result: Result) -> str:
    assert result.ok, result.error
    return "".join(chunk.text for chunk in result.outputs["asr:text"])


def ids_of(result: Result) -> list[int]:
    assert result.ok, result.error
    return [id_ for chunk in result.outputs["asr:text"] for id_ in chunk.ids]
