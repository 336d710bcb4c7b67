"""The checkpoint's chat template: messages to the text that the model was trained on.

A prompt depends on the request alone, so a template has no clock: `strftime_now` is there only where a date is given.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import date as Date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from framework.errors import ConfigError, Problem, StageError
from framework.execution.request import message_text
from framework.io.tokens import token_text
from framework.parsing import no_utf8, read_object

if TYPE_CHECKING:
    from framework.io.sandbox import Environment

Message = Mapping[str, Any]

# What a template's expressions raise on data they do not expect.
_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PROBE = "a text of one part"


class ChatTemplate:
    """A Jinja template, run in a sandbox, with the helpers that templates on model hubs expect."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        where: str = "chat template",
        date: Date | None = None,
    ) -> None:
        """Compiles `source`, whose variables `bos_token`, `eos_token` ... are `special_tokens`.

        Args:
            date: what `strftime_now` says it is. Without one a template finds no such function.

        Raises ConfigError with the line of a syntax error.
        """
        import jinja2

        from framework.io import sandbox

        self._where = where
        self._special_tokens = dict(special_tokens or {})
        self._rendering = threading.Lock()
        clock = {} if date is None else {"strftime_now": date.strftime}
        helpers = {"raise_exception": _refuse, **clock}
        try:
            self._template = sandbox.compiled(source, globals=helpers, filters={"tojson": _to_json})
        except jinja2.TemplateSyntaxError as error:
            problem = Problem(
                where=f"{where}: line {error.lineno}", got=str(error.message), expected="a Jinja template"
            )
            raise ConfigError(problem) from error
        except sandbox.TooMuch as error:
            raise ConfigError(Problem(where=where, got=str(error), expected=error.allowed)) from error
        except (*_FAULTS, MemoryError, SyntaxError) as error:  # nested too deep for a parser, a number too long
            raise ConfigError(Problem(where=where, got=str(error), expected="a Jinja template")) from error

    @classmethod
    def load(cls, folder: Path, date: Date | None = None) -> ChatTemplate | None:
        """From chat_template.jinja, chat_template.json or tokenizer_config.json; None when none of them has one.

        Raises ConfigError for files that are malformed.
        """
        config_path = folder / "tokenizer_config.json"
        config = read_object(config_path) if config_path.exists() else {}
        tokens = {
            name: text for name, entry in config.items() if name.endswith("_token") and (text := token_text(entry))
        }
        if (path := folder / "chat_template.jinja").exists():
            return cls(_text_of(path), tokens, where=str(path), date=date)
        path = folder / "chat_template.json"
        path, holder = (path, read_object(path)) if path.exists() else (config_path, config)
        source = holder.get("chat_template")
        if isinstance(source, list):  # several by name
            named = [entry for entry in source if isinstance(entry, Mapping) and entry.get("name") == "default"]
            source = next((entry.get("template") for entry in named), None)
        if source is None:
            return None
        if not isinstance(source, str):
            got = type(source).__name__
            raise ConfigError(Problem(where=f"{path}: chat_template", got=got, expected="a Jinja template"))
        return cls(source, tokens, where=f"{path}: chat_template", date=date)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt.

        Args:
            messages: objects with `role` and `content`, a string or a list of parts (`{"type": "text", "text": ...}`).
                For a template that takes strings alone the texts of the parts are joined.
            add_generation_prompt: end with the start of the assistant's turn.
            enable_thinking: for templates that know it.
            tools: JSON schemas of functions, for templates that know them.
            variables: anything else the template reads.

        Raises StageError when the template refuses the messages, or takes no parts and one is not text, and when it
        takes longer or makes more text than a template may (see `framework.io.sandbox`).
        """
        import jinja2

        from framework.io.sandbox import TooMuch

        try:
            if not self.takes_parts:
                messages = [self._flat(number, message) for number, message in enumerate(messages)]
            return self._run(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                tools=tools,
                **variables,
            )
        except TooMuch as error:
            raise StageError(Problem(where=self._where, got=str(error), expected=error.allowed)) from error
        except (jinja2.TemplateError, MemoryError, *_FAULTS) as error:
            if isinstance(error, jinja2.UndefinedError) and "strftime_now" in str(error):
                got, expected = "a call of strftime_now", "no clock: the prompt would change from day to day"
                hint = "the stage's config.date=2026-01-31 is the day that it is told"
                raise StageError(Problem(where=self._where, got=got, expected=expected, hint=hint)) from error
            got, expected = str(error) or type(error).__name__, "messages that the template takes"
            raise StageError(Problem(where=self._where, got=got, expected=expected)) from error

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template reads content that is a list of parts: tried out, for it is declared nowhere."""
        from framework.io.sandbox import TooMuch

        content = [{"type": "text", "text": _PROBE}]
        try:
            text = self._run(messages=[{"role": "user", "content": content}], add_generation_prompt=False)
        except TooMuch:
            raise
        except Exception:  # whatever a template that expects a string does with a list
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text

    def _run(self, **variables: Any) -> str:
        from framework.io.sandbox import Meter

        given = {**self._special_tokens, "tools": None, "documents": None, **variables}
        environment: Environment = self._template.environment  # type: ignore[assignment]
        with self._rendering:
            environment.meter = Meter(given)
            return environment.concat(self._template.generate(given))

    def _flat(self, number: int, message: Message) -> Message:
        content = message.get("content")
        if not isinstance(content, list | tuple):
            return message
        for part in content:
            if part.get("type") != "text":
                where = f"messages[{number}].content"
                got = f"a part of type {part.get('type')!r}"
                raise StageError(Problem(where=where, got=got, expected="text, which is all this model takes"))
        return {**message, "content": message_text(message)}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(no_utf8(error, str(path), error.start)) from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
