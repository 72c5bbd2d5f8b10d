"""The pipeline: the passes in their order, each with its reason, run to a bounded fixpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from thalweg.control.liveness import CONTROL_TYPES
from thalweg.graph import dtypes
from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import Target
from thalweg.ops.core.basic import Identity
from thalweg.optimize import verify
from thalweg.optimize.custom import custom_passes, custom_rules
from thalweg.optimize.match import RuleIndex
from thalweg.optimize.options import DEFAULT, OptimizerSwitches, Toggle
from thalweg.optimize.passes.assign_layouts import assign_layouts
from thalweg.optimize.passes.cancel_transposes import cancel_transposes
from thalweg.optimize.passes.fold_constants import fold_constants
from thalweg.optimize.passes.fold_parts import fold_parts
from thalweg.optimize.passes.fuse_attention import fuse_attention
from thalweg.optimize.passes.hoist_invariants import hoist_invariants
from thalweg.optimize.passes.merge_duplicates import merge_duplicates
from thalweg.optimize.passes.merge_products import merge_products
from thalweg.optimize.passes.mixed_precision import narrowing
from thalweg.optimize.passes.optimize_bodies import optimize_bodies
from thalweg.optimize.passes.order_products import order_products
from thalweg.optimize.passes.place_partitions import place_partitions
from thalweg.optimize.passes.resolve_branches import resolve_branches
from thalweg.optimize.passes.simplify_controls import simplify_controls
from thalweg.optimize.passes.strip_identities import strip_identities
from thalweg.optimize.rules.every import BY_PASS
from thalweg.optimize.step_graph import StepGraph
from thalweg.platform.caches import memoized
from thalweg.platform.collector import gc_paused

MAX_ROUNDS = 4  # later rounds find next to nothing

Run = Callable[[StepGraph], None]


@dataclass(frozen=True)
class Pass:
    """A pass of the pipeline, its reason, and the switch that controls it."""

    name: str
    reason: str
    switch: str
    run: Run
    #: the state that the switch must have
    needs: Toggle = Toggle.DEFAULT


_ARITHMETIC = "arithmetic_optimization"
_DEPENDENCIES = "dependency_optimization"
_FOLDING = "constant_folding"
_LAYOUTS = "layout_optimizer"
_LOOPS = "loop_optimization"


def _pass(run: Run, switch: str, reason: str) -> Pass:
    return Pass(run.__name__, reason, switch, run)


def _rules(name: str, switch: str, reason: str, needs: Toggle = Toggle.DEFAULT) -> Pass:
    return Pass(name, reason, switch, RuleIndex(BY_PASS[name]).apply, needs)


PASSES: tuple[Pass, ...] = (
    _pass(
        simplify_controls,
        _DEPENDENCIES,
        "a node that waits for nothing more than it must is open to rules",
    ),
    _pass(strip_identities, _DEPENDENCIES, "rules then see what computes"),
    _pass(fold_constants, _FOLDING, "what is known is not computed in each step"),
    _pass(fold_parts, _FOLDING, "of a sum or a join, the constant parts are one"),
    _pass(
        place_partitions,
        "remapping",
        "where the rows of a partition go is compiled with what comes before and after it",
    ),
    _pass(
        merge_duplicates,
        "common_subgraph_elimination",
        "what is computed once serves all; rules then know what is the same, and what is shared",
    ),
    _pass(resolve_branches, _LOOPS, "folding may have decided conditionals"),
    _pass(custom_rules, "custom_optimizers", "what the user knows comes first"),
    _pass(custom_passes, "custom_optimizers", "what the user knows comes first"),
    _rules("stable_forms", _ARITHMETIC, "before other rules take the formulas apart"),
    _rules("neutral_elements", _FOLDING, "x + 0 and x * 1 are x, and hide it from other rules"),
    _rules(
        "moves",
        _ARITHMETIC,
        "reshapes and transposes that do nothing cost a copy and hide what is behind them",
    ),
    _rules("involutions", _ARITHMETIC, "what is undone, or done already, is not done again"),
    _rules("arithmetic", _ARITHMETIC, "fewer and cheaper operations"),
    _rules(
        "relaxed_arithmetic",
        _ARITHMETIC,
        "what holds of finite numbers alone, where the switch is AGGRESSIVE",
        Toggle.AGGRESSIVE,
    ),
    _rules(
        "push_constants_down", _FOLDING, "constant meets constant, for folding in the next round"
    ),
    _rules("remapping", "remapping", "normalisation of constants becomes weights"),
    _pass(
        assign_layouts,
        _LAYOUTS,
        "a convolution is up to ten times faster with channels last; by cost, for whole regions",
    ),
    _pass(cancel_transposes, _LAYOUTS, "a layout that is changed and changed back need not be"),
    _rules(
        "products",
        _ARITHMETIC,
        "transposes become flags of products, constant factors their weights",
    ),
    _pass(order_products, _ARITHMETIC, "a product with a vector is cheap, one of matrices is not"),
    _pass(merge_products, "remapping", "narrow products of one input fill the vectors together"),
    Pass(
        "half_precision",
        "products in float16, where the switch is AGGRESSIVE: the loss must be scaled",
        "auto_mixed_precision",
        narrowing(dtypes.float16),
        Toggle.AGGRESSIVE,
    ),
    Pass(
        "mixed_precision",
        "products in bfloat16, where the switch is ON; last, when products are what they will be",
        "auto_mixed_precision",
        narrowing(dtypes.bfloat16),
        Toggle.ON,
    ),
    _pass(
        fuse_attention,
        "remapping",
        "no score is stored; after mixed precision, which makes products narrow",
    ),
    _pass(
        optimize_bodies,
        _LOOPS,
        "what a loop does, it does often; after the others, which make its inputs constants",
    ),
    _pass(
        hoist_invariants,
        _LOOPS,
        "what every iteration would compute again; after bodies are in their final form",
    ),
)


@dataclass
class PassReport:
    """The changes of a pass to a step, over all rounds."""

    name: str
    reason: str
    before: int = 0  # nodes
    after: int = 0
    fired: dict[str, int] = field(default_factory=dict[str, int])  # how often, by rule
    seconds: float = 0.0
    places: list[tuple[str, Node]] = field(default_factory=list[tuple[str, Node]], repr=False)


#: Called with the step before all passes, and after each pass that changed it.
Watch = Callable[[str, StepGraph], None]


@dataclass(frozen=True)
class OptimizedStep:
    """A step after the pipeline."""

    nodes: Sequence[Node]
    fetches: tuple[Tensor, ...]
    targets: tuple[Node, ...]
    passes: tuple[PassReport, ...] = ()


def optimize(
    nodes: Sequence[Node],
    fetches: tuple[Tensor, ...],
    targets: tuple[Node, ...],
    feeds: tuple[Tensor, ...],
    devices: Mapping[Node, str] | None = None,
    switches: OptimizerSwitches = DEFAULT,
    watch: Watch | None = None,
    processors: Mapping[str, Target] = MappingProxyType({}),
) -> OptimizedStep:
    """Run the passes on a pruned step. The feeds stay the same.

    Args:
        nodes: the nodes, in execution order.
        fetches: the tensors to return.
        targets: the nodes to run for their effects.
        feeds: the tensors whose values are fed.
        devices: the devices of the nodes, if there are several.
        switches: which passes run.
        watch: called with the step before all passes, and after each that changed it.
        processors: the targets of the devices, by name; of a single device, by "".
    """
    if not switches.enabled:
        return OptimizedStep(nodes, fetches, targets)
    passes = _passes(frozenset(switches.toggles.items()), switches.without)
    with gc_paused():
        graph = StepGraph(nodes, fetches, targets, frozenset(feeds), devices, processors)
        reports = tuple(run_passes(graph, passes, watch))
    if not graph.is_changed:
        return OptimizedStep(nodes, fetches, targets, reports)
    fetched, identities = _distinct_fetches(graph, fetches)
    return OptimizedStep([*graph.nodes, *identities], fetched, graph.targets, reports)


@memoized(64)
def _passes(toggles: frozenset[tuple[str, Toggle]], without: frozenset[str]) -> list[Pass]:
    """The passes that are switched on."""
    switches = OptimizerSwitches(toggles=dict(toggles), without=without)
    enabled = [pass_ for pass_ in PASSES if switches.is_on(pass_.switch, pass_.needs)]
    return [pass_ for pass_ in enabled if pass_.name not in without]


def run_passes(
    graph: StepGraph, passes: Sequence[Pass], watch: Watch | None = None
) -> list[PassReport]:
    """Run passes over a step until none changes it, at most `MAX_ROUNDS` times. A pass runs again
    only if the step has changed since."""

    def run_inside(body: StepGraph) -> dict[str, int]:
        inner = run_passes(body, passes)
        return {name: count for report in inner for name, count in report.fired.items()}

    graph.run_inside = run_inside
    if watch is not None:
        watch("", graph)
    reports = [PassReport(pass_.name, pass_.reason) for pass_ in passes]
    marks: list[int | None] = [None] * len(passes)
    spec = verify.Spec(graph) if verify.ENABLED else None
    for _ in range(MAX_ROUNDS):
        before = len(graph.changes)
        for number, pass_ in enumerate(passes):
            graph.mark, count = marks[number], len(graph.changes)
            if graph.mark != count:
                _run(pass_, graph, reports[number])
                marks[number] = len(graph.changes)
                if marks[number] == count:
                    continue
                if spec is not None:
                    spec = spec.checked(graph, pass_.name)
                if watch is not None:
                    watch(pass_.name, graph)
        if len(graph.changes) == before:
            break
    return reports


def _run(pass_: Pass, graph: StepGraph, report: PassReport) -> None:
    start = time.perf_counter()
    count, changes = len(graph), len(graph.changes)
    pass_.run(graph)
    is_changed = len(graph.changes) > changes
    if is_changed and not graph.types.isdisjoint(CONTROL_TYPES):
        graph.prune()
    report.seconds += time.perf_counter() - start
    if graph.mark is None:
        report.before = report.after = count
    if is_changed:
        report.after = len(graph)
        for name, number in graph.fired.items():
            report.fired[name] = report.fired.get(name, 0) + number
        report.places += graph.fired_for
    graph.fired.clear()
    graph.fired_for.clear()


def _distinct_fetches(
    graph: StepGraph, before: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], list[Node]]:
    """Distinct fetches for those that were distinct before, and identity nodes to add for that: no
    fetch may be a feed, a constant of the graph, or the tensor of another fetch."""
    used: set[Tensor] = {*graph.feeds}
    copies: dict[Tensor, Tensor] = {}  # by the tensors that were fetched
    added: list[Node] = []
    for old, new in zip(before, graph.fetches, strict=True):
        if old in copies:
            continue
        copies[old] = new
        if new is not old and (new in used or new.op.type == "Const"):
            named = partial(Identity(), new, name=f"{old.op.name}/")
            copies[old], built = graph.workspace.build(old.op, named)
            added += built
        used.add(copies[old])
    return tuple([copies[old] for old in before]), added
