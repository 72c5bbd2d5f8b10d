"""Which nodes of a step are compiled together.

Nodes are taken in an order that respects data, control and the order of reads and writes of each
variable. All host ops that can run do; then all compiled nodes that can run together form a region;
and so on in turn, so that a step without host ops is one region.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from thalweg.control.effects import has_host_effects, written_places
from thalweg.control.liveness import is_control, looked_into, thinned
from thalweg.control.traces import Trace
from thalweg.graph import dtypes
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.basic import Const, Identity, NoOp
from thalweg.platform.caches import memoized

Unit = Node | Region | ControlRegion


Order = Mapping[Node, Collection[Node]]
Hops = tuple[int, str]  # how many devices were left on the way to a node, and its own


def regions(
    nodes: Sequence[Node],
    fetches: Collection[Tensor],
    feeds: Collection[Tensor],
    order: Order,
    on_host: Collection[Node] = (),
    devices: Mapping[Node, str] | None = None,
) -> list[Unit]:
    """Nodes to run one by one and regions to run as one, in order. A region is on one device; all
    nodes are on the same where nothing is said."""
    loose = {node for node in nodes if _is_loose(node)}  # constants go wherever they are read
    compiled = {node for node in nodes if node not in on_host and compilable(node)}
    hops = _hops(nodes, order, devices) if devices else {}
    units = _grouped([node for node in nodes if node not in loose], order, compiled, hops)
    if not devices:
        _sink(units, order, set(fetches))
        _read_where_used(units, set(fetches))
    units = [unit for unit in units if unit]
    controls = _controls(nodes, fetches)
    read = {t for unit in units if isinstance(unit, Node) for t in _taken(unit, controls)}
    read.update(fetches)
    alone = [node for node in nodes if node in loose and node.outputs[0] in read]
    fed, roots = set(feeds), reference_roots(nodes)
    leaving = _leaving(units, fetches, controls)
    together: list[Unit] = []
    for number, unit in enumerate(units):
        if not isinstance(unit, Node):
            together.append(_region(unit, leaving[number], fed, roots))
        elif not isinstance(unit.op, Trace):
            together.append(controls.get(unit, unit))
    return [*alone, *together]


def with_traces(nodes: Sequence[Node], fetches: Collection[Tensor]) -> list[Unit]:
    """Nodes to run one by one: control nodes and their traces are one unit each."""
    controls = _controls(nodes, fetches)
    return [controls.get(node, node) for node in nodes if not isinstance(node.op, Trace)]


def _controls(nodes: Sequence[Node], fetches: Collection[Tensor]) -> dict[Node, ControlRegion]:
    """The control nodes, each with its traces and without what nothing needs of it."""
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
    for node in reversed(held):  # all that takes something of it has been seen
        found[node] = _controlled(node, traces[node], read)
        read.update(found[node].inputs)
    return found


def _taken(node: Node, controls: Mapping[Node, ControlRegion]) -> tuple[Tensor, ...]:
    """What a node takes, as far as it matters."""
    return controls[node].inputs if node in controls else node.inputs


def _controlled(node: Node, traces: Sequence[Node], read: Collection[Tensor]) -> ControlRegion:
    own = [tensor for tensor in node.outputs if tensor in read]
    if not own and not traces:
        own = node.outputs
    inner = [tensor for trace in traces for tensor in looked_into(trace)]
    thin = thinned(node, {*own, *inner})
    traced = [trace.outputs[0] for trace in traces]
    return ControlRegion(thin, (node, *traces), thin.inputs, (*own, *traced))


def _is_loose(node: Node) -> bool:
    return isinstance(node.op, Const) and not node.controls


def compilable(node: Node) -> bool:
    """Whether a node may be part of compiled code, as far as its op and dtypes tell."""
    return isinstance(node.op, NoOp) or (
        _has_code(type(node.op))
        and all(map(_is_plain, node.inputs))
        and all(map(_is_plain, node.outputs))
    )


@memoized(5_000)
def _has_code(kind: type[Op]) -> bool:
    """Whether an op says how it is computed element by element."""
    return not kind.host_only and (kind.has("loop") or kind.has("element") or kind.of_shapes)


def _is_plain(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    if dtype.is_ref_dtype and not tensor.shape.is_fully_defined():
        return False  # a variable without a fixed shape may change it between any two steps
    return _is_number(dtype.base_dtype)


@memoized(64)
def _is_number(dtype: dtypes.DType) -> bool:
    """Whether compiled code knows elements of a type."""
    return dtype in dtypes.REAL or dtype.is_bool


def reference_roots(nodes: Iterable[Node]) -> dict[Tensor, Tensor]:
    """For each reference, the variable's own: an update passes on the one it changed."""
    roots: dict[Tensor, Tensor] = {}
    for node in nodes:
        places = node.op.parsed.references
        for tensor in node.outputs:
            if tensor.dtype.is_ref_dtype:
                source = node.inputs[places[0]] if places else tensor
                roots[tensor] = roots.get(source, source)
    return roots


