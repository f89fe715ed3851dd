"""The limits within which a prompt pack's templates are rendered: a pack is data, from anywhere, and may neither hang a run nor
take its memory.

Jinja's sandbox keeps templates from Python; it does not keep them from working without end. Here every pass of a loop and every
call of a macro looks at the clock, and what could make long text out of short is measured before it is made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import wraps
from typing import Any

from jinja2 import TemplateRuntimeError, nodes, pass_environment
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

SECONDS = 5.0  # of computing that one prompt may take; real ones take thousandths
LONGEST = 4_000_000  # characters of a prompt or of any text on the way to it: more than any model reads
_WIDTH = re.compile(
    r"%[^%a-zA-Z]*(?:[0-9]{5}|\*)|\{[^{}]*(?:\{|:[^{}]*[0-9]{5})"
)  # five digits in a format, or one that comes of a value
# Filters and methods that stretch a text by the numbers or texts that they are given.
_STRETCHING = {
    "batch",
    "center",
    "expandtabs",
    "indent",
    "join",
    "ljust",
    "rjust",
    "slice",
    "tojson",
    "translate",
    "wordwrap",
    "zfill",
}
_WRITING = {"format", "pprint", "string", "tojson", "xmlattr"}  # these write out what a list or mapping holds
_CONTAINERS = (list, tuple, dict)
# What packs put around data: `| replace("[END TRANSCRIPT]", …)` finds it in any case or spacing.
_MARKER = re.compile(r"\[(BEGIN|END) ([A-Z]+)(\]?)")
_GAP = r"(?:[^\w\[\]［］【】]|_){0,20}"


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits. Raises `TemplateRuntimeError` where a template goes beyond them."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, finalize=_shown)
        limited_filters = {"join": _join, "replace": _replace}
        self.filters = {name: _measured(name, function) for name, function in self.filters.items()} | limited_filters
        del self.globals["lipsum"]
        self._deadline = 0.0

    def start(self) -> None:
        """Begin a rendering: its time counts from here."""
        self._deadline = time.thread_time() + SECONDS

    @property  # read by templates, which is cheaper than a call
    def tick(self) -> None:
        """Raise where the time is over: in every pass of a loop and at the beginning of every macro, block and template."""
        if time.thread_time() > self._deadline:
            raise TemplateRuntimeError(f"takes more than {SECONDS:g} seconds to render")

    def together(self, *parts: Any) -> str:
        """The template language's `~`."""
        return self.concat(map(str, parts))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Jinja's own way to put a text together, of a whole prompt too."""
        pieces, length = [], 0
        for part in parts:
            length += len(part)
            if length > LONGEST:
                _check(length)
            pieces.append(part)
        return "".join(pieces)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _measure("format", [left, right])
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right.bit_length()
            _check(bits[0] * abs(right) if operator == "**" else sum(bits))
        elif isinstance(left, Sized) or isinstance(right, Sized):
            _check(_size(left) + _size(right) if operator == "+" else _size(left) * _size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _measure(obj.__name__, [owner, *args, *kwargs.values()])
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatting = super().wrap_str_format(value)
        if formatting is None:
            return None

        def measured(*args: Any, **kwargs: Any) -> str:
            _measure("format", [value.__self__, *args, *kwargs.values()])
            return formatting(*args, **kwargs)

        return measured

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in [tree, *tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))]:
            tick = nodes.EnvironmentAttribute("tick", lineno=node.lineno)
            node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))  # type: ignore[attr-defined]
        tree = _Together().visit(tree)
        tree.set_environment(self)
        return tree


class _Together(NodeTransformer):
    """`a ~ b` as a call that can be measured."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        together = nodes.EnvironmentAttribute("together", lineno=node.lineno)
        return nodes.Call(together, node.nodes, [], None, None, lineno=node.lineno)


def _check(length: int) -> None:
    if length > LONGEST:
        raise TemplateRuntimeError(f"makes text of more than {LONGEST:,} characters")


def _size(value: Any) -> int:
    """A number counts as itself (so often is something repeated), text as its length, what holds others as all of them."""
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, _CONTAINERS):
        return len(value) + sum(
            _size(one) for one in (value.items() if isinstance(value, dict) else value) if not isinstance(one, int)
        )
    return len(value) if isinstance(value, Sized) else 1


def _measure(name: str, arguments: Sequence[Any]) -> None:
    """Raise for a call of a filter or a text's method whose result could be too long."""
    measurable = [one for one in arguments if isinstance(one, str | int | list | tuple | dict)]
    if name in _WRITING:
        _check(sum(_size(one) for one in measurable if isinstance(one, _CONTAINERS)))
    if name == "replace" and len(measurable) > 2:  # the method
        text, old, new = map(str, measurable[:3])
        _check(len(text) + text.count(old) * len(new))
    elif name in ("format", "format_map") and measurable and _WIDTH.search(str(measurable[0])):
        raise TemplateRuntimeError("a format with a width of five digits, or one that comes of a value")
    elif name in _STRETCHING and measurable:
        _check(_size(measurable[0]) * max(map(_size, measurable[1:]), default=1))


def _shown(value: Any) -> Any:
    """What a template puts into its text: a list or mapping is measured before it is written out."""
    if isinstance(value, _CONTAINERS):
        _check(_size(value))
    return value


def _measured(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # with the marks by which Jinja knows what to pass to it
    def checked(*args: Any, **kwargs: Any) -> Any:
        _measure(name, [*args, *kwargs.values()])
        return function(*args, **kwargs)

    return checked


@pass_environment
def _join(environment: LimitedEnvironment, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's filter `join`, measured as it goes."""
    items = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    return environment.concat(text for place, item in enumerate(items) for text in ([str(d)] if place else []) + [str(item)])


def _replace(s: str, old: str, new: str, count: int = -1) -> str:
    """Jinja's filter `replace`, measured; a marker of data (`[END TRANSCRIPT]`) is found in any case or spacing."""
    if marker := _MARKER.fullmatch(old):
        begin, what, closed = marker.groups()
        end = rf"{_GAP}[\]］】]" if closed else ""
        return re.sub(rf"[\[［【]{_GAP}{begin}{_GAP}{what}{end}", lambda _: new, str(s), flags=re.I)
    _check(len(str(s)) + str(s).count(old) * len(new))
    return str(s).replace(old, new, count)
