"""Vectorization: a function of one element as a function of a batch, by a leading batch axis.

It is applied only if each row of the result is exactly the function's result for the element:
to elementwise ops, changes of shape, and decoders of strings of any shape. A rule adds the axis to
an op; a body with an op without a rule is called for each element.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from thalweg.data.flow import Stage
from thalweg.data.functions import Function
from thalweg.graph import nest
from thalweg.graph.graphdef.functions import Lambda
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body, SubGraph, needed
from thalweg.ops.arrays.marking import OneHot
from thalweg.ops.core import basic, shaping
from thalweg.ops.core.choosing import Select
from thalweg.ops.core.shaping import ExpandDims, Reshape, Squeeze
from thalweg.ops.examples.parse_example import ParseExample, ParseSingleExample
from thalweg.ops.text.decoding import AsString, DecodeCSV, DecodeRaw, StringToNumber


class NoRule(Exception):
    """A body cannot be vectorized."""


class Value(NamedTuple):
    """The tensor of the vectorized body that corresponds to one of the original body."""

    tensor: Tensor
    shape: TensorShape  # of the original tensor, for one element
    is_batch: bool


Rule = Callable[[Node, Sequence[Value]], Sequence[Any]]

_made: weakref.WeakKeyDictionary[Body, Lambda | None] = weakref.WeakKeyDictionary()


def vectorised(function: Function, source: Stage) -> Function | None:
    """The vectorized function, or None if its body cannot be vectorized."""
    body = function.body
    if body not in _made:
        try:
            _made[body] = Lambda(_batched_body(body, len(source.output_types)), ())
        except (NoRule, ValueError, TypeError):
            _made[body] = None
    found = _made[body]
    return None if found is None else Function(found, function.captured)


def _batched_body(body: Body, count: int) -> Body:
    """The body with a leading batch axis in its first `count` arguments, and so in its outputs."""
    graph = SubGraph(body.graph.outer, body.graph.holder)
    values: dict[Tensor, Value] = {}
    with graph.as_default(), graph.without_scopes():
        for index, tensor in enumerate(body.arguments):
            values[tensor] = _argument(graph, tensor, index < count)
        arguments = tuple(value.tensor for value in values.values())
        for node in needed(body.outputs, body.targets, values):
            _add(graph, node, values)
    outputs = [values[tensor] for tensor in body.outputs]
    if body.targets or graph.captures or not all(value.is_batch for value in outputs):
        raise NoRule
    return Body(graph, arguments, tuple(value.tensor for value in outputs))


def _argument(graph: SubGraph, tensor: Tensor, is_batch: bool) -> Value:
    shape = _with_axis(tensor.shape) if is_batch else tensor.shape
    dtype = tensor.dtype.base_dtype
    return Value(graph.argument(dtype, shape, "argument"), tensor.shape, is_batch)


def _with_axis(shape: TensorShape) -> TensorShape:
    return TensorShape([None]).concatenate(shape)


def _add(graph: SubGraph, node: Node, values: dict[Tensor, Value]) -> None:
    """Add the vectorized form of a node."""
    inputs = [values[tensor] for tensor in node.inputs]
    if node.control_inputs or node.op.stateful:
        raise NoRule
    is_batch = any(value.is_batch for value in inputs)
    if is_batch:
        made = list(_rule(node.op)(node, inputs))
    else:
        sources = tuple(value.tensor for value in inputs)
        made = graph.copied(node, sources, (), node.name.rpartition("/")[2]).outputs
    for old, new in zip(node.outputs, made, strict=True):
        if is_batch and not new.shape.is_compatible_with(_with_axis(old.shape)):
            raise NoRule
        values[old] = Value(new, old.shape, is_batch)


def _rule(op: Op) -> Rule:
    if op.elementwise:
        return _elementwise
    for kind, rule in _RULES.items():
        if isinstance(op, kind):
            return rule
    raise NoRule


def _elementwise(node: Node, inputs: Sequence[Value]) -> Sequence[Any]:
    """Inputs of lower rank get axes of size one after the batch axis."""
    ranks = [value.shape.rank for value in inputs]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        raise NoRule
    sources = [_lifted(value, max(known)) for value in inputs]
    return _applied(node, sources)


def _lifted(value: Value, rank: int) -> Tensor:
    missing = rank - (value.shape.rank or 0)
    if not value.is_batch or not missing:
        return value.tensor
    return _reshaped(value.tensor, [*[1] * missing, *_sizes(value.shape)])


def _applied(node: Node, sources: Sequence[Tensor]) -> list[Any]:
    grouped = node.grouped(list(sources))
    return nest.flatten(node.op(*grouped, name=node.name.rpartition("/")[2]))


def _sizes(shape: TensorShape) -> list[int]:
    sizes = [size or 0 for size in shape.as_list()] if shape.is_fully_defined() else [0]
    if not prod(sizes):
        raise NoRule
    return sizes


def _reshaped(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    return shaping.reshape(tensor, [-1, *sizes])


def _reshape(node: Node, inputs: Sequence[Value]) -> Sequence[Any]:
    """Changes of shape become a reshape that keeps the batch axis."""
    if any(value.is_batch for value in inputs[1:]):
        raise NoRule
    return [_reshaped(inputs[0].tensor, _sizes(node.outputs[0].shape))]


def _batch_first_input(node: Node, inputs: Sequence[Value]) -> Sequence[Any]:
    """The op accepts any number of leading axes in its first input."""
    if any(value.is_batch for value in inputs[1:]):
        raise NoRule
    return _applied(node, [value.tensor for value in inputs])


def _select(node: Node, inputs: Sequence[Value]) -> Sequence[Any]:
    """A batch of scalar conditions selects rows of batches."""
    if not all(value.is_batch for value in inputs):
        raise NoRule
    condition, then, otherwise = inputs
    if condition.shape.rank not in (0, then.shape.rank) or then.shape.rank != otherwise.shape.rank:
        raise NoRule
    return _applied(node, [value.tensor for value in inputs])


def _one_hot(node: Node, inputs: Sequence[Value]) -> Sequence[Any]:
    if node.op.attributes["axis"] != -1:
        raise NoRule
    return _batch_first_input(node, inputs)


def _parse(node: Node, inputs: Sequence[Value]) -> Sequence[Any]:
    """ParseSingleExample becomes ParseExample, if all features are dense."""
    op = node.op
    assert isinstance(op, ParseSingleExample)
    ragged = any(not shape.is_fully_defined() for shape in op.dense_shapes)
    if op.num_sparse or ragged or any(value.is_batch for value in inputs[1:]):
        raise NoRule
    batch = ParseExample(Tdense=op.Tdense, sparse_types=(), dense_shapes=op.dense_shapes)
    keys = [basic.constant(key) for key in op.dense_keys]
    names = basic.constant([], inputs[0].tensor.dtype, shape=[0])
    defaults = [value.tensor for value in inputs[1:]]
    return nest.flatten(batch(inputs[0].tensor, names, [], keys, defaults))


_RULES: dict[type[Op], Rule] = {
    basic.Identity: _batch_first_input,
    Reshape: _reshape,
    ExpandDims: _reshape,
    Squeeze: _reshape,
    Select: _select,
    OneHot: _one_hot,
    DecodeRaw: _batch_first_input,
    DecodeCSV: _batch_first_input,
    StringToNumber: _batch_first_input,
    AsString: _batch_first_input,
    ParseSingleExample: _parse,
}
