"""Numbers of the codec and of the speaker encoder, and the settings of the vocoder's stage.

The networks' fields have the names of the checkpoint's keys, and the defaults that the published classes have: a saved
config leaves out what equals them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs import validators as v

from framework.checkpoints.keys import Keys

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
    num_quantizers: Literal[16] = 16
    codebook_size: Literal[2048] = 2048
    decoder_dim: int = 1536
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    upsampling_ratios: tuple[int, ...] = attrs.field(default=(2, 2))
    hidden_act: Literal["silu"] = "silu"

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @upsampling_ratios.validator
    def _a_frame(self, _: Any, ratios: tuple[int, ...]) -> None:
        rate = math.prod((*self.upsample_rates, *ratios))
        if rate != FRAME:
            raise ValueError(f"{FRAME} samples a frame in all, with upsample_rates, not {rate}")


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
    upsampling_ratios: tuple[int, ...] = attrs.field(default=(8, 6, 5, 4))
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    dilation_growth_rate: int = 2
    compress: int = 2
    codebook_size: Literal[2048] = 2048
    codebook_dim: int | None = 256
    vector_quantization_hidden_dimension: int = 256
    num_quantizers: int = attrs.field(default=32, validator=v.ge(QUANTIZERS))
    num_semantic_quantizers: int = attrs.field(default=1, validator=v.lt(QUANTIZERS))
    num_hidden_layers: int = 8
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    head_dim: int | None = None
    attention_bias: bool = False
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    hidden_act: Literal["gelu"] = "gelu"
    pad_mode: Literal["constant"] = "constant"
    use_causal_conv: Literal[True] = True
    use_conv_shortcut: Literal[False] = False

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @upsampling_ratios.validator
    def _half_a_frame(self, _: Any, ratios: tuple[int, ...]) -> None:
        if 2 * math.prod(ratios) != FRAME:  # the last layer halves
            raise ValueError(f"numbers with the product {FRAME // 2}, half a frame's samples")


@attrs.frozen(kw_only=True)
class CodecConfig:
    """speech_tokenizer/config.json."""

    decoder: DecoderConfig
    encoder: EncoderConfig

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str) -> CodecConfig:
        """Raises ConfigError with every key missing, malformed or unsupported."""
        keys = Keys(config, f"{where}:")
        keys.only(model_type="qwen3_tts_tokenizer_12hz")
        decoder = keys.part("decoder_config").fields(DecoderConfig)
        encoder = keys.part("encoder_config", default={}).fields(EncoderConfig)
        return keys.checked(cls(decoder=decoder, encoder=encoder))


@attrs.frozen(kw_only=True)
class SpeakerConfig:
    """The speaker encoder (ECAPA-TDNN): a mel spectrogram to one vector. The main config's `speaker_encoder_config`."""

    mel_dim: Literal[128] = 128
    enc_dim: int = 1024
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = attrs.field(default=(1, 2, 3, 4, 1))
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128
    sample_rate: Literal[24_000] = 24_000

    @enc_dilations.validator
    def _one_length(self, _: Any, dilations: tuple[int, ...]) -> None:
        if not len(self.enc_channels) == len(self.enc_kernel_sizes) == len(dilations):
            raise ValueError("as many as enc_channels and enc_kernel_sizes have")

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str) -> SpeakerConfig:
        """Raises ConfigError with every key malformed or unsupported."""
        keys = Keys(config, f"{where}:")
        return keys.checked(keys.part("speaker_encoder_config", default={}).fields(cls))


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
