"""`tf.contrib.graph_editor`: choosing nodes by name, by kin and by what lies between, and copies.

Nodes never change. What changes a graph in place in TensorFlow is a copy with other inputs here:
`graph_replace` and `copy_with_input_replacements`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from thalweg.graph import nest
from thalweg.graph.graph import Graph
from thalweg.graph.likes import NodesLike, Structure
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.scopes import name_scope
from thalweg.public import public

Filter = Callable[[Any], bool]
#: A graph stands for all that it has.
Members: TypeAlias = "NodesLike | Graph"


def _name(name: str) -> str:
    return f"contrib.graph_editor.{name}"


# Lists


@public(_name("make_list_of_op"))
def make_list_of_op(
    ops: Members, check_graph: bool = True, allow_graph: bool = True, ignore_ts: bool = False
) -> list[Node]:
    """The operations that are given, as a list.

    Args:
        ops: an operation, a structure of them, or a graph.
        check_graph: whether all must be of one graph.
        allow_graph: whether a graph stands for its operations.
        ignore_ts: whether tensors are passed over.

    Returns:
        A list of operations.
    """
    return _listed(ops, Node, Tensor if ignore_ts else (), check_graph, allow_graph)


@public(_name("make_list_of_t"))
def make_list_of_t(
    ts: Members, check_graph: bool = True, allow_graph: bool = True, ignore_ops: bool = False
) -> list[Tensor]:
    """The tensors that are given, as a list.

    Args:
        ts: a tensor, a structure of them, or a graph.
        check_graph: whether all must be of one graph.
        allow_graph: whether a graph stands for its tensors.
        ignore_ops: whether operations are passed over.

    Returns:
        A list of tensors.
    """
    return _listed(ts, Tensor, Node if ignore_ops else (), check_graph, allow_graph)


def _listed(given: Any, kind: Any, ignored: Any, check_graph: bool, allow_graph: bool) -> list[Any]:
    if isinstance(given, Graph):
        if not allow_graph:
            raise TypeError("allow_graph is False: cannot convert a graph.")
        return _all(given, kind)
    is_set = isinstance(given, set | frozenset)
    flat: list[Any] = list(cast("Iterable[Any]", given)) if is_set else nest.flatten(given)
    wrong = [one for one in flat if not isinstance(one, (kind, *nest.as_list(ignored)))]
    if wrong:
        raise TypeError(f"Expected {kind.__name__}s, got {wrong[0]!r}")
    found = [one for one in flat if isinstance(one, kind)]
    if check_graph and len({id(one.graph) for one in found}) > 1:
        raise ValueError("Operations and tensors are not all from the same graph.")
    return found


def _all(graph: Graph, kind: Any) -> list[Any]:
    nodes = graph.nodes
    return list(nodes) if kind is Node else [t for node in nodes for t in node.outputs]


@public(_name("get_tensors"))
def get_tensors(graph: Graph) -> list[Tensor]:
    """All tensors of a graph."""
    return _all(graph, Tensor)


@public(_name("get_generating_ops"))
def get_generating_ops(ts: Members) -> list[Node]:
    """The operations that compute tensors, each once."""
    return list(dict.fromkeys(t.op for t in make_list_of_t(ts, allow_graph=False)))


@public(_name("get_consuming_ops"))
def get_consuming_ops(ts: Members) -> list[Node]:
    """The operations that take tensors, each once."""
    tensors = make_list_of_t(ts, allow_graph=False)
    return list(dict.fromkeys(node for t in tensors for node in t.consumers()))


@public(_name("ControlOutputs"))
class ControlOutputs:
    """Which operations run after which, without taking a value.

    Args:
        graph: the graph.

    Example:
        >>> first = tf.no_op()
        >>> with tf.control_dependencies([first]):
        ...     second = tf.no_op(name="second")
        >>> after = tf.contrib.graph_editor.ControlOutputs(tf.get_default_graph())
        >>> [op.name for op in after.get(first)]
        ['second']
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._found: dict[Node, list[Node]] = {}
        self._seen = 0

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    def update(self) -> ControlOutputs:
        """Take up operations that were added."""
        nodes = self._graph.nodes
        for node in nodes[self._seen :]:
            for before in node.controls:
                self._found.setdefault(before, []).append(node)
        self._seen = len(nodes)
        return self

    def get(self, op: Node) -> list[Node]:
        """The operations that run after one."""
        return list(self.update()._found.get(op, ()))

    def get_all(self) -> dict[Node, list[Node]]:
        """The operations that run after others, by those."""
        return {op: list(after) for op, after in self.update()._found.items()}


