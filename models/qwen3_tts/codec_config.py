"""Numbers of the codec and of the speaker encoder, and the settings of the vocoder's stage.

The networks' fields have the names of the checkpoint's keys, and the defaults that the published classes have: a saved
config leaves out what equals them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import validators as v

from framework.errors import ConfigError, Problem
from framework.schema import structure

SAMPLE_RATE = 24_000
FRAME = 1920  # samples of a codec frame: 12.5 frames a second
QUANTIZERS, ENTRIES = 16, 2048
MAX_FRAMES = 300  # of one call: 24 s
REFERENCE_CHUNK, REFERENCE_CONTEXT = 300, 25  # frames: see `Code2WavConfig.reference_chunks`
VOCODER_FILE = "vocoder.json"  # beside an engine whose sound is late: {"late": samples}

# The mel spectrogram that the speaker encoder reads.
FFT, HOP, MELS, FMAX = 1024, 256, 128, 12_000.0


@attrs.frozen(kw_only=True)
class VocoderConfig:
    """A transformer over frames, and what makes sound of its output."""

    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 8
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int | None = None
    attention_bias: bool = False
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    sliding_window: int = 72
    num_quantizers: int = QUANTIZERS
    codebook_size: int = ENTRIES
    decoder_dim: int = 1536
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    upsampling_ratios: tuple[int, ...] = (2, 2)
    hidden_act: str = "silu"

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def problems(self, where: str) -> Iterator[Problem]:
        rate = math.prod((*self.upsample_rates, *self.upsampling_ratios))
        if rate != FRAME:
            expected = f"{FRAME} samples a frame in all"
            yield Problem(
                where=f"{where}.upsample_rates, upsampling_ratios", got=f"a product of {rate}", expected=expected
            )
        only = {"num_quantizers": QUANTIZERS, "codebook_size": ENTRIES, "hidden_act": "silu"}
        yield from _others(self, only, where)


@attrs.frozen(kw_only=True)
class DecoderConfig(VocoderConfig):
    """The codec's decoder: codes to sound."""

    codebook_dim: int
    latent_dim: int = 1024


@attrs.frozen(kw_only=True)
class EncoderConfig:
    """The codec's encoder (Mimi): sound to codes."""

    hidden_size: int = 512
    num_filters: int = 64
    num_residual_layers: int = 1
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    dilation_growth_rate: int = 2
    compress: int = 2
    codebook_size: int = ENTRIES
    codebook_dim: int | None = 256
    vector_quantization_hidden_dimension: int = 256
    num_quantizers: int = 32
    num_semantic_quantizers: int = 1
    num_hidden_layers: int = 8
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int | None = None
    attention_bias: bool = False
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    hidden_act: str = "gelu"
    pad_mode: str = "constant"
    use_causal_conv: bool = True
    use_conv_shortcut: bool = False

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def problems(self, where: str) -> Iterator[Problem]:
        rate = 2 * math.prod(self.upsampling_ratios)  # the last layer halves
        if rate != FRAME:
            expected = f"{FRAME // 2}, half a frame's samples"
            yield Problem(where=f"{where}.upsampling_ratios", got=f"a product of {rate // 2}", expected=expected)
        if self.num_quantizers < QUANTIZERS:
            expected = f"at least {QUANTIZERS}"
            yield Problem(where=f"{where}.num_quantizers", got=str(self.num_quantizers), expected=expected)
        if self.num_semantic_quantizers >= QUANTIZERS:
            expected = f"less than {QUANTIZERS}"
            got = str(self.num_semantic_quantizers)
            yield Problem(where=f"{where}.num_semantic_quantizers", got=got, expected=expected)
        only = {
            "codebook_size": ENTRIES,
            "hidden_act": "gelu",
            "pad_mode": "constant",
            "use_causal_conv": True,
            "use_conv_shortcut": False,
        }
        yield from _others(self, only, where)


@attrs.frozen(kw_only=True)
class CodecConfig:
    """speech_tokenizer/config.json."""

    decoder: DecoderConfig
    encoder: EncoderConfig

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str) -> CodecConfig:
        """Raises ConfigError with every key missing, malformed or unsupported."""
        parts: dict[str, Any] = {}
        problems = []
        kind = config.get("model_type")
        if kind not in (None, "qwen3_tts_tokenizer_12hz"):
            problems.append(Problem(where=f"{where}.model_type", got=repr(kind), expected="'qwen3_tts_tokenizer_12hz'"))
        for name, part in (("decoder", DecoderConfig), ("encoder", EncoderConfig)):
            at = f"{where}.{name}_config"
            try:
                parts[name] = known_fields(part, config.get(f"{name}_config") or {}, at)
                problems += parts[name].problems(at)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return cls(**parts)


@attrs.frozen(kw_only=True)
class SpeakerConfig:
    """The speaker encoder (ECAPA-TDNN): a mel spectrogram to one vector. The main config's `speaker_encoder_config`."""

    mel_dim: int = MELS
    enc_dim: int = 1024
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: int = SAMPLE_RATE

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str) -> SpeakerConfig:
        """Raises ConfigError with every key malformed or unsupported."""
        where = f"{where}.speaker_encoder_config"
        read = known_fields(cls, config.get("speaker_encoder_config") or {}, where)
        problems = [*_others(read, {"mel_dim": MELS, "sample_rate": SAMPLE_RATE}, where)]
        lengths = {len(read.enc_channels), len(read.enc_kernel_sizes), len(read.enc_dilations)}
        if len(lengths) > 1:
            names = "enc_channels, enc_kernel_sizes, enc_dilations"
            got = f"lists of {', '.join(map(str, sorted(lengths)))}"
            problems.append(Problem(where=f"{where}.{names}", got=got, expected="lists of one length"))
        if problems:
            raise ConfigError(problems)
        return read


@attrs.frozen(kw_only=True)
class Code2WavConfig:
    """Settings of `qwen3_omni.code2wav`.

    Attributes:
        chunk_frames: codec frames made into sound at once. The sound is the same for every number; a smaller one comes
            sooner and costs more.
        first_chunk_frames: the same for a request's first sound; 0 is `chunk_frames`.
        stream_depth: chunks of sound that a stage reading the port may leave unread before this one waits.
        checkpoint: of graph files written elsewhere; engines here carry their weights.
        whole_utterance: wait for the last code, and make all sound at once where the engine allows so many frames.
        reference_chunks: start anew every 300 frames, from the last 25 of them, as the published decoders do for
            their memory's sake. It is there to compare with: what lies further back is forgotten at every joint, and
            where the network looks ahead the joint lacks a little sound.
    """

    chunk_frames: int = attrs.field(default=25, validator=[v.ge(1), v.le(MAX_FRAMES)])
    first_chunk_frames: int = attrs.field(default=0, validator=[v.ge(0), v.le(MAX_FRAMES)])
    stream_depth: int = attrs.field(default=64, validator=v.ge(2))
    checkpoint: str = ""
    whole_utterance: bool = False
    reference_chunks: bool = False


def known_fields(cls: type[Any], data: Mapping[str, Any], where: str) -> Any:
    """`data` as a `cls`, which knows only some of its keys."""
    known = {field.name for field in attrs.fields(cls)}
    return structure(cls, {key: value for key, value in data.items() if key in known}, where=where)


def _others(config: Any, only: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """A problem for every field that has not the only value which is supported."""
    for key, value in only.items():
        if (got := getattr(config, key)) != value:
            yield Problem(where=f"{where}.{key}", got=repr(got), expected=repr(value))
