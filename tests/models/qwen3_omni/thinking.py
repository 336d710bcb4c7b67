"""Requests with media made of random numbers, to transformers' thinker and to ours.

What encoders make of the media is transformers' in both, so that these tests are about the thinker alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import attrs
import numpy as np

from framework.compile.family import BuildOptions
from framework.execution.executor import Executor
from framework.execution.policies import Policy
from framework.execution.request import Request, Result
from framework.execution.runner import OpenContext
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph, Source
from framework.io.chat import ChatTemplate
from framework.io.tokens import Tokenizer
from models.language.runners import Backbone, BackboneConfig
from models.qwen3_encoders.perception import Percept
from models.qwen3_encoders.processing import arrange
from models.qwen3_omni.config import OmniConfig
from models.qwen3_omni.topology import Qwen3Omni
from tests.models.qwen3_omni import tiny
from tests.models.running import built, executor

FAMILIES = {"Qwen3OmniMoeForConditionalGeneration": Qwen3Omni()}
THINKER = BuildOptions(
    components=("llm",),
    hidden_layers=(0, 3),
    max_input_len=320,
    max_kv_cache_capacity=352,
    max_batch_size=4,
    prefill_chunk=64,
)
PER_SECOND = 13
MARKS = {"audio": "<|audio_pad|>", "image": "<|image_pad|>", "video": "<|video_pad|>"}


@attrs.frozen(kw_only=True)
class Medium:
    """A part of a message: frames of a spectrogram, and patches in time, height and width."""

    type: Literal["audio", "image", "video"]
    seed: int = 0
    frames: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    seconds_per_grid: float | None = None

    @property
    def mel(self) -> Any:
        """float32 [mels, frames]."""
        return self._noise(tiny.MEL, self.frames)

    @property
    def patches(self) -> Any:
        """float32 [patches, values]."""
        return self._noise(int(np.prod(self.grid)), 3 * 2 * 16 * 16)

    def _noise(self, *shape: int) -> Any:
        return np.random.default_rng([self.seed, *shape]).standard_normal(shape).astype(np.float32)


def audio(frames: int, seed: int = 0) -> Medium:
    return Medium(type="audio", frames=frames, seed=seed)


def image(height: int, width: int, seed: int = 0) -> Medium:
    return Medium(type="image", grid=(1, height, width), seed=seed)


def video(
    times: int, height: int, width: int, seconds_per_grid: float = 1.0, *, sound: int = 0, seed: int = 0
) -> Medium:
    """`sound` is frames of the spectrogram of its own sound; 0 is a silent one."""
    return Medium(type="video", grid=(times, height, width), seconds_per_grid=seconds_per_grid, frames=sound, seed=seed)


Content = Sequence[str | Medium]
Turns = Sequence[tuple[str, Content]]


def messages_of(turns: Turns) -> list[dict[str, Any]]:
    """A medium is a part of its type, under which it is itself."""
    return [{"role": role, "content": [_part(item) for item in content]} for role, content in turns]


def _part(item: str | Medium) -> dict[str, Any]:
    return {"type": "text", "text": item} if isinstance(item, str) else {"type": item.type, item.type: item}


def media_of(turns: Turns) -> list[Medium]:
    return [item for _, content in turns for item in content if isinstance(item, Medium)]


class Reference:
    """transformers' model, and its own way from a request to what the model takes."""

    def __init__(self, folder: Path) -> None:
        self.model = tiny.reference(folder)
        self.config = OmniConfig.from_checkpoint(tiny.config())
        self._folder = folder

    def percept(self, medium: Medium) -> Percept:
        """What transformers' encoders make of it."""
        import torch

        heard = None
        if medium.frames:
            with torch.no_grad():
                found = self.model.thinker.get_audio_features(
                    torch.tensor(medium.mel[None]),
                    feature_attention_mask=torch.ones(1, medium.frames, dtype=torch.int64),
                )
            heard = Percept(kind="audio", values=found.last_hidden_state.numpy())
        if medium.type == "audio":
            assert heard is not None
            return heard
        with torch.no_grad():
            seen = self.model.thinker.get_image_features(torch.tensor(medium.patches), torch.tensor([medium.grid]))
        return Percept(
            kind=medium.type,
            values=torch.cat(list(seen.pooler_output)).numpy(),
            deepstack=np.stack([torch.cat(list(level)).numpy() for level in seen.deepstack_features]),
            grid=medium.grid,
            seconds_per_grid=medium.seconds_per_grid,
            audio=heard,
        )

    def ids(self, engines: Path, turns: Turns) -> list[int]:
        """Its processor's: the template's text with each placeholder in as many copies as there are features."""
        template = ChatTemplate.load(self._folder)
        assert template is not None
        text = template.render(messages_of(turns), add_generation_prompt=True)
        for medium in media_of(turns):
            text = text.replace(MARKS[medium.type], _expanded(medium).replace("pad", "PAD"), 1)
        return Tokenizer.load(engines).encode(text.replace("PAD", "pad"))

    def inputs(self, media: Sequence[Medium]) -> dict[str, Any]:
        """Arguments of its `generate` and `get_rope_index` beside the ids."""
        import torch

        found: dict[str, Any] = {}
        heard = [medium for medium in media if medium.frames]
        if heard:
            longest = max(medium.frames for medium in heard)
            padded = [np.pad(medium.mel, ((0, 0), (0, longest - medium.frames))) for medium in heard]
            mask = [[1] * medium.frames + [0] * (longest - medium.frames) for medium in heard]
            found |= {"input_features": torch.tensor(np.stack(padded)), "feature_attention_mask": torch.tensor(mask)}
        for kind, values, grid in (
            ("image", "pixel_values", "image_grid_thw"),
            ("video", "pixel_values_videos", "video_grid_thw"),
        ):
            seen = [medium for medium in media if medium.type == kind]
            if seen:
                found[values] = torch.tensor(np.concatenate([medium.patches for medium in seen]))
                found[grid] = torch.tensor([medium.grid for medium in seen])
        films = [medium for medium in media if medium.type == "video"]
        if films:
            found["video_second_per_grid"] = torch.tensor([medium.seconds_per_grid for medium in films])
            found["use_audio_in_video"] = any(medium.frames for medium in films)
        return found

    def generate(self, ids: Sequence[int], media: Sequence[Medium], count: int) -> tuple[list[int], list[Any]]:
        """What it writes, and its hidden states [tokens, hidden] by layer of all that was fed."""
        import torch

        prompt = torch.tensor([list(ids)])
        written = self.model.thinker.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            **self.inputs(media),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=tiny.END,
            pad_token_id=0,
            output_hidden_states=True,
            return_dict_in_generate=True,
        )
        layers = [torch.cat(steps, dim=1)[0].numpy() for steps in zip(*written.hidden_states, strict=True)]
        return written.sequences[0, len(ids) :].tolist(), layers

    def positions(self, ids: Sequence[int], media: Sequence[Medium]) -> tuple[Any, float]:
        """[3, tokens], and that of the first token that is written."""
        import torch

        given, prompt = self.inputs(media), torch.tensor([list(ids)])
        lengths = given.get("feature_attention_mask")
        found, delta = self.model.thinker.get_rope_index(
            prompt,
            image_grid_thw=given.get("image_grid_thw"),
            video_grid_thw=given.get("video_grid_thw"),
            attention_mask=torch.ones_like(prompt),
            use_audio_in_video=given.get("use_audio_in_video", False),
            audio_seqlens=None if lengths is None else lengths.sum(-1),
            second_per_grids=given.get("video_second_per_grid"),
        )
        return found[:, 0].numpy(), float(delta[0, 0]) + len(ids)


