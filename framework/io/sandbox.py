"""Jinja templates that come from anywhere: in time, in bounds, and with nothing of Python within reach.

Jinja's own sandbox keeps a template from Python's internals, but not from work without end: loops in loops, texts that
double, `'a' * 3000000000` (which Jinja computes when it compiles), widths of a format. Here every loop, call, operator
and filter passes a `Meter`. Between two of its looks at the clock there is one operation on values of bounded size, so
that no process or thread is needed to stop a template, and an ordinary one is hardly slower.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from functools import wraps
from itertools import chain
from time import monotonic
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

SECONDS = 5.0  # of one rendering
SIZE = 4_000_000  # characters of the largest value, beside twice what comes in
MADE = 64_000_000  # characters of all values that are made, beside 32 times what comes in
SOURCE = 1_000_000  # characters of a template
_ITEM = 16  # characters that an entry of a list counts for, beside its own
_STEP = 64  # and that a turn of a loop does
_DEPTH = 50  # lists in lists
_BITS = 1 << 16  # of a whole number

_LESS = "a template that makes less"

# Filters whose work is not bounded by what goes in and out, and the one that chooses by chance.
_LEFT_OUT = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
_WIDTHS_FROM_VALUES = re.compile(r"\*|\{[^{}]*:[^{}]*\{")


class TooMuch(Exception):
    """A template wants more than it may have; its text is what, and `allowed` how much there is."""

    def __init__(self, got: str, allowed: str) -> None:
        super().__init__(got)
        self.allowed = allowed


class Meter:
    """What one rendering may still take.

    Args:
        given: values that come in. A template may do more with more.
    """

    def __init__(self, given: Any = ()) -> None:
        size = _weight(given, most=1 << 62)
        self._size, self._left = SIZE + 2 * size, MADE + 32 * size
        self._end = monotonic() + SECONDS

    def look(self) -> None:
        """Raises TooMuch when the time is over."""
        if monotonic() > self._end:
            raise TooMuch(f"more than {SECONDS:g} s of work", f"a prompt within {SECONDS:g} s")

    def fits(self, size: int) -> None:
        """Raises TooMuch for a value that would be larger than any may be."""
        if size > self._size:
            raise TooMuch(f"a value of more than {self._size:,} characters", _LESS)

    def held(self, value: Any) -> Any:
        """The value, if it is not too large."""
        self.look()
        self.fits(_weight(value, self._size))
        return value

    def made(self, value: Any) -> Any:
        """A new value, if there is room for it beside all others. What is made item by item is metered as it is."""
        if type(value) is str:  # as nearly all are
            size = len(value)
        elif isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return map(self.made, self.steps(value))
        else:
            size = _weight(value, self._size)
        self.look()
        self.fits(size)
        self._spend(size)
        return value

    def steps(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each a turn of a loop."""
        for item in items:
            self._spend(_STEP)
            yield self.held(item)

    def joined(self, parts: Iterable[Any]) -> str:
        texts = [str(self.held(part)) for part in parts]
        self.fits(sum(map(len, texts)))
        return str(self.made("".join(texts)))

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooMuch("more text and lists in between than there is room for", _LESS)


def compiled(source: str, *, globals: Mapping[str, Any], filters: Mapping[str, Any]) -> jinja2.Template:
    """The template; its environment's `meter` is to be set before it renders.

    Raises what Jinja and Python raise for a malformed one, and TooMuch for one that is too long.
    """
    if len(source) > SOURCE:
        raise TooMuch(f"{len(source):,} characters", f"at most {SOURCE:,}")
    environment = Environment()
    environment.globals |= globals
    environment.filters |= {name: _metered(environment, name, filter_) for name, filter_ in filters.items()}
    tree = environment.parse(source)
    _Metering().visit(tree)
    return environment.from_string(tree)


class Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with everything metered; see the module."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        extensions = [_Generation, jinja2.ext.loopcontrols]
        self.meter = Meter()
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False, finalize=self._written
        )
        kept = {name: filter_ for name, filter_ in self.filters.items() if name not in _LEFT_OUT}
        self.filters = {name: _metered(self, name, filter_) for name, filter_ in kept.items()}
        self.filters |= {
            "metered loop": lambda items: self.meter.steps(items),
            "metered text": lambda parts: self.meter.joined(parts),
            "metered value": lambda value: self.meter.made(value),
        }
        self.globals = {
            **{name: self.globals[name] for name in ("range", "cycler", "joiner")},
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # the function, not the type
            "namespace": _namespace,
        }

    def concat(self, parts: Iterable[str]) -> str:
        """The text of a macro, of a block, or of all."""
        texts, size = [], 0
        for text in parts:
            texts.append(text)
            size += len(text)
            self.meter.fits(size)
        return str(self.meter.made("".join(texts)))

    def _written(self, value: Any) -> Any:
        return self.meter.made(value if isinstance(value, str) else str(value))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operator(self.meter, operator, left, right)
        return self.meter.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            __self.meter.held((args, kwargs))
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, (str, bytes, int, float)):
            if name == "join" and args and not isinstance(args[0], Sized):
                args = ([*args[0]], *args[1:])
            _check_method(__self.meter, owner, name, args, kwargs)
        return __self.meter.made(super().call(__context, __obj, *args, **kwargs))


