"""What a request asks of a backbone, checked before it takes a row's place in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from framework.errors import Problem, StageError
from framework.execution.payloads import TextChunk
from framework.execution.runner import Row
from framework.execution.sampling import Sampling
from models.language.rows import considered


@attrs.frozen(kw_only=True)
class Limits:
    """What an engine was built for.

    Attributes:
        prompt: tokens at most.
        cache: entries a row has.
        vocab: token ids.
        candidates: best tokens that every call looks at; 0 when each call says it.
    """

    prompt: int
    cache: int
    vocab: int
    candidates: int

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


def candidates(sampling: Sampling, vocab: int) -> int:
    """Best tokens a row needs to see."""
    return max(considered(sampling, vocab), sampling.num_logprobs)


def messages_of(row: Row, system: str) -> Sequence[Mapping[str, Any]]:
    """What is said to the model: the request's messages, sound in them replaced by what a stage heard in it.

    Text of another stage on `prompt` is what the user says. `system` goes before messages that have no system message.
    Raises StageError when nothing was heard: what the sound was meant to say cannot be known.
    """
    chunks = row.inputs["prompt"].drain()
    messages = [_said(chunks)] if chunks and isinstance(chunks[0], TextChunk) else list(chunks[0])
    if "transcript" in row.inputs:
        heard = _said(row.inputs["transcript"].drain())["content"]
        if not heard:
            where = f"request {row.request.index}: audio"
            raise StageError(Problem(where=where, got="no speech in it", expected="something said"))
        messages = [_heard(message, heard) for message in messages]
    if system and not any(message.get("role") == "system" for message in messages):
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _said(chunks: Sequence[TextChunk]) -> dict[str, str]:
    return {"role": "user", "content": "".join(chunk.text for chunk in chunks).strip()}


def _heard(message: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return message
    parts = [{"type": "text", "text": text} if part.get("type") == "audio" else part for part in content or ()]
    return {**message, "content": parts}
