"""Conditionals: nodes that run one of several sub-graphs, selected by a tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from thalweg.autodiff.gradients import InnerGradient, backward, is_differentiable, zeros
from thalweg.control.bodies import (
    ControlOp,
    TracedBody,
    after_outer_nodes,
    close_bodies,
    explained,
    pack_tensors,
    trace_body,
)
from thalweg.control.traces import BranchTrace, add_trace, capture, capture_inner
from thalweg.graph import nest
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, int32, int64, variant
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import Structure, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body, SubGraph, is_body
from thalweg.ops.arrays import joining
from thalweg.ops.core import casting, checks, filling, shaping
from thalweg.ops.math import compare, reduce
from thalweg.public import public


class Branching(ControlOp, abstract=True):
    """The base of conditionals. The first input selects a branch; all branches take the others."""

    branches: tuple[Body, ...]
    Tout: tuple[DType, ...]

    @property
    def bodies(self) -> tuple[Body, ...]:
        return self.branches

    def shape(self, choice: Tensor, inputs: list[Tensor]) -> list[list[TensorShape]]:
        choice.shape.assert_has_rank(0)
        rows = zip(*(body.outputs for body in self.branches), strict=True)
        return [[common_shape([tensor.shape for tensor in row]) for row in rows]]

    def gradient(
        self,
        node: Node,
        *dys: Any,
        wanted: Sequence[int],
        given: Sequence[int] = (),
        inner: Sequence[InnerGradient] = (),
    ) -> list[Any]:
        gradients: list[Any] = [None] * len(node.inputs)
        arguments = [i - 1 for i in wanted if is_differentiable(node.inputs[i])]
        if not arguments:
            return gradients
        seeds = {i: dys[i] for i in given if is_differentiable(node.outputs[i])}
        lists = _list_totals(node, arguments, seeds)
        branches = [
            self._backward(node, body, seeds, inner, arguments, lists) for body in self.branches
        ]
        sliced = [_is_sliced(row) for row in zip(*(parts for _, parts in branches), strict=True)]
        unclosed = [_gradient_body(graph, parts, sliced) for graph, parts in branches]
        results = iter(_branch_node(type(self), node.inputs[0], unclosed))
        for argument, is_sliced in zip(arguments, sliced, strict=True):
            gradient = next(results)
            if is_sliced:
                shape = shaping.shape(capture(node.inputs[1 + argument]))
                gradient = IndexedSlices(gradient, next(results), shape)
            gradients[1 + argument] = gradient
        return gradients

    def _backward(
        self,
        node: Node,
        body: Body,
        dys: Mapping[int, Any],
        inner: Sequence[InnerGradient],
        wanted: Sequence[int],
        lists: Mapping[int, Tensor],
    ) -> tuple[SubGraph, list[_BranchGradient]]:
        """The gradient of one branch, which takes values from inside the branch by traces.
        Gradients of lists are added to `lists`."""
        graph = SubGraph(get_default_graph(), f"the gradient of {node.name}")

        def read(tensor: Tensor) -> Tensor:
            return graph.capture(add_trace(node, BranchTrace(tensor=tensor, dtype=tensor.dtype)))

        graph.sources[body.graph] = capture_inner(graph, body.bound(node), read)
        pairs = [(body.outputs[index], dy) for index, dy in dys.items()]
        pairs += [(y, dy) for y, dy in inner if y.graph is body.graph]
        xs = [body.arguments[index] for index in wanted]
        with graph.as_default():
            ys, seeds = [y for y, _ in pairs], [capture(dy) for _, dy in pairs]
            totals = [capture(lists[i]) if i in lists else None for i in wanted]
            return graph, list(map(_BranchGradient, xs, backward(ys, seeds, xs, totals)))


def _list_totals(node: Node, arguments: Sequence[int], dys: Mapping[int, Any]) -> dict[int, Tensor]:
    """Empty gradients for the lists among the arguments, to which the branch that runs adds. If the
    branches return lists, these have gradients already."""
    if any(node.outputs[index].dtype.base_dtype is variant for index in dys):
        return {}
    inputs = {index: node.inputs[1 + index] for index in arguments}
    lists = {i: tensor for i, tensor in inputs.items() if tensor.dtype.base_dtype is variant}
    return {index: zeros(capture(tensor)) for index, tensor in lists.items()}


class _BranchGradient(NamedTuple):
    """The gradient of one argument of one branch."""

    x: Tensor
    gradient: Tensor | IndexedSlices | None

    def dense(self) -> Tensor:
        return zeros(self.x) if self.gradient is None else convert_to_tensor(self.gradient)

    def slices(self) -> tuple[Tensor, Tensor]:
        """Values and indices: no rows for None, all rows for a dense gradient."""
        if isinstance(self.gradient, IndexedSlices):
            return self.gradient.values, casting.cast(self.gradient.indices, int64)
        if self.gradient is None:
            no_rows = filling.zeros([0, *self.x.shape.as_list()[1:]], self.x.dtype.base_dtype)
            return no_rows, filling.zeros([0], int64)
        rows = shaping.shape(self.gradient, out_type=int64)[0]
        return self.gradient, filling.range(rows)


def _is_sliced(parts: Sequence[_BranchGradient]) -> bool:
    """Whether a gradient is IndexedSlices, as that of at least one branch. Not inside another body:
    the number of rows may differ between branches, which is not compiled."""
    if is_body(get_default_graph()) or None in (parts[0].x.shape.sizes or (None, None))[1:]:
        return False
    return any(isinstance(part.gradient, IndexedSlices) for part in parts)


def _gradient_body(
    graph: SubGraph, parts: Sequence[_BranchGradient], sliced: Sequence[bool]
) -> Body:
    outputs: list[Tensor] = []
    with graph.as_default():
        for part, is_sliced in zip(parts, sliced, strict=True):
            outputs += part.slices() if is_sliced else [part.dense()]
        return Body(graph, (), tuple(graph.capture(tensor) for tensor in outputs))


class If(Branching):
    """The outputs of the second branch if the predicate is true, else of the first."""

    signature = "predicate: bool, inputs: [Tin] -> outputs: [Tout]"


class Case(Branching):
    """The outputs of the branch with this index; of the last one if it is out of range."""

    signature = "index: int32, inputs: [Tin] -> outputs: [Tout]"


def common_shape(shapes: Sequence[TensorShape]) -> TensorShape:
    """The most specific static shape that all shapes are compatible with."""
    return functools.reduce(TensorShape.most_specific_compatible_shape, shapes)


def _branch_node(kind: type[Branching], choice: Tensor, unclosed: Sequence[Body]) -> list[Tensor]:
    bodies, captured = close_bodies(unclosed)
    dtypes = tuple(tensor.dtype.base_dtype for tensor in bodies[0].outputs)
    with after_outer_nodes(unclosed):
        return kind(branches=tuple(bodies), Tout=dtypes)(choice, captured)


@public("cond")
def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Structure:
    """The result of one of two functions, selected by a scalar; only that one runs.

    Nodes made inside the functions run only with their branch; those made outside always run.

    Args:
        pred: a scalar bool tensor.
        true_fn, false_fn: functions without arguments that return tensors, or nestings of them, of
            the same structure and dtypes.
        strict: return a list of one element as it is, not the element.
        name: the name of the node.
        fn1, fn2: the old names of `true_fn` and `false_fn`.

    Returns:
        What the functions return.

    Example:
        >>> x = tf.placeholder(tf.float32, [])
        >>> y = tf.cond(x > 0, lambda: tf.log(x), lambda: tf.zeros([]))
        >>> sess.run(y, {x: 1.0}), sess.run(y, {x: -1.0})
        (np.float32(0.0), np.float32(0.0))
    """
    true_fn = _resolve_function(true_fn, fn1, "true_fn", "fn1")
    false_fn = _resolve_function(false_fn, fn2, "false_fn", "fn2")
    if get_default_graph().is_eager:
        result = true_fn() if pred else false_fn()
        return result if strict else nest.single(result)
    if isinstance(pred, bool):
        raise TypeError(
            "pred must not be a Python bool: decide with a Python `if`, or pass a tensor "
            f"(at {user_line()})"
        )
    with name_scope(name, "cond", [pred]):
        predicate = _selector(pred, "pred", boolean)
        # As in TensorFlow, the true branch is traced first: the other may reuse its variables.
        true_body = trace_body(true_fn, "true_fn of tf.cond")
        unclosed = [trace_body(false_fn, "false_fn of tf.cond"), true_body]
        if not strict:
            unclosed = [replace(body, result=nest.single(body.result)) for body in unclosed]
        unclosed = _widen_indices(unclosed)
        _check_same_structure(unclosed, ("false_fn", "true_fn"))
        return _result(unclosed[1].result, _branch_node(If, predicate, unclosed), strict)


def _selector(value: Any, name: str, dtype: DType) -> Tensor:
    """The scalar that selects a branch, as a tensor."""
    try:
        tensor = convert_to_tensor(value, name=name)
    except (TypeError, ValueError) as error:
        text = f"{name} must be a scalar {dtype.name}: {error} (at {user_line()})"
        raise TypeError(text) from error
    if tensor.dtype.base_dtype is not dtype:
        raise TypeError(f"{name} must be a scalar {dtype.name}, not {value!r} (at {user_line()})")
    return tensor


def _resolve_function(
    new: Callable[[], Any] | None, old: Callable[[], Any] | None, name: str, old_name: str
) -> Callable[[], Any]:
    if new is not None and old is not None:
        raise TypeError(
            f"cond(): {name} and {old_name} may not be set simultaneously. (at {user_line()})"
        )
    function = old if new is None else new
    if function is None:
        raise TypeError(f"cond(): {name} argument required (at {user_line()})")
    if not callable(function):
        raise TypeError(f"{name} must be callable. (at {user_line()})")
    return function


def _result(structure: Any, tensors: Sequence[Tensor], strict: bool) -> Any:
    """The tensors in the structure of a branch's result; unless strict, one in a sequence alone."""
    result = pack_tensors(structure, tensors)
    return result if strict else nest.single(result)


