"""Conditionals: one of several sub-graphs runs, chosen by a value of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from thalweg.autodiff.gradients import InnerGradient, backward, carries, zeros
from thalweg.control.bodies import Draft, after_outer_nodes, draft, settle
from thalweg.control.structure import rebuilt
from thalweg.control.traces import BranchTrace, here, is_argument, known_here, traced
from thalweg.graph import nest
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, int32, int64
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.graph import get_default_graph, user_line
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import Body, SubGraph
from thalweg.ops import casting
from thalweg.public import public


class Branching(Op, abstract=True):
    """The base of conditionals. The first input chooses; all branches take the others."""

    stateful = True  # its branches may be
    chooses_gradients = True
    of_process = True
    branches: tuple[Body, ...]
    Tout: tuple[DType, ...]

    @property
    def blocking(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - as its bodies do
        return any(body.blocks for body in self.branches)

    def shape(self, choice: Tensor, inputs: list[Tensor]) -> list[list[TensorShape]]:
        choice.shape.assert_has_rank(0)
        ends = zip(*(body.outputs for body in self.branches), strict=True)
        return [[common_shape([tensor.shape for tensor in row]) for row in ends]]

    def kernel(self, context: Any, choice: Any, inputs: list[Any]) -> Any:
        raise AssertionError(f"{context.node.name} is run by its plan")

    def gradient(
        self,
        node: Node,
        *dys: Any,
        wanted: Sequence[int],
        inner: Sequence[InnerGradient] = (),
    ) -> list[Any]:
        found: list[Any] = [None] * len(node.inputs)
        places = [place - 1 for place in wanted if carries(node.inputs[place])]
        if not places:
            return found
        drafts = [self._backward(node, body, dys, inner, places) for body in self.branches]
        gradients = _join(type(self), node.inputs[0], drafts)
        for place, gradient in zip(places, gradients, strict=True):
            found[1 + place] = gradient
        return found

    def _backward(
        self,
        node: Node,
        body: Body,
        dys: Sequence[Any],
        inner: Sequence[InnerGradient],
        wanted: Sequence[int],
    ) -> Draft:
        """The gradient of one branch: what it needs from inside comes by traces."""
        graph = SubGraph(get_default_graph(), f"the gradient of {node.name}")
        places = {tensor: place for place, tensor in enumerate(body.arguments)}

        def source(tensor: Tensor) -> Tensor:
            if is_argument(tensor):
                return graph.capture(node.inputs[1 + places[tensor]])
            known = known_here(tensor)
            if known is not None:
                return known
            return graph.capture(traced(node, BranchTrace(tensor=tensor, dtype=tensor.dtype)))

        graph.sources[body.graph] = source
        pairs = [(y, dy) for y, dy in zip(body.outputs, dys, strict=True) if carries(y)]
        pairs += [(y, dy) for y, dy in inner if y.graph is body.graph]
        xs = [body.arguments[place] for place in wanted]
        with graph.as_default():
            ys, seeds = [y for y, _ in pairs], [here(dy) for _, dy in pairs]
            found = backward(ys, seeds, xs)
            outputs = [
                zeros(x) if gradient is None else convert_to_tensor(gradient)
                for x, gradient in zip(xs, found, strict=True)
            ]
            return Draft(graph, (), tuple(graph.capture(tensor) for tensor in outputs))


class If(Branching):
    """The outputs of the second branch where the predicate holds, else of the first."""

    signature = "predicate: bool, inputs: [Tin] -> outputs: [Tout]"


class Case(Branching):
    """The outputs of the branch of that number; of the last one where there is none."""

    signature = "index: int32, inputs: [Tin] -> outputs: [Tout]"


def common_shape(shapes: Sequence[TensorShape]) -> TensorShape:
    """What holds for all shapes."""
    first, *rest = shapes
    for shape in rest:
        if first.rank is None or shape.rank != first.rank:
            return unknown_shape()
        sizes = [
            a if a == b else None for a, b in zip(first.as_list(), shape.as_list(), strict=True)
        ]
        first = TensorShape(sizes)
    return first


def _join(kind: type[Branching], choice: Tensor, drafts: Sequence[Draft]) -> list[Tensor]:
    bodies, captured = settle(drafts)
    dtypes = tuple(tensor.dtype.base_dtype for tensor in bodies[0].outputs)
    with after_outer_nodes(drafts):
        return kind(branches=tuple(bodies), Tout=dtypes)(choice, captured, name=kind.type_name)


@public("cond")
def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """What `true_fn` returns where `pred` holds, else what `false_fn` does; only one of them runs.

    Both must return the same structure of tensors with the same dtypes.
    """
    yes, no = _function(true_fn, fn1, "true_fn", "fn1"), _function(false_fn, fn2, "false_fn", "fn2")
    if get_default_graph().is_eager:
        result = yes() if pred else no()
        return result if strict else nest.single(result)
    if isinstance(pred, bool):
        raise TypeError(
            "pred must not be a Python bool: decide with a Python `if`, or pass a tensor"
        )
    with name_scope(name, "cond", [pred]):
        predicate = convert_to_tensor(pred, boolean, name="pred")
        drafts = [draft(no, "false_fn of tf.cond"), draft(yes, "true_fn of tf.cond")]
        if not strict:
            drafts = [replace(each, result=nest.single(each.result)) for each in drafts]
        drafts = _with_wide_indices(drafts)
        _check_alike(drafts, ("false_fn", "true_fn"))
        return _result(drafts[1].result, _join(If, predicate, drafts), strict)


def _function(
    given: Callable[[], Any] | None, old: Callable[[], Any] | None, name: str, old_name: str
) -> Callable[[], Any]:
    if given is not None and old is not None:
        raise TypeError(f"cond(): {name} and {old_name} may not be set simultaneously.")
    function = old if given is None else given
    if function is None:
        raise TypeError(f"cond(): {name} argument required")
    if not callable(function):
        raise TypeError(f"{name} must be callable.")
    return function


def _result(structure: Any, tensors: Sequence[Tensor], strict: bool) -> Any:
    """The tensors in the form of a branch's result; a sequence of one is that one."""
    result = rebuilt(structure, tensors)
    return result if strict else nest.single(result)


