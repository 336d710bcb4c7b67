"""Picture files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from framework.errors import ConfigError, Problem

Pixels = np.ndarray[Any, np.dtype[np.uint8]]  # [height, width, 3]: red, green, blue

# Several pictures in one file that are no animation: a photograph with its preview or depth, layers with their sum.
_STILL = ("MPO", "PSD")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm"})


def load_image(path: Path) -> Pixels:
    """A picture the right way up (EXIF), what is transparent in white: uint8 [height, width, 3].

    Raises ConfigError when it is missing, no picture, cut short, larger than Pillow takes for safe (89 million pixels),
    or several pictures, of which the first would be a guess.
    """
    image_of, fault = _pillow()
    expected = "a picture (png, jpg, webp ...)"
    if path.is_file() and not path.stat().st_size:
        raise ConfigError(Problem(where=str(path), got="an empty file", expected=expected))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image_of.DecompressionBombWarning)
            with image_of.open(path) as image:
                count = getattr(image, "n_frames", 1)
                if count > 1 and image.format not in _STILL:
                    got = f"{count} pictures in one file"
                    hint = f"as a video: video={path.name}"
                    raise ConfigError(Problem(where=str(path), got=got, expected="one picture", hint=hint))
                return _rgb(image)
    except (image_of.DecompressionBombWarning, image_of.DecompressionBombError) as error:
        limit = f"at most {image_of.MAX_IMAGE_PIXELS:,} pixels"
        raise ConfigError(Problem(where=str(path), got=str(error), expected=limit)) from error
    except fault as error:
        got = "no picture" if path.is_file() and "identify" in str(error) else str(error)
        expected = expected if path.exists() else "a file that exists"
        raise ConfigError(Problem(where=str(path), got=got, expected=expected)) from error


def resize_image(pixels: Pixels, height: int, width: int) -> Pixels:
    """Bicubic, as Pillow does it."""
    image_of, _ = _pillow()
    if pixels.shape[:2] == (height, width):
        return pixels
    image = image_of.fromarray(pixels).resize((width, height), image_of.Resampling.BICUBIC)
    return np.asarray(image)


def _rgb(image: Any) -> Pixels:
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # Pillow would cut 16 bits off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def _pillow() -> tuple[Any, tuple[type[Exception], ...]]:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        hint = "pip install 'multistage[media]'"
        raise ConfigError(
            Problem(where="image", got="no package pillow", expected="the extra 'media'", hint=hint)
        ) from None
    # What its decoders raise for files that are damaged.
    return Image, (OSError, SyntaxError, ValueError, EOFError, IndexError)
