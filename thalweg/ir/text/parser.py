"""The parser of kernels, of text that `thalweg.ir.text.printer` writes.

`thalweg.ir.text.syntax` describes the syntax. A line is a statement, indentation is structure, and
a name refers to the same argument, variable or expression from its definition on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from thalweg.ir.expr import Accumulated, Expr, Variable
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Argument, Check, Contraction, Kernel, Loops, Store
from thalweg.ir.text.parse_expr import ExpressionParser, Line
from thalweg.ir.text.syntax import COMBINES, ROLES

_HEAD = re.compile(r"(?:loops|contraction (\w+))\((.*)\):")
_ARGUMENT = re.compile(r"(out )?(\w+): (\w+)\[(\S+)\]")
_LOOP = re.compile(r"(?:(\w+) )?(\w+) < (\S+)")
_CHECK = re.compile(r"check (\d+): (.+)")
_STORE = re.compile(r"(\w+)\[(.*?)\] (\S*=) (.*?)(?: if (.*?))?(?: distinct (.*?))?(?: over (.*))?")
_DEFINITION = re.compile(r"(\w+) = (.+)")
_BOUND = re.compile(r"(\S+) <= (.+) < (\S+)")


def parse_kernel(text: str) -> Kernel:
    """Parse the text of a kernel."""
    numbered = enumerate(text.splitlines(), 1)
    lines = [Line(number, line.strip(), _indent(line)) for number, line in numbered if line.strip()]
    if not lines:
        Line(1, "", 0).fail("a kernel has lines")
    return _Parser(lines).kernel()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class _Parser:
    """Parses the lines of a kernel, one by one."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines, self._taken = lines, 1
        self._read = ExpressionParser()
        self._read.line = lines[0]
        self._stores: list[Store] = []

    def kernel(self) -> Kernel:
        """The whole kernel."""
        head = self._matched(_HEAD, self._read.line.text, "'contraction' or 'loops'")
        for one in head[2].split(", ") if head[2] else []:
            out, name, dtype, size = self._matched(_ARGUMENT, one, "an argument").groups()
            place, known = len(self._read.arguments), self._read.dtype(dtype)
            argument = Argument(place, known, self._read.integer(size), bool(out))
            self._read.arguments[name] = argument
        arguments = tuple(self._read.arguments.values())
        return self._contraction(head[1], arguments) if head[1] else self._loops(arguments)

    def _matched(self, form: re.Pattern[str], text: str, what: str) -> re.Match[str]:
        found = form.fullmatch(text)
        if found is None:
            self._read.line.fail(f"expected {what}, not {text!r}")
        return found

    def _inside(self, indent: int) -> Iterator[Line]:
        """The next lines, as long as they are indented further."""
        while self._taken < len(self._lines) and self._lines[self._taken].indent > indent:
            self._read.line = self._lines[self._taken]
            self._taken += 1
            yield self._read.line

    def _bound(self, heads: str) -> list[tuple[str, Variable]]:
        """`i < 64, serial j < 3`: variables that loops bind, each with the word before it."""
        found = [self._matched(_LOOP, head, "a loop") for head in heads.split(", ")]
        return [
            (word or "", self._read.bound(*rest)) for word, *rest in (f.groups() for f in found)
        ]

    # Statements

    def _statement(self, line: Line, variables: tuple[Variable, ...]) -> None:
        """A named expression, or a store over variables."""
        if store := _STORE.fullmatch(line.text):
            self._stores.append(self._store(store, variables))
        else:
            self._define(line)

    def _define(self, line: Line) -> None:
        name, value = self._matched(_DEFINITION, line.text, "a store or a name").groups()
        is_block = value.endswith(":")
        made = self._block(line, value[:-1]) if is_block else self._read.expression(value)
        self._read.named[name] = made

    def _block(self, line: Line, head: str) -> Expr:
        """A reduction whose body has lines of its own, the last of them `yield`."""
        made = self._read.combining(head)
        for inner in self._inside(line.indent):
            if inner.text.startswith("yield "):
                return made(self._read.expression(inner.text.removeprefix("yield ")))
            self._define(inner)
        line.fail("its body does not end with a yield")

    def _store(self, store: re.Match[str], variables: tuple[Variable, ...]) -> Store:
        name, place, sign, value, inside, distinct, over = store.groups()
        combine = COMBINES.get(sign)
        if name not in self._read.arguments:
            self._read.line.fail(f"there is no argument {name!r}")
        if combine is None:
            self._read.line.fail(f"{sign!r} stores nothing")
        return Store(
            self._read.arguments[name],
            variables if over is None else self._listed(over),
            self._read.offset(place),
            self._read.expression(value),
            combine,
            None if inside is None else self._read.expression(inside),
            frozenset(self._listed(distinct)),
        )

    def _listed(self, names: str | None) -> tuple[Variable, ...]:
        return tuple(map(self._read.variable, names.split(", "))) if names else ()

    # Loops

    def _loops(self, arguments: tuple[Argument, ...]) -> Loops:
        self._variables: tuple[Variable, ...] = ()
        self._serial = set[Variable]()
        self._checks: list[Check] = []
        for line in self._inside(-1):
            self._nested(line, ())
        checks, serial = tuple(self._checks), frozenset(self._serial)
        return Loops(arguments, self._variables, tuple(self._stores), checks, serial)

    def _nested(self, line: Line, around: tuple[Variable, ...]) -> None:
        """A line inside loops, with all lines indented below it."""
        if line.text.startswith("for "):
            bound = self._bound(line.text.removeprefix("for ").removesuffix(":"))
            self._serial |= {variable for word, variable in bound if word == "serial"}
            inside = (*around, *(variable for _, variable in bound))
            self._variables = max(self._variables, inside, key=len)
            for inner in self._inside(line.indent):
                self._nested(inner, inside)
        elif check := _CHECK.fullmatch(line.text):
            condition = self._read.expression(check[2])
            self._checks.append(Check(around, condition, int(check[1])))
        elif line.text != "pass":
            self._statement(line, around)

    # Contractions

    def _contraction(self, dtype: str, arguments: tuple[Argument, ...]) -> Contraction:
        head, kind = self._read.line, self._read.dtype(dtype)
        self._read.named["acc"] = Accumulated(kind)
        factors: dict[str, Access] = {}
        groups: dict[str, list[Variable]] = {role: [] for role in ROLES}
        for line in self._inside(-1):
            name, _, value = line.text.partition(" = ")
            if line.text.startswith("for "):
                self._group(line.text.removeprefix("for ").removesuffix(":"), groups)
            elif name in ("left", "right"):
                factors[name] = self._access(value)
            else:
                self._statement(line, tuple(v for role in ROLES[:3] for v in groups[role]))
        if len(factors) < 2:
            head.fail("it has no left and right")
        batch, rows, columns, reduced = (tuple(groups[role]) for role in ROLES)
        left, right, stores = factors["left"], factors["right"], tuple(self._stores)
        return Contraction(arguments, batch, rows, columns, reduced, left, right, kind, stores)

    def _group(self, heads: str, groups: dict[str, list[Variable]]) -> None:
        """`rows i < 64, columns j < 16, reduced r < 32`"""
        for role, variable in self._bound(heads):
            if role not in groups:
                self._read.line.fail(f"there is no role {role!r}")
            groups[role].append(variable)

    def _access(self, text: str) -> Access:
        value, _, where = text.partition(" where ")
        bounds = map(self._limits, re.split(r", (?=[-\w~]+ <= )", where) if where else [])
        return Access(self._read.expression(value), tuple(bounds))

    def _limits(self, text: str) -> tuple[int, Affine, int]:
        low, place, high = self._matched(_BOUND, text, "a bound").groups()
        return self._read.integer(low), self._read.offset(place), self._read.integer(high)
