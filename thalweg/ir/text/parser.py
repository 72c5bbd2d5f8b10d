"""Kernels from the text that `thalweg.ir.text.printer` writes.

`thalweg.ir.text.syntax` shows the form. Lines are statements, indentation is structure, and a name
stands for the same argument, variable or expression from where it appears on.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.ir.expr import Accumulated, Expr
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Argument, Check, Contraction, Kernel, Loops, Store
from thalweg.ir.loop import Variable
from thalweg.ir.text.lexer import Line
from thalweg.ir.text.parse_expr import ExpressionParser
from thalweg.ir.text.syntax import ROLES, combine_of


def parse_kernel(text: str) -> Kernel:
    """The kernel that a text stands for."""
    numbered = enumerate(text.splitlines(), 1)
    lines = [Line.of(number, line) for number, line in numbered if line.strip()]
    if not lines:
        Line.of(1, "").fail("a kernel has lines")
    if lines[0].accept("loops"):
        return _LoopsParser(lines).kernel()
    lines[0].expect("contraction")
    return _ContractionParser(lines).kernel()


class _Parser:
    """The lines of a kernel, taken one by one, and what is known by name so far."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines, self._taken = lines, 1
        self.head = lines[0]
        self.read = ExpressionParser()
        self.stores: list[Store] = []

    def arguments(self) -> tuple[Argument, ...]:
        """`(x0: f32[64], out y1: f32[64]):` of the kernel's head."""
        self.head.expect("(")
        while not self.head.accept(")"):
            self._argument(len(self.read.arguments))
            self.head.accept(",")
        self.head.expect(":")
        self.head.finish()
        return tuple(self.read.arguments.values())

    def _argument(self, position: int) -> None:
        head = self.head
        written = head.accept("out")
        name = head.take()
        head.expect(":")
        dtype = self.read.dtype(head)
        head.expect("[")
        self.read.arguments[name] = Argument(position, dtype, self.read.integer(head), written)
        head.expect("]")

    def line(self, indent: int = -1) -> Line | None:
        """The next line, if there is one that is indented further."""
        if self._taken == len(self._lines) or self._lines[self._taken].indent <= indent:
            return None
        self._taken += 1
        return self._lines[self._taken - 1]

    def statement(self, line: Line, variables: tuple[Variable, ...]) -> None:
        """A named expression, or a store over variables."""
        if line.after_next == "[":
            self.stores.append(self._store(line, variables))
        else:
            self._definition(line)

    def _definition(self, line: Line) -> None:
        name = line.take()
        line.expect("=")
        value = self._block(line) if line.tokens[-1] == ":" else self.read.expression(line)
        line.finish()
        self.read.named[name] = value

    def _block(self, line: Line) -> Expr:
        """A reduction whose body has lines of its own, the last of them `yield`."""
        made = self.read.combining(line.take(), line)
        line.expect(":")
        while inner := self.line(line.indent):
            if inner.accept("yield"):
                body = self.read.expression(inner)
                inner.finish()
                return made(body)
            self._definition(inner)
        line.fail("its body does not end with a yield")

    def _store(self, line: Line, variables: tuple[Variable, ...]) -> Store:
        argument, offset = self._place(line)
        sign = line.take()
        combine = combine_of(sign)
        if combine is None:
            line.fail(f"{sign!r} stores nothing")
        value = self.read.expression(line)
        inside = self.read.expression(line) if line.accept("if") else None
        distinct = frozenset(self._listed(line) if line.accept("distinct") else ())
        over = self._listed(line) if line.accept("over") else variables
        line.finish()
        return Store(argument, over, offset, value, combine, inside, distinct)

    def _place(self, line: Line) -> tuple[Argument, Affine]:
        name = line.take()
        if name not in self.read.arguments:
            line.fail(f"there is no argument {name!r}")
        line.expect("[")
        offset = self.read.offset(line)
        line.expect("]")
        return self.read.arguments[name], offset

    def _listed(self, line: Line) -> tuple[Variable, ...]:
        found: list[Variable] = []
        while line.next in self.read.variables:
            found.append(self.read.variable(line))
            line.accept(",")
        return tuple(found)


class _LoopsParser(_Parser):
    def kernel(self) -> Loops:
        arguments = self.arguments()
        self._variables: tuple[Variable, ...] = ()
        self._serial = set[Variable]()
        self._checks: list[Check] = []
        while line := self.line():
            self._nested(line, ())
        return Loops(
            arguments,
            self._variables,
            tuple(self.stores),
            tuple(self._checks),
            frozenset(self._serial),
        )

    def _nested(self, line: Line, around: tuple[Variable, ...]) -> None:
        """A line inside of loops, with all that is indented further."""
        if line.accept("for"):
            inside = around + self._loops(line)
            self._variables = max(self._variables, inside, key=len)
            while inner := self.line(line.indent):
                self._nested(inner, inside)
        elif line.accept("check"):
            fault = self.read.integer(line)
            line.expect(":")
            self._checks.append(Check(around, self.read.expression(line), fault))
            line.finish()
        elif not line.accept("pass"):
            self.statement(line, around)

    def _loops(self, line: Line) -> tuple[Variable, ...]:
        """`i < 64, serial j < 3:`"""
        found: list[Variable] = []
        while not line.accept(":"):
            is_serial = line.accept("serial")
            found.append(self.read.bound(line))
            if is_serial:
                self._serial.add(found[-1])
            line.accept(",")
        return tuple(found)


class _ContractionParser(_Parser):
    def kernel(self) -> Contraction:
        dtype = self.read.dtype(self.head)
        self.read.named["acc"] = Accumulated(dtype)
        arguments = self.arguments()
        groups = self._groups()
        batch, rows, columns, reduced = (tuple(groups[role]) for role in ROLES)
        factors: dict[str, Access] = {}
        while line := self.line():
            if line.next in ("left", "right"):
                side = line.take()
                factors[side] = self._access(line)
            else:
                self.statement(line, (*batch, *rows, *columns))
        if len(factors) < 2:
            self.head.fail("it has no left and right")
        left, right = factors["left"], factors["right"]
        stores = tuple(self.stores)
        return Contraction(arguments, batch, rows, columns, reduced, left, right, dtype, stores)

    def _groups(self) -> dict[str, list[Variable]]:
        """`for rows i < 64, columns j < 16, reduced r < 32:`"""
        groups: dict[str, list[Variable]] = {role: [] for role in ROLES}
        line = self.line()
        if line is None:
            self.head.fail("it has no loops")
        line.expect("for")
        while not line.accept(":"):
            role = line.take()
            if role not in groups:
                line.fail(f"there is no role {role!r}")
            groups[role].append(self.read.bound(line))
            line.accept(",")
        return groups

    def _access(self, line: Line) -> Access:
        line.expect("=")
        value = self.read.expression(line)
        bounds: list[tuple[int, Affine, int]] = []
        if line.accept("where"):
            bounds.append(self._bound(line))
            while line.accept(","):
                bounds.append(self._bound(line))
        line.finish()
        return Access(value, tuple(bounds))

    def _bound(self, line: Line) -> tuple[int, Affine, int]:
        low = self.read.integer(line)
        line.expect("<=")
        offset = self.read.offset(line)
        line.expect("<")
        return low, offset, self.read.integer(line)
