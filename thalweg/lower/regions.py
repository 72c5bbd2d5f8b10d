"""Cuts a step into regions: nodes that are compiled together.

The input is a step's nodes and their order edges (`graph/analysis/order.py`). The cut alternates:
all ready host nodes, then regions of all ready compiled nodes, and so forth; a step without host
nodes is one region. Nodes that depend on different blocking nodes are in different regions, so that
no node waits for a blocking node that it does not depend on. Nodes whose sizes depend on values are
in regions of their own: new sizes lower a whole region again.

A constant is copied into each region that reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

from thalweg.control.liveness import is_control, prune_loop_vars
from thalweg.control.traces import Trace, traced_tensors
from thalweg.graph.analysis.node_effects import is_read, reference_roots
from thalweg.graph.analysis.order import Order, blockers
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import is_constant
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.compilable import compilable

Unit = Node | Region | ControlRegion
_Group = list[Node]  # nodes that become a region

LabelDepth = tuple[int, str]  # the most changes of label on a path to a node, and its label


def regions(
    nodes: Sequence[Node],
    fetches: Collection[Tensor],
    feeds: Collection[Tensor],
    order: Order,
    on_host: Collection[Node] = (),
    devices: Mapping[Node, str] | None = None,
) -> list[Unit]:
    """The host nodes, control nodes and regions of a step, in an execution order. Each region is on
    one device; without `devices` all nodes are on the same one. A node with a fed output is a host
    node: what a region computes is not fed."""
    fed, roots = set(feeds), reference_roots(nodes)
    constants = {node: rank for rank, node in enumerate(nodes) if is_constant(node)}
    hosted = {*on_host, *(tensor.op for tensor in fed)}
    compiled = {node for node in nodes if node not in hosted and compilable(node)}
    labels = devices or _size_labels(nodes, compiled)
    depths = _label_depths(nodes, order, labels) if labels else {}
    computing = [node for node in nodes if node not in constants]
    units = _cut(computing, order, compiled, depths)
    if not devices and sum(isinstance(unit, list) for unit in units) > 1:
        moves = _RegionMoves(units, nodes, order, set(fetches))
        moves.sink_growing()
        moves.sink_variable_reads()
    units = [unit for unit in units if unit]
    controls = _controls(nodes, fetches)
    read = {t for unit in units if isinstance(unit, Node) for t in _inputs_of(unit, controls)}
    read.update(fetches)
    outputs = _outputs_by_unit(units, fetches, controls)
    result: list[Unit] = [node for node in constants if node.outputs[0] in read]
    for number, unit in enumerate(units):
        if not isinstance(unit, Node):
            result.append(_region(unit, outputs[number], fed, roots, constants))
        elif not isinstance(unit.op, Trace):
            result.append(controls.get(unit, unit))
    return result


def with_traces(nodes: Sequence[Node], fetches: Collection[Tensor]) -> list[Unit]:
    """The nodes of a step, each a unit; a control node and its traces are one unit."""
    controls = _controls(nodes, fetches)
    return [controls.get(node, node) for node in nodes if not isinstance(node.op, Trace)]


def _controls(nodes: Sequence[Node], fetches: Collection[Tensor]) -> dict[Node, ControlRegion]:
    """The control nodes with their traces, pruned to the outputs that the step reads."""
    control_nodes = [node for node in nodes if is_control(node)]
    if not control_nodes:
        return {}
    traces: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        if isinstance(node.op, Trace):
            traces[node.inputs[0].op].append(node)
    plain = [node for node in nodes if not isinstance(node.op, Trace) and not is_control(node)]
    read = {*fetches, *(tensor for node in plain for tensor in node.inputs)}
    read |= {t for node in nodes for n in node.controls for t in n.outputs}
    units: dict[Node, ControlRegion] = {}
    for node in reversed(control_nodes):  # readers first
        units[node] = _control_region(node, traces[node], read)
        read.update(units[node].inputs)
    return units


def _inputs_of(node: Node, controls: Mapping[Node, ControlRegion]) -> tuple[Tensor, ...]:
    """The inputs of a node; those of a control node are pruned."""
    return controls[node].inputs if node in controls else node.inputs


def _control_region(node: Node, traces: Sequence[Node], read: Collection[Tensor]) -> ControlRegion:
    outputs = [tensor for tensor in node.outputs if tensor in read]
    if not outputs and not traces:
        outputs = node.outputs
    traced = [tensor for trace in traces for tensor in traced_tensors(trace)]
    pruned = prune_loop_vars(node, {*outputs, *traced})
    trace_outputs = [trace.outputs[0] for trace in traces]
    return ControlRegion(pruned, (node, *traces), pruned.inputs, (*outputs, *trace_outputs))


def _cut(
    nodes: Sequence[Node],
    order: Order,
    compiled: Collection[Node],
    depths: Mapping[Node, LabelDepth],
) -> list[Node | _Group]:
    """Single host nodes and groups of compiled ones, in levels: host nodes have the even ones, and
    each node the first one in which all that it comes after is done."""
    levels: dict[Node, int] = {}
    batches: dict[int, _Group] = defaultdict(list)
    for node in nodes:
        level = int(node in compiled)
        for earlier in order[node]:
            before = levels.get(earlier, 0)
            level = max(level, before + (before - level) % 2)
        levels[node] = level
        batches[level].append(node)
    units: list[Node | _Group] = []
    blocking = blockers(nodes, order)
    for level in sorted(batches):
        batch = batches[level]
        units += _groups(batch, blocking, depths) if level % 2 else batch
    return units


def _groups(
    nodes: Iterable[Node], blocking: Mapping[Node, int], depths: Mapping[Node, LabelDepth]
) -> list[_Group]:
    """Groups of nodes that depend on the same blocking nodes and have the same label and label
    depth, so that no path between two of them leaves the group. Those that depend on fewer
    blocking nodes come first."""
    groups: dict[tuple[int, LabelDepth], _Group] = defaultdict(list)
    for node in nodes:
        groups[blocking.get(node, 0), depths.get(node, (0, ""))].append(node)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0].bit_count(), key[1]))]


def _label_depths(
    nodes: Sequence[Node], order: Order, labels: Mapping[Node, str]
) -> dict[Node, LabelDepth]:
    """The label depth of each node. A label is a device, say."""
    depths: dict[Node, LabelDepth] = {}
    for node in nodes:
        label, count = labels[node], 0
        for earlier in order.get(node, ()):
            depth, earlier_label = depths.get(earlier, (0, label))
            count = max(count, depth + (earlier_label != label))
        depths[node] = count, label
    return depths


def _size_labels(nodes: Sequence[Node], compiled: Collection[Node]) -> dict[Node, str] | None:
    """Labels the nodes whose input sizes depend on the values of a host node's inputs, as the sizes
    of a dynamic partition's outputs do; None where there are no such nodes."""
    varying: set[Tensor] = set()
    labels = dict.fromkeys(nodes, "")
    for node in nodes:
        if node in compiled:
            is_varying = not varying.isdisjoint(node.inputs)
            labels[node] = "varying" if is_varying else ""
        else:
            is_varying = not node.op.stateful and all(map(_is_sized, node.inputs))
        if is_varying:
            varying.update(tensor for tensor in node.outputs if not _is_sized(tensor))
    return labels if varying else None


