"""One step of a decoder: place rows, choose the call, write its inputs, run it, publish what it made.

A prompt is read in chunks; the call that reads its end writes the first token, every further call one more. A family
says what a call is fed and what becomes of its outputs (`Feed`); everything else is the same for all:

    past_lengths  int64 [batch], entries that each row has in the cache
    token_counts  int64 [batch], entries of the call that are real
    noise         float32 [batch, draws], of each row's own
    candidates    int64 [1], best tokens that the samplers look at, where the engine does not fix it
    temperature, top_k, top_p, min_p, repetition_penalty, logit_bias: one entry a row; a second sampler's have a prefix
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, Protocol

import numpy as np

from framework.decoding.calls import RowCalls
from framework.decoding.limits import Limits, candidates, check_budget, looked_at
from framework.decoding.rows import R, Work, plan
from framework.engines.base import Array, Call, Engine, EngineSpec
from framework.execution.runner import OpenContext
from framework.execution.sampling import Sampling, uniform
from framework.graph.model import Stage

# Inputs that hold for a whole request, each with the value that changes nothing.
NEUTRAL: Mapping[str, float] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": 0.0,
}


class Feed(Protocol[R]):
    """What a family knows of its engine's inputs and outputs."""

    def dims(self, work: Work[R]) -> Mapping[str, int]:
        """Symbolic dimensions of the call beside `batch`, `tokens` and `candidates`."""

    def inputs(self, work: Work[R]) -> Mapping[str, Array]:
        """Inputs of the call that the loop does not write."""

    def publish(self, work: Work[R], call: Call) -> None:
        """Take what the call made; the rows' lengths count its entries already."""


