"""`tf.contrib.graph_editor`: selection of nodes by name and by graph walks, and copies of nodes.

Nodes are immutable: instead of changing a graph in place, `graph_replace` and
`copy_with_input_replacements` copy nodes with other inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from thalweg.graph import nest
from thalweg.graph.graph import Graph
from thalweg.graph.likes import NodesLike, Structure
from thalweg.graph.node import Node, Tensor, program_order
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.scopes import name_scope
from thalweg.public import public

Filter = Callable[[Any], bool]
#: A graph means all of its nodes or tensors.
Members: TypeAlias = "NodesLike | Graph"


def _name(name: str) -> str:
    return f"contrib.graph_editor.{name}"


# Lists


@public(_name("make_list_of_op"))
def make_list_of_op(
    ops: Members, check_graph: bool = True, allow_graph: bool = True, ignore_ts: bool = False
) -> list[Node]:
    """A list of operations, from one of several forms.

    Args:
        ops: an operation, a structure of them, or a graph.
        check_graph: whether all must belong to one graph.
        allow_graph: whether `ops` may be a graph, which means all its operations.
        ignore_ts: whether tensors are skipped.

    Returns:
        A list of operations.
    """
    return _as_list(ops, Node, Tensor if ignore_ts else (), check_graph, allow_graph)


@public(_name("make_list_of_t"))
def make_list_of_t(
    ts: Members, check_graph: bool = True, allow_graph: bool = True, ignore_ops: bool = False
) -> list[Tensor]:
    """A list of tensors, from one of several forms.

    Args:
        ts: a tensor, a structure of them, or a graph.
        check_graph: whether all must belong to one graph.
        allow_graph: whether `ts` may be a graph, which means all its tensors.
        ignore_ops: whether operations are skipped.

    Returns:
        A list of tensors.
    """
    return _as_list(ts, Tensor, Node if ignore_ops else (), check_graph, allow_graph)


def _as_list(
    members: Any, element_type: Any, ignored: Any, check_graph: bool, allow_graph: bool
) -> list[Any]:
    if isinstance(members, Graph):
        if not allow_graph:
            raise TypeError("allow_graph is False: cannot convert a graph.")
        return _elements(members, element_type)
    is_set = isinstance(members, set | frozenset)
    flat: list[Any] = list(cast("Iterable[Any]", members)) if is_set else nest.flatten(members)
    wrong = [e for e in flat if not isinstance(e, (element_type, *nest.as_list(ignored)))]
    if wrong:
        raise TypeError(f"Expected {element_type.__name__}s, got {wrong[0]!r}")
    elements = [element for element in flat if isinstance(element, element_type)]
    if check_graph and len({id(element.graph) for element in elements}) > 1:
        raise ValueError("Operations and tensors are not all from the same graph.")
    return elements


def _elements(graph: Graph, element_type: Any) -> list[Any]:
    return list(graph.nodes) if element_type is Node else get_tensors(graph)


@public(_name("get_tensors"))
def get_tensors(graph: Graph) -> list[Tensor]:
    """All tensors of a graph."""
    return [tensor for node in graph.nodes for tensor in node.outputs]


@public(_name("get_generating_ops"))
def get_generating_ops(ts: Members) -> list[Node]:
    """The distinct operations that compute tensors."""
    return list(dict.fromkeys(t.op for t in make_list_of_t(ts, allow_graph=False)))


@public(_name("get_consuming_ops"))
def get_consuming_ops(ts: Members) -> list[Node]:
    """The distinct operations that have tensors as inputs."""
    tensors = make_list_of_t(ts, allow_graph=False)
    return list(dict.fromkeys(node for t in tensors for node in t.consumers()))


@public(_name("ControlOutputs"))
class ControlOutputs:
    """The control outputs of operations: the operations that have them as control inputs.

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
        self.graph = graph

    def update(self) -> ControlOutputs:
        """Nothing to do: operations that are added to the graph are always included."""
        return self

    def get(self, op: Node) -> list[Node]:
        """The control outputs of an operation."""
        return self.graph.consumers(op)

    def get_all(self) -> dict[Node, list[Node]]:
        """The control outputs of all operations that have any, by operation."""
        return {op: outputs for op in self.graph.nodes if (outputs := self.get(op))}