# By name


@public(_name("filter_ops"))
def filter_ops(ops: Members, positive_filter: Filter | None) -> list[Node]:
    """The operations of which a function holds.

    Args:
        ops: operations, or a graph.
        positive_filter: a function of an operation; None or True keeps all.

    Returns:
        A list of operations.
    """
    found = make_list_of_op(ops)
    return [op for op in found if positive_filter(op)] if callable(positive_filter) else found


@public(_name("filter_ts"))
def filter_ts(ops: Members, positive_filter: Filter | None = None) -> list[Tensor]:
    """The outputs of operations of which a function holds.

    Args:
        ops: operations, or a graph.
        positive_filter: a function of a tensor; None or True keeps all.

    Returns:
        A list of tensors.
    """
    found = [t for op in make_list_of_op(ops) for t in op.outputs]
    return [t for t in found if positive_filter(t)] if callable(positive_filter) else found


def _finds(regex: str | re.Pattern[str]) -> Filter:
    pattern = re.compile(regex)
    return lambda one: pattern.search(one.name) is not None


@public(_name("filter_ops_from_regex"))
def filter_ops_from_regex(ops: Members, regex: str | re.Pattern[str]) -> list[Node]:
    """The operations in whose name a pattern is found."""
    return filter_ops(ops, _finds(regex))


@public(_name("filter_ts_from_regex"))
def filter_ts_from_regex(ops: Members, regex: str | re.Pattern[str]) -> list[Tensor]:
    """The outputs of operations in whose name a pattern is found."""
    return filter_ts(ops, _finds(regex))


@public(_name("select_ops"))
def select_ops(*args: Members | str | re.Pattern[str], **kwargs: Any) -> list[Node]:
    """The operations that are given, or in whose names patterns are found.

    Args:
        args: operations, structures of them, or patterns of names.
        kwargs: graph: where patterns look; positive_filter: a function that must hold;
            restrict_ops_regex: a pattern that names must have, too.

    Returns:
        A list of operations, each once.

    Example:
        >>> y = tf.add(1.0, 2.0, name="layer/sum")
        >>> ops = tf.contrib.graph_editor.select_ops("^layer/", graph=tf.get_default_graph())
        >>> [op.name for op in ops]
        ['layer/sum/x', 'layer/sum/y', 'layer/sum']
    """
    return _selected(args, kwargs, Node, "restrict_ops_regex")


@public(_name("select_ts"))
def select_ts(*args: Members | str | re.Pattern[str], **kwargs: Any) -> list[Tensor]:
    """The tensors that are given, or in whose names patterns are found.

    Args:
        args: tensors, structures of them, or patterns of names.
        kwargs: graph: where patterns look; positive_filter: a function that must hold;
            restrict_ts_regex: a pattern that names must have, too.

    Returns:
        A list of tensors, each once.
    """
    return _selected(args, kwargs, Tensor, "restrict_ts_regex")


def _selected(args: Iterable[Any], kwargs: dict[str, Any], kind: Any, restricts: str) -> list[Any]:
    graph = kwargs.pop("graph", None)
    holds, restriction = kwargs.pop("positive_filter", None), kwargs.pop(restricts, None)
    if kwargs:
        raise ValueError(f"Wrong keywords argument: {', '.join(kwargs)}.")
    found: list[Any] = []
    for given in args:
        if isinstance(given, str | re.Pattern):
            if graph is None:
                raise ValueError("Use the keyword argument 'graph' to use regex.")
            found += filter(_finds(cast("str", given)), _all(graph, kind))
        else:
            found += _listed(given, kind, (), True, True)
    if restriction is not None:
        found = list(filter(_finds(restriction), found))
    return [one for one in dict.fromkeys(found) if holds is None or holds(one)]


