"""The bodies that the server reads: OpenAI's fields, then those of our own, which its clients send as `extra_body`.

What changes nothing in a reply is read and let be; what would change it and cannot be done is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_CHOICES = 8
MOST_LOGPROBS = 20
LONGEST_INPUT = 32_768  # characters of a text to say

Modality = Literal["text", "audio"]
SoundFormat = Literal["wav", "pcm", "pcm16", "mp3", "flac", "opus", "aac"]
Stops = str | list[str]


class Wire(BaseModel):
    """Of the JSON type that stands there, no number that is none, no field that nobody knows."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Wire):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ReplyAudio(Wire):
    """How a chat reply sounds."""

    format: SoundFormat = "wav"
    voice: str | Mapping[str, str] | None = None


class SpokenBefore(Wire):
    """Sound of an earlier reply, as it was sent; what it said is its transcript."""

    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    transcript: str | None = None


class Message(Wire):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[dict[str, Any]] | None = None
    audio: SpokenBefore | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    function_call: None = None
    tool_calls: list[Any] | None = Field(default=None, max_length=0)


class Sampled(Wire):
    """How tokens are chosen."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: Stops | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    user: str | None = None

    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    sampling: dict[str, Any] | None = Field(default=None, description="settings of one stage or role by its name")
    deadline_s: float | None = Field(default=None, gt=0, description="seconds until the reply must have ended")
    stages: bool | None = Field(default=None, description="report when each stage worked")

    @model_validator(mode="after")
    def _no_penalty(self) -> Sampled:
        for name in ("frequency_penalty", "presence_penalty"):
            if getattr(self, name):
                raise ValueError(f"0 for {name}: use repetition_penalty")
        return self


# Fields of OpenAI's that would change a reply, and what of them is the same as not to give them.
_NONE = (None,)
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "prediction": _NONE,
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "web_search_options": _NONE,
    "moderation": _NONE,
}


class ChatBody(Sampled):
    """Body of `POST /v1/chat/completions`."""

    model: str
    messages: list[Message] = Field(min_length=1)
    modalities: list[Modality] | None = Field(default=None, min_length=1)
    audio: ReplyAudio | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    response_format: dict[str, Any] | None = None

    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    prediction: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: Any = None
    moderation: Any = None

    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    style: dict[str, Any] | None = None
    language: str | None = None
    instructions: str | None = Field(default=None, description="how the reply shall be said")
    enable_thinking: bool | None = None


class CompletionBody(Sampled):
    """Body of `POST /v1/completions`."""

    model: str
    prompt: str | list[str] | list[int] | list[list[int]]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class SpeechBody(Wire):
    """Body of `POST /v1/audio/speech`."""

    model: str
    input: str = Field(min_length=1, max_length=LONGEST_INPUT)
    voice: str | Mapping[str, str] | None = None
    instructions: str | None = None
    response_format: SoundFormat = "mp3"
    speed: float | None = Field(default=None, ge=0.25, le=4)
    stream_format: Literal["audio", "sse"] = "audio"

    language: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    sampling: dict[str, Any] | None = None
    style: dict[str, Any] | None = None
    deadline_s: float | None = Field(default=None, gt=0)
