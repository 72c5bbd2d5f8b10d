"""Cuts a step into regions: nodes that are compiled together.

Comes in: nodes and their order edges (`graph/analysis/order.py`). All host ops that are ready come
first, then all compiled nodes that are ready form regions, and so forth: a step without host ops is
one region. Nodes after different blocking nodes are in different regions, so that no region waits
for more of those than each of its nodes does. What has another size in every step is apart from
what has not: new sizes are another lowering, of all nodes of a region.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

from thalweg.control.liveness import is_control, prune_loop_vars, traced_tensors
from thalweg.control.traces import Trace
from thalweg.graph.analysis.node_effects import reference_roots
from thalweg.graph.analysis.order import Order, blockers
from thalweg.graph.node import Node, Tensor
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.basic import Const, Identity
from thalweg.ops.core.compilable import compilable

Unit = Node | Region | ControlRegion
_Group = list[Node]  # nodes that become a region

Hops = tuple[int, str]  # the changes of label on the longest path to a node, and its label


def regions(
    nodes: Sequence[Node],
    fetches: Collection[Tensor],
    feeds: Collection[Tensor],
    order: Order,
    on_host: Collection[Node] = (),
    devices: Mapping[Node, str] | None = None,
) -> list[Unit]:
    """The host nodes, control nodes and regions of a step, in a sequence that respects the order. A
    region is on one device; without `devices` all nodes are on the same."""
    loose = {
        node for node in nodes if _is_loose(node)
    }  # constants are copied to where they are read
    compiled = {node for node in nodes if node not in on_host and compilable(node)}
    labels = devices or _size_labels(nodes, compiled)
    hops = _hops(nodes, order, labels) if labels else {}
    units = _Cutter([node for node in nodes if node not in loose], order, compiled, hops).cut()
    if not devices and sum(isinstance(unit, list) for unit in units) > 1:
        moves = _Moves(units, nodes, order, set(fetches))
        moves.sink_growing()
        moves.read_where_used()
    units = [unit for unit in units if unit]
    controls = _controls(nodes, fetches)
    read = {t for unit in units if isinstance(unit, Node) for t in _taken(unit, controls)}
    read.update(fetches)
    alone = [node for node in nodes if node in loose and node.outputs[0] in read]
    fed, roots = set(feeds), reference_roots(nodes)
    numbered = {node: place for place, node in enumerate(nodes) if node in loose}
    leaving = _leaving(units, fetches, controls)
    together: list[Unit] = []
    for number, unit in enumerate(units):
        if not isinstance(unit, Node):
            together.append(_region(unit, leaving[number], fed, roots, numbered))
        elif not isinstance(unit.op, Trace):
            together.append(controls.get(unit, unit))
    return [*alone, *together]


def with_traces(nodes: Sequence[Node], fetches: Collection[Tensor]) -> list[Unit]:
    """The nodes of a step as units that run one by one: a control node and its traces are one."""
    controls = _controls(nodes, fetches)
    return [controls.get(node, node) for node in nodes if not isinstance(node.op, Trace)]


def _controls(nodes: Sequence[Node], fetches: Collection[Tensor]) -> dict[Node, ControlRegion]:
    """The control nodes, each with its traces, pruned to what the step reads."""
    held = [node for node in nodes if is_control(node)]
    if not held:
        return {}
    traces: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        if isinstance(node.op, Trace):
            traces[node.inputs[0].op].append(node)
    plain = [node for node in nodes if not isinstance(node.op, Trace) and not is_control(node)]
    read = {*fetches, *(tensor for node in plain for tensor in node.inputs)}
    read |= {t for node in nodes for n in node.controls for t in n.outputs}
    found: dict[Node, ControlRegion] = {}
    for node in reversed(held):  # its readers come after it
        found[node] = _controlled(node, traces[node], read)
        read.update(found[node].inputs)
    return found


def _taken(node: Node, controls: Mapping[Node, ControlRegion]) -> tuple[Tensor, ...]:
    """The inputs of a node, those of control nodes pruned."""
    return controls[node].inputs if node in controls else node.inputs


def _controlled(node: Node, traces: Sequence[Node], read: Collection[Tensor]) -> ControlRegion:
    own = [tensor for tensor in node.outputs if tensor in read]
    if not own and not traces:
        own = node.outputs
    inner = [tensor for trace in traces for tensor in traced_tensors(trace)]
    pruned = prune_loop_vars(node, {*own, *inner})
    traced = [trace.outputs[0] for trace in traces]
    return ControlRegion(pruned, (node, *traces), pruned.inputs, (*own, *traced))


def _is_loose(node: Node) -> bool:
    return isinstance(node.op, Const) and not node.controls


class _Cutter:
    """Alternates between all ready host nodes and all ready compiled ones."""

    def __init__(
        self,
        nodes: Sequence[Node],
        order: Order,
        compiled: Collection[Node],
        hops: Mapping[Node, Hops],
    ) -> None:
        self._nodes = nodes
        self._order = order
        self._compiled = compiled
        self._hops = hops
        self._blockers = blockers(nodes, order)

    def cut(self) -> list[Node | _Group]:
        """Single host nodes and groups of compiled ones."""
        first = [node for node in self._nodes if node not in self._compiled]
        if all(self._order[node].isdisjoint(self._compiled) for node in first):
            return [*first, *self._apart(node for node in self._nodes if node in self._compiled)]
        return self._alternate()

    def _alternate(self) -> list[Node | _Group]:
        rank = {node: place for place, node in enumerate(self._nodes)}
        missing = {node: len(rank.keys() & self._order[node]) for node in self._nodes}
        after = _followers(self._nodes, self._order)
        ready: dict[bool, list[Node]] = {False: [], True: []}
        for node in self._nodes:
            if not missing[node]:
                ready[node in self._compiled].append(node)
        units: list[Node | _Group] = []
        compiling = False
        while ready[False] or ready[True]:
            taken: list[Node] = []
            while ready[compiling]:
                node = ready[compiling].pop()
                taken.append(node)
                for later in after[node]:
                    missing[later] -= 1
                    if not missing[later]:
                        ready[later in self._compiled].append(later)
            taken.sort(key=rank.__getitem__)
            units += self._apart(taken) if compiling else taken
            compiling = not compiling
        return units

    def _apart(self, taken: Iterable[Node]) -> list[_Group]:
        """Groups of nodes that come after the same blocking nodes, those after fewer first, each on
        one device and with no path between its nodes through another."""
        groups: dict[tuple[int, Hops], _Group] = {}
        for node in taken:
            key = self._blockers.get(node, 0), self._hops.get(node, (0, ""))
            groups.setdefault(key, []).append(node)
        return [groups[key] for key in sorted(groups, key=lambda key: (key[0].bit_count(), key[1]))]


def _hops(nodes: Sequence[Node], order: Order, labels: Mapping[Node, str]) -> dict[Node, Hops]:
    """For each node, the changes of label, say device, on the longest path to it, and its label."""
    found: dict[Node, Hops] = {}
    for node in nodes:
        label, count = labels[node], 0
        for earlier in order.get(node, ()):
            before, there = found.get(earlier, (0, label))
            count = max(count, before + (there != label))
        found[node] = count, label
    return found


def _size_labels(nodes: Sequence[Node], compiled: Collection[Node]) -> dict[Node, str] | None:
    """For each node, whether sizes of its inputs depend on values that a host op was given, as the
    parts of a partition do; None where no node's do."""
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


