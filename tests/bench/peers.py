"""The peers: llama.cpp on the same file, transformers in bfloat16 on the same weights. Greedy, each by its
shortest loop; `read` and `decode` as in `ours`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any


class LlamaCpp:
    def __init__(self, file: Path, threads: int) -> None:
        import llama_cpp
        import numpy as np

        self._library, self._numpy = llama_cpp, np
        self._model = llama_cpp.Llama(
            str(file), n_ctx=2048, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def read(self, ids: tuple[int, ...]) -> float:
        begin = perf_counter()
        self._model.reset()
        self._step(ids)
        return len(ids) / (perf_counter() - begin)

    def decode(self, ids: tuple[int, ...], tokens: int) -> float:
        self._model.reset()
        token = self._step(ids)
        begin = perf_counter()
        for _ in range(tokens - 1):
            token = self._step((token,))
        return (tokens - 1) / (perf_counter() - begin)

    def _step(self, ids: tuple[int, ...]) -> int:
        self._model.eval(list(ids))
        logits = self._library.llama_get_logits_ith(self._model.ctx, -1)
        return int(self._numpy.ctypeslib.as_array(logits, (self._model.n_vocab(),)).argmax())


class Transformers:
    def __init__(self, file: Path, threads: int) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, logging

        from framework.checkpoints.checkpoint import open_checkpoint

        logging.set_verbosity_error()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        checkpoint = open_checkpoint(file)
        self._torch = torch
        self._model: Any = LlamaForCausalLM(LlamaConfig.from_dict(dict(checkpoint.config))).eval()
        self._model.to(torch.bfloat16)
        weights = {name: torch.tensor(tensor.array()) for name, tensor in checkpoint.tensors.items()}
        lacking = self._model.load_state_dict(weights, strict=False)
        if lacking.unexpected_keys or set(lacking.missing_keys) - {"lm_head.weight"}:
            raise ValueError(f"weights do not fit: {lacking}")

    def decode(self, ids: tuple[int, ...], tokens: int) -> float:
        token, cache = self._step(self._torch.tensor([ids]), None)
        begin = perf_counter()
        for _ in range(tokens - 1):
            token, cache = self._step(token, cache)
        return (tokens - 1) / (perf_counter() - begin)

    def _step(self, ids: Any, cache: Any) -> tuple[Any, Any]:
        out = self._model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