# By name


@public(_name("filter_ops"))
def filter_ops(ops: Members, positive_filter: Filter | None) -> list[Node]:
    """The operations for which a predicate is true.

    Args:
        ops: operations, or a graph.
        positive_filter: a predicate on an operation; None or True keeps all.

    Returns:
        A list of operations.
    """
    nodes = make_list_of_op(ops)
    return list(filter(positive_filter, nodes)) if callable(positive_filter) else nodes


@public(_name("filter_ts"))
def filter_ts(ops: Members, positive_filter: Filter | None = None) -> list[Tensor]:
    """The outputs of operations for which a predicate is true.

    Args:
        ops: operations, or a graph.
        positive_filter: a predicate on a tensor; None or True keeps all.

    Returns:
        A list of tensors.
    """
    tensors = [t for op in make_list_of_op(ops) for t in op.outputs]
    return list(filter(positive_filter, tensors)) if callable(positive_filter) else tensors


def _name_matches(regex: str | re.Pattern[str]) -> Filter:
    pattern = re.compile(regex)
    return lambda element: pattern.search(element.name) is not None


@public(_name("filter_ops_from_regex"))
def filter_ops_from_regex(ops: Members, regex: str | re.Pattern[str]) -> list[Node]:
    """The operations whose names match a pattern anywhere."""
    return filter_ops(ops, _name_matches(regex))


@public(_name("filter_ts_from_regex"))
def filter_ts_from_regex(ops: Members, regex: str | re.Pattern[str]) -> list[Tensor]:
    """The outputs of operations whose names match a pattern anywhere."""
    return filter_ts(ops, _name_matches(regex))


@public(_name("select_ops"))
def select_ops(*args: Members | str | re.Pattern[str], **kwargs: Any) -> list[Node]:
    """Operations, and those whose names match patterns.

    Args:
        args: operations, structures of them, or patterns of names.
        kwargs: graph: where names are searched; positive_filter: a predicate that must be true;
            restrict_ops_regex: a pattern that all names must match.

    Returns:
        A list of distinct operations.

    Example:
        >>> y = tf.add(1.0, 2.0, name="layer/sum")
        >>> ops = tf.contrib.graph_editor.select_ops("^layer/", graph=tf.get_default_graph())
        >>> [op.name for op in ops]
        ['layer/sum/x', 'layer/sum/y', 'layer/sum']
    """
    return _select(args, kwargs, Node, "restrict_ops_regex")


@public(_name("select_ts"))
def select_ts(*args: Members | str | re.Pattern[str], **kwargs: Any) -> list[Tensor]:
    """Tensors, and those whose names match patterns.

    Args:
        args: tensors, structures of them, or patterns of names.
        kwargs: graph: where names are searched; positive_filter: a predicate that must be true;
            restrict_ts_regex: a pattern that all names must match.

    Returns:
        A list of distinct tensors.
    """
    return _select(args, kwargs, Tensor, "restrict_ts_regex")


def _select(
    args: Iterable[Any], kwargs: dict[str, Any], element_type: Any, restriction: str
) -> list[Any]:
    graph = kwargs.pop("graph", None)
    predicate, regex = kwargs.pop("positive_filter", None), kwargs.pop(restriction, None)
    if kwargs:
        raise ValueError(f"Wrong keywords argument: {', '.join(kwargs)}.")
    selected: list[Any] = []
    for members in args:
        if isinstance(members, str | re.Pattern):
            if graph is None:
                raise ValueError("Use the keyword argument 'graph' to use regex.")
            matches = _name_matches(cast("str", members))
            selected += filter(matches, _elements(graph, element_type))
        else:
            selected += _as_list(members, element_type, (), True, True)
    if regex is not None:
        selected = list(filter(_name_matches(regex), selected))
    return [e for e in dict.fromkeys(selected) if predicate is None or predicate(e)]