def _followers(nodes: Iterable[Node], order: Order) -> dict[Node, list[Node]]:
    """For each node, those that come after it."""
    after: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for earlier in order[node]:
            after[earlier].append(node)
    return after


class _Moves:
    """Moves nodes to other regions than the first that they are ready for."""

    def __init__(
        self,
        units: Sequence[Node | _Group],
        nodes: Sequence[Node],
        order: Order,
        fetched: set[Tensor],
    ) -> None:
        self._units = units
        self._fetched = fetched
        self._rank = {node: place for place, node in enumerate(nodes)}
        self._unit_of = {
            node: number
            for number, unit in enumerate(units)
            for node in ([unit] if isinstance(unit, Node) else unit)
        }
        self._after = _followers(self._unit_of, order)
        self._blockers = blockers(nodes, order)  # none: units run in order

    def sink_growing(self) -> None:
        """Move nodes whose outputs are larger than their inputs to the one region that reads them,
        so that the smaller tensors cross the border between regions."""
        for node in sorted(self._unit_of, key=self._rank.__getitem__, reverse=True):
            here = self._unit_of[node]
            later = {self._unit_of[follower] for follower in self._after[node]}
            if later == {here} or len(later) != 1 or not _is_growing(node):
                continue
            if self._is_movable(node, later):
                self._move(node, later)
                self._unit_of[node] = max(later)

    def read_where_used(self) -> None:
        """Let each region read the variables it uses, so that no copy of one crosses a border: of a
        whole table for a few rows of it. Not where a write comes between, or may: what waits for
        another node must not delay a write that the node waits for."""
        for node, here in self._unit_of.items():
            if not _is_read(node):
                continue
            value, after = node.outputs[0], self._after[node]
            used = {self._unit_of[later] for later in after if value in later.inputs}
            if used <= {here} or not self._is_movable(node, used):
                continue
            others = [later for later in after if not _only_takes(later, value)]
            is_last = all(self._unit_of[each] >= max(used) for each in others)
            if is_last and all(self._waits(each, used) for each in others):
                self._move(node, used)

    def _waits(self, node: Node, numbers: Collection[int]) -> bool:
        """Whether a node comes after all that some regions wait for, be it here or elsewhere."""
        own = self._blockers.get(node, 0)
        regions = [self._units[number] for number in numbers]
        inside = [each for unit in regions if isinstance(unit, list) for each in unit]
        return not any(self._blockers.get(each, 0) & ~own for each in inside)

    def _is_movable(self, node: Node, targets: Collection[int]) -> bool:
        units = [self._units[number] for number in (self._unit_of[node], *targets)]
        return self._fetched.isdisjoint(node.outputs) and all(isinstance(u, list) for u in units)

    def _move(self, node: Node, targets: Collection[int]) -> None:
        """Compute a node in these regions, and in no other one."""
        source = self._unit_of[node]
        if source not in targets:
            cast("_Group", self._units[source]).remove(node)
        for number in targets:
            target = cast("_Group", self._units[number])
            if node not in target:
                target.append(node)
                target.sort(key=self._rank.__getitem__)