def _is_sized(tensor: Tensor) -> bool:
    return tensor.shape.is_fully_defined()


class _RegionMoves:
    """Moves nodes to later regions than the first that they are ready for."""

    def __init__(
        self,
        units: Sequence[Node | _Group],
        nodes: Sequence[Node],
        order: Order,
        fetched: set[Tensor],
    ) -> None:
        self._units = units
        self._fetched = fetched
        self._rank = {node: rank for rank, node in enumerate(nodes)}
        self._unit_of = _unit_numbers(units)
        self._successors: dict[Node, list[Node]] = defaultdict(list)  # by order
        for node in self._unit_of:
            for earlier in order[node]:
                self._successors[earlier].append(node)
        self._blockers = blockers(nodes, order)  # empty where units run in order

    def sink_growing(self) -> None:
        """Move nodes whose outputs are larger than their inputs to the one region that reads them,
        so that the smaller tensors cross the border between regions."""
        for node in sorted(self._unit_of, key=self._rank.__getitem__, reverse=True):
            source = self._unit_of[node]
            targets = {self._unit_of[reader] for reader in self._successors[node]}
            if targets == {source} or len(targets) != 1 or not _grows(node):
                continue
            if self._is_movable(node, targets):
                self._move(node, targets)
                self._unit_of[node] = max(targets)

    def sink_variable_reads(self) -> None:
        """Move reads of variables into the regions that use the values, so that no copy of a whole
        table crosses a border for a few of its rows. A read does not move across a write of the
        variable, nor to a region that may block before such a write."""
        for node, source in self._unit_of.items():
            if node.controls or not is_read(node):
                continue
            value, successors = node.outputs[0], self._successors[node]
            used = {self._unit_of[reader] for reader in successors if value in reader.inputs}
            if used <= {source} or not self._is_movable(node, used):
                continue
            others = [reader for reader in successors if not _reads_only(reader, value)]
            is_last = all(self._unit_of[node_after] >= max(used) for node_after in others)
            if is_last and all(self._is_after_blockers(node_after, used) for node_after in others):
                self._move(node, used)

    def _is_after_blockers(self, node: Node, numbers: Collection[int]) -> bool:
        """Whether a node depends on all blocking nodes that these regions depend on."""
        own_blockers = self._blockers.get(node, 0)
        members = [member for number in numbers for member in _members(self._units[number])]
        return not any(self._blockers.get(member, 0) & ~own_blockers for member in members)

    def _is_movable(self, node: Node, targets: Collection[int]) -> bool:
        units = [self._units[number] for number in (self._unit_of[node], *targets)]
        return self._fetched.isdisjoint(node.outputs) and all(isinstance(u, list) for u in units)

    def _move(self, node: Node, targets: Collection[int]) -> None:
        """Move a node to these regions: each computes it."""
        source = self._unit_of[node]
        if source not in targets:
            cast("_Group", self._units[source]).remove(node)
        for number in targets:
            target = cast("_Group", self._units[number])
            if node not in target:
                target.append(node)
                target.sort(key=self._rank.__getitem__)


