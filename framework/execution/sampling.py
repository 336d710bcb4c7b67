"""Sampling settings of a request, and the noise that belongs to it.

A sampled token depends on the request's seed, the stage and the step alone, never on the batch it ran in:
`uniform()` draws the noise of one step from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC'11) keyed by exactly those three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from attrs import validators as v


def _batch_wide(default: Any, *checks: Any) -> Any:
    """A setting that every request of a cohort must share."""
    return attrs.field(default=default, validator=list(checks), metadata={"batch_wide": True})


@attrs.frozen(kw_only=True)
class Sampling:
    """How the tokens of one autoregressive stage are chosen.

    Attributes:
        temperature: 0 is greedy; must be 0 or more.
        top_k: keep this many best tokens; 0 keeps all.
        top_p: keep the smallest set of best tokens whose probability reaches it, in (0, 1].
        min_p: drop tokens less probable than this share of the best one, in [0, 1].
        repetition_penalty: divide (multiply when negative) logits of tokens already seen; 1 is off.
        max_generate_length: stop after this many tokens.
        num_logprobs: report this many best candidates per token, 0 to 50.
        seed: of this request's noise.
        logit_bias: added to logits, token id to a value in [-100, 100]; at most 1,024 entries.
        stop: strings that end the text; they are not part of it.
    """

    temperature: float = _batch_wide(1.0, v.ge(0.0))
    top_k: int = _batch_wide(50, v.ge(0))
    top_p: float = _batch_wide(0.8, v.gt(0.0), v.le(1.0))
    min_p: float = _batch_wide(0.0, v.ge(0.0), v.le(1.0))
    repetition_penalty: float = _batch_wide(1.0, v.gt(0.0))
    max_generate_length: int = _batch_wide(256, v.ge(1))
    num_logprobs: int = _batch_wide(0, v.ge(0), v.le(50))
    seed: int = attrs.field(default=0, validator=v.ge(0))
    logit_bias: Mapping[int, float] = attrs.field(factory=dict, validator=v.max_len(1024))
    stop: tuple[str, ...] = ()

    def batch_wide(self) -> tuple[Any, ...]:
        """The settings a cohort must share, as a comparable value."""
        return tuple(getattr(self, field.name) for field in attrs.fields(Sampling) if field.name in BATCH_WIDE)


BATCH_WIDE = frozenset(field.name for field in attrs.fields(Sampling) if "batch_wide" in field.metadata)


def uniform(seed: int, stage: str, step: int, size: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Noise of one step of one request.

    Args:
        seed: of the request.
        stage: stage id, so that two stages of one request draw different noise.
        step: index of the token or frame within the stage.
        size: values needed in this step (a codec frame draws one per code group).

    Returns:
        float32 [size], uniform in [0, 1).
    """
    key = int.from_bytes(hashlib.blake2b(f"{seed}:{stage}".encode(), digest_size=16).digest(), "little")
    # The counter's high word is the step, so steps can be drawn in any order and never overlap.
    generator = np.random.Generator(np.random.Philox(key=key, counter=step << 192))
    return generator.random(size, dtype=np.float32)