@public(_name("select_ops_and_ts"))
def select_ops_and_ts(
    *args: Members | str | re.Pattern[str], **kwargs: Any
) -> tuple[list[Node], list[Tensor]]:
    """The operations and the tensors that are given; patterns of tensors begin with "(?#ts)".

    Args:
        args: operations, tensors, structures of them, or patterns of names.
        kwargs: as `select_ops` takes them.

    Returns:
        A list of operations and a list of tensors.
    """
    texts: list[Any] = [one for one in args if isinstance(one, str | re.Pattern)]
    flat = [x for one in args if not isinstance(one, str | re.Pattern) for x in nest.flatten(one)]
    of_ts: list[Any] = [t for t in texts if str(getattr(t, "pattern", t)).startswith("(?#ts)")]
    of_ops: list[Any] = [t for t in texts if t not in of_ts]
    ops = select_ops([x for x in flat if isinstance(x, Node)], *of_ops, **kwargs)
    tensors = [x for x in flat if isinstance(x, Tensor)]
    return ops, select_ts(tensors, *of_ts, graph=kwargs.get("graph"))


@public(_name("get_name_scope_ops"))
def get_name_scope_ops(ops: Members, scope: str) -> list[Node]:
    """The operations inside a name scope."""
    inside = scope.rstrip("/")
    if not inside:
        return make_list_of_op(ops)
    return filter_ops(ops, lambda op: op.name == inside or op.name.startswith(f"{inside}/"))


# By kin


def _seeds(given: Any) -> list[Node]:
    if isinstance(given, Graph):
        raise TypeError("A walk begins at operations or tensors, not at a graph.")
    flat = [one.op if isinstance(one, Tensor) else one for one in nest.flatten(given)]
    return list(dict.fromkeys(make_list_of_op(flat)))


def _walk(
    seeds: list[Node],
    neighbours: Callable[[Node], Iterable[Node]],
    inclusive: bool,
    within_ops: Members | None,
    within_ops_fn: Filter | None,
) -> list[Node]:
    inside = None if within_ops is None else set(make_list_of_op(within_ops, allow_graph=False))

    def is_within(node: Node) -> bool:
        return (inside is None or node in inside) and (within_ops_fn is None or within_ops_fn(node))

    wave = [node for node in seeds if is_within(node)]
    found = dict.fromkeys(wave)
    while wave:
        reached = dict.fromkeys(n for node in wave for n in neighbours(node) if is_within(n))
        wave = [node for node in reached if node not in found]
        found.update(dict.fromkeys(wave))
    return [node for node in found if inclusive or node not in seeds]


@public(_name("get_backward_walk_ops"))
def get_backward_walk_ops(
    seed_ops: Members,
    inclusive: bool = True,
    within_ops: Members | None = None,
    within_ops_fn: Filter | None = None,
    stop_at_ts: Members = (),
    control_inputs: bool = False,
) -> list[Node]:
    """The operations that others are computed from.

    Args:
        seed_ops: operations or tensors to begin at.
        inclusive: whether these are in the list.
        within_ops: operations that the walk does not leave.
        within_ops_fn: a function that holds for all that the walk enters.
        stop_at_ts: tensors that the walk does not pass.
        control_inputs: whether the walk follows control dependencies, too.

    Returns:
        A list of operations, nearest first.

    Example:
        >>> y = tf.square(tf.constant(2.0, name="two"), name="four")
        >>> [op.name for op in tf.contrib.graph_editor.get_backward_walk_ops([y.op])]
        ['four', 'two']
    """
    stops = set(make_list_of_t(stop_at_ts))

    def before(node: Node) -> list[Node]:
        sources = [t.op for t in node.inputs if t not in stops]
        return [*sources, *node.controls] if control_inputs else sources

    return _walk(_seeds(seed_ops), before, inclusive, within_ops, within_ops_fn)


