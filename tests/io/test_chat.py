"""Chat templates: the text that transformers makes of the same messages, and errors that say what is wrong."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError, StageError
from framework.io.chat import ChatTemplate

RECORD = json.loads((Path(__file__).parent / "transformers_text.json").read_text(encoding="utf-8"))
CASES = [
    pytest.param(RECORD[model], case, id=f"{model}: {case['name']}")
    for model in ("smollm2", "qwen3")
    for case in RECORD[model]["cases"]
]
PLAIN = "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] + '\\n' }}{% endfor %}"
PARTS = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


def in_parts(*parts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


IMAGE = {"type": "image", "image": "cat.png"}


@pytest.mark.parametrize(("model", "case"), CASES)
def test_text_is_that_of_transformers(model: dict[str, Any], case: dict[str, Any]) -> None:
    template = ChatTemplate(model["template"], model["special_tokens"])
    assert template.render(case["messages"], **case["options"]) == case["text"]


@pytest.mark.parametrize("model", ["smollm2", "qwen3"])
def test_parts_are_joined_for_a_template_of_text_alone(model: str) -> None:
    template = ChatTemplate(RECORD[model]["template"])
    assert not template.takes_parts
    assert template.render(in_parts(text("Hel"), text("lo"))) == template.render(HELLO)


def test_parts_reach_a_template_that_reads_them() -> None:
    template = ChatTemplate(PARTS)
    assert template.takes_parts
    assert template.render(in_parts(text("What is "), IMAGE, text("?"))) == "What is <image>?"
    assert template.render(HELLO) == "Hello"


def test_image_for_a_template_of_text_alone_is_refused() -> None:
    with pytest.raises(StageError, match=r"messages\[0\]\.content: got a part of type 'image', expected text"):
        ChatTemplate(PLAIN).render(in_parts(text("What is "), IMAGE))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("{{ bos_token }}|{{ eos_token }}", "<s>|", id="special tokens"),
        pytest.param('{{ {"a": "<é>"} | tojson }}', '{"a": "<é>"}', id="JSON without HTML escapes"),
        pytest.param(
            "{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}', id="indent"
        ),
        pytest.param("  {% if true %}\nx\n  {% endif %}\ny", "x\ny", id="lines of blocks vanish"),
        pytest.param(
            "{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012", id="break"
        ),
        pytest.param("a{% generation %}b{% set c = 1 %}{% endgeneration %}{{ c }}", "ab", id="generation"),
        pytest.param("{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}", "2", id="namespace"),
        pytest.param("{{ strftime_now is defined }}", "False", id="no clock"),
        pytest.param("{{ dict(a=1)['a'] }}{{ tools is none }}{{ mode }}", "1Truefast", id="variables"),
    ],
)
def test_helpers_of_hub_templates(source: str, expected: str) -> None:
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO, mode="fast") == expected


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param("{{ raise_exception('Roles must alternate') }}", "Roles must alternate", id="raise_exception"),
        pytest.param("{{ messages[3].content }}", "no element 3", id="missing message"),
        pytest.param("{{ 1 + messages[0].content }}", "unsupported operand", id="types"),
        pytest.param("{{ ''.__class__.__mro__ }}", "unsafe", id="internals of Python"),
        pytest.param("{% set n = namespace() %}{% set n.__class__ = 1 %}", "private", id="private names"),
        pytest.param("{{ messages.append(1) }}", "not safely callable|unsafe", id="changing the messages"),
        pytest.param("{% for i in range(10000000) %}x{% endfor %}", "Range too big", id="endless work"),
    ],
)
def test_template_that_fails_says_so(source: str, said: str) -> None:
    with pytest.raises(StageError, match=said) as caught:
        ChatTemplate(source, where="engines/llm/chat_template.jinja").render(HELLO)
    assert "engines/llm/chat_template.jinja" in str(caught.value)


def test_a_template_is_told_the_date_and_has_no_clock() -> None:
    asks = "{{ strftime_now('%d %b %Y') }}"
    with pytest.raises(StageError, match=r"got a call of strftime_now, expected no clock.*config\.date=2026-01-31"):
        ChatTemplate(asks).render(HELLO)
    assert ChatTemplate(asks, date=date(2024, 7, 26)).render(HELLO) == "26 Jul 2024"
    # As Llama 3's templates do, which know what to say without a clock.
    careful = "{% if strftime_now is defined %}" + asks + "{% else %}26 Jul 2024{% endif %}"
    assert ChatTemplate(careful).render(HELLO) == "26 Jul 2024"


def test_malformed_template_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="chat template: line 2: got"):
        ChatTemplate("a\n{% if %}")


def test_template_is_found_where_checkpoints_keep_it(tmp_path: Path) -> None:
    def rendered() -> str | None:
        template = ChatTemplate.load(tmp_path)
        return template and template.render(HELLO)

    assert rendered() is None
    config: dict[str, Any] = {"bos_token": {"content": "<s>"}, "eos_token": None, "pad_token": "<p>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered() is None
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "list {{ bos_token }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    assert rendered() == "list <s>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "one {{ pad_token }}"}))
    assert rendered() == "one <p>"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json {{ bos_token }}"}))
    assert rendered() == "json <s>"
    (tmp_path / "chat_template.jinja").write_text("jinja {{ eos_token }}{{ bos_token }}")
    assert rendered() == "jinja <s>"
