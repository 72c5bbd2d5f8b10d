"""The parser of expressions and offsets, on top of Python's own: operators are Python's."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import partial, reduce
from typing import NamedTuple, NoReturn

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
from thalweg.ir.functions.dtypes import INT64, Dtype
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine, total
from thalweg.ir.kernel import Argument
from thalweg.ir.text.syntax import FLOAT32, OPERATORS, SCAN, UNARY, dtype_named, number_value

#: Argument words and numbers with suffixes, `w3~64` and `0.5_f64`: strings to Python.
_NUMBER = re.compile(
    r"(?<![\w.])(?:w\d+~-?\d+|0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)(?:_\w+)?\b"
)


def _operator(function: str, sign: str) -> type[ast.AST]:
    """The AST class of an operator."""
    match ast.parse(f"{sign}a" if function in UNARY else f"a {sign} b", mode="eval").body:
        case ast.Compare(ops=[op]) | ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.UnaryOp(op=op):
            return type(op)
        case _:
            raise ValueError(f"{sign} is no operator")


_FUNCTIONS = {_operator(function, sign): function for function, (sign, _) in OPERATORS.items()}


class ParseError(ValueError):
    """Text that is not a kernel: the line, and the error."""


class Line(NamedTuple):
    """A line: its number, its text without indentation, and the indentation."""

    number: int
    text: str
    indent: int

    def fail(self, reason: str) -> NoReturn:
        """Raise a `ParseError` at this line."""
        raise ParseError(f"line {self.number}: {self.text}\n{reason}")


class ExpressionParser:
    """Parses expressions; holds arguments, variables and named expressions by name."""

    def __init__(self) -> None:
        self.arguments: dict[str, Argument] = {}
        self.variables: dict[str, Variable] = {}
        self.named: dict[str, Expr] = {"true": TRUE, "false": FALSE}
        self.line = Line(0, "", 0)  # the current one

    def expression(self, text: str) -> Expr:
        """An expression."""
        return self._expression(self._parsed(text))

    def offset(self, text: str) -> Affine:
        """`64*i + j - 3`"""
        return self._sum(self._parsed(text))

    def combining(self, text: str) -> Callable[[Expr], Expr]:
        """`sum[r < 64]`, `scan_sum[i, reverse]`: a function of the body."""
        return self._combining(self._parsed(text))

    def _parsed(self, text: str) -> ast.expr:
        try:
            return ast.parse(_NUMBER.sub(r"('\g<0>')", text), mode="eval").body
        except SyntaxError:
            self.line.fail(f"{text!r} is no expression")

    # Numbers and variables

    def integer(self, text: str) -> int:
        """An integer, static or dynamic."""
        if "~" in text:
            return _dynamic(text)
        if not text.removeprefix("-").isdigit():
            self.line.fail(f"{text!r} is not an integer")
        return int(text)

    def bound(self, name: str, extent: str) -> Variable:
        """`i < 64`: a bound variable; bound twice, it is the same one."""
        known = self.variables.setdefault(name, Variable(self.integer(extent), name))
        if known.extent != self.integer(extent):
            self.line.fail(f"{name} has the extents {known.extent} and {extent}")
        return known

    def variable(self, name: str) -> Variable:
        """A variable by its name."""
        if name not in self.variables:
            self.line.fail(f"there is no variable {name!r}")
        return self.variables[name]

    def dtype(self, name: str) -> Dtype:
        """The dtype of a name."""
        found = dtype_named(name)
        if found is None:
            self.line.fail(f"there is no dtype {name!r}")
        return found

    def _number(self, text: str) -> Const | Word:
        digits, _, name = text.partition("_")
        if "~" in digits:
            return Word(_dynamic(digits), self.dtype(name) if name else INT64)
        plain = INT64 if digits.removeprefix("-").isdigit() else FLOAT32
        return Const(number_value(digits, self.dtype(name) if name else plain))

    # Offsets

    def _sum(self, node: ast.expr, sign: int = 1) -> Affine:
        match node:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                added = sign if isinstance(op, ast.Add) else -sign
                return total([self._sum(left, sign), self._sum(right, added)])
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self._sum(inner, -sign)
            case ast.Constant(value=str(text)):
                return Affine(self._signed(text, sign))
            case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mult(), right=inner):
                return Affine(0, {self._atom(inner): self._signed(text, sign)})
            case ast.BinOp(left=ast.UnaryOp(operand=left), op=ast.Mult(), right=inner):
                return self._sum(ast.BinOp(left, ast.Mult(), inner), -sign)
            case _:
                return Affine(0, {self._atom(node): sign})

    def _signed(self, text: str, sign: int) -> int:
        number = self.integer(text)
        return number if sign == 1 else -number

    def _atom(self, node: ast.expr) -> Variable | Expr:
        match node:
            case ast.Name(id=name) if name in self.variables:
                return self.variables[name]
            case ast.List(elts=[inner]):
                return self._expression(inner)
            case _:
                return self._expression(node)

    # Expressions

    def _expression(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value=str(text)):
                return self._number(text)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=str(text))):
                return self._number(f"-{text}")
            case ast.Name(id=name):
                return self._name(name)
            case ast.Subscript(value=ast.Name(id=name), slice=place):
                if name not in self.arguments:
                    self.line.fail(f"there is no buffer or reduction {name!r}")
                return Load(self.arguments[name], self._sum(place))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, tuple(map(self._expression, arguments)))
            case ast.Call(func=ast.Subscript() as head, args=[body]):
                return self._combining(head)(self._expression(body))
            case _:
                return self._operation(node)

    def _operation(self, node: ast.expr) -> Expr:
        match node:
            case ast.UnaryOp(op=op, operand=inner):
                return Call(self._function(op), (self._expression(inner),))
            case ast.BinOp(left=left, op=op, right=right):
                parts = [left, right]
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                parts = [left, right]
            case ast.BoolOp(op=op, values=parts):
                pass
            case _:
                self.line.fail(f"{ast.unparse(node)} is no expression")
        function = self._function(op)
        made = map(self._expression, parts)
        return reduce(lambda left, right: Call(function, (left, right)), made)

    def _function(self, op: ast.AST) -> str:
        if type(op) not in _FUNCTIONS:
            self.line.fail(f"there is no operator {type(op).__name__}")
        return _FUNCTIONS[type(op)]

    def _name(self, name: str) -> Expr:
        if name in self.variables:
            return Index(self.variables[name])
        if name not in self.named:
            self.line.fail(f"there is no {name!r} here")
        return self.named[name]

    def _call(self, name: str, arguments: tuple[Expr, ...]) -> Expr:
        if name == "select" and len(arguments) == 3:
            return Select(*arguments)
        if name in FUNCTIONS:
            return Call(name, arguments)
        target = dtype_named(name)
        if target is None or len(arguments) != 1:
            self.line.fail(f"there is no function {name!r} of {len(arguments)} numbers")
        return Cast(*arguments, target)

    def _combining(self, node: ast.expr) -> Callable[[Expr], Expr]:
        """`sum[r < 64]`, `scan_sum[i, reverse]`, `bitcast[f32]`"""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            self.line.fail(f"{ast.unparse(node)} combines nothing")
        name, place = node.value.id, node.slice
        inside = place.elts if isinstance(place, ast.Tuple) else [place]
        names = [part.id for part in inside if isinstance(part, ast.Name)]
        if name == "bitcast" and names:
            return partial(Bitcast, target=self.dtype(names[0]))
        combine = name.removeprefix(SCAN)
        if combine not in REDUCTIONS:
            self.line.fail(f"there is no buffer or reduction {name!r}")
        if combine == name:
            return partial(Reduce, name, tuple(map(self._bound, inside)))
        along, flags = self.variable(names[0]), set(names[1:])
        return lambda body: Scan(combine, along, body, "exclusive" in flags, "reverse" in flags)

    def _bound(self, node: ast.expr) -> Variable:
        match node:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Lt()], comparators=[ast.Constant(value=str(text))]
            ):
                return self.bound(name, text)
            case _:
                self.line.fail(f"{ast.unparse(node)} binds no variable")


def _dynamic(text: str) -> Dynamic:
    word, hint = text.removeprefix("w").split("~")
    return dynamic(int(hint), int(word))
