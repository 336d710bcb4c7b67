"""What is told of a request that ran: deltas while it runs, and the sums at its end."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from framework.execution.payloads import AudioChunk, TextChunk
from framework.execution.request import Result
from framework.serve import reading
from framework.serve.encoding import Encoder, encoded, encoder
from framework.serve.faults import Refused, body, refused

KEPT_S = 3600  # told as the time for which a sound can be named: nothing here keeps one, and the field is required
UNLIKELY = -9999.0  # OpenAI's own value for a token that is not among the best
_FINISH = {"end-of-sequence": "stop", "stop-words": "stop", "max-length": "length"}


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex[:24]}"


def sse(value: Mapping[str, Any] | str) -> bytes:
    """One event of a stream."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def sse_error(error: Exception) -> bytes:
    """The last event of a stream that fails: OpenAI's clients raise it."""
    return sse(body(refused(error)))


def finish_reason(result: Result) -> str:
    """Of the stage that writes, else of the first that says why it ended."""
    for report in result.stages.values():
        if (reason := report.details.get("finish_reason")) is not None:
            return _FINISH.get(reason, "stop")
    return "stop"


def raise_for(result: Result) -> None:
    """Raise the error of a request that failed."""
    if result.ok:
        return
    assert result.error is not None
    due = result.request.deadline_s
    if due is not None and not result.cancelled and result.wall_s >= due:
        known = refused(result.error)
        raise Refused(known.problems, status=504, code="deadline_exceeded")
    raise result.error


def usage(results: Sequence[Result]) -> dict[str, Any]:
    """Tokens of all choices; of the prompt, which they share, once."""
    prompt = max((_count(result, "prompt_tokens") for result in results), default=0)
    written = sum(_count(result, "generated_tokens") for result in results)
    frames = sum(_count(result, "frames") for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "completion_tokens_details": {"audio_tokens": frames, "reasoning_tokens": 0},
    }


def _count(result: Result, key: str) -> int:
    """The first stage that counts: a transcript's tokens are no part of a chat's reply."""
    writer = next((chunks and terminal for terminal, chunks in result.outputs.items() if chunks), "")
    reports = result.stages
    own = reports.get(str(writer).partition(":")[0])
    if own is not None and key in own.details:
        return int(own.details[key])
    return next((int(report.details[key]) for report in reports.values() if key in report.details), 0)


def stages(result: Result) -> dict[str, Any]:
    """When each stage worked, in seconds since the request came."""
    return {
        stage: {
            "start_s": round(report.start_s, 6),
            "first_output_s": None if report.first_output_s is None else round(report.first_output_s, 6),
            "end_s": round(report.end_s, 6),
            "busy_s": round(report.busy_s, 6),
            "steps": report.steps,
        }
        for stage, report in result.stages.items()
    }


def transcripts(result: Result) -> dict[str, str]:
    """What stages heard in recordings, where that is not the reply itself."""
    return {
        stage: report.details["transcript"]
        for stage, report in result.stages.items()
        if "transcript" in report.details and f"{stage}:text" not in result.outputs
    }


def logprobs(chunk: TextChunk, shown: int) -> list[dict[str, Any]]:
    """For each token of a chunk its own log-probability, and the `shown` best."""
    found = []
    for token, best in zip(chunk.ids, chunk.logprobs, strict=False):
        own = next((one for one in best if one.token_id == token), None)
        text = chunk.text if own is None else own.token
        found.append(
            {
                "token": text,
                "bytes": list(text.encode() if own is None else own.bytes),
                "logprob": UNLIKELY if own is None else own.logprob,
                "top_logprobs": [
                    {"token": one.token, "bytes": list(one.bytes), "logprob": one.logprob} for one in best[:shown]
                ],
            }
        )
    return found