class Loop(Generic[R]):
    """Rows of one engine's cache, and the calls that advance them.

    Args:
        stage: id of the stage, for its noise.
        count: rows of the cache.
        chunk: entries of a prompt that one call reads at most; 0 is what the engine was built for.
        bucket: rows, from the first, of every call that writes, at least; prompts are then read alone. 0 is none.
        samplers: prefix of each sampler's inputs, in the order of `DecoderRow.samplings`.
        held: further inputs that hold for a whole request.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        feed: Feed[R],
        *,
        stage: str,
        count: int,
        chunk: int = 0,
        bucket: int = 0,
        samplers: Sequence[str] = ("",),
        held: Collection[str] = (),
    ) -> None:
        spec = engine.spec
        self.engine, self.states = engine, engine.new_states(count)
        self.limits = limits
        self.rows: dict[int, R] = {}
        self._feed, self._stage, self._samplers = feed, stage, tuple(samplers)
        self._count, self._bucket = count, bucket
        longest = spec.caps.get("tokens", 1)
        self._chunk = min(chunk or longest, longest)
        self._shapes = {tensor.name: tensor.shape for tensor in spec.inputs}
        self._dims = {dim for tensor in (*spec.inputs, *spec.outputs) for dim in tensor.shape}
        self._calls = RowCalls(engine, self.states, _settings(spec, count, self._samplers, held))

    def add(self, one: R) -> None:
        """Give a request its row; it needs its settings, too, before it is stepped."""
        self.rows[one.row.index] = one

    def choose(self, one: R, **held: object) -> None:
        """Set how a row chooses what it writes; `held`: the values of further inputs that hold for the request."""
        values = dict(held)
        for prefix, sampling in zip(self._samplers, one.samplings, strict=True):
            names = [name for name in NEUTRAL if prefix + name in self._calls.settings]
            values |= {prefix + name: _value(sampling, name, self.limits.vocab) for name in names}
        self._calls.set(one.row.index, values)

    def remove(self, index: int) -> None:
        """Free a row, if anyone has it."""
        self.rows.pop(index, None)

    def step(self, active: Sequence[R]) -> None:
        """Advance these rows by a chunk of their prompts, or by what they write next."""
        for work in self.place(active):
            call = self.call(work)
            self.write(work, call)
            call()
            for one, count in zip(work.active, work.counts, strict=True):
                one.length += count
            self._feed.publish(work, call)

    def place(self, active: Sequence[R]) -> list[Work[R]]:
        """The calls of a step, in order."""
        full = self.engine.captures  # a recorded call is worth more than the rows it does in vain
        return plan(active, self.rows, count=self._count, chunk=self._chunk, bucket=self._bucket, full=full)

    def call(self, work: Work[R]) -> Call:
        """A bound call for these rows, their settings written."""
        dims, fixed = dict(self._feed.dims(work)), {}
        if "tokens" in self._dims:
            dims["tokens"] = work.tokens
        if not self.limits.candidates:
            vocab = self.limits.vocab
            wanted = max(candidates(sampling, vocab) for one in work.active for sampling in one.samplings)
            fixed["candidates"] = looked_at(wanted, vocab)
            if "candidates" in self._dims:  # candidates are also put out
                dims["candidates"] = fixed["candidates"]
        return self._calls.get(work.start, work.stop, dims, fixed, repeated=work.tokens == 1)

    def write(self, work: Work[R], call: Call) -> None:
        """The inputs that change from call to call."""
        for name, value in self._feed.inputs(work).items():
            call.write(name, value)
        call.write("past_lengths", np.array([one.length if one else 0 for one in work.rows], np.int64))
        if "token_counts" in self._shapes:
            call.write("token_counts", np.array([count for _, count in work.fed], np.int64))
        sampled = [one for one in work.active if one.sampled]
        if sampled:  # without, no row reads it
            draws = int(self._shapes["noise"][1])
            noise = np.zeros((len(work.rows), draws), np.float32)
            for one in sampled:
                noise[work.index(one)] = uniform(one.samplings[0].seed, self._stage, one.step, draws)
            call.write("noise", noise)

    def close(self) -> None:
        """Free the engine."""
        self._calls.clear()
        self.engine.close()


def open_loop(
    context: OpenContext,
    stage: Stage,
    feed: Feed[R],
    *,
    chunk: int = 0,
    bucket: int = 0,
    samplers: Sequence[str] = ("",),
    held: Collection[str] = (),
) -> Loop[R]:
    """The loop of a stage over its own engine; arguments as `Loop` has them.

    Raises ConfigError for everything that the stage asks for beyond what the engine was built for, before it is opened.
    """
    from framework.engines import manifest
    from framework.engines.backend import open_engine

    built = manifest.read(context.artifact)
    capacity = int(built.options["max_kv_cache_capacity"])
    check_budget(stage, rows=built.spec.caps["batch"], cache=capacity, bucket=bucket)
    engine = open_engine(context.artifact, context.backend)
    limits = Limits.of(
        engine.spec,
        prompt=int(built.options["max_input_len"]),
        cache=stage.max_seq or capacity,
        candidates=built.options.get("candidates"),
    )
    count = max(context.batch, bucket)
    return Loop(
        engine, limits, feed, stage=stage.id, count=count, chunk=chunk, bucket=bucket, samplers=samplers, held=held
    )


def _settings(spec: EngineSpec, count: int, samplers: Sequence[str], held: Collection[str]) -> dict[str, Array]:
    """Arrays [rows, ...] of the inputs that hold for a whole request, at values that change nothing."""
    values = {prefix + name: value for prefix in samplers for name, value in NEUTRAL.items()}
    values |= dict.fromkeys(held, 0.0)
    return {
        tensor.name: np.full(tensor.resolve({"batch": count}), values[tensor.name], tensor.dtype)
        for tensor in spec.inputs
        if tensor.name in values
    }


def _value(sampling: Sampling, name: str, vocab: int) -> Any:
    if name != "logit_bias":
        return getattr(sampling, name)
    bias = np.zeros(vocab, np.float32)
    for token, value in sampling.logit_bias.items():
        bias[token] = value
    return bias
