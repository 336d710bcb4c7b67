"""Templates without end: each is stopped in time and in bounds, and told; ordinary ones do not notice."""

from __future__ import annotations

import threading
import tracemalloc
from time import monotonic

import pytest

from framework.errors import ConfigError, StageError
from framework.io import sandbox
from framework.io.chat import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]
MANY, END = "{% for i in range(99999) %}", "{% endfor %}"
BIG = "{% set b = 'a' * 3000000 %}"


def grown(change: str, start: str = "'a'") -> str:
    """A value that is changed again and again."""
    return "{% set n = namespace(s=" + start + ") %}" + MANY + change + END


TOO_LONG = {
    "loops in loops": MANY * 3 + "x" + END * 3,
    "loops in loops that write nothing": MANY * 3 + END * 3,
    "a macro that calls itself twice": (
        "{% macro m(n) %}{% if n %}{% set a = m(n - 1) %}{% set a = m(n - 1) %}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "comparing": "{% set a = 'a' * 3000000 %}{% set b = 'a' * 3000000 %}" + MANY + "{{ a == b }}" + END,
    "a filter in a loop": BIG + MANY + "{{ b | wordcount }}" + END,
    "adding lists": "{{ range(99999) | map('string') | map('list') | sum(start=[]) | length }}",
    "namespaces in namespaces": grown("{% set n.s = namespace(a=n.s, b=n.s) %}") + "{{ n.s }}",
}
TOO_LARGE = {
    "a literal": "{{ 'a' * 3000000000 }}",
    "a literal that is not written": "{% if 'a' * 3000000000 %}{% endif %}",
    "a literal through a filter": "{{ 'a' | center(3000000000) }}",
    "a list": "{{ ([0] * 3000000000) | length }}",
    "a method": "{{ 'a'.ljust(3000000000) }}",
    "a method of a number": "{{ (1).to_bytes(3000000000, 'big') | length }}",
    "a method of bytes": "{{ 'a'.encode().ljust(3000000000) | length }}",
    "tabs": "{{ ('\t' * 100000).expandtabs(1000000) }}",
    "replacing": BIG + "{{ b.replace('a', b) }}",
    "translating": BIG + "{{ b.translate({97: b}) }}",
    "joining": BIG + "{{ range(99999) | join(b) }}",
    "joining by a method": BIG + "{{ b.join(range(99999) | map('string')) }}",
    "indenting": BIG + "{{ ('a\n' * 100000) | indent(b) }}",
    "indented JSON": "{{ [[1]] | tojson(indent=3000000000) }}",
    "JSON with separators": BIG + "{{ range(1000) | list | tojson(separators=(b, b)) }}",
    "a width": "{{ '%3000000000d' % 1 }}",
    "a width from a value": "{{ '%*d' % (3000000000, 1) }}",
    "a width of a filter": "{{ '%3000000000d' | format(1) }}",
    "a width of format": "{{ '{:3000000000}'.format(1) }}",
    "a width of format from a value": "{{ '{:{w}}'.format(1, w=3000000000) }}",
    "a width of format_map": "{{ '{a:{w}}'.format_map({'a': 1, 'w': 3000000000}) }}",
    "a precision": "{{ '%.3000000000f' % 1.5 }}",
    "rounding": "{{ 1 | round(1000000000, 'ceil') }}",
    "rounding to fewer digits": "{{ 1 | round(1000000, 'ceil') }}",
    "a power": "{{ (9 ** 9) ** (9 ** 9) }}",
    "squares": grown("{% set n.s = n.s * n.s %}", "9"),
    "doubling with +": grown("{% set n.s = n.s + n.s %}"),
    "doubling with ~": grown("{% set n.s = n.s ~ n.s %}"),
    "doubling in a block": grown("{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}"),
    "doubling with join": grown("{% set n.s = [n.s, n.s] | join %}"),
    "doubling with %": grown("{% set n.s = '%s%s' % (n.s, n.s) %}"),
    "doubling with format": grown("{% set n.s = '{0}{0}'.format(n.s) %}"),
    "doubling with replace": grown("{% set n.s = n.s | replace('a', 'aa') %}"),
    "a list of itself twice": grown("{% set n.s = [n.s, n.s] %}") + "{{ n.s }}",
    "a tuple of itself twice": grown("{% set n.s = (n.s, n.s) %}") + "{{ n.s == n.s }}",
    "a mapping of itself twice": grown("{% set n.s = dict(a=n.s, b=n.s) %}") + "{{ n.s }}",
    "a list of itself": grown("{% set n.s = [n.s] %}") + "{{ n.s }}",
    "what a cycler holds": grown("{% set n.s = cycler(n.s.items, n.s.items) %}", "cycler(1)"),
    "arguments of arguments": "{% macro m() %}{{ m(varargs, varargs) }}{% endmacro %}{{ m(1) }}",
    "mapping a filter": "{{ range(99999) | map('center', 3000000) | list | length }}",
    "batches": "{{ [1] | batch(3000000000, 1) | list }}",
    "slices": "{{ [1] | slice(3000000000) | list | length }}",
    "output": BIG + MANY + "{{ b }}" + END,
    "output of a macro": BIG + "{% macro m() %}" + MANY + "{{ b[1:] }}" + END + "{% endmacro %}{{ m() }}",
    "output of lists": "{% set l = ['a' * 3000000] %}{% set x %}" + MANY + "{{ l }}" + END + "{% endset %}",
    "a filter over a block": "{% filter center(3000000000) %}x{% endfilter %}",
}
MALFORMED = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a long sum": "{{ " + " + ".join(["1"] * 20000) + " }}",
    "loops": "{% for i in messages %}" * 30 + END * 30,
    "a number": "{{ " + "9" * 6000 + " }}",
    "length": "x" * 2_000_000,
    "chance": "{{ [1, 2] | random }}",
    "a filter that can be slow": "{{ 'a' | urlize }}",
}