def _widen_indices(unclosed: Sequence[TracedBody]) -> list[TracedBody]:
    """Cast indices of IndexedSlices to int64 if their dtypes differ between branches."""
    rows = zip(*(nest.flatten(body.result) for body in unclosed), strict=False)
    slices = [row for row in rows if all(isinstance(leaf, IndexedSlices) for leaf in row)]
    mixed = [row for row in slices if len({leaf.indices.dtype for leaf in row}) > 1]
    if not mixed:
        return list(unclosed)
    widened: list[TracedBody] = []
    for branch, body in enumerate(unclosed):
        with body.graph.as_default():
            narrow = {body.graph.capture(row[branch].indices) for row in mixed}
            outputs = [casting.cast(t, int64) if t in narrow else t for t in body.outputs]
        widened.append(replace(body, outputs=tuple(outputs)))
    return widened


def _check_same_structure(unclosed: Sequence[TracedBody], names: Sequence[str]) -> None:
    """Raise unless all branches return the same structure and dtypes."""
    first = unclosed[0]
    for other, name in zip(unclosed[1:], names[1:], strict=True):
        both = f"{name} and {names[0]}" if len(names) == 2 else f"{names[0]} and {name}"
        with explained(f"Incompatible return values of {both}"):
            nest.assert_same_structure(other.result, first.result)
        for a, b in zip(other.outputs, first.outputs, strict=True):
            if a.dtype.base_dtype is not b.dtype.base_dtype:
                raise ValueError(
                    f"Outputs of {both} must have the same type: {a.dtype.name} (made at "
                    f"{a.op.origin}), {b.dtype.name} (made at {b.op.origin})"
                )


