"""Media files through both encoders, against transformers' own processors and encoders on the same checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from framework.compile.builder import build
from framework.compile.family import BuildOptions
from framework.engines import manifest
from framework.engines.tensorrt.backend import TensorRT
from framework.errors import ConfigError, StageError
from framework.io.images import load_image, resize_image
from models.qwen3_encoders import pixels
from models.qwen3_encoders.config import FRAME_PIXELS, PixelConfig, Preprocessing, VideoConfig, encoder_configs
from models.qwen3_encoders.perception import Percept, Perception
from tests.io.videos import moving, write_video
from tests.models.qwen3_omni import tiny
from tests.models.qwen3_omni.conftest import Workshop
from tests.models.qwen3_omni.thinking import FAMILIES
from tests.models.running import CPU

torch: Any = pytest.importorskip("torch")
Image: Any = pytest.importorskip("PIL.Image")
HERE = Path(__file__).parent
RATE = 16_000
OPTIONS = BuildOptions(components=("audio", "visual"), max_input_len=1024)
CLOSE = {"atol": 1e-4, "rtol": 0.0}
_, VISION = encoder_configs(tiny.config(), "config")
PREPROCESSING = Preprocessing.from_files({"preprocessor_config.json": tiny.PREPROCESSOR}, mels=tiny.MEL, vision=VISION)


@pytest.fixture(scope="module")
def engines(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders") / "engines"
    build(workshop.checkpoint, folder, families=FAMILIES, options=OPTIONS, backend=CPU)
    return folder


@pytest.fixture(scope="module")
def perception(engines: Path) -> Iterator[Perception]:
    both = Perception(engines / "audio", engines / "visual", CPU)
    yield both
    both.close()


def noise(samples: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """That swells."""
    rng = np.random.default_rng([samples, seed])
    return (rng.standard_normal(samples) * np.linspace(0.02, 0.3, samples)).astype(np.float32)


def wav(path: Path, samples: Any, rate: int = RATE) -> Path:
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return path


def picture(path: Path, width: int, height: int, seed: int = 0) -> Path:
    rng = np.random.default_rng([width, height, seed])
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([255 * y // height, 255 * x // width, (x * y) % 256], axis=-1)
    Image.fromarray((smooth // 2 + rng.integers(0, 128, smooth.shape)).astype(np.uint8)).save(path)
    return path


# --- sound -----------------------------------------------------------------------------------------------------------


def published_sound(workshop: Workshop, samples: Any) -> Any:
    from transformers import WhisperFeatureExtractor

    found = WhisperFeatureExtractor(feature_size=tiny.MEL)(
        samples, sampling_rate=RATE, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
    )
    with torch.no_grad():
        features = workshop.reference.model.thinker.get_audio_features(found.input_features, found.attention_mask)
    return features.last_hidden_state.numpy()


@pytest.mark.parametrize(
    "samples",
    [
        *(pytest.param(round(seconds * RATE), id=f"{seconds} s") for seconds in (0.1, 0.37, 0.99, 1.0, 1.01, 2.0, 2.5)),
        *(pytest.param(round(seconds * RATE), id=f"{seconds} s") for seconds in (7.99, 8.0, 8.01, 16.0, 23.456, 60.0)),
        pytest.param(16_001, id="a sample more than a chunk"),
        pytest.param(15_999, id="a sample less than a chunk"),
        pytest.param(400, id="the shortest"),
    ],
)
def test_sound_of_every_length(workshop: Workshop, perception: Perception, tmp_path: Path, samples: int) -> None:
    sound = noise(samples)
    found = perception.perceive({"type": "audio", "audio": str(wav(tmp_path / "a.wav", sound))})
    expected = published_sound(workshop, sound)
    assert (found.kind, found.deepstack, found.grid, found.seconds_per_grid) == ("audio", None, None, None)
    assert (found.values.shape, found.values.dtype) == (expected.shape, np.float32)
    np.testing.assert_allclose(found.values, expected, **CLOSE)


def test_sound_of_another_rate_and_two_channels(perception: Perception, tmp_path: Path) -> None:
    sound = noise(3 * 48_000)
    both = perception.perceive(
        {"type": "audio", "audio": str(wav(tmp_path / "a.wav", np.stack([sound, sound], 1), 48_000))}
    )
    one = perception.perceive({"type": "audio", "audio": str(wav(tmp_path / "b.flac.wav", sound, 48_000))})
    assert both.values.shape == (39, tiny.HIDDEN)
    np.testing.assert_allclose(both.values, one.values, **CLOSE)


# --- pictures --------------------------------------------------------------------------------------------------------


def published_picture(workshop: Workshop, *paths: Path) -> list[Percept]:
    from PIL import ImageOps
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    keys = ("image_mean", "image_std", "patch_size", "temporal_patch_size", "merge_size", "min_pixels", "max_pixels")
    processor = Qwen2VLImageProcessorPil(**{key: tiny.PREPROCESSOR[key] for key in keys})
    found = processor([ImageOps.exif_transpose(Image.open(path)) for path in paths], return_tensors="pt")
    with torch.no_grad():
        features = workshop.reference.model.thinker.get_image_features(found.pixel_values, found.image_grid_thw)
    deepstack = [torch.stack(levels).numpy() for levels in zip(*features.deepstack_features, strict=True)]
    return [
        Percept(kind="image", values=values.numpy(), deepstack=levels, grid=tuple(grid))
        for values, levels, grid in zip(features.pooler_output, deepstack, found.image_grid_thw.tolist(), strict=True)
    ]


def check(found: Percept, expected: Percept) -> None:
    assert found.grid == expected.grid
    assert (found.values.shape, found.values.dtype) == (expected.values.shape, np.float32)
    np.testing.assert_allclose(found.values, expected.values, **CLOSE)
    assert found.deepstack is not None
    assert found.deepstack.dtype == np.float32
    np.testing.assert_allclose(found.deepstack, expected.deepstack, **CLOSE)


@pytest.mark.parametrize(
    ("width", "height"),
    [(64, 64), (32, 32), (100, 37), (37, 250), (640, 480), (719, 1000), (48, 49), (1, 1), (4000, 20), (20, 3999)],
    ids=lambda value: str(value),
)
def test_pictures_of_every_shape(
    workshop: Workshop, perception: Perception, tmp_path: Path, width: int, height: int
) -> None:
    path = picture(tmp_path / "a.png", width, height)
    found = perception.perceive({"type": "image", "image": str(path)})
    assert (found.kind, found.seconds_per_grid, found.audio) == ("image", None, None)
    check(found, *published_picture(workshop, path))


def test_several_pictures_are_each_what_they_are_together(
    workshop: Workshop, perception: Perception, tmp_path: Path
) -> None:
    paths = [picture(tmp_path / f"{n}.png", w, h, n) for n, (w, h) in enumerate([(96, 64), (64, 160), (200, 200)])]
    for path, expected in zip(paths, published_picture(workshop, *paths), strict=True):
        check(perception.perceive({"type": "image", "image": str(path)}), expected)


def test_a_photograph_held_upright(workshop: Workshop, perception: Perception, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "a.jpg"
    Image.open(picture(tmp_path / "a.png", 96, 64)).save(path, exif=exif)
    found = perception.perceive({"type": "image", "image": str(path)})
    assert found.grid == (1, 6, 4)
    check(found, *published_picture(workshop, path))


def test_a_picture_of_whole_blocks_can_stay_as_it_is(perception: Perception, tmp_path: Path) -> None:
    part = {"type": "image", "image": str(picture(tmp_path / "a.png", 32, 32)), "do_resize": False}
    assert perception.perceive(part).grid == (1, 2, 2)  # below the least number of pixels
    part = {"type": "image", "image": str(picture(tmp_path / "b.png", 33, 32)), "do_resize": False}
    with pytest.raises(StageError, match=r"b\.png: got 33 x 32 pixels and do_resize=false, expected multiples of 32"):
        perception.perceive(part)


def test_sizes_are_those_of_transformers() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = np.random.default_rng(2)
    for config in (PREPROCESSING.picture, PREPROCESSING.video.pixels):
        for height, width in np.exp(rng.uniform(0, 9, (500, 2))).astype(int).tolist():
            if max(height, width) <= 200 * min(height, width):
                expected = smart_resize(height, width, 32, config.min_pixels, config.max_pixels)
                assert pixels.fit(height, width, config, "") == expected


# --- video -----------------------------------------------------------------------------------------------------------


def published_video(workshop: Workshop, frames: list[Any]) -> Percept:
    """What transformers' encoder makes of frames; how they become patches is compared below."""
    config = PREPROCESSING.video.pixels
    size = pixels.fit(*frames[0].shape[:2], config, "")
    found = pixels.patches([resize_image(frame, *size) for frame in frames], config)
    grid = torch.tensor([[len(found), size[0] // 16, size[1] // 16]])
    with torch.no_grad():
        features = workshop.reference.model.thinker.get_video_features(torch.from_numpy(found).flatten(0, 2), grid)
    deepstack = torch.stack([levels[0] for levels in features.deepstack_features]).numpy()
    return Percept(
        kind="video", values=features.pooler_output[0].numpy(), deepstack=deepstack, grid=tuple(grid[0].tolist())
    )


def decoded(path: Path) -> list[Any]:
    import av

    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize(
    ("count", "rate", "fps", "chosen"),
    [
        (20, 10, None, [0, 5, 10, 15]),
        (21, 10, None, [0, 5, 10, 15]),
        (8, 4, 4.0, list(range(8))),
        (7, 7, 7.0, list(range(6))),
        (30, 10, 4.0, [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25, 27]),
        (5, 30, None, [0, 1, 2, 3]),
        (1, 10, None, [0]),
    ],
    ids=["2 a second", "an odd number", "as many as there are", "whole patches", "in two calls", "short", "one frame"],
)
def test_videos(
    workshop: Workshop,
    perception: Perception,
    tmp_path: Path,
    count: int,
    rate: int,
    fps: float | None,
    chosen: list[int],
) -> None:
    path = write_video(tmp_path / "a.mp4", moving(count), rate)
    assert chosen == pixels.sampled(count, rate, fps or 2.0, PREPROCESSING.video)
    part = {"type": "video", "video": str(path), **({"fps": fps} if fps else {})}
    found = perception.perceive(part)
    assert (found.kind, found.seconds_per_grid, found.audio) == ("video", 2 / (fps or 2.0), None)
    every = decoded(path)
    check(found, published_video(workshop, [every[number] for number in chosen]))


@pytest.mark.parametrize("count", [3, 4])
def test_frames_are_all_looked_at(workshop: Workshop, perception: Perception, tmp_path: Path, count: int) -> None:
    files = [picture(tmp_path / f"{number + 8}.png", 96, 64, number) for number in range(count)]
    expected = published_video(workshop, [load_image(path) for path in files])
    listed = perception.perceive({"type": "video", "frames": [str(path) for path in files], "fps": 4.0})
    folder = perception.perceive({"type": "video", "video": str(tmp_path)})
    for found, seconds in ((listed, 0.5), (folder, 2.0)):
        assert found.seconds_per_grid == seconds
        check(found, expected)


def test_an_animation_is_a_video(workshop: Workshop, perception: Perception, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.gif", moving(10), 5)
    found = perception.perceive({"type": "video", "video": str(path)})
    every = decoded(path)
    check(found, published_video(workshop, [every[n] for n in pixels.sampled(10, 5, 2.0, PREPROCESSING.video)]))


@pytest.mark.parametrize("wanted", [True, False])
def test_the_sound_of_a_video_is_heard_when_it_is_asked_for(
    workshop: Workshop, perception: Perception, tmp_path: Path, wanted: bool
) -> None:
    from framework.io.audio import load_audio

    path = write_video(tmp_path / "a.mp4", moving(20), sound=noise(2 * RATE))
    found = perception.perceive({"type": "video", "video": str(path), "use_audio_in_video": wanted})
    assert (found.audio is not None) is wanted
    if found.audio is not None:
        np.testing.assert_allclose(found.audio.values, published_sound(workshop, load_audio(path, RATE)), **CLOSE)


def test_a_silent_video_is_seen(perception: Perception, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving(4))
    assert perception.perceive({"type": "video", "video": str(path), "use_audio_in_video": True}).audio is None


RECORDED: Mapping[str, Any] = json.loads((HERE / "video.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", RECORDED["sampled"], ids=lambda c: f"{c['fps']} of {c['rate']:.4g}, {c['total']}")
def test_frames_are_sampled_as_transformers_does(case: Mapping[str, Any]) -> None:
    found = pixels.sampled(case["total"], case["rate"], case["fps"], PREPROCESSING.video)
    assert found == [index for index in case["indices"] if index < case["total"]]


@pytest.mark.parametrize("name", RECORDED["sizes"])
def test_frames_become_the_patches_of_transformers(name: str) -> None:
    """torchvision's bicubic filter and Pillow's differ by less than two of 255 levels."""
    recorded = np.load(HERE / "video.npz")
    count, height, width, step = RECORDED["sizes"][name]
    config = PREPROCESSING.video.pixels
    size = pixels.fit(height, width, config, "")
    found = pixels.patches([resize_image(frame, *size) for frame in moving(count, height, width)], config)
    assert [len(found), size[0] // 16, size[1] // 16] == recorded[f"{name}.grid"].tolist()
    difference = np.abs(found.reshape(-1, found.shape[-1])[::step] - recorded[f"{name}.patches"]) * 127.5
    assert difference.max() < 2.01
    assert difference.mean() < 0.02


# --- what cannot be read ---------------------------------------------------------------------------------------------


def bad(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / "a.bin"
    if kind == "empty image":
        path.touch()
    elif kind == "text as image":
        path.write_text("nothing")
    elif kind == "animation as image":
        write_video(folder / "a.gif", moving(5)).rename(path)
    elif kind == "strip":
        picture(folder / "a.png", 2010, 10).rename(path)
    elif kind == "large image":
        picture(folder / "a.png", 2000, 1000).rename(path)
    elif kind == "20 ms of sound":
        wav(folder / "a.wav", noise(320)).rename(path)
    elif kind == "long sound":
        wav(folder / "a.wav", np.zeros(90 * RATE, np.float32) + 0.01).rename(path)
    elif kind == "text as sound":
        path.write_text("nothing")
    elif kind == "sound as video":
        wav(folder / "a.wav", noise(RATE)).rename(path)
    elif kind == "video without frames":
        write_video(folder / "a.mkv", moving(1)[:0], sound=noise(RATE)).rename(path)
    elif kind == "long video":
        write_video(folder / "a.mp4", moving(120), 10).rename(path)
    elif kind == "folder without frames":
        path.mkdir()
    elif kind == "frames of two sizes":
        path.mkdir()
        picture(path / "1.png", 64, 64)
        picture(path / "2.png", 64, 96)
    media = {"image": "image", "strip": "image", "sound": "audio"}
    word = kind.split()[-1]
    return {"type": media.get(word, "video"), media.get(word, "video"): str(path)}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("empty image", "got an empty file"),
        ("text as image", "got no picture"),
        ("animation as image", "got 5 pictures in one file, expected one picture (as a video"),
        ("missing image", "expected a file that exists"),
        ("strip", "got a picture of 2010 x 10 pixels, expected one side at most 200 times the other"),
        ("large image", "got a picture of 2000 x 1000 pixels: 1922 tokens, expected at most 1024 tokens"),
        ("20 ms of sound", "got 0.0200 s of sound, expected at least 0.025 s"),
        ("long sound", "got 90.0 s of sound: 1170 tokens, expected at most 1024 tokens"),
        ("text as sound", "expected a sound file"),
        ("sound as video", "got no pictures in it"),
        ("video without frames", "got a video without frames"),
        ("long video", "got 24 times a picture of 64 x 48 pixels: 1680 tokens"),
        ("folder without frames", "got no pictures in it"),
        ("frames of two sizes", "got a frame of 64 x 96 pixels after one of 64 x 64, expected frames of one size"),
    ],
)
def test_each_fault_names_its_file(perception: Perception, tmp_path: Path, kind: str, said: str) -> None:
    part = bad(tmp_path, kind)
    with pytest.raises(StageError) as error:
        perception.perceive(part)
    assert str(tmp_path / "a.bin") in str(error.value)
    assert said in str(error.value)


def test_nothing_is_opened_before_it_is_needed(engines: Path, tmp_path: Path) -> None:
    hearing = Perception(engines / "audio", tmp_path / "not there", CPU)
    hearing.perceive({"type": "audio", "audio": str(wav(tmp_path / "a.wav", noise(RATE)))})
    with pytest.raises(StageError, match="not there"):
        hearing.perceive({"type": "image", "image": str(picture(tmp_path / "a.png", 64, 64))})
    hearing.close()
    blind = Perception(engines / "audio", None, CPU)
    with pytest.raises(StageError, match=r"a\.png: .*it was built without the component visual"):
        blind.perceive({"type": "image", "image": str(tmp_path / "a.png")})
    blind.close()


# --- builds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "worst"), [("int8", 0.1), ("int4", 0.4), ("bf16", 0.1)])
def test_fewer_bits_are_near(
    workshop: Workshop, engines: Path, perception: Perception, tmp_path: Path, precision: str, worst: float
) -> None:
    options = BuildOptions(components=("audio", "visual"), max_input_len=64, precision=precision)  # type: ignore[arg-type]
    folder = tmp_path / "engines"
    build(workshop.checkpoint, folder, families=FAMILIES, options=options, backend=CPU)
    rounded = Perception(folder / "audio", folder / "visual", CPU)
    for part in (
        {"type": "audio", "audio": str(wav(tmp_path / "a.wav", noise(2 * RATE)))},
        {"type": "image", "image": str(picture(tmp_path / "a.png", 96, 64))},
    ):
        exact = perception.perceive(part).values
        error = np.abs(rounded.perceive(part).values - exact).max() / exact.std()
        assert 0 < error < worst
    rounded.close()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_both_become_tensorrt_plans(workshop: Workshop, tmp_path: Path, precision: str) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the package tensorrt-rtx is not installed")
    options = BuildOptions(components=("audio", "visual"), max_input_len=256, precision=precision)  # type: ignore[arg-type]
    backend = TensorRT(module="tensorrt_rtx", compute_capability="8.9")
    build(workshop.checkpoint, tmp_path / "engines", families=FAMILIES, options=options, backend=backend)
    for name in ("audio", "visual"):
        record = manifest.read(tmp_path / "engines" / name)
        assert record.files["engine.plan"].bytes > 100_000
        assert record.spec.outputs[0].dtype == {"fp16": "float16", "fp32": "float32"}[precision]


def changed(**changes: Any) -> Preprocessing:
    files = {"preprocessor_config.json": {**tiny.PREPROCESSOR, **changes}}
    return Preprocessing.from_files(files, mels=tiny.MEL, vision=VISION)


def test_limits_are_the_checkpoints() -> None:
    assert (PREPROCESSING.picture.min_pixels, PREPROCESSING.picture.max_pixels) == (3136, 12845056)
    newer = changed(min_pixels=None, max_pixels=None, size={"shortest_edge": 4096, "longest_edge": 65536})
    assert (newer.picture.min_pixels, newer.picture.max_pixels) == (4096, 65536)
    assert PREPROCESSING.video == VideoConfig(
        pixels=PixelConfig(patch_size=16, image_mean=(0.5,) * 3, image_std=(0.5,) * 3, **FRAME_PIXELS)
    )
    assert changed(fps=1.0, max_frames=16).video.max_frames == 16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"feature_size": 80}, "feature_size: got 80, expected 128"),
        ({"resample": 2, "do_normalize": False}, "do_normalize: got false, expected true"),
        ({"patch_size": 14}, "patch_size: got 14, expected 16"),
        ({"sampling_rate": 8000}, "sampling_rate: got 8000, expected 16000"),
        ({"min_pixels": "many"}, "min_pixels: got"),
        ({"size": 224}, "preprocessor_config.json: size: got 224, expected an object"),
    ],
)
def test_a_preprocessor_that_is_not_supported(changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        changed(**changes)
    assert said in str(error.value)


def test_a_preprocessor_of_newer_tools_has_its_parts_in_objects() -> None:
    with pytest.raises(ConfigError) as error:
        Preprocessing.from_files(
            {"processor_config.json": {"image_processor": {"patch_size": 14}, "feature_extractor": 1}},
            mels=tiny.MEL,
            vision=VISION,
        )
    said = [str(problem) for problem in error.value.problems]
    assert "processor_config.json: feature_extractor: got 1, expected an object" in said
    assert "processor_config.json: patch_size: got 14, expected 16" in said


@pytest.mark.parametrize(("part", "key"), [("audio_config", "n_window"), ("vision_config", "num_heads")])
def test_a_number_that_others_are_divided_by_is_not_zero(part: str, key: str) -> None:
    config = tiny.config()
    config["thinker_config"][part] |= {key: 0}
    with pytest.raises(ConfigError) as error:
        encoder_configs(config, "config.json")
    assert [p.where for p in error.value.problems] == [f"config.json: thinker_config.{part}.{key}"]


def test_a_checkpoint_without_a_preprocessor() -> None:
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json: got no such file"):
        Preprocessing.from_files({}, mels=tiny.MEL, vision=VISION)


def test_every_fault_of_the_encoders_settings_is_named() -> None:
    config = tiny.config()
    config["thinker_config"]["audio_config"] |= {"n_window_infer": 150, "activation_function": "relu"}
    config["thinker_config"]["vision_config"] |= {"depth": "three", "hidden_size": 30}
    with pytest.raises(ConfigError) as error:
        encoder_configs(config, "config")
    for said in ("audio_config.n_window_infer", "audio_config.activation_function", "vision_config.depth"):
        assert said in str(error.value)