def _expanded(medium: Medium) -> str:
    from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as official

    processor: Any = SimpleNamespace(
        **{f"{kind}_token": mark for kind, mark in MARKS.items()},
        audio_bos_token="<|audio_start|>",
        audio_eos_token="<|audio_end|>",
        video_processor=SimpleNamespace(merge_size=2),
        image_processor=SimpleNamespace(merge_size=2),
    )
    cls: Any = official.Qwen3OmniMoeProcessor
    heard = {"num_audio_tokens": [int(official._get_feat_extract_output_lengths(medium.frames))]}
    seen = {
        "image_grid_thw": np.array([medium.grid]),
        "video_grid_thw": np.array([medium.grid]),
        "video_second_per_grid": [medium.seconds_per_grid],
    }
    if medium.type == "audio":
        return str(cls.replace_audio_token(processor, heard, 0))
    if medium.type == "image":
        return str(cls.replace_image_token(processor, seen, 0))
    if medium.frames:
        times = {"position_id_per_seconds": PER_SECOND}
        return str(cls.replace_video_with_audio_token(processor, seen, 0, heard, 0, **times))
    return str(cls.replace_video_token(processor, seen, 0, load_audio_from_video=False))


class Reader:
    """In place of encoders: what transformers' own made of each medium, and our way to put it into a prompt."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def perceive(self, part: Mapping[str, Any]) -> Percept:
        return self._reference.percept(part[part["type"]])

    def arrange(self, ids: Sequence[int], found: Sequence[Any]) -> Any:
        return arrange(self._reference.config.media, ids, found)

    def close(self) -> None:
        pass


class Thinker(Backbone):
    """`llm.backbone` with `Reader`."""

    reference: Reference

    def open(self, context: OpenContext) -> None:
        super().open(context)
        self._media = Reader(self.reference)
        self._readable = ["audio", "image", "video"]


def build_tiny(checkpoint: Path, engine_dir: Path, options: BuildOptions = THINKER) -> Graph:
    return built(checkpoint, engine_dir, FAMILIES, options)


def opened(
    engine_dir: Path, reference: Reference | None = None, policy: Policy | None = None, **config: Any
) -> Executor:
    """An executor over the thinker of a folder, all its ports terminals; without a reference it can only read text."""
    graph = files.load(engine_dir / FILE_NAME)
    (stage,) = graph.stages
    emits = tuple(attrs.evolve(port, terminal=True) for port in stage.emits)
    stage = attrs.evolve(stage, emits=emits, config={**stage.config, **config})
    graph = attrs.evolve(graph, stages=(stage,), terminals=tuple(Source("thinker", port.id) for port in emits))
    runner = (Backbone if reference is None else Thinker)(stage=stage, config=BackboneConfig(**stage.config))
    if isinstance(runner, Thinker) and reference is not None:
        runner.reference = reference
    return executor(graph, {"thinker": runner}, engine_dir, policy)


def request(index: int, turns: Turns, *, options: Mapping[str, Any] | None = None, **sampling: Any) -> Request:
    """Greedy where `sampling` says nothing else."""
    return Request(
        index=index,
        fields={"messages": messages_of(turns), **{medium.type: (medium,) for medium in media_of(turns)}},
        sampling={"default": {"temperature": 0.0, "max_generate_length": 12, **sampling}},
        kinds=frozenset({"text", "hidden"}),
        options=options or {},
    )


def answers(executor: Executor, requests: Sequence[Request]) -> list[Result]:
    """Results in the order of the requests."""
    return sorted(executor.run(requests), key=lambda result: result.request.index)


def ids_of(result: Result) -> list[int]:
    assert result.ok, result.error
    return [token for chunk in result.outputs["thinker:text"] for token in chunk.ids]


def hidden_of(result: Result, port: str) -> tuple[list[int], Any, Any]:
    """Ids, values [tokens, hidden] and positions [3, tokens] of all that was fed."""
    assert result.ok, result.error
    chunks = result.outputs[f"thinker:{port}"]
    return (
        [int(token) for chunk in chunks for token in chunk.ids],
        np.concatenate([chunk.values for chunk in chunks]),
        np.concatenate([chunk.positions for chunk in chunks], axis=1),
    )