@public("switch_case")
def switch_case(
    branch_index: Any,
    branch_fns: Mapping[int, Callable[[], Structure]]
    | Sequence[Callable[[], Structure] | tuple[int, Callable[[], Structure]]],
    default: Callable[[], Any] | None = None,
    name: str | None = "switch_case",
) -> Structure:
    """The result of function `branch_index`; of `default` (or the last) for other numbers.

    `branch_fns` are functions, or pairs or a mapping of numbers and functions.
    """
    numbered = _numbered_branches(branch_fns)
    functions = [function for _, function in numbered] + ([default] if default else [])
    for function in functions:
        if not callable(function):
            raise TypeError(f"branch_fns must be callable, not {function!r} (at {user_line()})")
    if get_default_graph().is_eager:
        number = int(branch_index)
        return nest.single(functions[number if 0 <= number < len(functions) else -1]())
    with name_scope(name, "switch_case", [branch_index]):
        index = _selector(branch_index, "branch_index", int32)
        names = [f"branch {number}" for number, _ in numbered] + ["default"] * (default is not None)
        unclosed = [
            trace_body(function, f"{name} of tf.switch_case")
            for function, name in zip(functions, names, strict=True)
        ]
        _check_same_structure(unclosed, names)
        return _result(unclosed[0].result, _branch_node(Case, index, unclosed), False)


