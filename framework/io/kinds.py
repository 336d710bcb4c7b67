"""Kinds of payload that a caller gets: how the chunks of one are written to a file, and what a prediction says of them.

A new kind is a class of chunks and a row. Those of every deployment stand here; a family declares its own in the
`payloads` of its runners (`framework.graph.model.RunnerDecl`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.results import audio_of, text_of
from framework.io.audio import write_wav


@attrs.frozen(kw_only=True)
class PayloadKind:
    """One kind of payload.

    Attributes:
        chunk: class of its chunks; its `kind` is the name that ports have it by.
        entry: from the chunks of one output, also none, to what a prediction says of them. Raises ValueError for chunks
            that do not go together.
        write: write the chunks of one output to a file and return what a prediction says of it, beside its name. Raises
            ValueError for what cannot be written. None for a kind that has no file.
        suffix: of its files.
        told: from what `write` returned to what the command says of the file.
    """

    chunk: type[Any]
    entry: Callable[[Sequence[Any]], Mapping[str, Any]]
    write: Callable[[Path, Sequence[Any]], Mapping[str, Any]] | None = None
    suffix: str = ""
    told: Callable[[Mapping[str, Any]], str] = lambda written: "written"

    @property
    def name(self) -> str:
        return str(self.chunk.kind)

    def file_name(self, index: int) -> str:
        """Of the file of one request of many."""
        return f"{self.name}_req{index}{self.suffix}"


def _text(chunks: Sequence[TextChunk]) -> dict[str, Any]:
    entry: dict[str, Any] = {"output_text": text_of(chunks)}
    if any(chunk.logprobs for chunk in chunks):
        steps = [step for chunk in chunks for step in chunk.logprobs]
        entry["logprobs"] = [[attrs.asdict(candidate) for candidate in step] for step in steps]
    return entry


def _sound(chunks: Sequence[AudioChunk]) -> dict[str, Any]:
    audio_of(chunks)
    return {}


def _write_sound(path: Path, chunks: Sequence[AudioChunk]) -> dict[str, Any]:
    sound = audio_of(chunks)
    assert sound is not None
    write_wav(path, sound)
    samples = len(sound.samples)
    return {
        "audio_samples": samples,
        "audio_sample_rate": sound.sample_rate,
        "audio_duration_ms": samples * 1000 // sound.sample_rate,
    }


def _tell_sound(written: Mapping[str, Any]) -> str:
    return f"{written['audio_samples'] / written['audio_sample_rate']:.2f} s of speech"


KINDS = {
    row.name: row
    for row in (
        PayloadKind(chunk=TextChunk, entry=_text),
        PayloadKind(chunk=AudioChunk, entry=_sound, write=_write_sound, suffix=".wav", told=_tell_sound),
    )
}
