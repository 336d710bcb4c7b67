"""Our side: the command's own graph, runner and executor; and the bare engine, which shows what those add."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

DEPLOYMENT = "deployment=smollm2"
PROSE = "The light of the harbour was seen by every ship that came home from the sea that winter. "


def configured(*overrides: str, deployment: str = DEPLOYMENT) -> Any:
    """The command's config (`InferenceConfig`) of a preset with these overrides."""
    from framework.cli.composition import Composer, values_of
    from framework.deployment.config import InferenceConfig
    from framework.schema import structure

    with Composer("inference", [deployment, *overrides]) as composer:
        return structure(InferenceConfig, values_of(composer.compose()), where="")


class Ours:
    """An executor over the engines in `folder`; `rows` requests fit in a cohort."""

    def __init__(self, folder: Path, threads: int, rows: int) -> None:
        from framework.deployment.system import deployed, make_executor
        from framework.io.tokens import Tokenizer

        config = configured(f"engine_dir={folder}", f"backend.threads={threads}", f"batching.size={rows}")
        self._executor = make_executor(config, deployed(config), rows)
        self._tokenizer = Tokenizer.load(folder)
        self._folder = folder

    def prompt(self, tokens: int) -> list[int]:
        """Ids of the prompt that `read` and `decode` use."""
        ids = self._tokenizer.encode(PROSE * (tokens // 8 + 1))[:tokens]
        if self._tokenizer.encode(self._tokenizer.decode(ids)) != ids:
            raise ValueError(f"the prose cannot be cut at {tokens} tokens")
        return ids

    def read(self, prompt: int) -> float:
        """Prompt tokens a second, up to the first token of the reply."""
        begin = perf_counter()
        return prompt / (self._times(prompt, 1, 1)[0] - begin)

    def decode(self, prompt: int, tokens: int, rows: int = 1) -> float:
        """Tokens a second of `rows` replies together, from the first token of each to the last."""
        times = self._times(prompt, tokens, rows)
        return rows * (tokens - 1) / (times[-1] - times[rows - 1])

    def cached(self, prompt: str, tokens: int) -> int:
        """Bytes of cache filled after a chat message was answered with at most so many tokens."""
        from framework.engines import manifest

        caches = [state.input for state in manifest.read(self._folder).spec.states if len(state.input.shape) == 4]
        token = 0
        for cache in caches:
            _, heads, _, width = cache.shape
            token += int(heads) * int(width) * np.dtype(cache.dtype).itemsize
        details = self._run([_request(0, prompt, {"max_generate_length": tokens})], [])[0].stages["thinker"].details
        return token * int(details["prompt_tokens"] + details["generated_tokens"])

    def _times(self, prompt: int, tokens: int, rows: int) -> list[float]:
        """When each token came."""
        text, times = self._tokenizer.decode(self.prompt(prompt)), list[float]()
        endless = {"max_generate_length": tokens, "logit_bias": {id_: -100.0 for id_ in self._tokenizer.eos_ids}}
        requests = [_request(index, text, endless, apply_chat_template=False) for index in range(rows)]
        for result in self._run(requests, times):
            details = result.stages["thinker"].details
            if (details["prompt_tokens"], details["generated_tokens"]) != (prompt, tokens):
                raise ValueError(f"not {prompt} tokens read and {tokens} written: {details}")
        return times

    def _run(self, requests: list[Any], times: list[float]) -> list[Any]:
        results = list(self._executor.run(requests, on_chunk=lambda *_: times.append(perf_counter())))
        for result in results:
            if result.error is not None:
                raise result.error
        return results


def _request(index: int, text: str, sampling: dict[str, Any], **options: bool) -> Any:
    from framework.execution.request import Request

    messages = [{"role": "user", "content": text}]
    greedy = {"default": {"temperature": 0.0, **sampling}}
    return Request(index=index, fields={"messages": messages}, sampling=greedy, options=options)


class BareEngine:
    """The engine alone: no graph, no runner, no text."""

    def __init__(self, folder: Path, threads: int) -> None:
        from framework.engines.backend import open_engine
        from framework.engines.ort.backend import OnnxRuntimeCpu

        self._engine = open_engine(folder, OnnxRuntimeCpu(threads=threads))
        self._states = self._engine.new_states(1)
        self._calls: dict[int, Any] = {}

    def read(self, prompt: int) -> float:
        """As `Ours.read`."""
        begin = perf_counter()
        self._step(np.full((1, prompt), 1000, np.int64), 0)
        return prompt / (perf_counter() - begin)

    def decode(self, prompt: int, tokens: int) -> float:
        """As `Ours.decode`."""
        token = self._step(np.full((1, prompt), 1000, np.int64), 0)
        begin = perf_counter()
        for length in range(prompt, prompt + tokens - 1):
            token = self._step(token, length)
        return (tokens - 1) / (perf_counter() - begin)

    def _step(self, ids: np.ndarray[Any, np.dtype[np.int64]], length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        width = ids.shape[1]
        if width not in self._calls:
            call = self._engine.bind({"tokens": width, "candidates": 1}, self._states)
            for name in ("top_p", "repetition_penalty"):
                call.write(name, np.ones(1, np.float32))
            call.write("candidates", np.array([1], np.int64))
            call.write("token_counts", np.array([width], np.int64))
            self._calls[width] = call
        call = self._calls[width]
        call.write("ids", ids)
        call.write("past_lengths", np.array([length], np.int64))
        call()
        return call.read("token")