def _with_wide_indices(drafts: Sequence[Draft]) -> list[Draft]:
    """Where slices have indices of different dtypes, those of int64 for all."""
    rows = zip(*(nest.flatten(each.result) for each in drafts), strict=False)
    slices = [row for row in rows if all(isinstance(leaf, IndexedSlices) for leaf in row)]
    mixed = [row for row in slices if len({leaf.indices.dtype for leaf in row}) > 1]
    if not mixed:
        return list(drafts)
    changed: list[Draft] = []
    for place, each in enumerate(drafts):
        with each.graph.as_default():
            narrow = {each.graph.capture(row[place].indices) for row in mixed}
            outputs = [casting.cast(t, int64) if t in narrow else t for t in each.outputs]
        changed.append(replace(each, outputs=tuple(outputs)))
    return changed


def _check_alike(drafts: Sequence[Draft], names: Sequence[str]) -> None:
    """Raise unless all branches give the same structure and dtypes."""
    first = drafts[0]
    for other, name in zip(drafts[1:], names[1:], strict=True):
        both = f"{name} and {names[0]}" if len(names) == 2 else f"{names[0]} and {name}"
        try:
            nest.assert_same_structure(other.result, first.result)
        except (ValueError, TypeError) as error:
            raise type(error)(
                f"Incompatible return values of {both}: {error} (at {user_line()})"
            ) from error
        for a, b in zip(other.outputs, first.outputs, strict=True):
            if a.dtype.base_dtype is not b.dtype.base_dtype:
                raise ValueError(
                    f"Outputs of {both} must have the same type: {a.dtype.name} (made at "
                    f"{a.op.origin}), {b.dtype.name} (made at {b.op.origin})"
                )


@public("switch_case")
def switch_case(
    branch_index: Any,
    branch_fns: Any,
    default: Callable[[], Any] | None = None,
    name: str | None = "switch_case",
) -> Any:
    """What the function number `branch_index` returns; `default` (or the last) for other numbers.

    `branch_fns` are functions, or pairs or a mapping of numbers and functions.
    """
    numbered = _numbered(branch_fns)
    functions = [function for _, function in numbered] + ([default] if default else [])
    for function in functions:
        if not callable(function):
            raise TypeError(f"branch_fns must be callable, not {function!r}")
    if get_default_graph().is_eager:
        number = int(branch_index)
        return nest.single(functions[number if 0 <= number < len(functions) else -1]())
    with name_scope(name, "switch_case", [branch_index]):
        index = convert_to_tensor(branch_index, name="branch_index")
        if index.dtype.base_dtype is not int32:
            raise TypeError(f"branch_index must be a scalar int32, not {index.dtype.name}")
        names = [f"branch {number}" for number, _ in numbered] + ["default"] * (default is not None)
        drafts = [
            draft(function, f"{name} of tf.switch_case")
            for function, name in zip(functions, names, strict=True)
        ]
        _check_alike(drafts, names)
        return _result(drafts[0].result, _join(Case, index, drafts), False)


def _numbered(functions: Any) -> list[tuple[int, Any]]:
    """Functions by number, which must be 0, 1, 2, …"""
    pairs: list[Any]
    if isinstance(functions, dict):
        pairs = list(cast("dict[Any, Any]", functions).items())
    elif isinstance(functions, list | tuple):
        items = list(cast("Sequence[Any]", functions))
        pairs = list(enumerate(items)) if all(map(callable, items)) else items
    else:
        raise TypeError("branch_fns must be a list, tuple, or dict")
    if not pairs:
        raise ValueError("Must provide at least one item in branch_fns")
    ordered = sorted(pairs, key=lambda pair: pair[0])
    numbers = [number for number, _ in ordered]
    if numbers != list(range(len(pairs))):
        raise ValueError(f"branch indices must be 0 to {len(pairs) - 1} without gaps: {numbers}")
    return ordered
