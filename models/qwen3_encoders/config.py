"""Numbers of the two encoders, and of what prepares pictures, video and sound for them.

Fields have the names of the checkpoint's keys, and the defaults of the published classes: a saved config leaves out
what equals them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs import validators as v

from framework.checkpoints.keys import Keys
from framework.errors import ConfigError, Problem
from framework.io.fields import LIST

RATE, HOP, FFT = 16_000, 160, 400  # samples a second, between frames of the spectrogram, in one
STRIDES = 3  # convolutions that halve

# `vision_config` that may be one number or one for each axis.
_SQUARE = ("patch_size", "temporal_patch_size")


@attrs.frozen(kw_only=True)
class AudioConfig:
    """The audio encoder: `thinker_config.audio_config`."""

    num_mel_bins: int = 128
    d_model: int = 1280
    encoder_layers: int = 32
    encoder_attention_heads: int = 20
    encoder_ffn_dim: int = 5120
    downsample_hidden_size: int = 480
    output_dim: int = 3584
    max_source_positions: int = 1500
    n_window: int = attrs.field(default=50, validator=v.ge(1))
    n_window_infer: int = attrs.field(default=800)
    activation_function: Literal["gelu"] = "gelu"

    @property
    def chunk(self) -> int:
        """Frames of the spectrogram that the convolutions see at once."""
        return 2 * self.n_window

    @property
    def window(self) -> int:
        """Tokens that attend to each other."""
        return self.n_window_infer // self.chunk * halved(self.chunk)

    @property
    def bands(self) -> int:
        """Mel bands that the convolutions leave."""
        return halved(self.num_mel_bins)

    def tokens(self, frames: int) -> int:
        """Tokens of a spectrogram of so many frames."""
        whole, rest = divmod(frames, self.chunk)
        return whole * halved(self.chunk) + (halved(rest) if rest else 0)

    @n_window_infer.validator
    def _whole_chunks(self, _: Any, frames: int) -> None:
        if self.chunk and (frames < self.chunk or frames % self.chunk):
            raise ValueError(f"a multiple of {self.chunk}, twice n_window")


@attrs.frozen(kw_only=True)
class VisionConfig:
    """The visual encoder: `thinker_config.vision_config`."""

    depth: int = 27
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_heads: int = attrs.field(default=16)
    in_channels: Literal[3] = 3
    patch_size: int = 16
    temporal_patch_size: int = 2
    spatial_merge_size: int = attrs.field(default=2, validator=v.ge(1))
    out_hidden_size: int = 3584
    num_position_embeddings: int = attrs.field(default=2304)
    deepstack_visual_indexes: tuple[int, ...] = attrs.field(default=(8, 16, 24))
    hidden_act: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    rope_theta: float = 10_000.0

    @property
    def merge(self) -> int:
        return self.spatial_merge_size

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_width(self) -> int:
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def side(self) -> int:
        """Learned position embeddings in a row."""
        return round(self.num_position_embeddings**0.5)

    @num_heads.validator
    def _in_quarters(self, _: Any, heads: int) -> None:
        if heads < 1 or self.head_dim % 4:
            raise ValueError("1 or more, whose width is a multiple of 4")

    @num_position_embeddings.validator
    def _square(self, _: Any, embeddings: int) -> None:
        if self.side**2 != embeddings:
            raise ValueError("a square number")

    @deepstack_visual_indexes.validator
    def _layers(self, _: Any, layers: tuple[int, ...]) -> None:
        if any(layer >= self.depth for layer in layers):
            raise ValueError(f"layers below {self.depth}")


def halved(steps: int) -> int:
    """Steps that the convolutions leave of so many."""
    for _ in range(STRIDES):
        steps = (steps + 1) // 2
    return steps


@attrs.frozen(kw_only=True)
class MediaTokens:
    """The tokens that stand for what was heard and seen in a language model's prompt.

    Attributes:
        audio, image, video: ids of the tokens themselves.
        audio_start, audio_end: ids of the marks around sound.
        positions_per_second: rotary positions that a second of video takes.
        merge: patches a side that the visual encoder makes one token of.
        width: of the model's embeddings.
        deepstack: layers of the model, from the first, behind which more of a picture's features are added.
    """

    audio: int
    image: int
    video: int
    audio_start: int
    audio_end: int
    positions_per_second: float
    merge: int
    width: int
    deepstack: int

    @classmethod
    def read(cls, thinker: Keys, *, width: int) -> MediaTokens:
        """From `thinker_config`."""
        vision, audio_start = thinker.part("vision_config"), thinker.id("audio_start_token_id")
        return cls(
            audio=thinker.id("audio_token_id"),
            image=thinker.id("image_token_id"),
            video=thinker.id("video_token_id"),
            audio_start=audio_start,
            # Their names in the vocabulary follow each other; older files name the first alone.
            audio_end=thinker.id("audio_end_token_id", audio_start + 1),
            positions_per_second=thinker.number("position_id_per_seconds"),
            merge=vision.size("spatial_merge_size"),
            width=width,
            deepstack=len(vision.get("deepstack_visual_indexes", LIST, [], [])),
        )

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], where: str = "config.json") -> MediaTokens:
        """Raises ConfigError with every key missing or malformed."""
        keys = Keys(config, f"{where}:")
        thinker = keys.part("thinker_config")
        return keys.checked(cls.read(thinker, width=thinker.part("text_config").size("hidden_size")))


# --- what stands before the encoders -------------------------------------------------------------------------------


# Published beside the weights; newer tools write all three into the last.
PREPROCESSOR, VIDEO_PREPROCESSOR, PROCESSOR = (
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)


@attrs.frozen(kw_only=True)
class PixelConfig:
    """How pictures become patches; the published Qwen2VLImageProcessor.

    Attributes:
        min_pixels, max_pixels: of a picture after it was resized.
        image_mean, image_std: of red, green and blue, from 0 to 1.
    """

    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    image_mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)

    @property
    def block(self) -> int:
        """Pixels that height and width are multiples of: a token's."""
        return self.patch_size * self.merge_size


