"""What the Python API gives back for a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Result, StageReport
from framework.execution.results import speech_of, text_of


@attrs.frozen(kw_only=True, eq=False)
class Reply:
    """The answer to one request.

    Attributes:
        text: all that was written; "" where the deployment writes nothing.
        audio: all that was said: `samples`, float32 in [-1, 1] of shape [samples] or [samples, channels], and
            `sample_rate` in Hz; None where nothing was said.
        finish_reason: why the reply ends where it does, as the stage that gives it says (`end-id`, `max-length` ...);
            None where it does not say.
        stages: what each stage that ran did, by id, in graph order.
        wall_s: seconds from the start of the request to its end; it may have waited before.
    """

    text: str
    audio: AudioChunk | None
    finish_reason: str | None
    stages: Mapping[str, StageReport]
    wall_s: float

    def save_audio(self, path: str | Path) -> None:
        """Write what was said as a WAV file of 16 bits. ValueError where nothing was said."""
        from framework.io.audio import write_wav

        if self.audio is None:
            raise ValueError("this reply has no sound: ask with speak=True")
        write_wav(Path(path), self.audio)


def reply_of(result: Result) -> Reply:
    """The reply that a result holds. Raises the error of a request that failed."""
    if result.error is not None:
        raise result.error
    texts = {
        terminal: chunks for terminal, chunks in result.outputs.items() if chunks and isinstance(chunks[0], TextChunk)
    }
    speech = speech_of(result)
    givers = [terminal.partition(":")[0] for terminal in texts] + ([speech[0]] if speech else [])
    reasons = (result.stages[stage].details.get("finish_reason") for stage in givers if stage in result.stages)
    return Reply(
        text=text_of(next(iter(texts.values()), ())),
        audio=speech[1] if speech else None,
        finish_reason=next((str(reason) for reason in reasons if reason), None),
        stages=result.stages,
        wall_s=result.wall_s,
    )