@public(_name("select_ops_and_ts"))
def select_ops_and_ts(
    *args: Members | str | re.Pattern[str], **kwargs: Any
) -> tuple[list[Node], list[Tensor]]:
    """Operations and tensors, and those whose names match; tensor patterns begin with "(?#ts)".

    Args:
        args: operations, tensors, structures of them, or patterns of names.
        kwargs: as for `select_ops`.

    Returns:
        A list of operations and a list of tensors.
    """
    patterns: list[Any] = [a for a in args if isinstance(a, str | re.Pattern)]
    flat = [x for a in args if not isinstance(a, str | re.Pattern) for x in nest.flatten(a)]
    ts_patterns = [p for p in patterns if str(getattr(p, "pattern", p)).startswith("(?#ts)")]
    op_patterns = [p for p in patterns if p not in ts_patterns]
    ops = select_ops([x for x in flat if isinstance(x, Node)], *op_patterns, **kwargs)
    tensors = [x for x in flat if isinstance(x, Tensor)]
    return ops, select_ts(tensors, *ts_patterns, graph=kwargs.get("graph"))


@public(_name("get_name_scope_ops"))
def get_name_scope_ops(ops: Members, scope: str) -> list[Node]:
    """The operations inside a name scope."""
    prefix = scope.rstrip("/")
    if not prefix:
        return make_list_of_op(ops)
    return filter_ops(ops, lambda op: op.name == prefix or op.name.startswith(f"{prefix}/"))


# By graph walks


def _seeds(members: Any) -> list[Node]:
    if isinstance(members, Graph):
        raise TypeError("A walk begins at operations or tensors, not at a graph.")
    flat = [x.op if isinstance(x, Tensor) else x for x in nest.flatten(members)]
    return list(dict.fromkeys(make_list_of_op(flat)))


def _walk(
    seeds: list[Node],
    neighbours: Callable[[Node], Iterable[Node]],
    inclusive: bool,
    within_ops: Members | None,
    within_ops_fn: Filter | None,
) -> list[Node]:
    """A breadth-first walk that stays within some nodes."""
    inside = None if within_ops is None else set(make_list_of_op(within_ops, allow_graph=False))

    def is_within(node: Node) -> bool:
        return (inside is None or node in inside) and (within_ops_fn is None or within_ops_fn(node))

    frontier = [node for node in seeds if is_within(node)]
    visited = dict.fromkeys(frontier)
    while frontier:
        reached = dict.fromkeys(n for node in frontier for n in neighbours(node) if is_within(n))
        frontier = [node for node in reached if node not in visited]
        visited.update(dict.fromkeys(frontier))
    return [node for node in visited if inclusive or node not in seeds]


