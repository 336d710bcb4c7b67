"""Networks of unusual sizes are built and run in every precision: a pass knows what its kernel does not take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import onnx_ir as ir
import pytest

from framework.engines.backend import compile_engine
from framework.engines.ort.backend import OnnxRuntimeCpu
from framework.engines.passes import attention
from framework.engines.trial import run_once
from framework.errors import ConfigError
from framework.nn import export, weight_shapes
from models.language.config import LLMConfig, MoEConfig
from models.language.network import CausalLM
from models.qwen3_omni.config import OmniSpeechConfig
from models.qwen3_omni.network import AnswerSpeech
from models.qwen3_talker.config import CodecIds, TTSConfig
from models.qwen3_tts.network import TextSpeech
from models.whisper.config import Tokens, WhisperConfig
from models.whisper.network import TextDecoder

CPU = OnnxRuntimeCpu(threads=1)
CAPACITY, CHUNK, ROWS = 24, 8, 2
HEAD_SIZES = (8, 12, 24, 80, 96, 256)
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int4")


def decoder(head_dim: int, *, hidden: int = 72, heads: int = 5, kv_heads: int = 1, layers: int = 3) -> LLMConfig:
    return LLMConfig(
        vocab=1100,
        hidden=hidden,
        intermediate=99,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=1e-5,
        rope={"rope_theta": 1e4, "rope_type": "default"},
        tied=False,
    )


def language_model(config: LLMConfig) -> Any:
    return CausalLM(config, capacity=CAPACITY, dtype="float32", hidden_layers=())


def speech(head_dim: int, groups: int, hidden: int = 72) -> dict[str, Any]:
    """What both talkers have."""
    marks = {
        name: 1090 + place for place, name in enumerate(("pad", "bos", "eos", "nothink", "think_bos", "think_eos"))
    }
    return {
        **{"talker": attrs.evolve(decoder(head_dim, hidden=hidden), qk_norm=True)},
        **{"predictor": attrs.evolve(decoder(head_dim, hidden=40, layers=1), qk_norm=True, vocab=48)},
        **{"groups": groups, "min_frames": 2, "text_vocab": 60, "text_pad": 1, "text_bos": 2, "text_eos": 3},
        **{"codec": CodecIds(**marks), "speakers": {}},
    }


def text_talker(head_dim: int, groups: int = 3, hidden: int = 72) -> Any:
    names = {"kind": "base", "size": "0b6", "text_hidden": 52, "dialects": {}, "languages": {}}
    return TextSpeech(TTSConfig(**speech(head_dim, groups, hidden), **names), capacity=CAPACITY, dtype="float32")


def answer_talker(head_dim: int, groups: int = 3) -> Any:
    """Its feed-forward is a mixture, and its positions have three directions."""
    third = head_dim // 6
    mixture = MoEConfig(experts=3, top_k=2, intermediate=36, norm_topk=True, shared=20)
    settings = speech(head_dim, groups)
    settings["talker"] = attrs.evolve(settings["talker"], moe=mixture)
    sections = (head_dim // 2 - 2 * third, third, third)
    names = ("thinker_hidden", "projection", "accept_layer", "im_start", "user", "assistant")
    marks = dict.fromkeys((*names, "vision_start", "vision_end", "audio_start"), 4)
    config = OmniSpeechConfig(**settings, **marks, sections=sections, media=frozenset())
    return AnswerSpeech(config, capacity=CAPACITY, dtype="float32")


def transcriber(head_dim: int, heads: int = 5) -> Any:
    config = WhisperConfig(
        vocab=1600,
        mels=80,
        hidden=head_dim * heads,
        encoder_layers=1,
        encoder_heads=heads,
        encoder_intermediate=50,
        decoder_layers=3,
        decoder_heads=heads,
        decoder_intermediate=51,
        frames=12,
        context=CAPACITY,
        tokens=TOKENS,
    )
    return TextDecoder(config, capacity=CAPACITY, dtype="float32")


TOKENS = Tokens(
    start=90,
    end=89,
    no_speech=97,
    no_timestamps=98,
    translate=93,
    transcribe=94,
    languages=(91, 92),
    multilingual=False,
    suppressed=(),
    at_begin=(),
)


def built(network: Any, folder: Path, precision: str) -> str | None:
    """Compile a network of random weights and run it once; the reason if this machine cannot."""
    rng = np.random.default_rng(6)
    shapes = weight_shapes(network)
    weights = {
        name: ir.tensor((rng.standard_normal(s) / s[-1] ** 0.5).astype(np.float32)) for name, s in shapes.items()
    }
    model = export(network, network.inputs(), network.outputs(), weights)
    model.metadata_props["precision"] = precision
    outputs = {tensor.name for tensor in network.outputs()}
    states = {t.name: f"{t.name}.next" for t in network.inputs() if f"{t.name}.next" in outputs}
    sizes = {"batch": ROWS, "tokens": CHUNK, "media": CHUNK, "candidates": 40}
    used = {dim for value in (*model.graph.inputs, *model.graph.outputs) for dim in map(str, value.shape or ())}
    compile_engine(model, folder, CPU, states=states, caps={dim: size for dim, size in sizes.items() if dim in used})
    return run_once(folder, CPU)


FAMILIES: dict[str, Callable[[int], Any]] = {
    "language model": lambda size: language_model(decoder(size)),
    "normalised heads": lambda size: language_model(attrs.evolve(decoder(size), qk_norm=True, attention_bias=True)),
    "text talker": text_talker,
    "answer talker": answer_talker,
    "transcriber": transcriber,
}


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_every_size_run(family: str, head_dim: int, tmp_path: Path) -> None:
    assert built(FAMILIES[family](head_dim), tmp_path, "fp32") is None


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("head_dim", [12, 64])
@pytest.mark.parametrize("family", FAMILIES)
def test_odd_widths_run_in_every_precision(family: str, head_dim: int, precision: str, tmp_path: Path) -> None:
    assert built(FAMILIES[family](head_dim), tmp_path, precision) is None


@pytest.mark.parametrize("heads", [(5, 5), (6, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_numbers_of_heads_run(heads: tuple[int, int], precision: str, tmp_path: Path) -> None:
    config = decoder(16, hidden=96, heads=heads[0], kv_heads=heads[1], layers=1)
    assert built(language_model(config), tmp_path, precision) is None


@pytest.mark.parametrize("groups", [2, 7])
@pytest.mark.parametrize("make", [text_talker, answer_talker])
def test_numbers_of_code_groups_run(make: Callable[..., Any], groups: int, tmp_path: Path) -> None:
    assert built(make(16, groups=groups), tmp_path, "int8") is None


def test_what_a_kernel_does_not_take_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROTATED_MULTIPLE", 8)
    with pytest.raises(ConfigError, match=r"\(cpu\): got .*GroupQueryAttention.*expected an engine that runs"):
        built(language_model(decoder(8, layers=1)), tmp_path, "fp32")