class Choice:
    """One choice of a chat reply, taken in chunk by chunk.

    Args:
        spoken: whether sound was asked for; the text is then its transcript.
        sound: the format of the sound.
        shown: best tokens to report, None for no log-probabilities.
    """

    def __init__(self, index: int, *, spoken: bool, sound: str, shown: int | None) -> None:
        self.index = index
        self.spoken = spoken
        self.result: Result | None = None
        self._sound = sound
        self._shown = shown
        self._audio_id = new_id("audio_")
        self._expires = int(time.time()) + KEPT_S
        self._text: list[str] = []
        self._sounds: list[AudioChunk] = []
        self._logprobs: list[dict[str, Any]] = []
        self._encoder: Encoder = encoder(sound)

    def take(self, chunk: Any) -> dict[str, Any] | None:
        """The choice of a streamed event for this chunk; None when it shows nothing new."""
        if isinstance(chunk, TextChunk):
            self._text.append(chunk.text)
            found = [] if self._shown is None else logprobs(chunk, self._shown)
            self._logprobs += found
            if not chunk.text and not found:
                return None
            said = {"audio": {"id": self._audio_id, "transcript": chunk.text}}
            return self._event(said if self.spoken else {"content": chunk.text}, found)
        if isinstance(chunk, AudioChunk):
            self._sounds.append(chunk)
            return self._sound_event(self._encoder.push(chunk))
        return None

    def keep(self, chunk: Any) -> None:
        """As `take` where nothing is streamed: sound is encoded once, at the end."""
        if isinstance(chunk, AudioChunk):
            self._sounds.append(chunk)
        else:
            self.take(chunk)

    def first(self) -> dict[str, Any]:
        return self._event({"role": "assistant", "content": None if self.spoken else ""})

    def last(self, result: Result) -> list[dict[str, Any]]:
        """What closes a streamed choice."""
        events = list(filter(None, [self._sound_event(self._encoder.close())]))
        closing = {"audio": {"id": self._audio_id, "expires_at": self._expires}} if self.spoken else {}
        return [*events, {**self._event(closing), "finish_reason": finish_reason(result)}]

    def whole(self, result: Result) -> dict[str, Any]:
        """The choice of a reply that is not streamed."""
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self.spoken:
            audio = _joined(self._sounds)
            data = base64.b64encode(encoded(self._sound, audio)).decode()
            held = {"id": self._audio_id, "data": data, "expires_at": self._expires, "transcript": text}
            message |= {"content": None, "audio": held}
        known = None if self._shown is None else {"content": self._logprobs, "refusal": None}
        return {"index": self.index, "message": message, "logprobs": known, "finish_reason": finish_reason(result)}

    def _sound_event(self, data: bytes) -> dict[str, Any] | None:
        if not data:
            return None
        return self._event({"audio": {"id": self._audio_id, "data": base64.b64encode(data).decode()}})

    def _event(self, delta: Mapping[str, Any], found: Sequence[Any] = ()) -> dict[str, Any]:
        known = {"content": list(found), "refusal": None} if found else None
        return {"index": self.index, "delta": dict(delta), "logprobs": known, "finish_reason": None}


def _joined(sounds: Sequence[AudioChunk]) -> AudioChunk:
    from framework.execution.results import audio_of

    sound = audio_of(sounds)
    assert sound is not None  # or the request had failed (`framework.execution.results.complete`)
    return sound


def has_sound(kinds: frozenset[str]) -> bool:
    return reading.SOUND in kinds


def legacy_logprobs(chunks: Sequence[TextChunk], shown: int, offset: int = 0) -> dict[str, Any]:
    """Log-probabilities as `POST /v1/completions` tells them; offsets are characters from the start of the reply."""
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in chunks:
        for one in logprobs(chunk, shown):
            found["tokens"].append(one["token"])
            found["token_logprobs"].append(one["logprob"])
            found["top_logprobs"].append({best["token"]: best["logprob"] for best in one["top_logprobs"]})
            found["text_offset"].append(offset)
        offset += len(chunk.text)
    return found