@public(_name("get_backward_walk_ops"))
def get_backward_walk_ops(
    seed_ops: Members,
    inclusive: bool = True,
    within_ops: Members | None = None,
    within_ops_fn: Filter | None = None,
    stop_at_ts: Members = (),
    control_inputs: bool = False,
) -> list[Node]:
    """The operations that others depend on.

    Args:
        seed_ops: operations or tensors to start from.
        inclusive: whether these are in the list.
        within_ops: operations that the walk does not leave.
        within_ops_fn: a predicate on the operations that the walk may enter.
        stop_at_ts: tensors that the walk does not cross.
        control_inputs: whether the walk also follows control inputs.

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
    """The operations that depend on others.

    Args:
        seed_ops: operations or tensors to start from.
        inclusive: whether these are in the list.
        within_ops: operations that the walk does not leave.
        within_ops_fn: a predicate on the operations that the walk may enter.
        stop_at_ts: tensors that the walk does not cross.
        control_outputs: a `ControlOutputs`, or True: the walk also follows control outputs.

    Returns:
        A list of operations, nearest first.
    """
    stops = set(make_list_of_t(stop_at_ts))

    def after(node: Node) -> list[Node]:
        consumers = [n for t in node.outputs if t not in stops for n in t.consumers()]
        return [*consumers, *node.graph.consumers(node)] if control_outputs else consumers

    return _walk(_seeds(seed_ops), after, inclusive, within_ops, within_ops_fn)


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
    """The operations on the paths from some operations to others.

    Args:
        forward_seed_ops, backward_seed_ops: operations or tensors where paths begin and end.
        forward_inclusive, backward_inclusive: whether these are in the list.
        within_ops: operations that paths do not leave.
        within_ops_fn: a predicate on all operations of a path.
        control_inputs: whether the backward walk also follows control inputs.
        control_outputs: a `ControlOutputs` or True: the forward walk follows control outputs.
        control_ios: a `ControlOutputs`: both.

    Returns:
        A list of operations.
    """
    forward, backward = _both_walks(
        (forward_seed_ops, forward_inclusive),
        (backward_seed_ops, backward_inclusive),
        (within_ops, within_ops_fn),
        (control_inputs, control_outputs, control_ios),
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
    """The operations that depend on some operations or that others depend on.

    Args:
        forward_seed_ops, backward_seed_ops: operations or tensors to start from.
        forward_inclusive, backward_inclusive: whether these are in the list.
        within_ops: operations that walks do not leave.
        within_ops_fn: a predicate on the operations that walks may enter.
        control_inputs: whether the backward walk also follows control inputs.
        control_outputs: a `ControlOutputs` or True: the forward walk follows control outputs.
        control_ios: a `ControlOutputs`: both.

    Returns:
        A list of operations.
    """
    forward, backward = _both_walks(
        (forward_seed_ops, forward_inclusive),
        (backward_seed_ops, backward_inclusive),
        (within_ops, within_ops_fn),
        (control_inputs, control_outputs, control_ios),
    )
    return list(forward | backward)


def _both_walks(
    forward: tuple[Any, bool],
    backward: tuple[Any, bool],
    within: tuple[Any, Filter | None],
    controls: tuple[bool, Any, ControlOutputs | None],
) -> tuple[dict[Node, None], dict[Node, None]]:
    inputs, outputs, both = controls
    outputs = outputs if both is None else both
    after = get_forward_walk_ops(*forward, *within, control_outputs=outputs)
    before = get_backward_walk_ops(*backward, *within, control_inputs=inputs or both is not None)
    return dict.fromkeys(after), dict.fromkeys(before)


# Copies


@public(_name("SubGraphView"))
class SubGraphView:
    """A set of operations of a graph, with its input and output tensors.

    Args:
        inside_ops: the operations.
        passthrough_ts: tensors that are both inputs and outputs.
    """

    def __init__(self, inside_ops: Members = (), passthrough_ts: Members = ()) -> None:
        self._ops = make_list_of_op(inside_ops)
        inside = set(self._ops)
        passthrough = make_list_of_t(passthrough_ts)
        inputs = [t for op in self._ops for t in op.inputs if t.op not in inside]
        self._inputs = list(dict.fromkeys([*passthrough, *inputs]))
        computed = [t for op in self._ops for t in op.outputs]
        outputs = [t for t in computed if not t.consumers() or not inside.issuperset(t.consumers())]
        self._outputs = list(dict.fromkeys([*passthrough, *outputs]))

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
        """The input tensors."""
        return list(self._inputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The output tensors."""
        return list(self._outputs)

    @property
    def connected_inputs(self) -> list[Tensor]:
        """The input tensors that an operation here takes."""
        used = {t for op in self._ops for t in op.inputs}
        return [t for t in self._inputs if t in used]

    @property
    def connected_outputs(self) -> list[Tensor]:
        """The output tensors that an operation here computes."""
        inside = set(self._ops)
        return [t for t in self._outputs if t.op in inside]

    def op(self, op_id: int) -> Node:
        """An operation by its index."""
        return self._ops[op_id]


