"""A step while passes change it: its nodes in an order that runs, its ends, who takes what.

Nodes of the user's graph are immutable: the step has copies of those that take anything, which are
the optimiser's own and change in place. A rewrite therefore costs what it changes, however large
the step is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from thalweg.control.liveness import Needs
from thalweg.graph.analysis.effects import NO_FOOTPRINT
from thalweg.graph.analysis.node_effects import accesses
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.ir.target import Target
from thalweg.optimize.workspace import Workspace

Rewrite = Callable[[Node], "Sequence[Tensor] | None"]

_MAX_REWRITES = 16  # of one node in one pass: rules that undo each other end here
_MAX_REPEATS = 8  # of a pass over what it changed itself
_SERVER = Target(name="server", vector_bytes=64)
_UNKNOWN_GPU = Target(name="gpu", layout_times=None)
_MAX_INPUTS = 16  # of a node that is brought up to date at once: others are when they are looked at


class StepGraph:
    """A step between two passes, or in one.

    Args:
        nodes: the nodes, in an order that runs.
        fetches: the tensors that are wanted.
        targets: the nodes that are only run.
        feeds: the tensors whose values are given.
        devices: where nodes of the user's run, if that is not one device: no rewrite crosses the
            borders.
        processors: those of the devices, by name; one that is not known is taken for a server's.
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
        #: how often each rule fired, and for which nodes of the user's, in the pass that runs
        self.fired: Counter[str] = Counter()
        self.fired_for: list[tuple[str, Node]] = []
        #: nodes that are new, take something else, or whose values are taken less often
        self.changes: list[Node] = []
        self.mark: int | None = None  # how many of them the pass that runs has seen, if it ran
        self.types: set[str] = set()  # of nodes that are or were there
        self._uses: dict[Tensor, int] = {}
        self._takers: dict[Tensor, list[Node]] = {}
        self._wait_counts: dict[Node, int] = {}
        self._waiters: dict[Node, list[Node]] = {}
        self._inserted: dict[Node, list[Node]] = {}  # what comes right before a node
        self._moved: dict[Tensor, Tensor] = {}  # what stands for a tensor
        self._outdated: set[Node] = set()  # nodes of many inputs, some of which moved
        self._is_in_order = True
        self._made: list[Node] = []  # by the rewrite of the node that is looked at
        self._nodes, copied, tensors = self._copied(nodes)
        self._alive = set(self._nodes)
        self._targets = tuple([copied[node] for node in targets])
        self._target_set = frozenset(self._targets)
        self._fetches = [tensors.get(tensor, tensor) for tensor in fetches]
        self._fetched_at: dict[Tensor, list[int]] = {}
        for place, tensor in enumerate(self._fetches):
            self._uses[tensor] = self._uses.get(tensor, 0) + 1
            self._fetched_at.setdefault(tensor, []).append(place)

    def _copied(
        self, nodes: Iterable[Node]
    ) -> tuple[list[Node], dict[Node, Node], dict[Tensor, Tensor]]:
        """Copies of nodes; what stands for each node, and for each tensor that is not fed."""
        copied: dict[Node, Node] = {}
        tensors: dict[Tensor, Tensor] = {}
        for node in nodes:
            if not node.inputs and not node.controls:  # a constant, a variable: nothing can change
                copied[node] = node
                self.types.add(node.op.type_name)
                continue
            inputs = tuple([tensors.get(tensor, tensor) for tensor in node.inputs])
            controls = node.controls and tuple([copied.get(n, n) for n in node.controls])
            made = copied[node] = self.workspace.replica(node, inputs, controls)
            tensors.update(zip(node.outputs, made.outputs, strict=True))
            for tensor in self.feeds and self.feeds.intersection(node.outputs):
                del tensors[tensor]
            self._add_edges(made)
        return list(copied.values()), copied, tensors

    # What passes ask

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def is_changed(self) -> bool:
        """Whether any pass did anything."""
        return bool(self.changes)

    @property
    def nodes(self) -> list[Node]:
        """The nodes, in an order that runs."""
        for node in [*self._outdated]:
            self.refresh(node)
        if not self._is_in_order:
            found: list[Node] = []
            for node in self._nodes:
                if node in self._alive and node not in self._inserted:
                    found.append(node)
                else:
                    self._emit(node, found)
            self._nodes, self._is_in_order = found, True
            self._inserted.clear()
        return self._nodes

    @property
    def fetches(self) -> tuple[Tensor, ...]:
        """The tensors that are wanted."""
        return tuple(self._fetches)

    @property
    def targets(self) -> tuple[Node, ...]:
        """The nodes that are only run."""
        return self._targets

    def uses(self, tensor: Tensor) -> int:
        """How often a tensor is taken or fetched."""
        return self._uses.get(tensor, 0)

    def takers(self, tensor: Tensor) -> list[Node]:
        """The nodes that take a tensor, and perhaps some that did."""
        return self._current(self._takers.get(tensor, ()))

    def __contains__(self, node: Node) -> bool:
        return node in self._alive

    def is_waited(self, node: Node) -> bool:
        """Whether a node must run as itself: a target, or one that others wait for."""
        return node in self._target_set or self._wait_counts.get(node, 0) > 0

    def is_open(self, tensor: Tensor) -> bool:
        """Whether the node of a tensor may be looked at: a fed tensor is not what it gives."""
        return tensor not in self.feeds

    def gives_own_value(self, node: Node) -> bool:
        """Whether a node is an identity that makes a fetched value of what is fed or constant."""
        return (
            node.op.type_name == "Identity"
            and node.outputs[0] in self._fetched_at
            and (node.inputs[0] in self.feeds or node.inputs[0].op.op.type_name == "Const")
        )

    def is_guarded(self, tensor: Tensor) -> bool:
        """Whether a tensor comes after an effect, an assertion say: who takes the tensor waits for
        that, and must go on to."""
        return tensor not in self.feeds and tensor.op.original in self._after_effects

    def device(self, node: Node) -> str:
        """Where a node runs, where that makes a difference."""
        return "" if self.devices is None else self.devices.get(node.original, "")

    def target(self, node: Node) -> Target:
        """The processor that a node runs on."""
        name = self.device(node)
        return self.processors.get(name, _UNKNOWN_GPU if "GPU" in name else _SERVER)

    @cached_property
    def _after_effects(self) -> set[Node]:
        """The nodes that come after an effect, by what they stand for. What passes make later
        stands for one of them where it has to."""
        pending = [node for node in self._alive if _writes(node)]
        found: set[Node] = set()
        while pending:
            node = pending.pop()
            if node.original not in found:
                found.add(node.original)
                pending += self._current(self._waiters.get(node, ()))
                for tensor in node.outputs:
                    pending += [] if tensor in self.feeds else self.takers(tensor)
        return found

    # What passes do

    def rewrite(
        self, function: Rewrite, roots: Container[str] | None = None, depth: int = 0
    ) -> None:
        """Replace nodes of some types by what a function gives for their outputs, as long as it
        gives anything. It is asked about all of them, in their order; if the pass ran before, about
        those that it has not seen as they are now: what changed, and what takes that, `depth` nodes
        on."""
        nodes = self._candidates(roots, depth)
        for _ in range(_MAX_REPEATS):
            seen = len(self.changes)
            self._ask(function, nodes, roots)
            if len(self.changes) == seen:
                break
            nodes = self._changed(seen, roots, depth)

    def rewrite_once(self, function: Rewrite) -> None:
        """Ask a function about all nodes, in their order; if the pass ran before, about those of
        the types of what changed."""
        nodes = self.nodes
        if self.mark is not None:
            types = {node.op.type_name for node in self._current(self.changes[self.mark :])}
            nodes = [node for node in nodes if node.op.type_name in types]
        self._ask(function, nodes, None)

    def fire(self, rule: str, node: Node, count: int = 1) -> None:
        """Note that a rule fired."""
        self.fired[rule] += count
        self.fired_for.append((rule, node.original))

    def build(self, node: Node, make: Callable[[], Any]) -> Any:
        """What graph code gives; its nodes stand for a node and join the step before it."""
        result, made = self.workspace.build(node, make)
        self.insert(made, node)
        return result

    def insert(self, nodes: Sequence[Node], before: Node) -> None:
        """Have nodes of the workspace join the step right before another one."""
        self._inserted.setdefault(before, []).extend(nodes)
        self._made += nodes
        self._alive.update(nodes)
        self._is_in_order = False
        self.changes += nodes
        for node in nodes:
            if any(tensor in self._moved for tensor in node.inputs):
                node.inputs = tuple([self._resolved(tensor) for tensor in node.inputs])
            self._add_edges(node)

    def hoist(self, node: Node, before: Node) -> None:
        """Have a node that takes nothing and waits for nothing come before another one."""
        nodes = self.nodes
        if nodes.index(node) > nodes.index(before):
            nodes.remove(node)
            self._inserted.setdefault(before, []).append(node)
            self._is_in_order = False

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Have all that takes a tensor take another one, and fetch that."""
        new = self._resolved(new)
        if old is new or old in self.feeds:
            return
        takers = self._move(old, new)
        for node in takers:
            if len(node.inputs) > _MAX_INPUTS:
                self._outdated.add(node)
            else:
                self.refresh(node)
        self.changes += takers
        self.release(old.op)

    def edit(
        self,
        node: Node,
        op: Op | None = None,
        inputs: Sequence[Tensor] | None = None,
        controls: Sequence[Node] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        """Change parts of a node."""
        self.refresh(node)
        before = (*[tensor.op for tensor in node.inputs], *node.controls)
        self._remove_edges(node)
        node.op = node.op if op is None else op
        node.inputs = node.inputs if inputs is None else tuple(map(self._resolved, inputs))
        node.controls = node.controls if controls is None else tuple(controls)
        node.annotations = node.annotations if annotations is None else annotations
        self._add_edges(node)
        self._is_in_order = False
        self.changes.append(node)
        for each in before:
            self.release(each)

    def release(self, node: Node) -> None:
        """Remove a node that nothing needs, and what nothing needs then."""
        pending = [node]
        while pending:
            node = pending.pop()
            if node in self._alive and not self._is_needed(node):
                self._remove(node)
                pending += [tensor.op for tensor in node.inputs]
                pending += node.controls

    def prune(self) -> None:
        """Remove what nothing needs. Only conditionals and loops may take what they do not need;
        all else goes when its last use does."""
        nodes = self.nodes
        alive = Needs(dict.fromkeys(self.feeds)).reached(self._fetches, self.targets)
        for node in nodes:
            if node not in alive:
                self._remove(node)

    # Nodes under change

    def _is_needed(self, node: Node) -> bool:
        if node in self._target_set or self._wait_counts.get(node, 0):
            return True
        uses, feeds = self._uses, self.feeds
        return any(uses.get(tensor, 0) and tensor not in feeds for tensor in node.outputs)

    def _remove(self, node: Node) -> None:
        self._alive.remove(node)
        self._is_in_order = False
        if node in self._outdated:
            self.refresh(node)
        self._remove_edges(node)
        self.changes += [tensor.op for tensor in node.inputs]

    def _add_edges(self, node: Node) -> None:
        uses, takers = self._uses, self._takers
        self.types.add(node.op.type_name)
        for tensor in node.inputs:
            if tensor in takers:
                uses[tensor] += 1
                takers[tensor].append(node)
            else:
                uses[tensor] = uses.get(tensor, 0) + 1
                takers[tensor] = [node]
        for control in node.controls:
            self._wait_counts[control] = self._wait_counts.get(control, 0) + 1
            self._waiters.setdefault(control, []).append(node)

    def _remove_edges(self, node: Node) -> None:
        """Take back the uses of a node. It stays in the lists of takers: those are of nodes that
        take a tensor, or did."""
        for tensor in node.inputs:
            self._uses[tensor] -= 1
        for control in node.controls:
            self._wait_counts[control] -= 1

    def _current(self, nodes: Iterable[Node]) -> list[Node]:
        alive = self._alive
        return [node for node in dict.fromkeys(nodes) if node in alive]

    def _resolved(self, tensor: Tensor) -> Tensor:
        while tensor in self._moved:
            tensor = self._moved[tensor]
        return tensor

    def _move(self, old: Tensor, new: Tensor) -> list[Node]:
        """Have a tensor stand for another one; the nodes that take it now."""
        self._moved[old] = new
        self._uses[new] = self._uses.get(new, 0) + self._uses.pop(old, 0)
        for place in self._fetched_at.get(old, ()):
            self._fetches[place] = new
        if old in self._fetched_at:
            self._fetched_at.setdefault(new, []).extend(self._fetched_at.pop(old))
        takers = self._current(self._takers.pop(old, ()))
        self._takers.setdefault(new, []).extend(takers)
        return takers

    def refresh(self, node: Node) -> None:
        """Have a node of many inputs take what stands for them by now; others always do."""
        node.inputs = tuple([self._resolved(tensor) for tensor in node.inputs])
        self._outdated.discard(node)

    def _emit(self, node: Node, found: list[Node]) -> None:
        """Append a node, if it is there still, after what was inserted before it."""
        for each in self._inserted.get(node, ()):
            self._emit(each, found)
        if node in self._alive:
            found.append(node)

    # The traversal

    def _candidates(self, roots: Container[str] | None, depth: int) -> Sequence[Node]:
        if self.mark is not None:
            fresh = len(self.changes) - self.mark
            if fresh * (1 + 8 * depth) < len(self._alive):  # what is near costs more to find
                return self._changed(self.mark, roots, depth)
        nodes = self.nodes
        return nodes if roots is None else [n for n in nodes if n.op.type_name in roots]

    def _changed(self, first: int, roots: Container[str] | None, depth: int) -> list[Node]:
        """The nodes that changed, or take what did, `depth` nodes on."""
        latest = self._current(self.changes[first:])
        found = dict.fromkeys(latest)
        for _ in range(depth):
            latest = [n for each in latest for t in each.outputs for n in self.takers(t)]
            latest = [node for node in dict.fromkeys(latest) if node not in found]
            found.update(dict.fromkeys(latest))
        return [node for node in found if roots is None or node.op.type_name in roots]

    def _ask(self, function: Rewrite, nodes: Iterable[Node], roots: Container[str] | None) -> None:
        """Replace those of some nodes that a function gives something for."""
        alive, targets, outdated = self._alive, self._target_set, self._outdated
        waited = self._wait_counts
        self._made.clear()
        for node in nodes:
            if node not in alive or node in targets:
                continue
            if node in outdated:
                self.refresh(node)
            if node in waited and not any(map(self.uses, node.outputs)):
                continue  # it is only waited for
            outputs = function(node)
            if outputs is not None:
                self._settle(node, outputs, function, roots)
                self._made.clear()

    def _settle(
        self,
        node: Node,
        outputs: Sequence[Tensor],
        function: Rewrite,
        roots: Container[str] | None,
    ) -> None:
        """Replace a node, and what that makes of it, as long as a function applies."""
        for _ in range(_MAX_REWRITES):
            made = list(self._made)
            self._replace_node(node, outputs, made)
            node = outputs[0].op
            is_new = node in made and node in self._alive and len(outputs) == 1
            if not is_new or (roots is not None and node.op.type_name not in roots):
                return
            self._made.clear()
            found = function(node)
            if found is None:
                return
            outputs = found
        for each in self._made:  # what the last one made is of no use
            self.release(each)

    def _replace_node(self, node: Node, outputs: Sequence[Tensor], made: Iterable[Node]) -> None:
        for old, new in zip(node.outputs, outputs, strict=True):
            self.replace(old, new)
        for each in (node, *made):
            self.release(each)

    # Text

    def __str__(self) -> str:
        lines = [_line(node) for node in self.nodes]
        fetched = ", ".join(tensor.name for tensor in self.fetches)
        targets = "".join(f" ^{node.name}" for node in self.targets)
        return "\n".join([*lines, f"return {fetched}{targets}"])


def _writes(node: Node) -> bool:
    op = node.op
    may = op.footprint is not NO_FOOTPRINT or bool(op.bodies)
    return may and any(access.writes for access in accesses(node))


def _line(node: Node) -> str:
    taken = [tensor.name.removesuffix(":0") for tensor in node.inputs]
    after = [f"^{control.name}" for control in node.controls]
    value = f" {node.op.__dict__['value'].tolist()}" if node.type == "Const" else ""
    return f"{node.name} = {node.type}({', '.join([*taken, *after])}){value}"
