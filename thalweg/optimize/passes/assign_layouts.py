"""Assigns layouts: channels last where that is faster, though the program has channels first.

A node computes in one of the two layouts, and an image between nodes of different layouts is
transposed. The cheapest assignment is a minimum cut: a node that is faster with channels last pays
for channels first, and an image pays once if it is produced in one layout and used in the other.
Elementwise code, sums, concatenations and pads follow their neighbours, and the user's transposes
between the two layouts vanish where their neighbours agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial
from typing import Any

import numpy as np

from thalweg.graph.node import Node, Tensor, reached
from thalweg.ops.arrays.transposing import Transpose
from thalweg.ops.core.basic import Const
from thalweg.optimize.layouts import (
    Form,
    form_of,
    is_channels_first,
    move_cost,
    to_first,
    to_last,
)
from thalweg.optimize.minimum_cut import INFINITE, Cut
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph


def assign_layouts(graph: StepGraph) -> None:
    """Rebuild nodes with channels last where that is cheaper."""
    seeds = [node for node in graph.nodes if is_channels_first(node)]
    if not seeds:
        return
    forms = _Forms(graph)
    reached(seeds, forms.collect)
    chosen = _cheapest(graph, forms)
    if chosen:
        _Rewrite(graph, forms).run([node for node in graph.nodes if node in chosen])


class _Forms:
    """The forms of nodes that images connect with channels-first nodes."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self.of: dict[Node, Form] = {}

    def collect(self, node: Node) -> list[Node]:
        """Collect the form of a node; the nodes that its images connect it with."""
        times = self._graph.target(node).layout_times
        form = form_of(node, times) if times and self._may_change(node) else None
        if form is None:
            return []
        self.of[node] = form
        return [near for tensor in form.images(node) for near in self._neighbours(tensor)]

    def _may_change(self, node: Node) -> bool:
        graph = self._graph
        if not is_free(node) or graph.is_waited(node):
            return False
        return graph.feeds.isdisjoint(node.outputs)

    def _neighbours(self, tensor: Tensor) -> list[Node]:
        producer = [tensor.op] if self._graph.is_open(tensor) else []
        return [*producer, *self._graph.consumers(tensor)]

    def takes_image(self, node: Node, tensor: Tensor) -> bool:
        """Whether a node takes a tensor as an image, in its own layout."""
        form = self.of.get(node)
        return form is not None and any(node.inputs[n] is tensor for n in form.inputs)

    def makes_image(self, tensor: Tensor) -> bool:
        """Whether a tensor is an image in the layout of its node."""
        form = self.of.get(tensor.op) if self._graph.is_open(tensor) else None
        return form is not None and tensor.value_index in form.outputs

    @cached_property
    def fetched(self) -> frozenset[Tensor]:
        """The fetches, which keep their layout."""
        return frozenset(self._graph.fetches)


def _cheapest(graph: StepGraph, forms: _Forms) -> set[Node]:
    """The nodes that compute with channels last."""
    cut = Cut()
    vertices = {node: cut.vertex(second=form.gain) for node, form in forms.of.items()}
    channels_first = cut.vertex(first=INFINITE)
    for tensor in dict.fromkeys(t for node, form in forms.of.items() for t in form.images(node)):
        producer = vertices[tensor.op] if forms.makes_image(tensor) else channels_first
        consumers = [
            vertices[node] if forms.takes_image(node, tensor) else channels_first
            for node in graph.consumers(tensor)
        ]
        consumers += [channels_first] if tensor in forms.fetched else []
        _add_transpose_cost(cut, producer, dict.fromkeys(consumers), _cost(tensor, graph))
    first = cut.first_side()
    return {node for node, vertex in vertices.items() if vertex in first}


def _add_transpose_cost(cut: Cut, producer: int, consumers: Iterable[int], cost: float) -> None:
    """Add the cost of one transpose if some consumer is on another side than the producer."""
    last, first = cut.vertex(), cut.vertex()
    cut.edge(last, producer, cost)
    cut.edge(producer, first, cost)
    for consumer in consumers:
        cut.edge(consumer, last, INFINITE)
        cut.edge(first, consumer, INFINITE)


def _cost(tensor: Tensor, graph: StepGraph) -> float:
    times = graph.target(tensor.op).layout_times
    return 0.0 if isinstance(tensor.op.op, Const) or not times else move_cost(tensor, times)


class _Rewrite:
    """Rebuilds the chosen nodes, with transposes at the borders."""

    def __init__(self, graph: StepGraph, forms: _Forms) -> None:
        self._graph, self._forms = graph, forms
        self._last: dict[Tensor, Tensor] = {}  # images with channels last

    def run(self, nodes: list[Node]) -> None:
        """Replace nodes, given in execution order."""
        rebuilt = {node: self._built(node) for node in nodes}
        chosen = frozenset(nodes)
        for node in nodes:
            for position, (old, new) in enumerate(zip(node.outputs, rebuilt[node], strict=True)):
                if position not in self._forms.of[node].outputs:
                    self._graph.replace(old, new)
                elif self._is_used_channels_first(old, chosen):
                    self._graph.replace(old, self._transposed(new, to_first, node))
        for node in reversed(nodes):
            self._graph.release(node)

    def _built(self, node: Node) -> list[Tensor]:
        form = self._forms.of[node]
        inputs = list(node.inputs)
        for position in form.inputs:
            inputs[position] = self._channels_last(inputs[position], node)
        result = self._graph.build(node, partial(form.build, inputs))
        outputs = [result] if isinstance(result, Tensor) else list(result)
        self._last.update({node.outputs[n]: outputs[n] for n in form.outputs})
        self._graph.fire("channels last", node)
        return outputs

    def _channels_last(self, tensor: Tensor, node: Node) -> Tensor:
        if tensor not in self._last:
            self._last[tensor] = self._transposed(tensor, to_last, node)
        return self._last[tensor]

    def _transposed(self, tensor: Tensor, order: Any, node: Node) -> Tensor:
        perm = np.array(order(tensor.shape.rank), np.int32)
        return self._graph.build(node, lambda: Transpose()(tensor, perm))

    def _is_used_channels_first(self, tensor: Tensor, chosen: frozenset[Node]) -> bool:
        """Whether an image is used with channels first."""
        consumers = self._graph.consumers(tensor)
        return tensor in self._forms.fetched or any(
            node not in chosen or not self._forms.takes_image(node, tensor) for node in consumers
        )
