"""Error messages for uses of a graph tensor as a Python value, with what to write instead.

Each function takes the tensor and returns the message: the reason, the user's line, and the
`tf.cond`, `tf.while_loop` or other call that replaces the `if`, `while` or `for` on that line.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from typing import Any

from thalweg.graph.node import Tensor, operators
from thalweg.graph.origin import user_location
from thalweg.platform.notebook import location

#: An expression that uses a tensor as a Python value, and its replacement.
Advice = tuple[ast.expr, str]


def as_bool(tensor: Tensor) -> str:
    """The error for `bool(tensor)`."""
    line, instead = _advice(_truth_tests)
    return (
        f"Using a tf.Tensor as a Python bool is not allowed: {tensor.name} (made at "
        f"{tensor.op.origin}) has no value while the graph is built and cannot decide an `if`, "
        "`while`, `and`, `or` or `not`. Use tf.cond, tf.while_loop, tf.where or tf.logical_and; to "
        f"see whether it is None, write `is None`.{line}{instead}"
    )


def as_iterable(tensor: Tensor) -> str:
    """The error for `iter(tensor)`."""
    line, instead = _advice(_iterations)
    return (
        f"'Tensor' object is not iterable: {tensor.name} (made at {tensor.op.origin}) has no value "
        "while the graph is built. Use tf.unstack, tf.map_fn to visit each element, or a "
        f"tf.while_loop.{line}{instead}"
    )


def as_sized(tensor: Tensor) -> str:
    """The error for `len(tensor)`."""
    line, _ = _advice(_iterations)
    return (
        f"len is not defined for {tensor.name} (made at {tensor.op.origin}): its size may be known "
        f"only when a step runs. Use tf.shape(x)[0], or x.shape[0] for what is known now.{line}"
    )


operators.update(as_bool=as_bool, as_iterable=as_iterable, as_sized=as_sized)


def _advice(matches: Callable[[ast.AST], Iterator[Advice]]) -> tuple[str, str]:
    """The user's line, and its replacement if there is one: texts to append to an error."""
    file, line = user_location()
    where, text = location(file, line), linecache.getline(file, line).strip()
    if not text:
        return f" (at {where})", ""
    instead = _replacement(file, line, matches)
    return f"\n  {where}:  {text}", f"\nInstead, write:  {instead}" if instead else ""


def _replacement(file: str, line: int, matches: Callable[[ast.AST], Iterator[Advice]]) -> str:
    """The replacement of the innermost matching expression on a line."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # the file has changed since it was imported
        return ""
    advices = [
        advice
        for node in ast.walk(tree)
        for advice in matches(node)
        if advice[0].lineno <= line <= (advice[0].end_lineno or line)
    ]
    return max(advices, key=_nesting)[1] if advices else ""


def _nesting(advice: Advice) -> tuple[int, int]:
    """A sort key: inner expressions start later and end earlier."""
    return advice[0].lineno, -(advice[0].end_lineno or 0)


def _text(node: Any) -> str:
    return ast.unparse(node)


def _truth_tests(node: ast.AST) -> Iterator[Advice]:
    """The expressions of a node whose truth value Python takes."""
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
    """The expressions of a node that Python iterates over."""
    match node:
        case ast.For(target=target, iter=iterable):
            yield (
                iterable,
                f"tf.map_fn(lambda {_text(target)}: ..., {_text(iterable)})  # or a tf.while_loop",
            )
        case ast.comprehension(target=target, iter=iterable):
            yield iterable, f"tf.map_fn(lambda {_text(target)}: ..., {_text(iterable)})"
        case ast.Assign(targets=[ast.Tuple() | ast.List() as targets], value=value):
            yield value, f"{_text(targets)} = tf.unstack({_text(value)})"
        case _:
            return


def _truth(test: ast.expr) -> str:
    """The text of an expression, with `and`, `or` and `not` as TensorFlow's functions."""
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
