"""From text to phoneme ids, and from the network's spectrum to sound.

Reading is the package's own (`hibari.g2p`): numbers, dates, units, abbreviations, unknown words. What it is not made
for is done before it: sentences are found while the text is still coming (`sentences.py`), and text as language models
write it is put into words (`speakable.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from framework.errors import ConfigError, Problem
from models.hibari.config import MAX_PHONEMES, PACKAGE, SAMPLE_RATE
from models.hibari.speakable import speakable

SILENT = 1e-3  # of full scale; speech of this voice peaks at 0.2 to 0.5
JOINT = SAMPLE_RATE // 10  # silence kept on each side where a sentence is cut

Samples = np.ndarray[Any, np.dtype[np.float32]]
Ids = np.ndarray[Any, np.dtype[np.int64]]

_CLAUSE = re.compile(r"(?<=[,;:—…])\s+")


@attrs.frozen(kw_only=True, eq=False)
class Part:
    """A sentence, or a part of one that is too long for the network.

    Attributes:
        ids: int64 [1, tokens], a pad at each end.
        first, last: whether it begins and ends its sentence.
    """

    ids: Ids
    first: bool
    last: bool


class FrontEnd:
    """The package's reader of English, American pronunciation. Takes 0.3 s and 60 MB."""

    def __init__(self) -> None:
        """Raises ConfigError when the package is not installed."""
        try:
            from hibari import dsp
            from hibari.g2p import ASSETS, G2P
        except ImportError as error:
            hint = "pip install 'multistage[hibari]'"
            raise ConfigError(Problem(where="hibari", got=str(error), expected=PACKAGE, hint=hint)) from error
        self._synthesize = dsp.synth
        self._read = G2P()
        _ = self._read.oov  # loaded now, not in the middle of the first unknown word
        self._vocabulary: dict[str, int] = json.loads(Path(ASSETS, "vocab.json").read_text(encoding="utf-8"))

    def phonemes(self, sentence: str) -> str:
        """In the network's alphabet; "" for a sentence without a word in it."""
        read = "".join(char for char in self._read(speakable(sentence)) if char in self._vocabulary).strip()
        return read if any(char.isalpha() for char in read) else ""

    def parts(self, sentence: str) -> list[Part]:
        """The whole sentence, in as many parts as it needs; none when there is no word in it."""
        pieces = [piece for piece in pack(self.phonemes(sentence), MAX_PHONEMES) if any(map(str.isalpha, piece))]
        return [
            Part(ids=self._ids(piece), first=number == 0, last=number == len(pieces) - 1)
            for number, piece in enumerate(pieces)
        ]

    def waveform(self, spectrum: Sequence[Samples], noise: np.random.Generator) -> Samples:
        """The network's outputs, float32 [601, frames] and pitch [frames], as sound: float32 [300 * frames]."""
        samples: Samples = self._synthesize(*spectrum, noise)
        return samples

    def _ids(self, phonemes: str) -> Ids:
        return np.array([[0, *(self._vocabulary[char] for char in phonemes), 0]], np.int64)


def pack(phonemes: str, limit: int) -> list[str]:
    """As few pieces of at most `limit` characters as can be, cut behind clauses, else between words, else anywhere."""
    if len(phonemes) <= limit:
        return [phonemes] if phonemes else []
    pieces = [""]
    for clause in _CLAUSE.split(phonemes):
        for unit in [clause] if len(clause) <= limit else _words(clause, limit):
            longer = f"{pieces[-1]} {unit}".lstrip()
            if len(longer) <= limit:
                pieces[-1] = longer
            else:
                pieces.append(unit)
    return [piece for piece in pieces if piece]


def _words(clause: str, limit: int) -> list[str]:
    return [word[start : start + limit] for word in clause.split() for start in range(0, len(word), limit)]


def joined(samples: Samples, part: Part) -> Samples:
    """Without the long silence at the sides where the sentence goes on; a whole sentence as it is."""
    loud = np.flatnonzero(np.abs(samples) > SILENT)
    if not len(loud):
        return samples
    start = 0 if part.first else max(0, loud[0] - JOINT)
    stop = len(samples) if part.last else loud[-1] + 1 + JOINT
    return samples[start:stop]
