"""The sandbox of chat templates: jinja2's, with a limit on the texts, lists and numbers that a template makes.

A time limit cannot interrupt one operation of C code. So the size of a result is checked before it is computed.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from jinja2.utils import Namespace

_MOST_MADE = 100_000_000  # characters and items, in one rendering
_MOST_BITS = 10_000  # of a whole number; multiplying and dividing longer ones takes long
# What makes more than it is given: at most the product of the sizes of its arguments, in which a number counts as size.
_MULTIPLYING = frozenset({
    "batch", "center", "expandtabs", "format", "indent", "join", "ljust", "replace", "rjust", "slice", "to_bytes",
    "tojson", "translate", "urlize", "wordwrap", "xmlattr", "zfill",
})  # fmt: skip
# What gives something that is there already, or a number.
_READING = frozenset({
    "attr", "count", "d", "default", "endswith", "first", "get", "items", "keys", "last", "length", "map", "reject",
    "rejectattr", "select", "selectattr", "startswith", "values",
})  # fmt: skip
_NUMBER = re.compile(r"[0-9]{1,9}")


class _CodeGenerator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """The operator ~, which jinja2 intercepts nowhere."""
        self.write("environment.joined(context, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment for one rendering. What the template makes counts, also what it does not keep.

    Operators, filters, methods of texts, and what blocks and macros collect raise a TemplateError before they make too
    much. Nothing is computed while the template is compiled.
    """

    intercepted_binops = frozenset(SandboxedEnvironment.default_binop_table)
    code_generator_class = _CodeGenerator

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=self._written)
        self._left = _MOST_MADE
        del self.globals["lipsum"]
        for name in self.filters.keys() - _READING:
            self.filters[name] = self._checked(name, self.filters[name])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Computes one of Python's operators, all of which are intercepted."""
        bits = [each.bit_length() for each in (left, right) if isinstance(each, int)]
        n_bits = bits[0] * abs(right) if operator == "**" and len(bits) == 2 else max(bits, default=0)
        if n_bits > _MOST_BITS:
            raise TemplateError(f"a whole number has more than {_MOST_BITS:,} bits")
        if operator == "+":
            self._check(_size(left) + _size(right))
        elif len(bits) < 2 and operator in "*%":
            self._check(_most_made("format" if operator == "%" else operator, (left, right)))
        return self._count(super().call_binop(context, operator, left, right))

    def joined(self, context: Context, parts: Collection[Any]) -> str:
        """The texts of these values, one after another."""
        self._check(_size(parts))
        return self._count(markup_join(parts) if context.eval_ctx.autoescape else str_join(parts))

    def concat(self, parts: Iterable[str]) -> str:
        """The text that a block or a macro has collected."""
        parts = list(parts)
        self._check(_size(parts))
        return self._count("".join(parts))

    @pass_context
    def _written(self, _context: Context, value: Any) -> Any:
        """A value that the template writes. jinja2 computes none in advance, because it gets the context."""
        if not isinstance(value, str):
            self._check(_size(value))
        return value

    def call(__self, __context: Context, __function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls a function; methods of Python's own objects are checked."""
        call, owner = super().call, getattr(__function, "__self__", None)
        is_pythons = isinstance(owner, int | Collection)  # not a macro, a class, or a method of jinja2's
        if not is_pythons or __function.__name__ in _READING:
            return call(__context, __function, *args, **kwargs)

        def method(_owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            return call(__context, __function, *args, **kwargs)

        return __self._checked(__function.__name__, method)(owner, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuses `format` and `format_map` of texts: a width in them may come from any argument."""
        if super().wrap_str_format(value) is None:
            return None
        raise TemplateError(f"the method {value.__name__} of texts is not available; use ~ or the filter format")

    def _checked(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or method that is not called if it would make too much. It gets lists instead of iterators."""

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            args = tuple(list(each) if isinstance(each, Iterator) else each for each in args)
            values = (*args, *kwargs.values())
            self._check(_most_made(name, values) if name in _MULTIPLYING else _size(values))
            return self._count(function(*args, **kwargs))

        return checked

    def _check(self, size: int) -> None:
        """Raises: TemplateError if this is more than the template may still make."""
        if size > self._left:
            raise TemplateError(f"it makes more than {_MOST_MADE:,} characters and items")

    def _count(self, made: Any) -> Any:
        """What the template has made."""
        size = _size(made)
        self._check(size)
        self._left -= size
        return made


def _most_made(name: str, values: Sequence[Any]) -> int:
    """The most characters and items that a function in _MULTIPLYING or an operator makes of these values."""
    most = math.prod(_size(each, with_numbers=True) for each in values)
    if name == "format" and isinstance(values[0], str | bytes):  # its numbers may be widths
        most *= max([1, *map(int, _NUMBER.findall(str(values[0])))])
    return most


def _size(value: Any, *, with_numbers: bool = False) -> int:
    """The characters and items of a value, at least 1; an item counts once for every level that it is nested in.

    With `with_numbers`, a whole number counts as so many. Counting ends soon after _MOST_MADE: a list that holds
    another one twice, which holds another one twice, and so on, has more items than can be counted.
    """
    total, stack = 0, [(value, 1)]
    while stack and total <= _MOST_MADE:
        each, depth = stack.pop()
        total += depth
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, int):
            total += min(abs(each), _MOST_MADE) if with_numbers else 0
        elif isinstance(each, Namespace):  # it hides its values, but its text shows them
            total += _MOST_MADE
        elif isinstance(each, Context):  # it is given to some filters
            continue
        elif isinstance(each, Mapping):
            stack += [(part, depth + 1) for pair in each.items() for part in pair]
        elif isinstance(each, Collection):
            stack += [(part, depth + 1) for part in each]
    return total
