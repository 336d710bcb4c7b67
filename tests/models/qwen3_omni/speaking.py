"""Answers said by transformers' talker and by ours.

A thinker that a test writes stands in for the real one where the talker alone is meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np

from framework.compile.family import BuildOptions
from framework.execution.executor import Executor
from framework.execution.payloads import HiddenChunk, TextChunk
from framework.execution.policies import Policy
from framework.execution.request import Request, Result
from framework.execution.runner import Row, Runner
from framework.graph import files
from framework.graph.model import FILE_NAME, Graph, RunnerDecl, Source
from framework.schema import structure
from models.qwen3_codec.runners import Code2Wav
from models.qwen3_omni.runners import Talker
from tests.models.qwen3_omni import thinking, tiny
from tests.models.qwen3_omni.thinking import Medium, Turns
from tests.models.running import executor

OPTIONS = BuildOptions(
    components=("llm", "talker", "hidden_projection", "code2wav"),
    max_input_len=320,
    max_kv_cache_capacity=352,
    max_batch_size=4,
    prefill_chunk=64,
)
END, LATER = 2150, -5.0  # the code that ends a speech, and what is added to its logit so that it does not at once
GREEDY = {"talker": {"temperature": 0.0, "logit_bias": {END: LATER}}, "code_predictor": {"temperature": 0.0}}
LAYER = 3  # whose states the talker reads
FRAMES = 14  # at most, where a test says nothing else


@attrs.frozen(kw_only=True, eq=False)
class Talk:
    """A prompt that the thinker was fed, and what it wrote.

    Attributes:
        ids: of the prompt.
        words: of the answer, without what ends it.
        ends: whether the answer ends by itself.
        embeddings, hidden: float32 [ids + words, hidden], what transformers' talker reads of it.
        positions: float32 [3, ids], rotary positions of the prompt.
        media: that are in it.
    """

    ids: list[int]
    words: list[int]
    ends: bool
    embeddings: Any
    hidden: Any
    positions: Any
    media: Sequence[Medium]


class Reference:
    """transformers' talker and vocoder."""

    def __init__(self, thinker: thinking.Reference) -> None:
        self.thinker, self.model = thinker, thinker.model

    def talk(self, engines: Path, turns: Turns, words: Sequence[int], *, ends: bool = True) -> Talk:
        """A talk with an answer of our choice, and random states of the thinker."""
        import torch

        media = thinking.media_of(turns)
        ids = self.thinker.ids(engines, turns)
        with torch.no_grad():
            embeddings = self.model.thinker.get_input_embeddings()(torch.tensor([*ids, *words])).numpy()
        positions = np.asarray(self.thinker.positions(ids, media)[0], np.float32)
        hidden = np.random.default_rng(len(ids)).standard_normal(embeddings.shape).astype(np.float32)
        return Talk(
            ids=ids,
            words=list(words),
            ends=ends,
            embeddings=embeddings,
            hidden=hidden,
            positions=positions,
            media=media,
        )

    def say(self, talk: Talk, voice: str = "Ethan", frames: int = FRAMES) -> tuple[Any, Any]:
        """Codes int32 [frames, 16] and sound float32 [samples] of its own `generate` after the thinker's."""
        written = [[*talk.ids, *talk.words, tiny.END]]
        return self.generate(written, talk.embeddings, talk.hidden, talk.ids, talk.media, voice, frames)

    def generate(
        self,
        sequences: Sequence[Sequence[int]],
        embeddings: Any,
        hidden: Any,
        ids: Sequence[int],
        media: Sequence[Medium],
        voice: str,
        frames: int,
    ) -> tuple[Any, Any]:
        import torch

        layers = {0: torch.tensor(embeddings)[None], LAYER: torch.tensor(hidden)[None]}
        thought = SimpleNamespace(sequences=torch.tensor(sequences), hidden_states=(layers,))
        codes: list[Any] = []

        def decoded(given: Any, **chunks: int) -> Any:
            codes.append(given[0].T.numpy().astype(np.int32))
            return whole(given, **chunks)

        model, whole = self.model, self.model.code2wav.chunked_decode
        think = model.thinker.generate
        model.thinker.generate, model.code2wav.chunked_decode = lambda **_: thought, decoded
        try:
            _, sound = model.generate(
                input_ids=torch.tensor([list(ids)]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                **self.thinker.inputs(media),
                speaker=voice,
                thinker_eos_token_id=tiny.END,
                talker_max_new_tokens=frames + 1,  # the last one of these makes no frame
                talker_do_sample=False,
                talker_sequence_bias={(END,): LATER},
            )
        finally:
            model.thinker.generate, model.code2wav.chunked_decode = think, whole
        return codes[0], sound[0, 0].numpy()


class Scripted(Runner):
    """A thinker that writes what a request's option `talk` says: a token every `pace` of its steps, the prompt's hidden
    states in chunks of 50."""

    decl = RunnerDecl(
        kind="autoregressive", inputs={}, ports={"text": "text", "accept_hidden": "hidden", "embeddings": "hidden"}
    )
    pace = 1

    def admit(self, row: Row) -> None:
        row.details.update(written=0, steps=0)

    def ready(self, row: Row) -> bool:
        return True

    def step(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.details["steps"] += 1
            if row.details["steps"] % self.pace == 0:
                self._write(row)

    def _write(self, row: Row) -> None:
        talk: Talk = row.request.options["talk"]
        texts = row.request.options.get("texts")
        done = row.details["written"]
        tokens = [*talk.words, *([tiny.END] if talk.ends else [])]
        starts = range(0, len(talk.ids), 50) if not done else [len(talk.ids) + done - 1]
        for start in starts:
            stop = min(start + 50, len(talk.ids)) if not done else start + 1
            positions = talk.positions[:, start:stop] if not done and talk.media else None
            fed = np.array([*talk.ids, *talk.words][start:stop], np.int64)
            if "accept_hidden" in row.outputs:
                chunk = HiddenChunk(ids=fed, values=talk.hidden[start:stop], positions=positions)
                row.outputs["accept_hidden"].write(chunk)
        text = texts[done] if texts else "x"
        row.outputs["text"].write(TextChunk(text=text, ids=(tokens[done],)))
        row.details["written"] += 1
        if row.details["written"] == len(tokens):
            row.finish(finish_reason="end-of-sequence" if talk.ends else "max-length")


def opened(
    engines: Path,
    policy: Policy | None = None,
    *,
    pace: int = 1,
    thinker: Runner | None = None,
    graph: Graph | None = None,
    **config: Any,
) -> Executor:
    """An executor over the graph of a folder; `config` are changes of the stages' settings, by stage id."""
    graph = graph or files.load(engines / FILE_NAME)
    codes = Source("talker", "codes")
    stages = []
    for stage in graph.stages:
        emits = tuple(attrs.evolve(port, terminal=True) if stage.id == "talker" else port for port in stage.emits)
        stages.append(attrs.evolve(stage, emits=emits, config={**stage.config, **config.get(stage.id, {})}))
    graph = attrs.evolve(graph, stages=tuple(stages), terminals=(*graph.terminals, codes))
    runners: dict[str, Runner] = {}
    for stage in graph.stages:
        if stage.id == "thinker":
            runners[stage.id] = thinker or Scripted(stage=attrs.evolve(stage, inputs=()))
            runners[stage.id].pace = pace  # type: ignore[attr-defined]
        else:
            kind = Talker if stage.id == "talker" else Code2Wav
            assert kind.decl.config is not None
            settings = structure(kind.decl.config, stage.config, where=f"stages.{stage.id}.config")
            runners[stage.id] = kind(stage=stage, config=settings)
    if thinker is None:
        graph = attrs.evolve(
            graph, stages=tuple(attrs.evolve(s, inputs=()) if s.id == "thinker" else s for s in graph.stages)
        )
    return executor(graph, runners, engines, policy)


def request(
    index: int,
    talk: Talk,
    *,
    voice: str = "",
    frames: int = FRAMES,
    sampling: Mapping[str, Any] = GREEDY,
    kinds: frozenset[str] = frozenset({"text", "audio", "codec"}),
    texts: Sequence[str] | None = None,
    **thinker: Any,
) -> Request:
    talker = {"max_generate_length": frames, **sampling.get("talker", {})}
    return Request(
        index=index,
        fields={"messages": [], **({"voice": voice} if voice else {})},
        sampling={**sampling, "talker": talker, "default": thinker},
        kinds=kinds,
        options={"talk": talk, **({"texts": texts} if texts else {})},
    )


def answers(executor: Executor, requests: Sequence[Request]) -> list[Result]:
    """Results in the order of the requests."""
    return sorted(executor.run(requests), key=lambda result: result.request.index)


def codes_said(result: Result) -> Any:
    """int32 [frames, 16]."""
    assert result.ok, result.error
    chunks = result.outputs["talker:codes"]
    return np.concatenate(chunks) if chunks else np.zeros((0, 16), np.int32)


def sound_of(result: Result) -> Any:
    """float32 [samples]."""
    assert result.ok, result.error
    return np.concatenate([np.zeros(0, np.float32), *(chunk.samples for chunk in result.outputs["code2wav:audio"])])


def details(result: Result, stage: str = "talker") -> Mapping[str, Any]:
    return result.stages[stage].details
