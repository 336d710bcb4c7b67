"""Requests as a file has them, with real sounds, pictures and videos: words, codes and sound are transformers'.

One table for the whole chain; what each stage makes of harder inputs is tested beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import soundfile

from framework.execution.policies import Cohort, InFlight, Policy
from framework.execution.request import Request, Result
from framework.graph import files
from framework.graph.model import FILE_NAME
from framework.io.audio import load_audio
from framework.io.images import resize_image
from framework.io.requests import Defaults, read_request
from framework.io.video import read_frames
from models.language.runners import Backbone, BackboneConfig
from models.qwen3_encoders import pixels
from models.qwen3_encoders.config import Preprocessing, encoder_configs
from tests.io.videos import moving, write_video
from tests.models.qwen3_omni import speaking, thinking, tiny
from tests.models.qwen3_omni.conftest import Workshop
from tests.models.qwen3_omni.speaking import codes_said, sound_of
from tests.models.qwen3_omni.thinking import Medium, Turns, ids_of

torch: Any = pytest.importorskip("torch")
Image: Any = pytest.importorskip("PIL.Image")
pytest.importorskip("av", reason="PyAV reads videos")

OPTIONS = attrs.evolve(
    speaking.OPTIONS, components=("all",), max_input_len=640, max_kv_cache_capacity=704, prefill_chunk=128
)
WORDS, FRAMES = 10, 8  # at most, of every answer
SYSTEM = {"role": "system", "content": "You are a test."}


@attrs.frozen(kw_only=True)
class Row:
    """A request, and what of it is compared: with a voice its speech too."""

    request: Mapping[str, Any]
    voice: str = ""


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def sound(name: str) -> dict[str, Any]:
    return {"type": "audio", "audio": name}


def picture(name: str) -> dict[str, Any]:
    return {"type": "image", "image": name}


def film(name: str, **settings: Any) -> dict[str, Any]:
    return {"type": "video", "video": name, **settings}


TURNS = [
    SYSTEM,
    user(picture("p.png"), "What is it?"),
    {"role": "assistant", "content": "The thing."},
    user(sound("a.wav"), "And this?"),
    {"role": "assistant", "content": "A sound."},
    user("Are you sure?"),
]
ROWS: Mapping[str, Row] = {
    "text": Row(request={"prompt": "What is it?"}),
    "text, spoken": Row(request={"prompt": "Hello there, how are you?"}, voice="ethan"),
    "text with a system prompt": Row(request={"system": "You are a test.", "prompt": "Who are you?"}),
    "text with a system prompt, spoken": Row(request={"system": "Be brief.", "prompt": "Go on."}, voice="chelsie"),
    "text beyond English, spoken": Row(request={"prompt": "Größe 42, 你好 \U0001f600!"}, voice="aiden"),
    "audio": Row(request={"audio": "a.wav", "prompt": "What is said?"}),
    "audio, spoken": Row(request={"audio": "a.wav", "prompt": "What is said?"}, voice="ethan"),
    "audio alone, spoken": Row(request={"audio": "b.wav"}, voice="chelsie"),
    "two sounds": Row(request={"audio": ["a.wav", "b.wav"], "prompt": "Which is louder?"}),
    "image": Row(request={"image": "p.png", "prompt": "What is this?"}),
    "image, spoken": Row(request={"image": "q.jpg", "prompt": "Tell me."}, voice="aiden"),
    "three images": Row(request={"image": ["p.png", "q.jpg", "r.png"], "prompt": "Which one?"}),
    "three images, spoken": Row(request={"image": ["r.png", "q.jpg", "p.png"], "prompt": "Which?"}, voice="ethan"),
    "images between words": Row(request={"messages": [user("This ", picture("p.png"), " or ", picture("r.png"))]}),
    "video": Row(request={"video": "v.mp4", "prompt": "What happens?"}),
    "video, spoken": Row(request={"video": "v.mp4", "prompt": "What happens?"}, voice="ethan"),
    "video of three frames a second": Row(request={"messages": [user(film("v.mp4", fps=3.0), "What happens?")]}),
    "video with its sound": Row(request={"video": "v.mp4", "use_audio_in_video": True, "prompt": "What happens?"}),
    "video with its sound, spoken": Row(
        request={"messages": [user(film("v.mp4", use_audio_in_video=True), "And?")]}, voice="chelsie"
    ),
    "video without the sound it has, and another sound": Row(
        request={"messages": [user(film("v.mp4"), sound("b.wav"), "Do they fit?")]}
    ),
    "audio and image": Row(request={"audio": "a.wav", "image": "p.png", "prompt": "Do they fit?"}),
    "audio and image, spoken": Row(request={"audio": "a.wav", "image": "p.png", "prompt": "And?"}, voice="aiden"),
    "image and audio and video": Row(
        request={"messages": [user(picture("q.jpg"), sound("b.wav"), film("v.mp4"), "Which one?")]}
    ),
    "three turns with a system prompt": Row(request={"messages": TURNS}),
    "three turns with a system prompt, spoken": Row(request={"messages": TURNS}, voice="ethan"),
}  # fmt: skip


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    rng = np.random.default_rng(0)
    for name, count in (("a.wav", 21_000), ("b.wav", 9_000)):
        swelling = rng.standard_normal(count) * np.linspace(0.02, 0.3, count)
        soundfile.write(folder / name, swelling.astype(np.float32), 16_000, subtype="FLOAT")
    for name, height, width in (("p.png", 64, 96), ("q.jpg", 100, 70), ("r.png", 40, 150)):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / name)
    write_video(folder / "v.mp4", moving(20), 10, sound=rng.standard_normal(32_000).astype(np.float32) * 0.1)
    return folder


@pytest.fixture(scope="module")
def engines(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity") / "engines"
    thinking.build_tiny(workshop.checkpoint, folder, OPTIONS)
    return folder


def requests(media: Path) -> list[Request]:
    found = []
    greedy: Mapping[str, Any] = speaking.GREEDY
    for index, row in enumerate(ROWS.values()):
        defaults = Defaults(
            sampling={
                **greedy,
                "default": {"temperature": 0.0, "max_generate_length": WORDS},
                "talker": {**greedy["talker"], "max_generate_length": FRAMES},
            },
            fields={"voice": row.voice} if row.voice else {},
            kinds=frozenset({"text", "audio", "codec"} if row.voice else {"text"}),
        )
        request = read_request(dict(row.request), index, defaults, media, "request")
        assert isinstance(request, Request), request.error
        found.append(request)
    return found


@pytest.fixture(scope="module", params=[Cohort(4), InFlight(4)], ids=["cohorts of 4", "4 in flight"])
def results(request: Any, engines: Path, media: Path) -> Mapping[str, Result]:
    """All rows in one run: whatever differs between requests, differs here."""
    with opened(engines, request.param) as executor:
        found = sorted(executor.run(requests(media)), key=lambda result: result.request.index)
    return dict(zip(ROWS, found, strict=True))


def opened(engines: Path, policy: Policy) -> Any:
    stage = files.load(engines / FILE_NAME).stage("thinker")
    assert stage is not None
    return speaking.opened(engines, policy, thinker=Backbone(stage=stage, config=BackboneConfig(**stage.config)))


# What transformers makes of the same request


@attrs.frozen(kw_only=True, eq=False)
class Taken(Medium):
    """A medium out of a file, as transformers' own preprocessing makes it."""

    mel: Any = None
    patches: Any = None


