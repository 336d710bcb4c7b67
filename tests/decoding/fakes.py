"""A decoder in a few lines of numpy: the token written is a sum over the row's whole cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from framework.decoding.limits import Limits
from framework.decoding.loop import Loop
from framework.decoding.rows import DecoderRow, Work
from framework.engines.base import Call, Engine, EngineSpec, States, TensorSpec
from framework.execution.request import Request
from framework.execution.runner import Row
from framework.execution.sampling import Sampling

ROWS, CHUNK, VOCAB, CAPACITY = 4, 3, 97, 64
SPEC = EngineSpec(
    inputs=(
        TensorSpec(name="ids", dtype="int64", shape=("batch", "tokens")),
        TensorSpec(name="past_lengths", dtype="int64", shape=("batch",)),
        TensorSpec(name="token_counts", dtype="int64", shape=("batch",)),
        TensorSpec(name="noise", dtype="float32", shape=("batch", 2)),
        TensorSpec(name="candidates", dtype="int64", shape=(1,)),
        TensorSpec(name="temperature", dtype="float32", shape=("batch",)),
        TensorSpec(name="top_p", dtype="float32", shape=("batch",)),
        TensorSpec(name="logit_bias", dtype="float32", shape=("batch", VOCAB)),
        TensorSpec(name="b_top_k", dtype="int64", shape=("batch",)),
        TensorSpec(name="voice", dtype="float32", shape=("batch", 2)),
    ),
    outputs=(TensorSpec(name="token", dtype="int64", shape=("batch", 1)),),
    caps={"batch": ROWS, "tokens": CHUNK},
)


class Sums(Engine):
    """Writes what it is fed into the caches, also where nobody is meant; keeps every call it was asked for."""

    def __init__(self, *, captures: bool = False) -> None:
        self.spec, self.captures = SPEC, captures
        self.cache = np.zeros((ROWS, CAPACITY), np.int64)
        self.calls: list[SumsCall] = []  # in the order they ran

    def new_states(self, batch: int, **dims: int) -> States:
        return cast(States, None)

    def bind(self, dims: Mapping[str, int], states: Any = None, rows: Any = None, shared: Any = None) -> Call:
        return SumsCall(self, rows, dims)

    def close(self) -> None:
        """Nothing to free."""


class SumsCall(Call):
    def __init__(self, engine: Sums, rows: slice, dims: Mapping[str, int]) -> None:
        self.engine, self.rows, self.dims = engine, rows, dims
        self.inputs: dict[str, Any] = {"noise": np.zeros((rows.stop - rows.start, 2), np.float32)}
        self.recorded = False

    def write(self, name: str, value: Any) -> None:
        self.inputs[name] = np.array(value)

    def __call__(self) -> None:
        self.engine.calls.append(self)
        self.token = np.zeros((self.rows.stop - self.rows.start, 1), np.int64)
        for index, row in enumerate(range(self.rows.start, self.rows.stop)):
            past, count = self.inputs["past_lengths"][index], self.inputs["token_counts"][index]
            self.engine.cache[row, past : past + self.dims["tokens"]] = self.inputs["ids"][index]
            places = np.arange(1, past + count + 1)
            self.token[index] = (self.engine.cache[row, : past + count] * places).sum() % VOCAB

    def read(self, name: str) -> Any:
        return self.token

    def device(self, name: str) -> Any:
        return self.inputs[name]

    def capture(self) -> None:
        self.recorded = True


class Writer(DecoderRow):
    """A prompt, and the tokens written behind it."""

    def __init__(self, index: int, prompt: Sequence[int], *samplings: Sampling) -> None:
        row = Row(index=index, request=cast(Request, None), inputs={}, outputs={})
        super().__init__(row, *(samplings or (Sampling(temperature=0.0), Sampling(temperature=0.0))))
        self.prompt, self.prompt_length = list(prompt), len(prompt)
        self.written: list[int] = []


class Feeder:
    """Feeds ids, and takes the token where a prompt was read to its end."""

    def dims(self, work: Work[Writer]) -> Mapping[str, int]:
        return {}

    def inputs(self, work: Work[Writer]) -> Mapping[str, Any]:
        ids = np.zeros((len(work.rows), work.tokens), np.int64)
        for index, (one, count) in enumerate(work.fed):
            ids[index, :count] = [*one.prompt, *one.written][one.length : one.length + count]
        return {"ids": ids}

    def publish(self, work: Work[Writer], call: Call) -> None:
        for one in work.active:
            if not one.reading:
                one.written.append(int(call.read("token")[work.index(one), 0]))
                one.step += 1


def loop(engine: Engine, **settings: Any) -> Loop[Writer]:
    limits = Limits.of(SPEC, prompt=CAPACITY, cache=CAPACITY, candidates=None)
    return Loop(engine, limits, Feeder(), stage="s", count=ROWS, samplers=("", "b_"), held=("voice",), **settings)


def admitted(of: Loop[Writer], *writers: Writer) -> list[Writer]:
    for writer in writers:
        of.add(writer)
        of.choose(writer)
    return list(writers)