@public(_name("get_forward_walk_ops"))
def get_forward_walk_ops(
    seed_ops: Members,
    inclusive: bool = True,
    within_ops: Members | None = None,
    within_ops_fn: Filter | None = None,
    stop_at_ts: Members = (),
    control_outputs: ControlOutputs | bool | None = None,
) -> list[Node]:
    """The operations that are computed from others.

    Args:
        seed_ops: operations or tensors to begin at.
        inclusive: whether these are in the list.
        within_ops: operations that the walk does not leave.
        within_ops_fn: a function that holds for all that the walk enters.
        stop_at_ts: tensors that the walk does not pass.
        control_outputs: a `ControlOutputs`, or True: the walk follows control dependencies, too.

    Returns:
        A list of operations, nearest first.
    """
    stops = set(make_list_of_t(stop_at_ts))
    seeds = _seeds(seed_ops)
    follows = _control_outputs(control_outputs, seeds)

    def after(node: Node) -> list[Node]:
        takers = [taker for t in node.outputs if t not in stops for taker in t.consumers()]
        return takers if follows is None else [*takers, *follows.get(node)]

    return _walk(seeds, after, inclusive, within_ops, within_ops_fn)


def _control_outputs(given: Any, seeds: list[Node]) -> ControlOutputs | None:
    if isinstance(given, ControlOutputs):
        return given
    return ControlOutputs(seeds[0].graph) if given and seeds else None


@public(_name("get_walks_intersection_ops"))
def get_walks_intersection_ops(
    forward_seed_ops: Members,
    backward_seed_ops: Members,
    forward_inclusive: bool = True,
    backward_inclusive: bool = True,
    within_ops: Members | None = None,
    within_ops_fn: Filter | None = None,
    control_inputs: bool = False,
    control_outputs: ControlOutputs | bool | None = None,
    control_ios: ControlOutputs | None = None,
) -> list[Node]:
    """The operations on the way from some to others.

    Args:
        forward_seed_ops, backward_seed_ops: operations or tensors: where ways begin and end.
        forward_inclusive, backward_inclusive: whether these are in the list.
        within_ops: operations that ways do not leave.
        within_ops_fn: a function that holds for all on the way.
        control_inputs: whether ways follow control dependencies back, too.
        control_outputs: a `ControlOutputs` or True: the same forward.
        control_ios: a `ControlOutputs`: both.

    Returns:
        A list of operations.
    """
    forward, backward = _both_walks(
        (forward_seed_ops, forward_inclusive),
        (backward_seed_ops, backward_inclusive),
        (within_ops, within_ops_fn),
        control_inputs or control_ios is not None,
        control_outputs if control_ios is None else control_ios,
    )
    return [op for op in forward if op in backward]


@public(_name("get_walks_union_ops"))
def get_walks_union_ops(
    forward_seed_ops: Members,
    backward_seed_ops: Members,
    forward_inclusive: bool = True,
    backward_inclusive: bool = True,
    within_ops: Members | None = None,
    within_ops_fn: Filter | None = None,
    control_inputs: bool = False,
    control_outputs: ControlOutputs | bool | None = None,
    control_ios: ControlOutputs | None = None,
) -> list[Node]:
    """The operations after some or before others.

    Args:
        forward_seed_ops, backward_seed_ops: operations or tensors to begin at.
        forward_inclusive, backward_inclusive: whether these are in the list.
        within_ops: operations that walks do not leave.
        within_ops_fn: a function that holds for all that walks enter.
        control_inputs: whether walks follow control dependencies back, too.
        control_outputs: a `ControlOutputs` or True: the same forward.
        control_ios: a `ControlOutputs`: both.

    Returns:
        A list of operations.
    """
    forward, backward = _both_walks(
        (forward_seed_ops, forward_inclusive),
        (backward_seed_ops, backward_inclusive),
        (within_ops, within_ops_fn),
        control_inputs or control_ios is not None,
        control_outputs if control_ios is None else control_ios,
    )
    return list(forward | backward)


