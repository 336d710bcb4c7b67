"""Where speech begins and ends in sound that comes in pieces."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import attrs
import numpy as np

RATE = 16_000  # that the detector listens at
FRAME_MS = 20
_FRAME = RATE * FRAME_MS // 1000
_BEGIN, _OF = 6, 7  # so many voiced frames of so many begin speech: a click, which rings for 5, is none


@attrs.frozen(kw_only=True)
class Turn:
    """A change. `at_ms` is the place in the sound, from its first sample: of a start the first voiced frame, of a stop
    the end of the last."""

    kind: Literal["start", "stop"]
    at_ms: int


class Activity:
    """Listens with WebRTC's detector.

    Args:
        rate: of the samples that come, in Hz.
        threshold: 0 takes most for speech, 1 least.
        silence_ms: without a voice after which speech has ended.
    """

    def __init__(self, rate: int, *, threshold: float = 0.5, silence_ms: int = 500) -> None:
        import soxr
        import webrtcvad

        self._detector = webrtcvad.Vad(round(3 * threshold))
        self._resampler = soxr.ResampleStream(rate, RATE, 1, dtype="int16", quality="LQ")
        self._silence = max(1, silence_ms // FRAME_MS)
        self._left = np.zeros(0, np.int16)
        self._recent: deque[bool] = deque(maxlen=_OF)
        self._frames = 0  # heard
        self._quiet = 0  # frames since the last voiced one
        self.speaking = False

    def push(self, samples: np.ndarray[Any, np.dtype[np.int16]]) -> list[Turn]:
        """What changes in these samples."""
        heard = np.concatenate([self._left, self._resampler.resample_chunk(samples)])
        whole = len(heard) // _FRAME * _FRAME
        self._left = heard[whole:]
        return [turn for start in range(0, whole, _FRAME) if (turn := self._frame(heard[start : start + _FRAME]))]

    def _frame(self, frame: np.ndarray[Any, np.dtype[np.int16]]) -> Turn | None:
        voiced = self._detector.is_speech(frame.tobytes(), RATE)
        self._frames += 1
        self._recent.append(voiced)
        self._quiet = 0 if voiced else self._quiet + 1
        if not self.speaking and sum(self._recent) >= _BEGIN:
            self.speaking = True
            return Turn(kind="start", at_ms=max(0, self._frames - _OF) * FRAME_MS)
        if self.speaking and self._quiet >= self._silence:
            self.speaking = False
            self._recent.clear()
            return Turn(kind="stop", at_ms=(self._frames - self._quiet) * FRAME_MS)
        return None