class _Metering(NodeTransformer):
    """Puts loops, `~` and what is written as a list or mapping through the meter."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _through("metered loop", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("metered text", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._value(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._value(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._value(node, [part for pair in node.items for part in (pair.key, pair.value)])

    def _value(self, node: nodes.Expr, parts: Iterable[nodes.Node]) -> nodes.Node:
        constant = all(isinstance(part, nodes.Const) for part in parts)
        self.generic_visit(node)
        return node if constant else _through("metered value", node)


def _through(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; here it only scopes."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """Private names are refused: the template may come from anywhere and must not reach Python's internals."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"namespace attribute {name!r} is private")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"  # its values may be namespaces, many times over


def _namespace(*args: Any, **kwargs: Any) -> _Namespace:
    made = _Namespace()
    for name, value in dict(*args, **kwargs).items():
        made[name] = value
    return made


# --- what may become much larger than what it is made of --------------------------------------------------------------


def _metered(environment: Environment, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    plain = not hasattr(filter_, "jinja_pass_arg")

    @wraps(filter_)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = environment.meter
        value, *given = args if plain else args[1:]
        if name == "join" and not isinstance(value, Sized):
            value = [*value]
            args = (value, *args[1:]) if plain else (args[0], value, *args[2:])
        if given or kwargs:
            given += kwargs.values()
            meter.held(given)
            _check_filter(meter, name, value, given)
        return meter.made(filter_(*args, **kwargs))

    return metered


def _check_filter(meter: Meter, name: str, value: Any, given: list[Any]) -> None:
    _check_numbers(meter, given)
    if name in ("indent", "tojson"):
        pieces = 2 + value.count("\n") if isinstance(value, str) else _weight(value, SIZE) // 4
        meter.fits(pieces * _largest(given))
    elif name == "join":
        meter.fits(len(value) * _largest(given))
    elif name == "round":
        if any(isinstance(number, int) and abs(number) > 100 for number in given):
            raise TooMuch("a rounding to more than 100 digits", _LESS)
    elif name == "replace" and len(given) > 1:
        _check_replaced(meter, str(value), given)
    elif name == "format":
        _check_format(meter, str(value), given)


def _check_method(meter: Meter, owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    given = [*args, *kwargs.values()]
    _check_numbers(meter, given)
    if not isinstance(owner, (str, bytes)):
        return
    if name in ("format", "format_map"):
        _check_format(meter, str(owner), given)
    elif name == "replace" and len(given) > 1:
        _check_replaced(meter, owner, given)
    elif name == "join" and given:
        meter.fits(len(owner) * len(given[0]))
    elif name == "translate":
        meter.fits(len(owner) * _weight(given, SIZE))
    elif name == "expandtabs":
        meter.fits(len(owner) * (1 + _largest([8, *given])))


def _check_operator(meter: Meter, operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        for many, number in ((left, right), (right, left)):
            if isinstance(many, Sized) and isinstance(number, int):
                meter.fits(_weight(many, SIZE) * max(number, 1))
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
    elif operator == "%" and isinstance(left, (str, bytes)):
        _check_format(meter, str(left), [right])


def _check_bits(bits: int) -> None:
    if bits > _BITS:
        raise TooMuch(f"a whole number of more than {_BITS} bits", _LESS)


def _check_numbers(meter: Meter, given: Iterable[Any]) -> None:
    """Widths and counts."""
    for number in given:
        if isinstance(number, int):
            meter.fits(abs(number))


def _check_replaced(meter: Meter, text: Any, given: list[Any]) -> None:
    old, new = given[0], given[1]
    if isinstance(text, str) and isinstance(old, str):
        meter.fits((text.count(old) if old else len(text) + 1) * _largest([new]))
    else:
        meter.fits((len(text) + 1) * _largest(given))


def _check_format(meter: Meter, text: str, given: Iterable[Any]) -> None:
    given = [*given]
    fields = text.count("%") + text.count("{")
    numbers = [digits[:12] for digits in re.findall(r"\d+", text)]
    most = sum(map(int, numbers)) + _weight(given, SIZE)
    if _WIDTHS_FROM_VALUES.search(text):
        most += _largest(_flat(given))
    meter.fits(len(text) + fields * most)


def _flat(given: Iterable[Any]) -> Iterator[Any]:
    for value in given:
        if isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def _largest(given: Iterable[Any]) -> int:
    """The largest number, or the length of the longest text or list."""
    return max((abs(value) if isinstance(value, int) else _weight(value, SIZE) for value in given), default=1)


def _weight(value: Any, most: int, depth: int = 0) -> int:
    """Characters of a value written out, roughly; of one that has more than `most`, any number beyond that.

    A list that is in a list many times counts as often. Raises TooMuch for lists in lists too deep.
    """
    if isinstance(value, (str, bytes)):
        return len(value)
    parts: Iterable[Any]
    if isinstance(value, dict):
        parts = chain(value, value.values())
    elif isinstance(value, (list, tuple, KeysView, ValuesView, ItemsView)):
        parts = value
    else:
        return _ITEM
    if depth > _DEPTH:
        raise TooMuch(f"lists within lists, more than {_DEPTH} deep", _LESS)
    total = _ITEM
    for part in parts:
        total += _ITEM + (len(part) if type(part) is str else _weight(part, most - total, depth + 1))
        if total > most:
            break
    return total