def _both_walks(
    forward: tuple[Any, bool],
    backward: tuple[Any, bool],
    within: tuple[Any, Filter | None],
    control_inputs: bool,
    control_outputs: Any,
) -> tuple[dict[Node, None], dict[Node, None]]:
    after = get_forward_walk_ops(*forward, *within, control_outputs=control_outputs)
    before = get_backward_walk_ops(*backward, *within, control_inputs=control_inputs)
    return dict.fromkeys(after), dict.fromkeys(before)


# Copies


@public(_name("SubGraphView"))
class SubGraphView:
    """Some operations of a graph, with what enters and what leaves them.

    Args:
        inside_ops: the operations.
        passthrough_ts: tensors that enter and leave.
    """

    def __init__(self, inside_ops: Members = (), passthrough_ts: Members = ()) -> None:
        self._ops = make_list_of_op(inside_ops)
        inside = set(self._ops)
        through = make_list_of_t(passthrough_ts)
        entering = [t for op in self._ops for t in op.inputs if t.op not in inside]
        self._inputs = list(dict.fromkeys([*through, *entering]))
        made = [t for op in self._ops for t in op.outputs]
        leaving = [t for t in made if not t.consumers() or not inside.issuperset(t.consumers())]
        self._outputs = list(dict.fromkeys([*through, *leaving]))

    @property
    def graph(self) -> Graph | None:
        """The graph, if there is any operation."""
        return self._ops[0].graph if self._ops else None

    @property
    def ops(self) -> list[Node]:
        """The operations."""
        return list(self._ops)

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that enter."""
        return list(self._inputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that leave."""
        return list(self._outputs)

    @property
    def connected_inputs(self) -> list[Tensor]:
        """The tensors that enter and are taken."""
        taken = {t for op in self._ops for t in op.inputs}
        return [t for t in self._inputs if t in taken]

    @property
    def connected_outputs(self) -> list[Tensor]:
        """The tensors that leave and are computed here."""
        inside = set(self._ops)
        return [t for t in self._outputs if t.op in inside]

    def op(self, op_id: int) -> Node:
        """An operation by its number."""
        return self._ops[op_id]


@public(_name("sgv"), _name("make_view"))
def sgv(*args: Members | str | re.Pattern[str], **kwargs: Any) -> SubGraphView:
    """A view of some operations.

    Args:
        args: a view, operations, tensors that pass through, or patterns of names.
        kwargs: as `select_ops` takes them.

    Returns:
        A `SubGraphView`.
    """
    if len(args) == 1 and isinstance(args[0], SubGraphView):
        return args[0]
    return SubGraphView(*select_ops_and_ts(*args, **kwargs))


@public(_name("sgv_scope"), _name("make_view_from_scope"))
def sgv_scope(scope: str, graph: Graph) -> SubGraphView:
    """A view of the operations inside a name scope."""
    return SubGraphView(get_name_scope_ops(graph, scope))


@public(_name("TransformerInfo"))
class TransformerInfo:
    """What stands for what in a copy.

    Args:
        ops: copies by operation.
        ts: copies by tensor.
    """

    def __init__(self, ops: Mapping[Node, Node], ts: Mapping[Tensor, Tensor]) -> None:
        self._transformed_ops, self._transformed_ts = dict(ops), dict(ts)

    def transformed(
        self, original: SubGraphView | Members, missing_fn: Callable[[Any], Any] | None = None
    ) -> Structure:
        """The copy of an operation or a tensor, or of those in a structure."""
        return self._mapped(original, self._transformed_ops, self._transformed_ts, missing_fn)

    def original(
        self, transformed: SubGraphView | Members, missing_fn: Callable[[Any], Any] | None = None
    ) -> Structure:
        """What a copy stands for."""
        ops = {made: op for op, made in self._transformed_ops.items()}
        ts = {made: t for t, made in self._transformed_ts.items()}
        return self._mapped(transformed, ops, ts, missing_fn)

    def _mapped(self, given: Any, ops: Any, ts: Any, missing: Callable[[Any], Any] | None) -> Any:
        def found(one: Any) -> Any:
            known = (ops if isinstance(one, Node) else ts).get(one)
            return missing(one) if known is None and missing is not None else known

        if isinstance(given, SubGraphView):
            return SubGraphView([found(op) for op in given.ops])
        return nest.map_structure(found, given)