def _is_read(node: Node) -> bool:
    """Whether a node reads a variable, without control inputs."""
    return isinstance(node.op, Identity) and not node.controls and node.inputs[0].dtype.is_ref_dtype


def _only_takes(node: Node, value: Tensor) -> bool:
    """Whether a node depends on the node of a value for that value alone."""
    return value in node.inputs and value.op not in node.controls and not node.op.footprint


def _is_growing(node: Node) -> bool:
    """Whether a node without effects has more output elements than input elements."""
    tensors = (*node.inputs, *node.outputs)
    if node.op.stateful or node.controls or any(t.dtype.is_ref_dtype for t in tensors):
        return False
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        return False
    taken, given = (
        sum(tensor.shape.num_elements() or 0 for tensor in side)
        for side in (node.inputs, node.outputs)
    )
    return given > taken


def _leaving(
    units: list[Node | list[Node]],
    fetches: Iterable[Tensor],
    controls: Mapping[Node, ControlRegion],
) -> dict[int, dict[Tensor, None]]:
    """By the number of a unit: its outputs that others read, in the order of those reads."""
    unit_of: dict[Node, int] = {}
    for number, unit in enumerate(units):
        if not isinstance(unit, Node):
            unit_of.update(dict.fromkeys(unit, number))
    found: dict[int, dict[Tensor, None]] = defaultdict(dict)
    for tensor in fetches:
        if tensor.op in unit_of:
            found[unit_of[tensor.op]][tensor] = None
    for unit in units:
        members = [unit] if isinstance(unit, Node) else unit
        own = set(members)  # a read of a variable may be in several regions
        for tensor in [tensor for node in members for tensor in _taken(node, controls)]:
            if tensor.op in unit_of and tensor.op not in own:
                found[unit_of[tensor.op]][tensor] = None
    return found


def _region(
    nodes: _Group,
    wanted: Iterable[Tensor],
    fed: Collection[Tensor],
    roots: Mapping[Tensor, Tensor],
    loose: Mapping[Node, int],
) -> Region:
    """The region of some nodes and the constants that they read."""
    constants = {t.op for node in nodes for t in node.inputs if t.op in loose and t not in fed}
    unit = [*sorted(constants, key=loose.__getitem__), *nodes]
    inside = set(unit)
    taken = [tensor for node in unit for tensor in node.inputs]
    entering = dict.fromkeys(t for t in taken if t.op not in inside or t in fed)
    used = [t for node in unit for t in (*node.inputs, *node.outputs) if t.dtype.is_ref_dtype]
    here = {tensor: roots.get(tensor, tensor) for tensor in used if tensor not in fed}
    return Region(
        tuple(unit),
        tuple(tensor for tensor in entering if tensor not in here),
        tuple(dict.fromkeys(here.values())),
        tuple(tensor for tensor in wanted if tensor not in fed),
        here,
    )
