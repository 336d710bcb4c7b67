"""Pictures come the right way up, as red, green and blue; what is no single picture is an error that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import ConfigError
from framework.io.images import load_image, resize_image

Image: Any = pytest.importorskip("PIL.Image")


def noise(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


NOISE = noise(6, 9, 3)


def saved(path: Path, image: Any, **settings: Any) -> Path:
    image.save(path, **settings)
    return path


def test_a_picture_is_its_pixels(tmp_path: Path) -> None:
    found = load_image(saved(tmp_path / "a.png", Image.fromarray(NOISE)))
    assert (found.dtype, found.shape) == (np.uint8, (6, 9, 3))
    np.testing.assert_array_equal(found, NOISE)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_camera_held_otherwise(tmp_path: Path, orientation: int) -> None:
    turned = {
        1: NOISE,
        2: NOISE[:, ::-1],
        3: NOISE[::-1, ::-1],
        4: NOISE[::-1],
        5: NOISE.transpose(1, 0, 2),
        6: np.rot90(NOISE, -1),
        7: np.rot90(NOISE, 2).transpose(1, 0, 2),
        8: np.rot90(NOISE),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(load_image(saved(tmp_path / "a.png", Image.fromarray(NOISE), exif=exif)), turned)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_every_mode_becomes_what_the_published_processor_makes_of_it(tmp_path: Path, mode: str) -> None:
    from transformers.image_transforms import convert_to_rgb

    image = Image.fromarray(NOISE).convert("L" if mode in ("LA", "1") else "RGB").convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(noise(6, 9)))
    path = saved(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), image)
    np.testing.assert_array_equal(load_image(path), convert_to_rgb(Image.open(path), return_numpy=True))


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (3, 2), (0, 0, 0, 0))
    assert (load_image(saved(tmp_path / "a.png", image)) == 255).all()


def test_sixteen_bits_are_not_cut_off(tmp_path: Path) -> None:
    grey = (np.arange(64, dtype=np.uint16).reshape(8, 8)) << 10
    found = load_image(saved(tmp_path / "a.png", Image.fromarray(grey)))
    np.testing.assert_array_equal(found[..., 0], grey >> 8)


def test_resizing_is_bicubic() -> None:
    found = resize_image(NOISE, 12, 18)
    expected = np.asarray(Image.fromarray(NOISE).resize((18, 12), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(found, expected)
    assert resize_image(NOISE, 6, 9) is NOISE


def broken(path: Path, kind: str) -> Path:
    whole = path.with_name("whole.png")
    Image.fromarray(noise(64, 64, 3)).save(whole)
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "green", "blue")]
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("not a picture")
    elif kind == "cut short":
        path.write_bytes(whole.read_bytes()[:3000])
    elif kind == "animated":
        frames[0].save(path, format="GIF", save_all=True, append_images=frames[1:])
    elif kind == "pages":
        frames[0].save(path, format="TIFF", save_all=True, append_images=frames[1:])
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        Image.new("1", (20_000, 5_000)).save(path, format="PNG")
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "a file that exists"),
        ("empty", "an empty file"),
        ("text", "no picture"),
        ("cut short", "a picture (png, jpg, webp ...)"),
        ("animated", "3 pictures in one file, expected one picture (as a video: video=a.x)"),
        ("pages", "3 pictures in one file"),
        ("folder", "a picture"),
        ("huge", "pixels"),
    ],
)
def test_what_is_no_picture(tmp_path: Path, kind: str, said: str) -> None:
    path = broken(tmp_path / "a.x", kind)
    with pytest.raises(ConfigError) as error:
        load_image(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)
