"""What a decoder was built for, and whether a stage and a request keep to it."""

from __future__ import annotations

import attrs

from framework.engines.base import EngineSpec
from framework.errors import ConfigError, Problem, StageError
from framework.execution.sampling import Sampling
from framework.graph.model import Stage

CANDIDATES = (1, 64, 256, 1024)  # numbers of best tokens a call may look at, before all of them


@attrs.frozen(kw_only=True)
class Limits:
    """The numbers that every row keeps to.

    Attributes:
        prompt: tokens at most.
        cache: entries a row has.
        vocab: token ids.
        candidates: best tokens that every call looks at; 0 where each call says it.
    """

    prompt: int
    cache: int
    vocab: int
    candidates: int

    @classmethod
    def of(cls, spec: EngineSpec, *, prompt: int, cache: int, candidates: int | None) -> Limits:
        """Those of an engine; `candidates` as it was built with, which holds where no call says it."""
        shapes = {tensor.name: tensor.shape for tensor in spec.inputs}
        vocab = int(shapes["logit_bias"][1])
        fixed = 0 if "candidates" in shapes else min(candidates or vocab, vocab)
        return cls(prompt=prompt, cache=cache, vocab=vocab, candidates=fixed)

    def check_prompt(self, count: int, where: str) -> None:
        """Raises StageError for a prompt that does not fit, or leaves no room for a reply."""
        if not count:
            raise StageError(Problem(where=where, got="no tokens", expected="at least one"))
        if count > self.prompt:
            hint = "build with a larger build.max_input_len"
            expected = f"at most {self.prompt}, which the engine was built for"
            raise StageError(Problem(where=where, got=f"{count} tokens", expected=expected, hint=hint))
        if count >= self.cache:
            hint = "build with a larger build.max_kv_cache_capacity"
            expected = f"fewer than the cache's {self.cache}, to leave room for a reply"
            raise StageError(Problem(where=where, got=f"{count} tokens", expected=expected, hint=hint))

    def check_sampling(self, sampling: Sampling, where: str) -> None:
        """Raises StageError for settings about tokens that no call looks at."""
        beyond = [token for token in sampling.logit_bias if not 0 <= token < self.vocab]
        if beyond:
            expected = f"token ids 0 to {self.vocab - 1}"
            raise StageError(Problem(where=f"{where}: logit_bias", got=str(beyond[0]), expected=expected))
        if self.candidates and candidates(sampling, self.vocab) > self.candidates:
            got = f"top_k={sampling.top_k}, num_logprobs={sampling.num_logprobs}"
            hint = "0 means all; build with a larger build.candidates"
            expected = f"at most the {self.candidates} best tokens that the engine looks at"
            raise StageError(Problem(where=f"{where}: sampling", got=got, expected=expected, hint=hint))


def check_budget(stage: Stage, *, rows: int, cache: int, bucket: int = 0) -> None:
    """Raise ConfigError with everything that a stage asks for beyond what its engine was built for."""
    found = [
        ("max_batch", stage.max_batch, rows),
        ("max_seq", stage.max_seq, cache),
        ("config.bucket", bucket, rows),
    ]
    problems = [
        Problem(where=f"stages.{stage.id}.{key}", got=str(got), expected=f"at most {most}, as built")
        for key, got, most in found
        if got > most
    ]
    if problems:
        raise ConfigError(problems)


def considered(sampling: Sampling, vocab: int) -> int:
    """Best tokens that a row chooses from."""
    return (sampling.top_k or vocab) if sampling.temperature > 0 else 1


def candidates(sampling: Sampling, vocab: int) -> int:
    """Best tokens that a row needs to see."""
    return max(considered(sampling, vocab), sampling.num_logprobs)


def looked_at(wanted: int, vocab: int) -> int:
    """Best tokens that a call looks at where a row needs to see `wanted`."""
    return next((n for n in CANDIDATES if wanted <= n < vocab), vocab)