@attrs.frozen(kw_only=True)
class VideoConfig:
    """Which frames of a video are looked at; the published Qwen2VLVideoProcessor.

    Attributes:
        fps: frames looked at for a second of video, unless a request says otherwise.
        min_frames, max_frames: of a video, where it has so many.
    """

    pixels: PixelConfig
    fps: float = attrs.field(default=2.0, validator=v.gt(0))
    min_frames: int = 4
    max_frames: int = 768


# A frame has other limits than a picture, whatever the files say: the published processor gives these itself.
FRAME_PIXELS: Mapping[str, Any] = {"min_pixels": 128 * 32 * 32, "max_pixels": 768 * 32 * 32}
# Settings that the published processors have and that are not implemented in any other way.
_ONLY_PIXELS = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3}
_ONLY_SOUND = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": FFT, "dither": 0.0, "do_normalize": False}


@attrs.frozen(kw_only=True)
class Preprocessing:
    """The checkpoint's preprocessor files."""

    picture: PixelConfig
    video: VideoConfig

    @classmethod
    def from_files(cls, files: Mapping[str, Mapping[str, Any]], *, mels: int, vision: VisionConfig) -> Preprocessing:
        """From the content of those files that exist, by name.

        Args:
            mels: bands that the audio encoder reads.

        Raises:
            ConfigError: every key malformed, unsupported or at odds with the networks.
        """
        old, whole = files.get(PREPROCESSOR, {}), Keys(files.get(PROCESSOR, {}), f"{PROCESSOR}:")
        if not old and whole.given.get("image_processor") is None:
            expected = "the one published with the weights"
            raise ConfigError(Problem(where=PREPROCESSOR, got="no such file", expected=expected))
        parts = ("image_processor", "video_processor", "feature_extractor")
        picture, video, sound = (whole.part(name, default={}).given for name in parts)
        where = f"{PREPROCESSOR if old else PROCESSOR}:"
        pixels = Keys({**old, **picture}, where, whole.problems)
        pixels.only(**_ONLY_PIXELS, patch_size=vision.patch_size, merge_size=vision.merge)
        pixels.only(temporal_patch_size=vision.temporal_patch_size)
        Keys({**old, **sound}, where, whole.problems).only(**_ONLY_SOUND, feature_size=mels)
        pixels.given |= _limits(pixels)
        frames = Keys({**old, **files.get(VIDEO_PREPROCESSOR, {}), **video}, where, whole.problems)
        frames.given["pixels"] = attrs.evolve(frames.fields(PixelConfig), **FRAME_PIXELS)
        return whole.checked(cls(picture=pixels.fields(PixelConfig), video=frames.fields(VideoConfig)))


def _limits(picture: Keys) -> dict[str, Any]:
    """Pixel limits under the two names that they are published under; the older wins, as it does there."""
    size = picture.part("size", default={}).given
    newer = {"min_pixels": size.get("shortest_edge"), "max_pixels": size.get("longest_edge")}
    return {key: picture.given.get(key) or value for key, value in newer.items()}


def encoder_configs(config: Mapping[str, Any], where: str) -> tuple[AudioConfig, VisionConfig]:
    """Both encoders' numbers out of config.json. Raises ConfigError with everything malformed or unsupported."""
    keys = Keys(config, f"{where}:")
    thinker = keys.part("thinker_config")
    audio, vision = thinker.part("audio_config"), thinker.part("vision_config")
    vision.given |= {name: _one(vision.given[name]) for name in _SQUARE if name in vision.given}
    rope = vision.part("rope_parameters", default={})
    vision.given.setdefault("rope_theta", rope.given.get("rope_theta"))
    return keys.checked((audio.fields(AudioConfig), vision.fields(VisionConfig)))


def _one(value: Any) -> Any:
    """A size that may be written once for each axis."""
    return value[0] if isinstance(value, list) and len(set(value)) == 1 else value