@pytest.mark.parametrize("source", TOO_LONG.values(), ids=TOO_LONG)
def test_work_without_end_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    begin = monotonic()
    with pytest.raises(StageError, match=r"chat template: got more than 0\.2 s of work, expected a prompt within"):
        ChatTemplate(source).render(HELLO)
    assert monotonic() - begin < 3


@pytest.mark.parametrize("source", TOO_LARGE.values(), ids=TOO_LARGE)
def test_values_without_bounds_are_refused_before_they_are_made(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(StageError, match=r"chat template: got .*, expected a template that makes less"):
            ChatTemplate(source).render(HELLO)
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", MALFORMED.values(), ids=MALFORMED)
def test_a_template_that_cannot_be_compiled_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a' * 3 }}{{ [0] * 2 }}{{ 7 // 2 }}{{ 2 ** 5 }}{{ 7 % 4 }}", "aaa[0, 0]3323"),
        ("{{ 'x' ~ 1 ~ none }}{{ [1, 2] + [3] }}", "x1None[1, 2, 3]"),
        ("{% for a, b in {'x': 1}.items() %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{{ a }}{{ b }}{% endfor %}",
         "11Truex1"),
        ("{% for i in [1, [2]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "12"),
        ("{{ messages | map(attribute='role') | list }}{{ [3, 1] | sort | first }}", "['user']1"),
        ("{{ '{:>4}|{}'.format('a', 1) }}{{ '%03d' % 7 }}{{ 'a b'.replace(' ', '-').split('-') | join('+') }}",
         "   a|1007a+b"),
        ("{% set s = namespace(n=0) %}{% for m in messages[::-1] %}{% set s.n = s.n + 1 %}{% endfor %}{{ s.n }}", "1"),
        ("{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{% set j = joiner('-') %}{{ j() }}{{ j() }}", "12-"),
        ("{{ 'a\nb' | indent(2) }}{{ 2.567 | round(1) }}{{ [1, 2] | batch(1) | list | length }}", "a\n  b2.62"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m(x=2) }}", "<1><2>"),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}a{% endcall %}", "<a>"),
        ("{% set x %}{{ 1 }}{% endset %}{{ x is string }}{{ messages[0] is mapping }}", "TrueTrue"),
    ],
)  # fmt: skip
def test_an_ordinary_template_does_not_notice(source: str, expected: str) -> None:
    assert ChatTemplate(source).render(HELLO) == expected


def test_a_long_conversation_is_no_attack() -> None:
    source = "{% for m in messages %}{{ '<' ~ m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": f" {'word ' * 2000}{n}"} for n in range(2000)]
    assert len(ChatTemplate(source).render(messages)) > 20_000_000


def test_renderings_in_several_threads_have_a_meter_each(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content * 1000 }}{% endfor %}")
    found = []
    threads = [threading.Thread(target=lambda: found.append(template.render(HELLO * 700))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["Hello" * 700_000] * 4
