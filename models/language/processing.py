"""A request's messages to token ids, and token ids to streamed text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date as Date
from pathlib import Path
from typing import Any

import attrs

from framework.errors import ConfigError, Problem, StageError
from framework.execution.payloads import Logprob, TextChunk
from framework.execution.runner import Row
from framework.execution.sampling import Sampling
from framework.io.chat import ChatTemplate
from framework.io.stops import StopStrings
from framework.io.tokens import Detokenizer, Tokenizer
from models.language.media import check_kinds, media_parts

Message = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Prompt:
    """Token ids, and the text they came from, of the whole request and of its system messages alone."""

    ids: tuple[int, ...]
    text: str
    system: str


class TextProcessor:
    """Tokenizer and chat template of one engine folder."""

    def __init__(self, folder: Path, date: Date | None = None) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self._template = ChatTemplate.load(folder, date)
        self._folder = folder

    def prompt(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        readable: Collection[str] = (),
        *,
        buildable: bool = False,
    ) -> Prompt:
        """Render and encode, with one placeholder for each sound or picture; `options` as in `Request.options`.

        Args:
            readable: types of parts beside text.
            buildable: a build with more components could read more.

        Raises:
            StageError: no messages, nothing in them, a part that is not readable, or a template that refuses them.
            ConfigError: a chat template is asked for and the checkpoint has none.
        """
        check_kinds(messages, readable, buildable=buildable)
        if not media_parts(messages) and not any(_text(message).strip() for message in messages):
            raise StageError(Problem(where="messages", got="no text", expected="a message with text in it"))
        if not options.get("apply_chat_template", True):
            text = "".join(_text(message) for message in messages)
            ids = self.tokenizer.encode(text, add_special_tokens=True)
            return Prompt(ids=tuple(ids), text=text, system="")
        if self._template is None:
            hint = "apply_chat_template=false sends the text as it is"
            raise ConfigError(Problem(where=str(self._folder), got="no chat template", expected="one", hint=hint))
        thinking = bool(options.get("enable_thinking", False))
        generate = bool(options.get("add_generation_prompt", True))
        text = self._template.render(messages, add_generation_prompt=generate, enable_thinking=thinking)
        system = [message for message in messages if message.get("role") == "system"]
        rendered = self._template.render(system, add_generation_prompt=False) if system else ""
        return Prompt(ids=tuple(self.tokenizer.encode(text)), text=text, system=rendered)

    def reply(self, sampling: Sampling) -> Reply:
        return Reply(self.tokenizer, sampling.stop)

    def logprobs(self, ids: Sequence[int], values: Sequence[float]) -> tuple[Logprob, ...]:
        return tuple(
            Logprob(
                token_id=int(id_),
                token=self.tokenizer.decode([int(id_)], skip_special_tokens=False),
                bytes=tuple(self.tokenizer.token_bytes(int(id_))),
                logprob=float(value),
            )
            for id_, value in zip(ids, values, strict=True)
        )


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


class Reply:
    """The text of one reply as its tokens come."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stop)
        self.stopped = False

    def push(self, token: int) -> str:
        """Text that is certain now; sets `stopped` when a stop string was found."""
        text, self.stopped = self._stops.push(self._detokenizer.push(token))
        return text

    def flush(self) -> str:
        """What is left at the end of a reply that no stop string ended."""
        if self.stopped:
            return ""
        text, self.stopped = self._stops.push(self._detokenizer.flush())
        return text if self.stopped else text + self._stops.flush()


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if part.get("type") == "text")
