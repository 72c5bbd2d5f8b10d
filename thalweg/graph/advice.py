"""Words for those who treat a tensor of a graph as a Python value: what to write instead.

Comes in: the tensor, and what Python asked of it. Goes out: the text of an error with the user's
line, and that line's `if`, `while` or `for` as the `tf.cond` or `tf.while_loop` that it should be.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from typing import Any

from thalweg.graph.node import Tensor, operators
from thalweg.graph.origin import user_place
from thalweg.platform.notebook import location

#: An expression that a tensor was asked for in, and what to write for it.
Advice = tuple[ast.expr, str]


def as_bool(tensor: Tensor) -> str:
    """Why a tensor is neither true nor false."""
    line, instead = _found(_tests)
    return (
        f"Using a tf.Tensor as a Python bool is not allowed: {tensor.name} (made at "
        f"{tensor.op.origin}) has no value while the graph is built and cannot decide an `if`, "
        "`while`, `and`, `or` or `not`. Use tf.cond, tf.while_loop, tf.where or tf.logical_and; to "
        f"see whether it is None, write `is None`.{line}{instead}"
    )


def as_iterable(tensor: Tensor) -> str:
    """Why there are no elements to visit."""
    line, instead = _found(_iterations)
    return (
        f"'Tensor' object is not iterable: {tensor.name} (made at {tensor.op.origin}) has no value "
        "while the graph is built. Use tf.unstack, tf.map_fn to visit each element, or a "
        f"tf.while_loop.{line}{instead}"
    )


def as_sized(tensor: Tensor) -> str:
    """Why there is no length."""
    line, _ = _found(_iterations)
    return (
        f"len is not defined for {tensor.name} (made at {tensor.op.origin}): its size may be known "
        f"only when a step runs. Use tf.shape(x)[0], or x.shape[0] for what is known now.{line}"
    )


operators.update(as_bool=as_bool, as_iterable=as_iterable, as_sized=as_sized)


def _found(kinds: Callable[[ast.AST], Iterator[Advice]]) -> tuple[str, str]:
    """The user's line, and what to write there: texts to add to an error."""
    file, number = user_place()
    place, text = location(file, number), linecache.getline(file, number).strip()
    if not text:
        return f" (at {place})", ""
    shown = f"\n  {place}:  {text}"
    instead = _instead(file, number, kinds)
    return shown, f"\nInstead, write:  {instead}" if instead else ""


def _instead(file: str, line: int, kinds: Callable[[ast.AST], Iterator[Advice]]) -> str:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # what runs is not what stands there
        return ""
    found = [
        advice
        for node in ast.walk(tree)
        for advice in kinds(node)
        if advice[0].lineno <= line <= (advice[0].end_lineno or line)
    ]
    return max(found, key=_depth)[1] if found else ""


def _depth(advice: Advice) -> tuple[int, int]:
    """Statements come before the expressions inside them: of two, the inner one is meant."""
    return advice[0].lineno, -(advice[0].end_lineno or 0)


def _text(node: Any) -> str:
    return ast.unparse(node)


def _tests(node: ast.AST) -> Iterator[Advice]:
    """Where Python asks whether something is true."""
    match node:
        case ast.If(test=test):
            yield test, f"tf.cond({_truth(test)}, true_fn, false_fn)  # functions of nothing"
        case ast.While(test=test):
            yield (
                test,
                f"tf.while_loop(lambda *loop_vars: {_truth(test)}, body, loop_vars)  # body gives "
                "the next loop_vars",
            )
        case ast.Assert(test=test):
            yield test, f"tf.Assert({_truth(test)}, [...])  # and tf.control_dependencies on it"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield test, f"tf.where({_truth(test)}, {_text(body)}, {_text(orelse)})  # or tf.cond"
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Compare(ops=[_, _, *_]):
            yield node, _truth(node)
        case _:
            return


def _iterations(node: ast.AST) -> Iterator[Advice]:
    """Where Python visits elements."""
    match node:
        case ast.For(target=target, iter=visited):
            yield (
                visited,
                f"tf.map_fn(lambda {_text(target)}: ..., {_text(visited)})  # or a tf.while_loop",
            )
        case ast.comprehension(target=target, iter=visited):
            yield visited, f"tf.map_fn(lambda {_text(target)}: ..., {_text(visited)})"
        case ast.Assign(targets=[ast.Tuple() | ast.List() as targets], value=value):
            yield value, f"{_text(targets)} = tf.unstack({_text(value)})"
        case _:
            return


def _truth(test: ast.expr) -> str:
    """An expression without `and`, `or` and `not`."""
    match test:
        case ast.BoolOp(op=op, values=values):
            name = "logical_and" if isinstance(op, ast.And) else "logical_or"
            return _nested(name, [_truth(value) for value in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"tf.logical_not({_truth(operand)})"
        case ast.Compare(left=left, ops=[_, _, *_] as ops, comparators=rest):
            return _nested("logical_and", _pairs(left, ops, rest))
        case _:
            return _text(test)


def _nested(name: str, parts: list[str]) -> str:
    *first, last = parts
    for part in reversed(first):
        last = f"tf.{name}({part}, {last})"
    return last


def _pairs(left: ast.expr, ops: list[ast.cmpop], rest: list[ast.expr]) -> list[str]:
    """`a < b < c` as its two comparisons."""
    sides = [left, *rest]
    pairs = zip(sides, ops, rest, strict=False)
    return [_text(ast.Compare(a, [op], [b])) for a, op, b in pairs]
