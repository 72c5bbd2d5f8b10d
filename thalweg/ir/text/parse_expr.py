"""Expressions and places from tokens: a parser by the precedence of operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from thalweg.ir.dynamic import Dynamic, dynamic
from thalweg.ir.expr import (
    FALSE,
    TRUE,
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
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine, total
from thalweg.ir.kernel import Argument
from thalweg.ir.text.lexer import Line
from thalweg.ir.text.syntax import (
    FLOAT32,
    INT64,
    NEGATION,
    NOT,
    OPERATORS,
    SCAN,
    Dtype,
    dtype_named,
    number_value,
)

_INFIX = {sign: (function, binding) for function, (sign, binding) in OPERATORS.items()}


class ExpressionParser:
    """Reads expressions; knows arguments, variables and named expressions by their names."""

    def __init__(self) -> None:
        self.arguments: dict[str, Argument] = {}
        self.variables: dict[str, Variable] = {}
        self.named: dict[str, Expr] = {"true": TRUE, "false": FALSE}

    # Numbers and variables

    def integer(self, line: Line) -> int:
        """A whole number, or a word of the arguments."""
        sign = -1 if line.accept("-") else 1
        token = line.take()
        if "~" in token:
            return _dynamic(token)
        if not token.isdigit():
            line.fail(f"{token!r} is not an integer")
        return sign * int(token)

    def bound(self, line: Line) -> Variable:
        """`i < 64`: a variable where it is bound; bound twice it is the same."""
        name = line.take()
        line.expect("<")
        extent = self.integer(line)
        known = self.variables.setdefault(name, Variable(extent, name))
        if known.extent != extent:
            line.fail(f"{name} has the extents {known.extent} and {extent}")
        return known

    def variable(self, line: Line) -> Variable:
        """A variable by its name."""
        name = line.take()
        if name not in self.variables:
            line.fail(f"there is no variable {name!r}")
        return self.variables[name]

    def dtype(self, line: Line) -> Dtype:
        """The name of a dtype."""
        name = line.take()
        found = dtype_named(name)
        if found is None:
            line.fail(f"there is no dtype {name!r}")
        return found

    # Places

    def offset(self, line: Line) -> Affine:
        """`64*i + j - 3`, up to what is no part of a sum."""
        parts = list[Affine]()
        sign = -1 if line.accept("-") else 1
        while True:
            factor = self._factor(line)
            if factor is None:
                parts.append(Affine(0, {self._atom(line): sign}))
            elif line.accept("*"):
                parts.append(Affine(0, {self._atom(line): factor if sign == 1 else -factor}))
            else:
                parts.append(Affine(factor if sign == 1 else -factor))
            if line.next not in ("+", "-"):
                return total(parts)
            sign = -1 if line.take() == "-" else 1

    def _factor(self, line: Line) -> int | None:
        return self.integer(line) if line.next[:1].isdigit() or "~" in line.next else None

    def _atom(self, line: Line) -> Variable | Expr:
        is_name = line.next in self.variables and line.after_next not in ("[", "(")
        return self.variable(line) if is_name else self._prefix(line)

    # Expressions

    def expression(self, line: Line, least: int = 0) -> Expr:
        """An expression whose operators bind at least so tightly."""
        left = self._prefix(line)
        while line.next in _INFIX:
            function, binding = _INFIX[line.next]
            if binding < least:
                break
            line.take()
            left = Call(function, (left, self.expression(line, binding + 1)))
        return left

    def _prefix(self, line: Line) -> Expr:
        token = line.take()
        if token == "(":
            return self._closed(line, ")")
        if token == "-":
            if _is_number(line.next):
                return _number("-" + line.take(), line)
            return Call("neg", (self.expression(line, NEGATION),))
        if token == "not":
            return Call("not", (self.expression(line, NOT),))
        if "~" in token:
            return _word(token, line)
        if _is_number(token):
            return _number(token, line)
        return self._name(token, line)

    def _closed(self, line: Line, end: str) -> Expr:
        value = self.expression(line)
        line.expect(end)
        return value

    def _name(self, name: str, line: Line) -> Expr:
        if line.next == "(":
            return self._call(name, line)
        if name in self.arguments:
            line.expect("[")
            offset = self.offset(line)
            line.expect("]")
            return Load(self.arguments[name], offset)
        if line.next == "[":
            return self._bracketed(name, line)
        if name in self.variables:
            return Index(self.variables[name])
        if name not in self.named:
            line.fail(f"there is no {name!r} here")
        return self.named[name]

    def _call(self, name: str, line: Line) -> Expr:
        arguments = self._arguments(line)
        if name == "select" and len(arguments) == 3:
            return Select(*arguments)
        if name in FUNCTIONS:
            return Call(name, arguments)
        target = dtype_named(name)
        if target is None or len(arguments) != 1:
            line.fail(f"there is no function {name!r} of {len(arguments)} numbers")
        return Cast(*arguments, target)

    def _arguments(self, line: Line) -> tuple[Expr, ...]:
        line.expect("(")
        found = [self.expression(line)]
        while line.accept(","):
            found.append(self.expression(line))
        line.expect(")")
        return tuple(found)

    def _bracketed(self, name: str, line: Line) -> Expr:
        """`bitcast[f32](x)`, `sum[r < 64](x)`, `scan_sum[i](x)`"""
        if name != "bitcast":
            return self.combining(name, line)(self._argument(line))
        line.expect("[")
        target = self.dtype(line)
        line.expect("]")
        return Bitcast(self._argument(line), target)

    def _argument(self, line: Line) -> Expr:
        line.expect("(")
        return self._closed(line, ")")

    def combining(self, name: str, line: Line) -> Callable[[Expr], Expr]:
        """`sum[r < 64]`, `scan_sum[i, reverse]`: what it makes of a body."""
        if name.removeprefix(SCAN) not in REDUCTIONS:
            line.fail(f"there is no buffer or reduction {name!r}")
        line.expect("[")
        if name.startswith(SCAN):
            return self._scan(name.removeprefix(SCAN), line)
        variables = [self.bound(line)]
        while line.accept(","):
            variables.append(self.bound(line))
        line.expect("]")
        return partial(Reduce, name, tuple(variables))

    def _scan(self, combine: str, line: Line) -> Callable[[Expr], Expr]:
        along = self.variable(line)
        flags = set[str]()
        while line.accept(","):
            flags.add(line.take())
        line.expect("]")
        return lambda body: Scan(combine, along, body, "exclusive" in flags, "reverse" in flags)


def _dynamic(token: str) -> Dynamic:
    word, hint = token[1:].split("~")
    return dynamic(int(hint), int(word))


def _is_number(token: str) -> bool:
    return token[:1].isdigit() or token.split("_")[0] in ("inf", "nan")


def _word(token: str, line: Line) -> Word:
    number, _, dtype = token.partition("_")
    return Word(_dynamic(number), _suffix(dtype, INT64, line).name)


def _number(token: str, line: Line) -> Const:
    digits, _, dtype = token.partition("_")
    is_whole = digits.removeprefix("-").isdigit()
    return Const(number_value(digits, _suffix(dtype, INT64 if is_whole else FLOAT32, line)))


def _suffix(name: str, plain: Dtype, line: Line) -> Dtype:
    found = dtype_named(name) if name else plain
    if found is None:
        line.fail(f"there is no dtype {name!r}")
    return found
