"""What flows through ports: one small class per payload kind that is more than an array; `kind` is its name.

Kinds that only stages read (codec, latent) are plain arrays, numpy on the CPU and DLPack on a device.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy as np


@attrs.frozen(kw_only=True)
class Logprob:
    """One candidate of one generated token: its id, text, UTF-8 bytes and natural-log probability."""

    token_id: int
    token: str
    bytes: tuple[int, ...]
    logprob: float


@attrs.frozen(kw_only=True)
class TextChunk:
    """A piece of text as it is written.

    Attributes:
        text: whole characters only, never a cut UTF-8 sequence; may be "" while one is incomplete.
        ids: token ids behind it, in order.
        logprobs: for each id the best candidates, best first; empty unless asked for.
    """

    kind: ClassVar[str] = "text"

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[tuple[Logprob, ...], ...] = ()


@attrs.frozen(kw_only=True, eq=False)
class AudioChunk:
    """Samples as they are made: float32 in [-1, 1], shape [samples] (mono) or [samples, channels]."""

    kind: ClassVar[str] = "audio"

    samples: np.ndarray[Any, np.dtype[np.float32]]
    sample_rate: int


@attrs.frozen(kw_only=True, eq=False)
class HiddenChunk:
    """Hidden states of tokens that a backbone was fed, in order: of the whole prompt, then of what it wrote.

    Attributes:
        ids: int64 [tokens], media placeholders among them.
        values: [tokens, hidden], in the backbone's dtype.
        positions: float32 [3, tokens], rotary positions in time, height and width (in a video they may have fractions);
            None where all three are the token's place in the sequence. A reader that reads only parts of a prompt needs
            what pictures made of them.
    """

    kind: ClassVar[str] = "hidden"

    ids: np.ndarray[Any, np.dtype[np.int64]]
    values: np.ndarray[Any, Any]
    positions: np.ndarray[Any, np.dtype[np.float32]] | None = None
