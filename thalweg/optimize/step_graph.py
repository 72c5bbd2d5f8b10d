"""A step while passes change it: its nodes in execution order, its fetches and targets, the
consumers of each tensor.

Nodes of the user's graph are immutable. The step has copies of those with inputs, which belong to
the optimiser and change in place: the cost of a rewrite depends on what it changes, not on the size
of the step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from thalweg.control.liveness import needed
from thalweg.control.traces import Trace
from thalweg.graph import nest
from thalweg.graph.analysis.node_effects import accesses
from thalweg.graph.device import is_cpu
from thalweg.graph.node import Node, Tensor, reached
from thalweg.graph.op import Op
from thalweg.ir.target import Target
from thalweg.optimize.workspace import Workspace

Rewrite = Callable[[Node], "Sequence[Tensor] | None"]

_MAX_REPEATS = 16  # of a pass over what it changed itself: rules that undo each other end here
_DEFAULT_CPU = Target(name="server", vector_bytes=64)
_UNKNOWN_ACCELERATOR = Target(name="accelerator", layout_times=None, fuses_attention=True)
_MAX_INPUTS = 16  # of a node whose inputs are updated at once; others are updated when visited


class StepGraph:
    """A step that passes change.

    Args:
        nodes: the nodes, in execution order.
        fetches: the tensors to return.
        targets: the nodes to run for their effects.
        feeds: the tensors whose values are fed.
        devices: the devices of the user's nodes, if there are several: no rewrite crosses devices.
        processors: the targets of the devices, by name; an unknown one is taken for a server's CPU.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        fetches: Iterable[Tensor],
        targets: Iterable[Node] = (),
        feeds: frozenset[Tensor] = frozenset(),
        devices: Mapping[Node, str] | None = None,
        processors: Mapping[str, Target] = MappingProxyType({}),
    ) -> None:
        self.workspace = Workspace()
        self.feeds = feeds
        self.devices, self.processors = devices, processors
        #: runs the passes in a body of a control node; returns how often each rule fired
        self.run_inside: Callable[[StepGraph], Mapping[str, int]] = lambda _: {}
        #: how often each rule fired in the current pass, and for which of the user's nodes
        self.fired: Counter[str] = Counter()
        self.fired_for: list[tuple[str, Node]] = []
        #: nodes that are new, have other inputs, or have lost a consumer
        self.changes: list[Node] = []
        self.mark: int | None = None  # how many of them the current pass has seen, if it ran before
        self.types: set[str] = set()  # of all nodes that are or were in the step
        self._uses: dict[Tensor, int] = defaultdict(int)
        self._consumers: dict[Tensor, list[Node]] = defaultdict(list)
        self._wait_counts: dict[Node, int] = defaultdict(int)
        self._waiters: dict[Node, list[Node]] = defaultdict(list)
        #: by the node that they come right before
        self._inserted: dict[Node, list[Node]] = defaultdict(list)
        self._replacements: dict[Tensor, Tensor] = {}
        self._outdated: set[Node] = set()  # nodes of many inputs, some of which were replaced
        self._is_sorted = True
        self._new_nodes: list[Node] = []  # built by the rewrite of the current node
        self._nodes, copied, tensors = self._copied(nodes)
        self._alive = set(self._nodes)
        self._targets = tuple([copied[node] for node in targets])
        self._target_set = frozenset(self._targets)
        self._fetches = [tensors.get(tensor, tensor) for tensor in fetches]  # before replacements
        for tensor in self._fetches:
            self._uses[tensor] += 1

    def _copied(
        self, nodes: Iterable[Node]
    ) -> tuple[list[Node], dict[Node, Node], dict[Tensor, Tensor]]:
        """Copies of nodes; the copy of each node, and of each tensor that is not fed."""
        copied: dict[Node, Node] = {}
        tensors: dict[Tensor, Tensor] = {}
        for node in nodes:
            if not node.inputs and not node.controls:  # a constant or a variable never changes
                copied[node] = node
                self.types.add(node.op.type_name)
                continue
            inputs = tuple([tensors.get(tensor, tensor) for tensor in node.inputs])
            if isinstance(node.op, Trace):  # it reads from the control node, whatever is fed
                (holder,) = node.inputs
                inputs = (copied[holder.op].outputs[holder.value_index],)
            controls = node.controls and tuple([copied.get(n, n) for n in node.controls])
            replica = copied[node] = self.workspace.replica(node, inputs, controls)
            tensors.update(zip(node.outputs, replica.outputs, strict=True))
            for tensor in self.feeds and self.feeds.intersection(node.outputs):
                del tensors[tensor]
            self._add_edges(replica)
        return list(copied.values()), copied, tensors

    # Queries

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def is_changed(self) -> bool:
        """Whether any pass changed the step."""
        return bool(self.changes)

    @property
    def nodes(self) -> list[Node]:
        """The nodes, in execution order."""
        for node in [*self._outdated]:
            self.refresh(node)
        if not self._is_sorted:
            ordered: list[Node] = []
            for node in self._nodes:
                if node in self._alive and node not in self._inserted:
                    ordered.append(node)
                else:
                    self._emit(node, ordered)
            self._nodes, self._is_sorted = ordered, True
            self._inserted.clear()
        return self._nodes

    @property
    def fetches(self) -> tuple[Tensor, ...]:
        """The tensors to return."""
        return tuple([self._resolved(tensor) for tensor in self._fetches])

    @property
    def targets(self) -> tuple[Node, ...]:
        """The nodes to run for their effects."""
        return self._targets

    def uses(self, tensor: Tensor) -> int:
        """How often a tensor is taken or fetched."""
        return self._uses.get(tensor, 0)

    def consumers(self, tensor: Tensor) -> list[Node]:
        """The nodes that take a tensor, and possibly some that took it before."""
        return self._alive_only(self._consumers.get(tensor, ()))

    def __contains__(self, node: Node) -> bool:
        return node in self._alive

    def is_waited(self, node: Node) -> bool:
        """Whether a node must stay: it is a target, or others wait for it."""
        return node in self._target_set or self._wait_counts.get(node, 0) > 0

    def is_open(self, tensor: Tensor) -> bool:
        """Whether a tensor has the value that its node computes: it is not fed."""
        return tensor not in self.feeds

    def is_guarded(self, tensor: Tensor) -> bool:
        """Whether a tensor comes after an effect, an assertion say. Its consumers wait for the
        effect, and must continue to."""
        return tensor not in self.feeds and tensor.op.original in self._after_effects

    def device(self, node: Node) -> str:
        """The device of a node; empty where the step has one device."""
        return "" if self.devices is None else self.devices.get(node.original, "")

    def target(self, node: Node) -> Target:
        """The target that a node runs on."""
        name = self.device(node)
        unknown = _UNKNOWN_ACCELERATOR if name and not is_cpu(name) else _DEFAULT_CPU
        return self.processors.get(name, unknown)

    def traces(self, node: Node) -> list[Node]:
        """The traces of a control node."""
        takers = [taker for tensor in node.outputs for taker in self.consumers(tensor)]
        return [n for n in takers if isinstance(n.op, Trace) and n.inputs[0].op is node]

    @cached_property
    def _after_effects(self) -> set[Node]:
        """The user's nodes that come after an effect. Nodes that passes build later stand for one
        of these where they come after an effect, too."""

        def followers(node: Node) -> list[Node]:
            given = [tensor for tensor in node.outputs if tensor not in self.feeds]
            takers = [taker for tensor in given for taker in self.consumers(tensor)]
            return [*takers, *self._alive_only(self._waiters.get(node, ()))]

        return {node.original for node in reached(filter(_writes, self._alive), followers)}

    # Changes

    def rewrite(
        self, function: Rewrite, roots: Collection[str] | None = None, depth: int = 0
    ) -> None:
        """Replace nodes of some types by the outputs that a function returns for them, until it
        returns None for all. It visits all of them in order; if the pass ran before, only those
        that changed since, and their consumers up to a distance of `depth` nodes."""
        if roots is not None and self.types.isdisjoint(roots):
            return
        nodes = self._candidates(roots, depth)
        for _ in range(_MAX_REPEATS):
            seen = len(self.changes)
            self._apply(function, nodes)
            if len(self.changes) == seen:
                break
            nodes = self._changed(seen, roots, depth)

    def rewrite_once(self, function: Rewrite) -> None:
        """The same with one visit per node; if the pass ran before, only nodes of the types that
        changed since."""
        nodes = self.nodes
        if self.mark is not None:
            types = {node.op.type_name for node in self._alive_only(self.changes[self.mark :])}
            nodes = [node for node in nodes if node.op.type_name in types]
        self._apply(function, nodes)

    def fire(self, rule: str, node: Node, count: int = 1) -> None:
        """Note that a rule fired."""
        self.fired[rule] += count
        self.fired_for.append((rule, node.original))

    def build(self, node: Node, make: Callable[[], Any]) -> Any:
        """The result of graph code. The nodes that it builds stand for a node and are inserted
        before it."""
        result, nodes = self.workspace.build(node, make)
        self.insert(nodes, node)
        return result

    def rebuilt(self, rule: str, node: Node, make: Callable[[], Any]) -> list[Tensor]:
        """The tensors that a rule builds in place of the outputs of a node."""
        self.fire(rule, node)
        return nest.as_list(self.build(node, make))

    def insert(self, nodes: Sequence[Node], before: Node) -> None:
        """Insert nodes of the workspace right before another one."""
        self._inserted[before] += nodes
        self._new_nodes += nodes
        self._alive.update(nodes)
        self._is_sorted = False
        self.changes += nodes
        for node in nodes:
            self.refresh(node)
            self._add_edges(node)

    def hoist(self, node: Node, before: Node) -> None:
        """Move a node without inputs and control inputs before another one."""
        nodes = self.nodes
        if nodes.index(node) > nodes.index(before):
            nodes.remove(node)
            self._inserted[before].append(node)
            self._is_sorted = False

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Replace a tensor by another one in all consumers and fetches."""
        new = self._resolved(new)
        if old is new or old in self.feeds:
            return
        self._replacements[old] = new
        self._uses[new] += self._uses.pop(old, 0)
        consumers = self._alive_only(self._consumers.pop(old, ()))
        self._consumers[new] += consumers
        for node in consumers:
            if len(node.inputs) > _MAX_INPUTS:
                self._outdated.add(node)
            else:
                self.refresh(node)
        self.changes += consumers
        self.release(old.op)

    def edit(
        self,
        node: Node,
        op: Op | None = None,
        inputs: Sequence[Tensor] | None = None,
        controls: Sequence[Node] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        """Change attributes of a node."""
        self.refresh(node)
        sources = (*[tensor.op for tensor in node.inputs], *node.controls)
        self._remove_edges(node)
        node.op = node.op if op is None else op
        node.inputs = node.inputs if inputs is None else tuple(map(self._resolved, inputs))
        node.controls = node.controls if controls is None else tuple(controls)
        node.annotations = node.annotations if annotations is None else annotations
        self._add_edges(node)
        self._is_sorted = False
        self.changes.append(node)
        for source in sources:
            self.release(source)

    def release(self, node: Node) -> None:
        """Remove a node that nothing needs, and then its sources that nothing needs any more."""
        pending = [node]
        while pending:
            node = pending.pop()
            if node in self._alive and not self._is_needed(node):
                self._remove(node)
                pending += [tensor.op for tensor in node.inputs]
                pending += node.controls

    def prune(self) -> None:
        """Remove nodes that nothing needs. There are such nodes only after conditionals and loops,
        which may have inputs they do not need; others are removed with their last use."""
        nodes = self.nodes
        alive = set(needed(self.fetches, self.targets, dict.fromkeys(self.feeds)))
        for node in nodes:
            if node not in alive:
                self._remove(node)

    # Bookkeeping

    def _is_needed(self, node: Node) -> bool:
        uses, feeds = self._uses, self.feeds
        is_used = any(uses.get(tensor, 0) and tensor not in feeds for tensor in node.outputs)
        return is_used or self.is_waited(node)

    def _remove(self, node: Node) -> None:
        self._alive.remove(node)
        self._is_sorted = False
        if node in self._outdated:
            self.refresh(node)
        self._remove_edges(node)
        self.changes += [tensor.op for tensor in node.inputs]

    def _add_edges(self, node: Node) -> None:
        self.types.add(node.op.type_name)
        for tensor in node.inputs:
            self._uses[tensor] += 1
            self._consumers[tensor].append(node)
        for control in node.controls:
            self._wait_counts[control] += 1
            self._waiters[control].append(node)

    def _remove_edges(self, node: Node) -> None:
        """Decrement the use counts. The node stays in the lists of consumers, which may be
        outdated."""
        for tensor in node.inputs:
            self._uses[tensor] -= 1
        for control in node.controls:
            self._wait_counts[control] -= 1

    def _alive_only(self, nodes: Iterable[Node]) -> list[Node]:
        alive = self._alive
        return [node for node in dict.fromkeys(nodes) if node in alive]

    def _resolved(self, tensor: Tensor) -> Tensor:
        while tensor in self._replacements:
            tensor = self._replacements[tensor]
        return tensor

    def refresh(self, node: Node) -> None:
        """Update the inputs of a node; only nodes of many inputs can be outdated."""
        node.inputs = tuple([self._resolved(tensor) for tensor in node.inputs])
        self._outdated.discard(node)

    def _emit(self, node: Node, ordered: list[Node]) -> None:
        """Append a node, if it is alive, after those that were inserted before it."""
        for inserted in self._inserted.get(node, ()):
            self._emit(inserted, ordered)
        if node in self._alive:
            ordered.append(node)

    # The traversal

    def _candidates(self, roots: Collection[str] | None, depth: int) -> Sequence[Node]:
        if self.mark is not None:
            fresh = len(self.changes) - self.mark
            # Finding consumers costs more than a visit.
            if fresh * (1 + 8 * depth) < len(self._alive):
                return self._changed(self.mark, roots, depth)
        nodes = self.nodes
        return nodes if roots is None else [n for n in nodes if n.op.type_name in roots]

    def _changed(self, first: int, roots: Collection[str] | None, depth: int) -> list[Node]:
        """The nodes that changed, and their consumers up to a distance of `depth`."""
        latest = self._alive_only(self.changes[first:])
        changed = dict.fromkeys(latest)
        for _ in range(depth):
            latest = [n for each in latest for t in each.outputs for n in self.consumers(t)]
            latest = [node for node in dict.fromkeys(latest) if node not in changed]
            changed.update(dict.fromkeys(latest))
        return [node for node in changed if roots is None or node.op.type_name in roots]

    def _apply(self, function: Rewrite, nodes: Iterable[Node]) -> None:
        """Visit nodes, and replace those that a function returns outputs for."""
        alive, targets, outdated = self._alive, self._target_set, self._outdated
        waited = self._wait_counts
        self._new_nodes.clear()
        for node in nodes:
            if node not in alive or node in targets:
                continue
            if node in outdated:
                self.refresh(node)
            if node in waited and not any(map(self.uses, node.outputs)):
                continue  # its outputs are not used
            outputs = function(node)
            if outputs is not None:
                for old, new in zip(node.outputs, outputs, strict=True):
                    self.replace(old, new)
                for removable in (node, *self._new_nodes):
                    self.release(removable)
                self._new_nodes.clear()

    # Text

    def __str__(self) -> str:
        lines = [_line(node) for node in self.nodes]
        fetched = ", ".join(tensor.name for tensor in self.fetches)
        targets = "".join(f" ^{node.name}" for node in self.targets)
        return "\n".join([*lines, f"return {fetched}{targets}"])


def _writes(node: Node) -> bool:
    may_write = node.op.footprint or node.op.bodies
    return bool(may_write) and any(access.writes for access in accesses(node))


def _line(node: Node) -> str:
    inputs = [tensor.name.removesuffix(":0") for tensor in node.inputs]
    controls = [f"^{control.name}" for control in node.controls]
    value = f" {node.op.__dict__['value'].tolist()}" if node.type == "Const" else ""
    return f"{node.name} = {node.type}({', '.join([*inputs, *controls])}){value}"
