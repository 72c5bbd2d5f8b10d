"""The printer of kernels; `thalweg.ir.text.parser` reads its text back.

`thalweg.ir.text.syntax` describes the syntax. Reductions, shared expressions and those too long for
a line get a name, defined in the innermost loop or reduction body that they depend on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import (
    Accumulated,
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Scan,
    Select,
    Variable,
    Word,
)
from thalweg.ir.functions.dtypes import INT64
from thalweg.ir.index import Affine, Term, term_expression
from thalweg.ir.kernel import Access, Argument, Contraction, Kernel, Loops, Store
from thalweg.ir.rewrite import free_variables, postorder
from thalweg.ir.text.syntax import (
    COMPARISON,
    OPERATORS,
    PRIMARY,
    ROLES,
    SCAN,
    SIGNS,
    UNARY,
    dtype_name,
    number_text,
    typed,
)

_MAX_WIDTH = 72  # characters of an expression without a name
_LOOP_NAMES, _REDUCED_NAMES = "ijklmn", "rsuv"


def kernel_text(kernel: Kernel, names: Sequence[str] | None = None) -> str:
    """A kernel as text; `names` are those of its arguments."""
    called = names or [f"{'y' if a.written else 'x'}{n}" for n, a in enumerate(kernel.arguments)]
    arguments = dict(zip(kernel.arguments, called, strict=True))
    given = ", ".join([_parameter(argument, name) for argument, name in arguments.items()])
    if isinstance(kernel, Loops):
        head, body = "loops", _loops_text(kernel, arguments)
    else:
        head, body = f"contraction {dtype_name(kernel.dtype)}", _contraction_text(kernel, arguments)
    return "\n".join([f"{head}({given}):", *_indented(body)]) + "\n"


def _parameter(argument: Argument, name: str) -> str:
    size = f"{dtype_name(argument.dtype)}[{_integer_text(argument.size)}]"
    return f"{'out ' if argument.written else ''}{name}: {size}"


# Loops


def _loops_text(kernel: Loops, arguments: dict[Argument, str]) -> list[str]:
    names = _names_of(kernel.variables, _LOOP_NAMES)
    text = _Printer(kernel, arguments, names, [check.condition for check in kernel.checks])
    heads = [
        f"{'serial ' if variable in kernel.serial else ''}{text.bound(variable)}"
        for variable in kernel.variables
    ]
    statements = [
        *((len(c.variables), f"check {c.fault}: {text.value(c.condition)}") for c in kernel.checks),
        *((len(s.variables), text.store(s)) for s in kernel.stores),
    ]
    if len(heads) > max([depth for depth, _ in statements], default=0):
        statements.append((len(heads), "pass"))
    return list(_nested(heads, text.named, statements))


def _nested(
    heads: Sequence[str], named: Sequence[list[str]], statements: Sequence[tuple[int, str]]
) -> Iterator[str]:
    """Statements in their loops, given their depths; named expressions where a loop begins."""
    left = [list(lines) for lines in named]  # names that are not printed yet
    yield from left[0]
    opened = [0]  # the number of open loops after each `for` line
    for depth, statement in statements:
        while opened[-1] > depth:
            opened.pop()
        while opened[-1] < depth:
            first, last = opened[-1], opened[-1] + 1
            while last < depth and not left[last]:
                last += 1
            yield "  " * (len(opened) - 1) + f"for {', '.join(heads[first:last])}:"
            opened.append(last)
            yield from ["  " * (len(opened) - 1) + line for line in left[last]]
            left[last] = []
        yield "  " * (len(opened) - 1) + statement


# Contractions


def _contraction_text(kernel: Contraction, arguments: dict[Argument, str]) -> list[str]:
    every = (*kernel.batch, *kernel.rows, *kernel.columns)
    names = _names_of(every, _LOOP_NAMES) | _names_of(kernel.reduced, _REDUCED_NAMES)
    text = _Printer(kernel, arguments, names, [kernel.a.value, kernel.b.value])
    heads = [f"{role} {text.bound(v)}" for role in ROLES for v in getattr(kernel, role)]
    lines = [line for named in text.named for line in named]
    lines += [f"left = {text.access(kernel.a)}", f"right = {text.access(kernel.b)}"]
    for store in kernel.stores:
        over = "" if store.variables == every else f" over {text.listed(store.variables)}"
        lines.append(text.store(store) + over)
    return [f"for {', '.join(heads)}:", *_indented(lines)]


# Expressions


class _Text(NamedTuple):
    """An expression as text, and its precedence."""

    text: str
    binding: int
    needs: frozenset[str]  # names in it that are defined in bodies of enclosing reductions


class _Printer:
    """Prints the expressions of a kernel: `values` and those of its stores.

    `loops` are the names of the loop variables, outermost first. `named` are the definitions of
    names, by the number of loops that enclose them.
    """

    def __init__(
        self,
        kernel: Kernel,
        arguments: Mapping[Argument, str],
        loops: Mapping[Variable, str],
        values: Sequence[Expr],
    ) -> None:
        stored = [value for store in kernel.stores for value in (store.value, store.inside)]
        values = [*values, *(value for value in stored if value is not None)]
        offsets = [*(offset for _, offset, _ in kernel.bounds), *(s.offset for s in kernel.stores)]
        terms = [part for offset in offsets for part in offset.parts]
        self._arguments = arguments
        self._depths = {variable: depth for depth, variable in enumerate(loops, 1)}
        self.named: list[list[str]] = [[] for _ in range(len(loops) + 1)]
        #: names defined in bodies of reductions, in order: the lines, and their free variables
        self._in_bodies: dict[str, tuple[list[str], frozenset[Variable]]] = {}
        self._numbers = count()
        self._values = frozenset(values)
        nodes = postorder([*values, *terms])
        self._uses = Counter([*values, *terms, *(part for node in nodes for part in node.parts)])
        bound = [v for node in nodes if isinstance(node, Reduce) for v in node.variables]
        self._variables = {
            **_names_of([v for v in bound if v not in loops], _REDUCED_NAMES),
            **loops,
        }
        self._texts: dict[Expr, _Text] = {}
        for node in nodes:
            self._texts[node] = self._formatted(node)

    # Statements

    def store(self, store: Store) -> str:
        """A store, without its loops."""
        element = self._element(store.buffer, store.offset)
        line = f"{element} {SIGNS[store.combine]} {self.value(store.value)}"
        if store.inside is not None:
            line += f" if {self.value(store.inside)}"
        if store.distinct:
            distinct = [variable for variable in store.variables if variable in store.distinct]
            line += f" distinct {self.listed(distinct)}"
        return line

    def access(self, access: Access) -> str:
        """A factor of a contraction, with its bounds."""
        bounds = [
            f"{_integer_text(low)} <= {self._offset(offset)} < {_integer_text(high)}"
            for low, offset, high in access.bounds
        ]
        return self.value(access.value) + (f" where {', '.join(bounds)}" if bounds else "")

    def listed(self, variables: Iterable[Variable]) -> str:
        """The names of variables."""
        return ", ".join([self._variables[variable] for variable in variables])

    def value(self, expr: Expr) -> str:
        """An expression by itself."""
        return self._texts[expr].text

    def bound(self, variable: Variable) -> str:
        """A variable with its extent, where it is bound."""
        return f"{self._variables[variable]} < {_integer_text(variable.extent)}"

    # Names

    def _formatted(self, node: Expr) -> _Text:
        needs = frozenset[str]().union(*[self._texts[part].needs for part in node.parts])
        inner: list[str] = []
        if isinstance(node, Reduce):
            inner = self._inside(node.variables, needs)
            needs -= frozenset(inner)
        lines = self._lines(node, [line for name in inner for line in self._in_bodies[name][0]])
        if len(lines) == 1 and not self._has_name(node, lines[0]):
            return _Text(lines[0], _binding(node), needs)
        return self._named(lines, free_variables(node), needs)

    def _inside(self, variables: Iterable[Variable], needs: frozenset[str]) -> list[str]:
        """The names that the body of a reduction needs and that depend on its variables."""
        bound = frozenset(variables)
        return [n for n, (_, free) in self._in_bodies.items() if n in needs and free & bound]

    def _named(
        self, lines: Sequence[str], free: frozenset[Variable], needs: frozenset[str]
    ) -> _Text:
        """Define a name for lines where their free variables are bound."""
        name = f"t{next(self._numbers)}"
        named = [f"{name} = {lines[0]}", *lines[1:]]
        if free <= self._depths.keys():
            self.named[max([self._depths[v] for v in free], default=0)] += named
            return _Text(name, PRIMARY, frozenset())
        self._in_bodies[name] = named, free
        return _Text(name, PRIMARY, needs | {name})

    def _has_name(self, node: Expr, text: str) -> bool:
        if self._uses[node] > 1:
            return bool(node.parts)
        is_long = isinstance(node, Reduce | Scan) or len(text) > _MAX_WIDTH
        return is_long and node not in self._values

    # Expressions

    def _lines(self, node: Expr, inner: Sequence[str]) -> list[str]:
        """The lines of an expression; a reduction whose body defines names is a block."""
        if not isinstance(node, Reduce | Scan):
            return [self._written(node)]
        head, body = self._combining(node), self._texts[node.body].text
        return [f"{head}:", *_indented([*inner, f"yield {body}"])] if inner else [f"{head}({body})"]

    def _combining(self, node: Reduce | Scan) -> str:
        if isinstance(node, Reduce):
            return f"{node.combine}[{', '.join(map(self.bound, node.variables))}]"
        flags = [name for name in ("exclusive", "reverse") if getattr(node, name)]
        return f"{SCAN}{node.combine}[{', '.join([self._variables[node.variable], *flags])}]"

    def _written(self, node: Expr) -> str:
        match node:
            case Const():
                return number_text(node.value)
            case Word():
                return typed(_integer_text(node.number), node.dtype, INT64)
            case Index():
                return self._variables[node.variable]
            case Load():
                return self._element(node.buffer, node.offset)
            case Call():
                return self._call(node)
            case Cast():
                return f"{dtype_name(node.dtype)}({self._operands(node)})"
            case Bitcast():
                return f"bitcast[{dtype_name(node.dtype)}]({self._operands(node)})"
            case Select():
                return f"select({self._operands(node)})"
            case Accumulated():
                return "acc"
            case _:
                raise TypeError(f"{type(node).__name__} is not part of a kernel")

    def _call(self, node: Call) -> str:
        binding = _binding(node)
        if binding == PRIMARY:
            return f"{node.function}({self._operands(node)})"
        sign, _ = OPERATORS[node.function]
        if node.function in UNARY:
            return sign + self._operand(node.arguments[0], binding)
        left, right = node.arguments
        least = binding + 1 if binding == COMPARISON else binding
        return f"{self._operand(left, least)} {sign} {self._operand(right, binding + 1)}"

    def _operand(self, part: Expr, least: int) -> str:
        """A part, in parentheses if its precedence is less than `least`."""
        known = self._texts[part]
        return known.text if known.binding >= least else f"({known.text})"

    def _operands(self, node: Expr) -> str:
        return ", ".join([self._texts[part].text for part in node.parts])

    # Offsets

    def _element(self, buffer: Argument, offset: Affine) -> str:
        return f"{self._arguments[buffer]}[{self._offset(offset)}]"

    def _offset(self, offset: Affine) -> str:
        """`64*i + j - 3`"""
        terms = [self._term(factor, term) for term, factor in offset.terms.items()]
        if not terms or isinstance(offset.constant, Dynamic) or offset.constant:
            terms.append(_integer_text(offset.constant))
        first, *others = terms
        return first + "".join([f" - {t[1:]}" if t[0] == "-" else f" + {t}" for t in others])

    def _term(self, factor: int, term: Term) -> str:
        is_sum = isinstance(term, Call) and term.function in ("add", "sub", "mul", "neg")
        if isinstance(factor, Dynamic) or abs(factor) != 1 or is_sum:
            return f"{_integer_text(factor)}*{self._atom(term)}"
        return self._atom(term) if factor == 1 else f"-{self._atom(term)}"

    def _atom(self, term: Term) -> str:
        """A term of an offset; an expression that would parse as part of the sum is in brackets."""
        if isinstance(term, Variable):
            return self._variables[term]
        expr = term_expression(term)
        text = self._operand(expr, PRIMARY)
        return f"[{text}]" if isinstance(expr, Const | Word | Index) else text


def _binding(node: Expr) -> int:
    """The precedence of an expression."""
    match node:
        case Call(function="neg", arguments=(Const(),)):
            return PRIMARY
        case Call() if node.function in OPERATORS:
            return OPERATORS[node.function][1]
        case _:
            return PRIMARY


def _names_of(variables: Iterable[Variable], letters: str) -> dict[Variable, str]:
    """A letter for each variable, numbered when letters run out."""
    return {
        variable: letters[at] if at < len(letters) else f"{letters[0]}{at}"
        for at, variable in enumerate(dict.fromkeys(variables))
    }


def _integer_text(number: int) -> str:
    """A number; of a dynamic one, its word and hint."""
    return f"w{number.word}~{int(number)}" if isinstance(number, Dynamic) else str(int(number))


def _indented(lines: Iterable[str]) -> list[str]:
    """Lines indented by one level."""
    return [f"  {line}" for line in lines]