@public(_name("sgv"), _name("make_view"))
def sgv(*args: Members | str | re.Pattern[str], **kwargs: Any) -> SubGraphView:
    """A view of some operations.

    Args:
        args: a view, operations, tensors that pass through, or patterns of names.
        kwargs: as for `select_ops`.

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
    """A map between originals and copies.

    Args:
        ops: copies by operation.
        ts: copies by tensor.
    """

    def __init__(self, ops: Mapping[Node, Node], ts: Mapping[Tensor, Tensor]) -> None:
        self._copies: dict[Any, Any] = {**ops, **ts}

    def transformed(
        self, original: SubGraphView | Members, missing_fn: Callable[[Any], Any] | None = None
    ) -> Structure:
        """The copy of an operation or a tensor, or of those in a structure."""
        return _mapped(original, self._copies, missing_fn)

    def original(
        self, transformed: SubGraphView | Members, missing_fn: Callable[[Any], Any] | None = None
    ) -> Structure:
        """The original of a copy, or of those in a structure."""
        originals = {copy: original for original, copy in self._copies.items()}
        return _mapped(transformed, originals, missing_fn)


def _mapped(
    members: Any, images: Mapping[Any, Any], missing: Callable[[Any], Any] | None
) -> Structure:
    def image(element: Any) -> Any:
        known = images.get(element)
        return missing(element) if known is None and missing is not None else known

    if isinstance(members, SubGraphView):
        return SubGraphView([image(op) for op in members.ops])
    return nest.map_structure(image, members)


def _copy(
    ops: Iterable[Node], replaced: Mapping[Tensor, Tensor], dst_scope: str, reuse_dst_scope: bool
) -> Rewriter:
    """Copies of operations in their own graph, with other inputs, under a name scope."""
    nodes = program_order(ops)
    unchanged = {tensor: tensor for node in nodes for tensor in node.inputs}
    rewriter = Rewriter(nodes[0].graph, unchanged | dict(replaced))
    scope = f"{dst_scope.rstrip('/')}/" if reuse_dst_scope and dst_scope else dst_scope or "copy"
    with nodes[0].graph.as_default(), name_scope(scope):
        for node in nodes:
            others = [control for control in node.controls if control not in rewriter.nodes]
            rewriter.copy(node, node.name, others)
    return rewriter


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
        sgv: a view, or operations.
        replacement_ts: new tensors by those that they replace.
        dst_graph: the graph of the copies, which must be that of the operations.
        dst_scope: the name scope of the copies.
        src_scope: ignored; accepted for old programs.
        reuse_dst_scope: whether the name scope may exist already.

    Returns:
        A view of the copies, and a `TransformerInfo` that maps originals to copies.
    """
    view = sgv if isinstance(sgv, SubGraphView) else SubGraphView(make_list_of_op(sgv))
    if dst_graph is not None and dst_graph is not view.graph:
        raise NotImplementedError("Copies are made in the graph of the operations.")
    rewriter = _copy(view.ops, replacement_ts, dst_scope, reuse_dst_scope)
    computed = {t: rewriter.tensors[t] for op in view.ops for t in op.outputs}
    info = TransformerInfo(rewriter.nodes, computed)
    return info.transformed(view), info


@public(_name("graph_replace"))
def graph_replace(
    target_ts: Structure,
    replacement_ts: Mapping[Tensor, Tensor],
    dst_scope: str = "",
    src_scope: str = "",
    reuse_dst_scope: bool = False,
) -> Structure:
    """Recompute tensors with some of the tensors that they depend on replaced.

    Args:
        target_ts: a tensor, or a structure of tensors.
        replacement_ts: new tensors by those that they replace.
        dst_scope: the name scope of the copies.
        src_scope: ignored; accepted for old programs.
        reuse_dst_scope: whether the name scope may exist already.

    Returns:
        The structure of `target_ts`, with tensors computed from the new ones.

    Raises:
        ValueError: where no target depends on a replaced tensor.

    Example:
        >>> x = tf.constant(2.0)
        >>> y = tf.square(x) + 1
        >>> sess.run(tf.contrib.graph_editor.graph_replace(y, {x: tf.constant(3.0)}))
        np.float32(10.0)
    """
    flat = cast("list[Tensor]", nest.flatten(target_ts))
    consumers = {node for t in replacement_ts for node in t.consumers()}
    between = get_walks_intersection_ops(list(consumers), flat) if consumers else []
    if not between and not any(t in replacement_ts for t in flat):
        raise ValueError("Targets and replacements are not connected!")
    copies = _copy(between, replacement_ts, dst_scope, reuse_dst_scope).tensors if between else {}
    new = {**copies, **replacement_ts}

    def replaced(t: Tensor) -> Tensor:
        return new.get(t, t)

    return nest.map_structure(replaced, target_ts)
