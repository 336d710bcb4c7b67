"""A request's messages to token ids, and token ids to streamed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from framework.errors import ConfigError, Problem, StageError
from framework.execution.payloads import Logprob
from framework.execution.sampling import Sampling
from framework.io.chat import ChatTemplate
from framework.io.stops import StopStrings
from framework.io.tokens import Detokenizer, Tokenizer

Message = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Prompt:
    """Token ids, and the text they came from, of the whole request and of its system messages alone."""

    ids: tuple[int, ...]
    text: str
    system: str


class TextProcessor:
    """Tokenizer and chat template of one engine folder."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self._template = ChatTemplate.load(folder)
        self._folder = folder

    def prompt(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Prompt:
        """Render and encode; `options` as in `Request.options`.

        Raises:
            StageError: no messages, no text in them, something else than text, or a template that refuses them.
            ConfigError: a chat template is asked for and the checkpoint has none.
        """
        if media := [problem for number, message in enumerate(messages) for problem in _media(number, message)]:
            raise StageError(media)
        if not any(_text(message).strip() for message in messages):
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


def _media(number: int, message: Message) -> list[Problem]:
    """The parts of a message that are no text; a template might drop them or write a placeholder that means nothing."""
    content = message.get("content")
    kinds = [] if isinstance(content, str) else [part.get("type") for part in content or ()]
    where, expected = f"messages[{number}].content", "text, which is all this model takes"
    return [Problem(where=where, got=f"a part of type {kind!r}", expected=expected) for kind in kinds if kind != "text"]
