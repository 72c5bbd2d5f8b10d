"""If, Loop and Scan; sequences and optional values."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from thalweg.control.branches import cond
from thalweg.control.loops import while_loop
from thalweg.control.tensor_array import TensorArray
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import SubGraph
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import (
    constant,
    moved_back,
    rank_of,
    required_ints,
    static,
    static_ints,
    to_int32,
)
from thalweg.ops.arrays import indexing, joining, splitting, transposing
from thalweg.ops.core import shaping
from thalweg.ops.math import compare


@operator("If")
def if_(node: NodeView, condition: Tensor) -> Any:
    """One of two graphs; where it is known which, only that one is built."""
    yes, no = (node.graph(node.get(name)) for name in ("then_branch", "else_branch"))
    known = static(condition)
    if known is not None:
        return _outputs((yes if bool(np.ravel(known)[0]) else no).run())
    made = cond(
        shaping.reshape(condition, []),
        lambda: _tensors(node, yes.run()),
        lambda: _tensors(node, no.run()),
        strict=True,
    )
    return _outputs(list(made))


def _tensors(node: NodeView, values: list[Any]) -> list[Tensor]:
    if any(isinstance(value, list | tuple) or value is None for value in values):
        raise node.unsupported("a sequence or optional value that a condition chooses")
    return [convert_to_tensor(value) for value in values]


def _outputs(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


@operator("Loop")
def loop(node: NodeView, limit: Any, condition: Any, *starts: Any) -> Any:
    """Iterations up to a number, as long as a condition holds; what each gives besides, stacked.

    A loop over sequences, or of a known number of iterations whose condition is constant, is
    unrolled: sequences are lists while the graph is built.
    """
    body = node.graph(node.get("body"))
    count = static_ints(limit)
    if any(isinstance(start, list | tuple) or start is None for start in starts):
        return _unrolled(node, body, count, condition, list(starts))
    return _looped(node, body, limit, condition, list(starts))


_MAX_UNROLLED = 10_000


def _unrolled(node: NodeView, body: Any, count: Any, condition: Any, values: list[Any]) -> Any:
    if count is None:
        raise node.unsupported("a loop over sequences must have a constant number of iterations")
    going = True if condition is None else _truth(node, condition)
    rows: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(values) :]]
    iteration = 0
    while going and iteration < min(count[0], _MAX_UNROLLED):
        found = body.run(constant(np.int64(iteration)), constant(np.bool_(True)), *values)
        going = _truth(node, found[0])
        values = found[1 : 1 + len(values)]
        for row, value in zip(rows, found[1 + len(values) :], strict=True):
            row.append(value)
        iteration += 1
    return _outputs([*values, *(joining.stack(row) for row in rows)])


def _truth(node: NodeView, value: Any) -> bool:
    known = static(value)
    if known is None:
        raise node.unsupported("a loop over sequences must have a constant condition")
    return bool(np.ravel(known)[0])


def _looped(node: NodeView, body: Any, limit: Any, condition: Any, starts: list[Any]) -> Any:
    carried = len(starts)
    most = np.int64(np.iinfo(np.int64).max) if limit is None else shaping.reshape(limit, [])
    going = constant(True) if condition is None else shaping.reshape(condition, [])
    kinds = _row_kinds(body, starts)
    lists = [
        TensorArray(kind, 0, dynamic_size=True, clear_after_read=False, infer_shape=False)
        for kind in kinds
    ]

    def test(at: Tensor, truth: Tensor, values: Any, rows: Any) -> Tensor:
        return compare.logical_and(compare.less(at, most), truth)

    def iterate(at: Tensor, truth: Tensor, values: Any, rows: Any) -> Any:
        found = body.run(at, truth, *values)
        new = [_widened(value, start) for value, start in zip(found[1:], values, strict=False)]
        outputs = found[1 + carried :]
        written = [row.write(to_int32(at), v) for row, v in zip(rows, outputs, strict=True)]
        return at + 1, shaping.reshape(found[0], []), new, written

    starts = [convert_to_tensor(start) for start in starts]
    variables = constant(np.int64(0)), going, starts, lists
    loose = [unknown_shape() for _ in starts]
    shapes = TensorShape([]), TensorShape([]), loose, [TensorShape([]) for _ in lists]
    result = while_loop(test, iterate, variables, shapes, return_same_structure=True)
    rows = [each.stack() for each in result[3]]
    return _outputs([*result[2], *rows])


def _widened(value: Any, start: Tensor) -> Tensor:
    return convert_to_tensor(value, start.dtype.base_dtype)


def _row_kinds(body: Any, starts: list[Any]) -> list[Any]:
    """The dtypes of what an iteration gives besides, found by building one apart."""
    names = body.outputs[1 + len(starts) :]
    if not names:
        return []
    graph = get_default_graph()
    if graph.is_eager:
        found = body.run(constant(np.int64(0)), constant(True), *starts)
    else:
        probe = SubGraph(graph, "a probe of a loop's body")
        with probe.as_default():
            found = body.run(constant(np.int64(0)), constant(True), *starts)
    return [value.dtype.base_dtype for value in found[1 + len(starts) :]]


@operator("Scan", since=9)
def scan(node: NodeView, *inputs: Tensor) -> Any:
    """A graph for each slice along the axes that are scanned; states are carried."""
    body = node.graph(node.get("body"))
    count = int(node.get("num_scan_inputs"))
    states, scanned = list(inputs[: len(inputs) - count]), list(inputs[len(inputs) - count :])
    axes = list(node.get("scan_input_axes") or [0] * count)
    turns = list(node.get("scan_input_directions") or [0] * count)
    rows = [_leading(node, x, a, t) for x, a, t in zip(scanned, axes, turns, strict=True)]
    return _scanned(node, body, states, rows)


@operator("Scan", since=8)
def scan_batch(node: NodeView, lengths: Any, *inputs: Tensor) -> Any:
    """As the later one, for each element of a batch by itself."""
    body = node.graph(node.get("body"))
    count = int(node.get("num_scan_inputs"))
    if lengths is not None:
        raise node.unsupported("sequence lengths")
    batch = inputs[0].shape.as_list()[0]
    if batch is None:
        raise node.unsupported("the size of the batch must be known")
    turns = list(node.get("directions") or [0] * count)
    found: list[list[Tensor]] = []
    for index in range(batch):
        each = [x[index] for x in inputs]
        rows = [_leading(node, x, 0, t) for x, t in zip(each[-count:], turns, strict=True)]
        made = _scanned(node, body, each[: len(each) - count], rows)
        found.append(list(cast("Any", made)) if isinstance(made, tuple) else [made])
    return _outputs([joining.stack(list(row)) for row in zip(*found, strict=True)])


def _leading(node: NodeView, x: Tensor, axis: int, turn: int) -> Tensor:
    """A tensor with an axis put first, in the direction of a scan."""
    rank = rank_of(node, x)
    axis = axis + rank if axis < 0 else axis
    if axis:
        x = transposing.transpose(x, [axis, *(a for a in range(rank) if a != axis)])
    return transposing.reverse(x, [0]) if turn else x


def _scanned(node: NodeView, body: Any, states: list[Any], rows: list[Tensor]) -> Any:
    count = shaping.shape(rows[0])[0]
    kinds = _scan_kinds(body, states, rows)
    lists = [TensorArray(kind, count, clear_after_read=False, infer_shape=False) for kind in kinds]

    def iterate(at: Tensor, values: Any, made: Any) -> Any:
        found = body.run(*values, *(indexing.gather(row, at) for row in rows))
        outputs = found[len(values) :]
        written = [each.write(at, v) for each, v in zip(made, outputs, strict=True)]
        return at + 1, found[: len(values)], written

    start = constant(np.int32(0)), states, lists
    shapes = TensorShape([]), [s.shape for s in states], [TensorShape([]) for _ in lists]

    def test(at: Tensor, values: Any, made: Any) -> Tensor:
        return compare.less(at, count)

    _, last, made = while_loop(test, iterate, start, shapes, return_same_structure=True)
    stacked = [each.stack() for each in made]
    axes = list(node.get("scan_output_axes") or [0] * len(stacked))
    turns = list(node.get("scan_output_directions") or [0] * len(stacked))
    ends = [_placed(x, a, t) for x, a, t in zip(stacked, axes, turns, strict=True)]
    return _outputs([*last, *ends])


def _placed(x: Tensor, axis: int, turn: int) -> Tensor:
    if turn:
        x = transposing.reverse(x, [0])
    if not axis:
        return x
    rank = x.shape.rank or 1
    axis = axis + rank if axis < 0 else axis
    last = transposing.transpose(x, [*range(1, rank), 0])
    return moved_back(last, axis)


def _scan_kinds(body: Any, states: list[Any], rows: list[Tensor]) -> list[Any]:
    graph = get_default_graph()
    given = [*states, *(row[0] for row in rows)]
    if graph.is_eager:
        return [value.dtype.base_dtype for value in body.run(*given)[len(states) :]]
    probe = SubGraph(graph, "a probe of a scan's body")
    with probe.as_default():
        found = body.run(*given)
    return [value.dtype.base_dtype for value in found[len(states) :]]


# Sequences: lists of tensors while the graph is built


@operator("SequenceEmpty", since=11)
def sequence_empty(node: NodeView) -> Any:
    return []


@operator("SequenceConstruct", since=11)
def sequence_construct(node: NodeView, *inputs: Tensor) -> Any:
    return list(inputs)


@operator("SequenceLength", since=11)
def sequence_length(node: NodeView, sequence: list[Tensor]) -> Tensor:
    return constant(np.int64(len(sequence)))


def _place(node: NodeView, position: Any, count: int, default: int) -> int:
    if position is None:
        return default
    (place,) = required_ints(node, position, "the position in a sequence")
    if not -count <= place <= count:
        raise node.unsupported(f"the position {place} in a sequence of {count}")
    return place + count if place < 0 else place


@operator("SequenceAt", since=11)
def sequence_at(node: NodeView, sequence: list[Tensor], position: Any) -> Tensor:
    return sequence[_place(node, position, len(sequence), 0)]


@operator("SequenceInsert", since=11)
def sequence_insert(
    node: NodeView, sequence: list[Tensor], value: Tensor, position: Any = None
) -> Any:
    result = list(sequence)
    result.insert(_place(node, position, len(result), len(result)), value)
    return result


@operator("SequenceErase", since=11)
def sequence_erase(node: NodeView, sequence: list[Tensor], position: Any = None) -> Any:
    result = list(sequence)
    del result[_place(node, position, len(result), len(result) - 1)]
    return result


@operator("SplitToSequence", since=11)
def split_to_sequence(node: NodeView, x: Tensor, sizes: Any = None) -> Any:
    rank = rank_of(node, x)
    axis = int(node.get("axis", 0))
    axis = axis + rank if axis < 0 else axis
    size = x.shape.as_list()[axis]
    if sizes is None:
        parts = list(splitting.unstack(x, size, axis))
        return [shaping.expand_dims(p, axis) for p in parts] if node.get("keepdims", 1) else parts
    given = required_ints(node, sizes, "the sizes of a split")
    if sizes.shape.rank == 0:
        if size is None:
            raise node.unsupported("the size of the axis must be known")
        given = [min(given[0], size - start) for start in range(0, size, given[0])]
    return list(splitting.split(x, given, axis))


@operator("ConcatFromSequence", since=11)
def concat_from_sequence(node: NodeView, sequence: list[Tensor]) -> Tensor:
    axis = int(node.get("axis"))
    if node.get("new_axis", 0):
        return joining.stack(sequence, axis)
    return joining.concat(sequence, axis)


@operator("SequenceMap", since=17)
def sequence_map(node: NodeView, *inputs: Any) -> Any:
    """A graph for each element; an input that is no sequence is the same for all."""
    body = node.graph(node.get("body"))
    first = inputs[0]
    found = [
        body.run(*(each[index] if isinstance(each, list) else each for each in inputs))
        for index in range(len(first))
    ]
    return _outputs([list(row) for row in zip(*found, strict=True)] or [[] for _ in body.outputs])


# Optional values


@operator("Optional", since=15)
def optional(node: NodeView, value: Any = None) -> Any:
    return value


@operator("OptionalHasElement", since=15)
def optional_has_element(node: NodeView, value: Any = None) -> Tensor:
    return constant(np.bool_(value is not None))


@operator("OptionalGetElement", since=15)
def optional_get_element(node: NodeView, value: Any) -> Any:
    if value is None:
        raise node.unsupported("the element of an optional value that has none")
    return value