def ordered(nodes: Sequence[Node], feeds: Collection[Tensor]) -> dict[Node, set[Node]]:
    """What each node must come after: its inputs, its control inputs, and for a variable that is
    written, the reads and writes that were made before."""
    inside, fed = set(nodes), set(feeds)
    before: dict[Node, set[Node]] = {}
    variables = _Accesses(reference_roots(nodes))
    host: Node | None = None
    blocks = any(node.op.blocking for node in nodes)  # then only what is asked for orders them
    for node in nodes:
        found = set(node.controls)
        for place, tensor in enumerate(node.inputs):
            if tensor not in fed:
                found.add(tensor.op)
                if tensor.dtype.is_ref_dtype:
                    found |= variables.accessed(node, tensor, place in written_places(node))
        if node.inputs and not blocks and has_host_effects(node):
            found |= set() if host is None else {host}
            host = node
        found &= inside
        found.discard(node)
        before[node] = found
    return before


class _Accesses:
    """The reads and writes of variables, in the order of the nodes."""

    def __init__(self, roots: Mapping[Tensor, Tensor]) -> None:
        self._roots = roots
        self._writer: dict[Tensor, Node] = {}
        self._readers: dict[Tensor, list[Node]] = defaultdict(list)

    def accessed(self, node: Node, tensor: Tensor, writes: bool) -> set[Node]:
        """Note an access; what it must come after."""
        root = self._roots.get(tensor, tensor)
        if root.dtype.base_dtype is dtypes.string:
            return set()  # the handle of a queue or an accumulator, which has an order of its own
        found = {self._writer[root]} if root in self._writer else set[Node]()
        if writes:
            found |= set(self._readers.pop(root, ()))
            self._writer[root] = node
        else:
            self._readers[root].append(node)
        return found


def _grouped(
    nodes: Sequence[Node],
    order: Order,
    compiled: Collection[Node],
    hops: Mapping[Node, Hops],
) -> list[Node | list[Node]]:
    """Single host nodes and lists of compiled ones, in turn."""
    first = [node for node in nodes if node not in compiled]
    if all(set(order[node]).isdisjoint(compiled) for node in first):  # most steps are one region
        rest = [node for node in nodes if node in compiled]
        return [*first, *_apart(rest, _awaited(nodes, order), hops)]
    inside = set(nodes)
    waiting = {node: len(inside.intersection(order[node])) for node in nodes}
    after: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for earlier in order[node]:
            after[earlier].append(node)
    ready: dict[bool, list[Node]] = {False: [], True: []}
    for node in nodes:
        if not waiting[node]:
            ready[node in compiled].append(node)
    units: list[Node | list[Node]] = []
    awaited = _awaited(nodes, order)
    compiling = False
    while ready[False] or ready[True]:
        taken: list[Node] = []
        while ready[compiling]:
            node = ready[compiling].pop()
            taken.append(node)
            for later in after[node]:
                waiting[later] -= 1
                if not waiting[later]:
                    ready[later in compiled].append(later)
        taken.sort(key=lambda node: node.index)
        units += _apart(taken, awaited, hops) if compiling else taken
        compiling = not compiling
    return units


def _sink(units: Sequence[Node | list[Node]], order: Order, fetched: set[Tensor]) -> None:
    """Move nodes that make much out of little to the one region that reads them, so that the little
    crosses the border between regions and not the much."""
    if sum(isinstance(unit, list) for unit in units) < 2:
        return
    place = {n: at for at, u in enumerate(units) for n in ([u] if isinstance(u, Node) else u)}
    after: dict[Node, list[Node]] = defaultdict(list)
    for node in place:
        for earlier in order[node]:
            after[earlier].append(node)
    for node in sorted(place, key=lambda node: node.index, reverse=True):
        at = place[node]
        unit = units[at]
        if isinstance(unit, Node) or not after[node] or not _is_growing(node):
            continue
        readers = {place[later] for later in after[node]}
        reader = units[max(readers)]
        if readers <= {at} or len(readers) > 1 or isinstance(reader, Node):
            continue
        if not fetched.isdisjoint(node.outputs):
            continue
        unit.remove(node)
        reader.append(node)
        reader.sort(key=lambda node: node.index)
        place[node] = max(readers)


