"""The printer of kernels; `thalweg.ir.text.parser` reads its text back.

`thalweg.ir.text.syntax` describes the syntax.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from thalweg.ir.expr import Expr, Variable
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Argument, Contraction, Kernel, Loops, Store
from thalweg.ir.text.print_expr import (
    REDUCED_NAMES,
    ExpressionPrinter,
    indented,
    integer_text,
    names_of,
)
from thalweg.ir.text.syntax import ROLES, SIGNS, dtype_name

_LOOP_NAMES = "ijklmn"


def kernel_text(kernel: Kernel, names: Sequence[str] | None = None) -> str:
    """A kernel as text; `names` are those of its arguments."""
    called = names or [f"{'y' if a.written else 'x'}{n}" for n, a in enumerate(kernel.arguments)]
    arguments = dict(zip(kernel.arguments, called, strict=True))
    given = ", ".join([_parameter(argument, name) for argument, name in arguments.items()])
    if isinstance(kernel, Loops):
        head, body = "loops", _loops_text(kernel, arguments)
    else:
        head, body = f"contraction {dtype_name(kernel.dtype)}", _contraction_text(kernel, arguments)
    return "\n".join([f"{head}({given}):", *indented(body)]) + "\n"


def _parameter(argument: Argument, name: str) -> str:
    size = f"{dtype_name(argument.dtype)}[{integer_text(argument.size)}]"
    return f"{'out ' if argument.written else ''}{name}: {size}"


def _store(store: Store, arguments: dict[Argument, str], text: ExpressionPrinter) -> str:
    element = f"{arguments[store.buffer]}[{text.offset(store.offset)}]"
    line = f"{element} {SIGNS[store.combine]} {text.value(store.value)}"
    if store.inside is not None:
        line += f" if {text.value(store.inside)}"
    if store.distinct:
        distinct = [variable for variable in store.variables if variable in store.distinct]
        line += f" distinct {_listed(distinct, text)}"
    return line


def _listed(variables: Iterable[Variable], text: ExpressionPrinter) -> str:
    return ", ".join([text.variables[variable] for variable in variables])


def _values(stores: Sequence[Store]) -> list[Expr]:
    both = [(store.value, store.inside) for store in stores]
    return [value for pair in both for value in pair if value is not None]


def _terms(offsets: Iterable[Affine]) -> list[Expr]:
    return [part for offset in offsets for part in offset.parts]


# Loops


def _loops_text(kernel: Loops, arguments: dict[Argument, str]) -> list[str]:
    text = ExpressionPrinter(
        arguments,
        names_of(kernel.variables, _LOOP_NAMES),
        [check.condition for check in kernel.checks] + _values(kernel.stores),
        _terms(store.offset for store in kernel.stores),
    )
    heads = [
        f"{'serial ' if variable in kernel.serial else ''}{text.bound(variable)}"
        for variable in kernel.variables
    ]
    statements = [
        *((len(c.variables), f"check {c.fault}: {text.value(c.condition)}") for c in kernel.checks),
        *((len(s.variables), _store(s, arguments, text)) for s in kernel.stores),
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
    bounds = [offset for access in (kernel.a, kernel.b) for _, offset, _ in access.bounds]
    text = ExpressionPrinter(
        arguments,
        names_of(every, _LOOP_NAMES) | names_of(kernel.reduced, REDUCED_NAMES),
        [kernel.a.value, kernel.b.value, *_values(kernel.stores)],
        _terms([*bounds, *(store.offset for store in kernel.stores)]),
    )
    heads = [f"{role} {text.bound(v)}" for role in ROLES for v in getattr(kernel, role)]
    lines = [line for named in text.named for line in named]
    lines += [f"left = {_access(kernel.a, text)}", f"right = {_access(kernel.b, text)}"]
    for store in kernel.stores:
        over = "" if store.variables == every else f" over {_listed(store.variables, text)}"
        lines.append(_store(store, arguments, text) + over)
    return [f"for {', '.join(heads)}:", *indented(lines)]


def _access(access: Access, text: ExpressionPrinter) -> str:
    bounds = [
        f"{integer_text(low)} <= {text.offset(offset)} < {integer_text(high)}"
        for low, offset, high in access.bounds
    ]
    return text.value(access.value) + (f" where {', '.join(bounds)}" if bounds else "")
