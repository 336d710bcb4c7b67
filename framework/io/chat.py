"""The checkpoint's chat template: messages to the text that the model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from framework.errors import ConfigError, Problem, StageError
from framework.io.tokens import token_text
from framework.parsing import read_object

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]

# What a template's expressions raise on data they do not expect.
_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_PROBE = "a text of one part"


class ChatTemplate:
    """A Jinja template, run in a sandbox, with the helpers that templates on model hubs expect."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, where: str = "chat template"
    ) -> None:
        """Compiles `source`, whose variables `bos_token`, `eos_token` ... are `special_tokens`. Raises ConfigError with
        the line of a syntax error."""
        import jinja2

        self._where = where
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            problem = Problem(
                where=f"{where}: line {error.lineno}", got=str(error.message), expected="a Jinja template"
            )
            raise ConfigError(problem) from error

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """From chat_template.jinja, chat_template.json or tokenizer_config.json; None when none of them has one."""
        config_path = folder / "tokenizer_config.json"
        config = read_object(config_path) if config_path.exists() else {}
        tokens = {
            name: text for name, entry in config.items() if name.endswith("_token") and (text := token_text(entry))
        }
        if (path := folder / "chat_template.jinja").exists():
            return cls(path.read_text(encoding="utf-8"), tokens, where=str(path))
        path = folder / "chat_template.json"
        path, holder = (path, read_object(path)) if path.exists() else (config_path, config)
        source = holder.get("chat_template")
        if isinstance(source, list):  # several by name
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        return None if source is None else cls(source, tokens, where=f"{path}: chat_template")

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

        Raises StageError when the template refuses the messages, or takes no parts and one is not text.
        """
        if not self.takes_parts:
            messages = [self._flat(number, message) for number, message in enumerate(messages)]
        import jinja2

        try:
            return self._run(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                tools=tools,
                **variables,
            )
        except (jinja2.TemplateError, *_FAULTS) as error:
            expected = "messages that the template takes"
            raise StageError(Problem(where=self._where, got=str(error), expected=expected)) from error

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template reads content that is a list of parts: tried out, for it is declared nowhere."""
        content = [{"type": "text", "text": _PROBE}]
        try:
            text = self._run(messages=[{"role": "user", "content": content}], add_generation_prompt=False)
        except Exception:  # whatever a template that expects a string does with a list
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text

    def _run(self, **variables: Any) -> str:
        return self._template.render(**self._special_tokens, **{"tools": None, "documents": None, **variables})

    def _flat(self, number: int, message: Message) -> Message:
        content = message.get("content")
        if not isinstance(content, list | tuple):
            return message
        for part in content:
            if part.get("type") != "text":
                where = f"messages[{number}].content"
                got = f"a part of type {part.get('type')!r}"
                raise StageError(Problem(where=where, got=got, expected="text, which is all this model takes"))
        return {**message, "content": "".join(part["text"] for part in content)}


def _environment() -> jinja2.Environment:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; here it only scopes."""

        tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

        def parse(self, parser: Any) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    class Namespace(jinja2.utils.Namespace):
        """Private names are refused: the template may come from anywhere and must not reach Python's internals."""

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} is private")
            super().__setitem__(name, value)

    def namespace(*args: Any, **kwargs: Any) -> Namespace:
        made = Namespace()
        for name, value in dict(*args, **kwargs).items():
            made[name] = value
        return made

    environment.globals["namespace"] = namespace
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)  # the function, not the type
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


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