def _read_where_used(units: Sequence[Node | list[Node]], fetched: set[Tensor]) -> None:
    """Let each region read the variables it uses, so that no value of one crosses a border: a copy
    of a whole table for a few rows of it. Not where a write comes between."""
    if sum(isinstance(unit, list) for unit in units) < 2:
        return
    place = {n: at for at, u in enumerate(units) for n in ([u] if isinstance(u, Node) else u)}
    roots = reference_roots(place)
    readers: dict[Node, set[int]] = defaultdict(set)
    first_write: dict[Tensor, int] = {}
    for node, at in place.items():
        for tensor in node.inputs:
            readers[tensor.op].add(at)
        for number in written_places(node):
            root = roots.get(node.inputs[number], node.inputs[number])
            first_write[root] = min(at, first_write.get(root, at))
    for node, at in place.items():
        if not _is_read(node) or node.outputs[0] in fetched or readers[node] <= {at}:
            continue
        last = max(readers[node])
        root = roots.get(node.inputs[0], node.inputs[0])
        used = [units[reader] for reader in readers[node]]
        if first_write.get(root, last) < last or any(isinstance(unit, Node) for unit in used):
            continue
        _move(node, units[at], [unit for unit in used if isinstance(unit, list)])


def _is_read(node: Node) -> bool:
    """Whether a node gives the value of a variable, whenever in the step that may be."""
    return isinstance(node.op, Identity) and not node.controls and node.inputs[0].dtype.is_ref_dtype


def _move(node: Node, source: Node | list[Node], targets: Sequence[list[Node]]) -> None:
    if isinstance(source, list) and all(target is not source for target in targets):
        source.remove(node)
    for target in targets:
        if node not in target:
            target.append(node)
            target.sort(key=lambda node: node.index)


def _is_growing(node: Node) -> bool:
    """Whether a node without effects gives more elements than it takes."""
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


def _awaited(nodes: Sequence[Node], order: Order) -> dict[Node, int]:
    """For each node, those before it that may block: a bit for each."""
    found: dict[Node, int] = {}
    blocking = 0
    for node in nodes:
        waits = 0
        for before in {found.get(earlier, 0) for earlier in order[node]}:
            waits |= before
        if node.op.blocking:
            waits |= 1 << blocking
            blocking += 1
        if waits:
            found[node] = waits
    return found


def _hops(nodes: Sequence[Node], order: Order, devices: Mapping[Node, str]) -> dict[Node, Hops]:
    """For each node, how often the way to it went from device to device at most, and its own."""
    found: dict[Node, Hops] = {}
    for node in nodes:
        device, count = devices[node], 0
        for earlier in order.get(node, ()):
            before, there = found.get(earlier, (0, device))
            count = max(count, before + (there != device))
        found[node] = count, device
    return found


def _apart(
    taken: list[Node], awaited: Mapping[Node, int], hops: Mapping[Node, Hops]
) -> list[Node | list[Node]]:
    """Nodes that wait for different things in regions of their own: what a blocked node waits for
    must never stand in a region behind it. So do nodes of different devices, and of one device what
    another device comes between."""
    groups: dict[tuple[int, Hops], list[Node]] = {}
    for node in taken:
        key = awaited.get(node, 0), hops.get(node, (0, ""))
        groups.setdefault(key, []).append(node)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0].bit_count(), key[1]))]


def _leaving(
    units: list[Node | list[Node]],
    fetches: Iterable[Tensor],
    controls: Mapping[Node, ControlRegion],
) -> dict[int, dict[Tensor, None]]:
    """By the number of a unit: what others take from it, in the order in which they do."""
    homes: dict[Node, int] = {}
    for number, unit in enumerate(units):
        if not isinstance(unit, Node):
            homes.update(dict.fromkeys(unit, number))
    found: dict[int, dict[Tensor, None]] = defaultdict(dict)
    for tensor in fetches:
        if tensor.op in homes:
            found[homes[tensor.op]][tensor] = None
    for unit in units:
        members = [unit] if isinstance(unit, Node) else unit
        own = set(members)  # a read of a variable may be in several regions
        for tensor in [tensor for node in members for tensor in _taken(node, controls)]:
            if tensor.op in homes and tensor.op not in own:
                found[homes[tensor.op]][tensor] = None
    return found


def _region(
    nodes: list[Node],
    wanted: Iterable[Tensor],
    fed: set[Tensor],
    roots: Mapping[Tensor, Tensor],
) -> Region:
    constants = {t.op for node in nodes for t in node.inputs if _is_loose(t.op) and t not in fed}
    unit = [*sorted(constants, key=lambda node: node.index), *nodes]
    inside = set(unit)
    outputs = [tensor for tensor in wanted if tensor not in fed]
    entering = dict.fromkeys(
        t for node in unit for t in node.inputs if t.op not in inside or t in fed
    )
    used = [t for node in unit for t in (*node.inputs, *node.outputs) if t.dtype.is_ref_dtype]
    here = {tensor: roots.get(tensor, tensor) for tensor in used if tensor not in fed}
    return Region(
        tuple(unit),
        tuple(tensor for tensor in entering if tensor not in here),
        tuple(dict.fromkeys(here.values())),
        tuple(outputs),
        here,
    )