def _reads_only(node: Node, value: Tensor) -> bool:
    """Whether a node depends on the node of a value through the value alone."""
    return value in node.inputs and value.op not in node.controls and not node.op.footprint


def _grows(node: Node) -> bool:
    """Whether a node without effects has more output elements than input elements."""
    tensors = (*node.inputs, *node.outputs)
    if node.op.stateful or node.controls or any(t.dtype.is_ref_dtype for t in tensors):
        return False
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        return False
    input_size, output_size = (
        sum(tensor.shape.num_elements() or 0 for tensor in side)
        for side in (node.inputs, node.outputs)
    )
    return output_size > input_size


def _members(unit: Node | _Group) -> _Group:
    return [unit] if isinstance(unit, Node) else unit


def _unit_numbers(units: Sequence[Node | _Group]) -> dict[Node, int]:
    return {node: number for number, unit in enumerate(units) for node in _members(unit)}


def _outputs_by_unit(
    units: list[Node | list[Node]],
    fetches: Iterable[Tensor],
    controls: Mapping[Node, ControlRegion],
) -> dict[int, dict[Tensor, None]]:
    """By the number of a unit: its outputs that other units read or that are fetched, in the order
    of those uses."""
    unit_of = _unit_numbers(units)
    outputs: dict[int, dict[Tensor, None]] = defaultdict(dict)
    for tensor in fetches:
        if tensor.op in unit_of:
            outputs[unit_of[tensor.op]][tensor] = None
    for unit in units:
        members = _members(unit)
        inside = set(members)  # a read of a variable may be in several regions
        for tensor in [tensor for node in members for tensor in _inputs_of(node, controls)]:
            if tensor.op in unit_of and tensor.op not in inside:
                outputs[unit_of[tensor.op]][tensor] = None
    return outputs


def _region(
    nodes: _Group,
    outputs: Iterable[Tensor],
    fed: Collection[Tensor],
    roots: Mapping[Tensor, Tensor],
    constants: Mapping[Node, int],
) -> Region:
    """The region of some nodes and copies of the constants that they read."""
    used = {t.op for node in nodes for t in node.inputs if t.op in constants and t not in fed}
    unit = [*sorted(used, key=constants.__getitem__), *nodes]
    inside = set(unit)
    entering = dict.fromkeys(t for node in unit for t in node.inputs if t.op not in inside)
    touched = [t for node in unit for t in (*node.inputs, *node.outputs) if t.dtype.is_ref_dtype]
    references = {tensor: roots.get(tensor, tensor) for tensor in touched if tensor not in fed}
    return Region(
        tuple(unit),
        tuple(tensor for tensor in entering if tensor not in references),
        tuple(dict.fromkeys(references.values())),
        tuple(outputs),
        references,
    )
