"""Sounds, pictures and videos of a request to rows that stand where its placeholders are.

Engines are opened when the first medium of their kind comes: a run over text alone opens none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np

from framework.errors import ConfigError, Problem, StageError
from framework.io.images import Pixels, load_image, resize_image
from framework.parsing import read_object
from models.qwen3_encoders import pixels
from models.qwen3_encoders.config import (
    FFT,
    HOP,
    PREPROCESSOR,
    PROCESSOR,
    RATE,
    VIDEO_PREPROCESSOR,
    AudioConfig,
    PixelConfig,
    Preprocessing,
    VisionConfig,
    encoder_configs,
)

Array = np.ndarray[Any, Any]
Float32 = np.ndarray[Any, np.dtype[np.float32]]

UNTIMED = 1.0  # frames a second of frames that come without a rate, as published


@attrs.frozen(kw_only=True, eq=False)
class Percept:
    """What became of one medium.

    Attributes:
        values: float32 [tokens, hidden], a row a placeholder.
        deepstack: float32 [levels, tokens, hidden], to be added behind the thinker's first layers; None for sound.
        grid: (grids, height, width) in patches, before those of a token are merged; None for sound.
        seconds_per_grid: of a video; None for the others. As published it follows from the frames asked for a second,
            also where a video is so short or so long that others were looked at.
        audio: the sound of a video whose sound is used; None where it has none.
    """

    kind: Literal["audio", "image", "video"]
    values: Float32
    deepstack: Float32 | None = None
    grid: tuple[int, int, int] | None = None
    seconds_per_grid: float | None = None
    audio: Percept | None = None


class Perception:
    """Both encoders.

    Args:
        audio, visual: engine folders; None where a deployment has none.
        backend: settings that `open_engine` takes.
    """

    def __init__(self, audio: Path | None, visual: Path | None, backend: Any) -> None:
        self._folders = {"audio": audio, "visual": visual}
        self._backend = backend
        self._audio: _AudioEncoder | None = None
        self._visual: _VisualEncoder | None = None

    def perceive(self, part: Mapping[str, Any]) -> Percept:
        """The medium that a content part names (see `framework.io.messages`).

        Raises StageError, which names the file: it cannot be read, is empty, is no such medium, is beyond a limit.
        """
        try:
            if part["type"] == "audio":
                return self._hear(Path(part["audio"]))
            if part["type"] == "image":
                return self._see(part)
            return self._watch(part)
        except ConfigError as error:
            raise StageError(error.problems) from error

    def close(self) -> None:
        """Close what was opened."""
        for encoder in (self._audio, self._visual):
            if encoder is not None:
                encoder.close()
        self._audio = self._visual = None

    def _hear(self, path: Path) -> Percept:
        from framework.io.audio import load_audio

        encoder = self._audio = self._audio or _AudioEncoder(self._folder("audio", path), self._backend)
        return Percept(kind="audio", values=encoder(load_audio(path, RATE), str(path)))

    def _see(self, part: Mapping[str, Any]) -> Percept:
        path = Path(part["image"])
        encoder = self._eyes(path)
        resize = part.get("do_resize", True)
        seen = encoder([load_image(path)], 1, encoder.preprocessing.picture, resize=resize, where=str(path))
        return attrs.evolve(seen, kind="image")

    def _watch(self, part: Mapping[str, Any]) -> Percept:
        path = Path(part["video"] if "video" in part else part["frames"][0])
        encoder = self._eyes(path)
        video, sound = encoder.preprocessing.video, False
        if "video" in part and not path.is_dir():
            from framework.io.video import read_frames, video_info

            info, fps = video_info(path), part.get("fps", video.fps)
            chosen = pixels.sampled(info.frames, info.fps, fps, video)
            sound, count, frames = info.sound, len(chosen), read_frames(path, chosen)
        else:
            from framework.io.video import frame_files

            files = frame_files(path) if "video" in part else [Path(name) for name in part["frames"]]
            fps, count, frames = part.get("fps", UNTIMED), len(files), map(load_image, files)
        resize, depth = part.get("do_resize", True), video.pixels.temporal_patch_size
        seen = encoder(frames, -(-count // depth), video.pixels, resize=resize, where=str(path))
        heard = self._hear(path) if sound and part.get("use_audio_in_video") else None
        return attrs.evolve(seen, kind="video", seconds_per_grid=depth / fps, audio=heard)

    def _eyes(self, path: Path) -> _VisualEncoder:
        self._visual = self._visual or _VisualEncoder(self._folder("visual", path), self._backend)
        return self._visual

    def _folder(self, name: str, path: Path) -> Path:
        folder = self._folders[name]
        if folder is None:
            expected = "only what this deployment can read"
            hint = f"it was built without the component {name}"
            raise StageError(
                Problem(where=str(path), got=f"a medium for the {name} encoder", expected=expected, hint=hint)
            )
        return folder


class _AudioEncoder:
    def __init__(self, folder: Path, backend: Any) -> None:
        self.config, _, _ = _settings(folder)
        self._engine = _engine(folder, backend)

    def __call__(self, samples: Float32, where: str) -> Float32:
        """samples float32 [n] at 16 kHz -> [tokens, hidden]."""
        from framework.io.mel import log_mel

        if len(samples) < FFT:
            got = f"{len(samples) / RATE:.4f} s of sound"
            expected = f"at least {FFT / RATE} s: one window of the spectrogram"
            raise StageError(Problem(where=where, got=got, expected=expected))
        tokens = self.config.tokens(len(samples) // HOP)
        _check_tokens(f"{len(samples) / RATE:.1f} s of sound", tokens, self._engine, where)
        mel = log_mel(samples, self.config.num_mel_bins)
        return self._engine.run(audio_feeds(mel, self.config))["features"].astype(np.float32)

    def close(self) -> None:
        self._engine.close()


class _VisualEncoder:
    def __init__(self, folder: Path, backend: Any) -> None:
        _, self.config, self.preprocessing = _settings(folder)
        self._engine = _engine(folder, backend)

    def __call__(
        self, frames: Iterable[Pixels], grids: int, config: PixelConfig, *, resize: bool, where: str
    ) -> Percept:
        """Frames of one size; as many as a patch is deep make one of `grids`, and are read when they are needed."""
        frames = iter(frames)
        first = next(frames)
        size = _size(first, config, resize, where)
        height, width = (side // config.patch_size for side in size)
        tokens = height * width // config.merge_size**2
        what = f"a picture of {first.shape[1]} x {first.shape[0]} pixels"
        what = what if grids == 1 else f"{grids * config.temporal_patch_size} times {what}"
        _check_tokens(what, grids * tokens, self._engine, where)
        at_once = self._engine.spec.caps["frames"]
        features, deepstack = [], []
        sized = (resize_image(frame, *size) for frame in _alike(chain([first], frames), where))
        for batch in _batches(sized, at_once * config.temporal_patch_size):
            run = self._engine.run(visual_feeds(batch, config, self.config))
            features.append(run["features"].reshape(-1, self.config.out_hidden_size))
            if "deepstack" in run:
                levels = len(run["deepstack"])
                deepstack.append(run["deepstack"].reshape(levels, -1, self.config.out_hidden_size))
        values = np.concatenate(features).astype(np.float32)
        return Percept(
            kind="video",
            values=values,
            deepstack=np.concatenate(deepstack, axis=1).astype(np.float32) if deepstack else None,
            grid=(len(values) // tokens, height, width),
        )

    def close(self) -> None:
        self._engine.close()


def audio_feeds(mel: Float32, config: AudioConfig) -> dict[str, Array]:
    """Inputs of the audio encoder for a spectrogram [mels, frames]."""
    mels, frames = mel.shape
    chunk = min(frames, config.chunk)
    chunks, tokens = -(-frames // chunk), config.tokens(frames)
    padded = np.pad(mel, ((0, 0), (0, chunks * chunk - frames)))
    windows = -(-tokens // config.window)
    index = np.arange(windows * config.window).reshape(windows, config.window)
    return {
        "mel": np.ascontiguousarray(padded.reshape(mels, chunks, chunk).transpose(1, 0, 2)),
        "order": np.arange(tokens),
        "windows": np.minimum(index, tokens - 1),
        "real": index < tokens,
    }


def visual_feeds(frames: Sequence[Pixels], pixel: PixelConfig, config: VisionConfig) -> dict[str, Array]:
    """Inputs of the visual encoder for frames that have whole blocks."""
    height, width = (side // config.patch_size for side in frames[0].shape[:2])
    positions, taps, shares = pixels.places(height, width, config.merge, config.side)
    return {"pixels": pixels.patches(frames, pixel), "positions": positions, "taps": taps, "shares": shares}


def _size(frame: Pixels, config: PixelConfig, resize: bool, where: str) -> tuple[int, int]:
    """Height and width that a frame is looked at in: whole blocks."""
    height, width = frame.shape[:2]
    if resize:
        return pixels.fit(height, width, config, where)
    if height % config.block or width % config.block:
        got = f"{width} x {height} pixels and do_resize=false"
        raise StageError(Problem(where=where, got=got, expected=f"multiples of {config.block}"))
    return height, width


def _alike(frames: Iterable[Pixels], where: str) -> Iterator[Pixels]:
    height = width = 0
    for frame in frames:
        if width and frame.shape[:2] != (height, width):
            got = f"a frame of {frame.shape[1]} x {frame.shape[0]} pixels after one of {width} x {height}"
            raise StageError(Problem(where=where, got=got, expected="frames of one size"))
        height, width = frame.shape[:2]
        yield frame


def _batches(frames: Iterator[Pixels], size: int) -> Iterator[list[Pixels]]:
    batch: list[Pixels] = []
    for frame in frames:
        batch.append(frame)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _check_tokens(what: str, tokens: int, engine: Any, where: str) -> None:
    most = engine.spec.caps["tokens"]
    if tokens > most:
        hint = "build with a larger build.max_input_len"
        got = f"{what}: {tokens} tokens"
        raise StageError(Problem(where=where, got=got, expected=f"at most {most} tokens", hint=hint))


def _settings(folder: Path) -> tuple[AudioConfig, VisionConfig, Preprocessing]:
    """What lies beside an engine. Raises ConfigError."""
    audio, vision = encoder_configs(read_object(folder / "config.json"), str(folder / "config.json"))
    names = [name for name in (PREPROCESSOR, VIDEO_PREPROCESSOR, PROCESSOR) if (folder / name).exists()]
    files = {name: read_object(folder / name) for name in names}
    return audio, vision, Preprocessing.from_files(files, mels=audio.num_mel_bins, vision=vision)


def _engine(folder: Path, backend: Any) -> Any:
    from framework.engines.backend import open_engine

    return open_engine(folder, backend)