def taken(part: Mapping[str, Any]) -> Taken:
    if part["type"] == "audio":
        return heard(Path(part["audio"]), "audio")
    if part["type"] == "image":
        return seen(Path(part["image"]))
    return watched(part)


def heard(path: Path, kind: Any, **others: Any) -> Taken:
    from transformers import WhisperFeatureExtractor

    extractor: Any = WhisperFeatureExtractor(feature_size=tiny.MEL)
    found = extractor(
        load_audio(path, 16_000),
        sampling_rate=16_000,
        padding=True,
        truncation=False,
        return_attention_mask=True,
        return_tensors="np",
    )
    frames = int(found.attention_mask.sum())
    return Taken(type=kind, frames=frames, mel=found.input_features[0, :, :frames], **others)


def seen(path: Path) -> Taken:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    keys = ("image_mean", "image_std", "patch_size", "temporal_patch_size", "merge_size", "min_pixels", "max_pixels")
    processor = Qwen2VLImageProcessorPil(**{key: tiny.PREPROCESSOR[key] for key in keys})
    found = processor([Image.open(path).convert("RGB")], return_tensors="np")
    return Taken(type="image", patches=found.pixel_values, grid=tuple(found.image_grid_thw[0].tolist()))


def watched(part: Mapping[str, Any]) -> Taken:
    """Its processor needs torchvision; what ours makes of frames is compared with a recording in test_encoders."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    _, vision = encoder_configs(tiny.config(), "config")
    files = {"preprocessor_config.json": tiny.PREPROCESSOR}
    video = Preprocessing.from_files(files, mels=tiny.MEL, vision=vision).video
    path, fps = Path(part["video"]), part.get("fps", video.fps)
    frames = list(read_frames(path, pixels.sampled(20, 10, fps, video)))
    limits = {"min_pixels": video.pixels.min_pixels, "max_pixels": video.pixels.max_pixels}
    height, width = smart_resize(frames[0].shape[0], frames[0].shape[1], factor=32, **limits)
    found = pixels.patches([resize_image(frame, height, width) for frame in frames], video.pixels)
    settings = {
        "grid": (len(found), height // 16, width // 16),
        "seconds_per_grid": 2 / fps,
        "patches": found.reshape(-1, found.shape[-1]),
    }
    return heard(path, "video", **settings) if part.get("use_audio_in_video") else Taken(type="video", **settings)


def turns_of(request: Request) -> Turns:
    return [
        (message["role"], [part["text"] if part["type"] == "text" else taken(part) for part in message["content"]])
        for message in request.fields["messages"]
    ]


@attrs.frozen(kw_only=True, eq=False)
class Expected:
    words: list[int]
    codes: Any = None
    sound: Any = None


@pytest.fixture(scope="module")
def expected(workshop: Workshop, engines: Path, media: Path) -> Mapping[str, Expected]:
    return {
        name: answer(workshop, engines, turns_of(request), ROWS[name].voice)
        for name, request in zip(ROWS, requests(media), strict=True)
    }


def answer(workshop: Workshop, engines: Path, turns: Turns, voice: str) -> Expected:
    """An answer cut by its length is said to its last word, which transformers says when it is let write one more."""
    found = thinking.media_of(turns)
    ids = workshop.reference.ids(engines, turns)
    reply, layers = workshop.reference.generate(ids, found, WORDS + 1)
    if not voice:
        return Expected(words=reply[:WORDS])
    said = reply[:-1]
    codes, wave = workshop.speaker.generate(
        [[*ids, *said, tiny.END]], layers[0], layers[speaking.LAYER], ids, found, voice, FRAMES
    )
    return Expected(words=reply[:WORDS], codes=codes, sound=wave)


@pytest.mark.parametrize("name", ROWS)
def test_a_request_is_answered_as_transformers_does(
    name: str, results: Mapping[str, Result], expected: Mapping[str, Expected]
) -> None:
    result, wanted = results[name], expected[name]
    assert ids_of(result) == wanted.words
    if not ROWS[name].voice:
        assert result.stages.keys() == {"thinker"}
        return
    np.testing.assert_array_equal(codes_said(result), wanted.codes)
    np.testing.assert_allclose(sound_of(result), wanted.sound, atol=1e-4)


def test_the_rows_differ(expected: Mapping[str, Expected]) -> None:
    """Random networks that say the same to everything would prove nothing."""
    written = {tuple(row.words) for row in expected.values()}
    assert len(written) > len({str(row.request) for row in ROWS.values()}) - 3
    spoken = [row.codes for row in expected.values() if row.codes is not None]
    assert len({row.tobytes() for row in spoken}) == len(spoken) >= 10
    assert len({code for row in spoken for code in row[:, 0].tolist()}) > 20