def _copied(ops: Iterable[Node], replaced: Mapping[Tensor, Tensor], scope: str) -> TransformerInfo:
    """Copies of operations in their own graph, with other inputs, under a name scope."""
    nodes = sorted(ops, key=lambda node: node.index)
    rewriter = _InPlace(nodes[0].graph, replaced)
    with nodes[0].graph.as_default(), name_scope(scope):
        for node in nodes:
            rewriter.copy(node, node.name)
    return TransformerInfo(
        rewriter.nodes, {t: rewriter.tensors[t] for n in nodes for t in n.outputs}
    )


class _InPlace(Rewriter):
    """Copies beside the originals: what is not copied stands for itself."""

    def copy(self, node: Node, name: str | None = None, controls: Iterable[Node] = ()) -> Node:
        for tensor in node.inputs:
            self.tensors.setdefault(tensor, tensor)
        for before in node.controls:
            self.nodes.setdefault(before, before)
        return super().copy(node, name, controls)


@public(_name("copy_with_input_replacements"))
def copy_with_input_replacements(
    sgv: SubGraphView | Members,
    replacement_ts: Mapping[Tensor, Tensor],
    dst_graph: Graph | None = None,
    dst_scope: str = "",
    src_scope: str = "",
    reuse_dst_scope: bool = False,
) -> tuple[SubGraphView, TransformerInfo]:
    """Copies of operations with other inputs.

    Args:
        sgv: a view, or what makes one.
        replacement_ts: new tensors by those that they replace.
        dst_graph: the graph of the copies, which must be that of the operations.
        dst_scope: the name scope of the copies.
        src_scope: taken for old programs.
        reuse_dst_scope: whether the name scope may be there already.

    Returns:
        A view of the copies, and a `TransformerInfo` that says what stands for what.
    """
    view = _view(sgv)
    if dst_graph is not None and dst_graph is not view.graph:
        raise NotImplementedError("Copies are made in the graph of the operations.")
    scope = f"{dst_scope.rstrip('/')}/" if reuse_dst_scope and dst_scope else dst_scope
    info = _copied(view.ops, replacement_ts, scope or "copy")
    return info.transformed(view), info


def _view(given: Any) -> SubGraphView:
    return given if isinstance(given, SubGraphView) else SubGraphView(make_list_of_op(given))


@public(_name("graph_replace"))
def graph_replace(
    target_ts: Structure,
    replacement_ts: Mapping[Tensor, Tensor],
    dst_scope: str = "",
    src_scope: str = "",
    reuse_dst_scope: bool = False,
) -> Structure:
    """Tensors as they would be, were others in the place of some that they are computed from.

    Args:
        target_ts: a tensor, or a structure of tensors.
        replacement_ts: new tensors by those that they replace.
        dst_scope: the name scope of the copies.
        src_scope: taken for old programs.
        reuse_dst_scope: whether the name scope may be there already.

    Returns:
        The structure of `target_ts`, with tensors computed from the new ones.

    Raises:
        ValueError: where no target depends on what is replaced.

    Example:
        >>> x = tf.constant(2.0)
        >>> y = tf.square(x) + 1
        >>> sess.run(tf.contrib.graph_editor.graph_replace(y, {x: tf.constant(3.0)}))
        np.float32(10.0)
    """
    flat = cast("list[Tensor]", nest.flatten(target_ts))
    takers = {node for t in replacement_ts for node in t.consumers()}
    between = get_walks_intersection_ops(list(takers), flat) if takers else []
    if not between and not any(t in replacement_ts for t in flat):
        raise ValueError("Targets and replacements are not connected!")
    scope = f"{dst_scope.rstrip('/')}/" if reuse_dst_scope and dst_scope else dst_scope
    info = _copied(between, replacement_ts, scope or "copy") if between else None

    def found(t: Tensor) -> Tensor:
        if t in replacement_ts:
            return replacement_ts[t]
        made = None if info is None else info.transformed(t)
        return t if made is None else made

    return nest.map_structure(found, target_ts)