def _numbered_branches(functions: Any) -> list[tuple[int, Any]]:
    """Pairs of number and function, sorted; the numbers must be 0, 1, 2, …"""
    pairs = _items(functions, "branch_fns")
    if not pairs:
        raise ValueError(f"Must provide at least one item in branch_fns (at {user_line()})")
    if all(map(callable, pairs)):
        pairs = list(enumerate(pairs))
    for pair in pairs:
        is_pair = isinstance(pair, list | tuple) and len(cast("Sequence[Any]", pair)) == 2
        if not (is_pair and isinstance(pair[0], int)):
            raise TypeError(
                f"branch_fns must be functions, or pairs of a number and a function, not {pair!r} "
                f"(at {user_line()})"
            )
    ordered = sorted(pairs, key=lambda pair: pair[0])
    numbers = [number for number, _ in ordered]
    if numbers != list(range(len(pairs))):
        raise ValueError(
            f"branch indices must be 0 to {len(pairs) - 1} without gaps: {numbers} "
            f"(at {user_line()})"
        )
    return ordered


def _items(given: Any, name: str) -> list[Any]:
    """The items of a list or tuple, or the pairs of a mapping."""
    if isinstance(given, Mapping):
        return list(cast("Mapping[Any, Any]", given).items())
    if not isinstance(given, list | tuple):
        raise TypeError(f"{name} must be a list, tuple, or dict (at {user_line()})")
    return list(cast("Sequence[Any]", given))


_Function = Callable[[], Any]
_Pair = tuple[Tensor, _Function]


@public("case")
def case(
    pred_fn_pairs: Mapping[Tensor, Callable[[], Structure]]
    | Sequence[tuple[TensorLike, Callable[[], Structure]]],
    default: _Function | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Structure:
    """The result of the function whose predicate is the first true one.

    Args:
        pred_fn_pairs: a list of (scalar bool tensor, function), or a dict.
        default: the function if none is true; without one, that is an error of the step.
        exclusive: whether more than one true predicate is an error of the step.
        strict: return a list of one element as it is, not the element.
        name: the name of the nodes.

    Returns:
        The result of the function: all return the same structure and dtypes.

    Example:
        >>> x = tf.placeholder(tf.int32, [])
        >>> pairs = [(x < 10, lambda: tf.constant(1)), (x < 100, lambda: tf.constant(2))]
        >>> digits = tf.case(pairs, default=lambda: tf.constant(3))
        >>> sess.run(digits, {x: 42})
        np.int32(2)
    """
    with name_scope(name, "case"):
        pairs = [_checked_pair(item) for item in _items(pred_fn_pairs, "pred_fn_pairs")]
        if not pairs:
            raise ValueError(f"pred_fn_pairs must not be empty (at {user_line()})")
        if default is not None and not callable(default):
            raise TypeError("default must be callable.")
        asserts: list[Any] = []
        predicates = joining.stack([predicate for predicate, _ in pairs])
        if exclusive:
            count = reduce.reduce_sum(casting.cast(predicates, int32))
            message = "More than one condition evaluated as True but exclusive=True."
            asserts.append(checks.Assert(compare.less_equal(count, 1), [message, predicates], 10))
        if default is None:
            message = "None of the conditions evaluated as True, and there is no default."
            asserts.append(checks.Assert(reduce.reduce_any(predicates), [message, predicates], 10))
            _, default = pairs.pop()
        with get_default_graph().control_dependencies(asserts):
            return _chain(pairs, default, strict)


def _chain(pairs: Sequence[_Pair], default: _Function, strict: bool) -> Any:
    """Nested conditionals, the first pair outermost."""
    (predicate, chosen), *others = pairs or [(convert_to_tensor(True), default)]
    otherwise = functools.partial(_chain, others, default, True) if others else default
    return cond(predicate, chosen, otherwise, strict=strict)


def _checked_pair(item: Any) -> _Pair:
    if not isinstance(item, tuple) or len(cast("Any", item)) != 2:
        raise TypeError(
            f"Each entry in pred_fn_pairs must be a 2-tuple, not {item!r} (at {user_line()})"
        )
    predicate, function = cast("tuple[Any, Any]", item)
    if predicate is None:
        raise TypeError(f"pred must be of type bool, not None (at {user_line()})")
    if not callable(function):
        raise TypeError(f"fn for pred {predicate!r} must be callable. (at {user_line()})")
    tensor = convert_to_tensor(predicate)
    if tensor.dtype.base_dtype is not boolean:
        raise TypeError(f"pred must be of type bool: {predicate!r} (at {user_line()})")
    return tensor, function
