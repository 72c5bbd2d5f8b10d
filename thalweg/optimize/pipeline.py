"""The pipeline: the passes in their order, each with its reason, run to a bounded fixpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from thalweg.control.liveness import CONTROL_TYPES
from thalweg.graph import dtypes
from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import Target
from thalweg.ops.core.basic import Identity
from thalweg.optimize import verify
from thalweg.optimize.custom import run_custom_passes, run_custom_rules
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
    """A pass of the pipeline: what it does, why it is there, and the switch that governs it."""

    name: str
    reason: str
    switch: str
    run: Run
    #: the least that the switch must say
    needs: Toggle = Toggle.DEFAULT
    #: run inside conditionals and loops by the passes that run here
    is_nested: bool = False


def _rules(name: str) -> Run:
    return RuleIndex(BY_PASS[name]).apply


def _unnested(graph: StepGraph) -> None:
    """Without passes to run inside, nothing changes."""


PASSES: tuple[Pass, ...] = (
    Pass(
        "simplify_controls",
        "a node that waits for nothing more than it must is open to rules",
        "dependency_optimization",
        simplify_controls,
    ),
    Pass(
        "strip_identities",
        "rules then see what computes",
        "dependency_optimization",
        strip_identities,
    ),
    Pass(
        "fold_constants",
        "what is known is not computed in each step",
        "constant_folding",
        fold_constants,
    ),
    Pass(
        "fold_parts",
        "of a sum or a join, the constant parts are one",
        "constant_folding",
        fold_parts,
    ),
    Pass(
        "place_partitions",
        "where the rows of a partition go is compiled with what comes before and after it",
        "remapping",
        place_partitions,
    ),
    Pass(
        "merge_duplicates",
        "what is computed once serves all; rules then know what is the same, and what is shared",
        "common_subgraph_elimination",
        merge_duplicates,
    ),
    Pass(
        "resolve_branches",
        "folding may have decided conditionals",
        "loop_optimization",
        resolve_branches,
    ),
    Pass(
        "custom_rules",
        "what the user knows comes first",
        "custom_optimizers",
        run_custom_rules,
    ),
    Pass(
        "custom_passes",
        "what the user knows comes first",
        "custom_optimizers",
        run_custom_passes,
    ),
    Pass(
        "stable_forms",
        "before other rules take the formulas apart",
        "arithmetic_optimization",
        _rules("stable_forms"),
    ),
    Pass(
        "neutral_elements",
        "x + 0 and x * 1 are x, and hide it from other rules",
        "constant_folding",
        _rules("neutral_elements"),
    ),
    Pass(
        "moves",
        "reshapes and transposes that do nothing cost a copy and hide what is behind them",
        "arithmetic_optimization",
        _rules("moves"),
    ),
    Pass(
        "involutions",
        "what is undone, or done already, is not done again",
        "arithmetic_optimization",
        _rules("involutions"),
    ),
    Pass(
        "arithmetic",
        "fewer and cheaper operations",
        "arithmetic_optimization",
        _rules("arithmetic"),
    ),
    Pass(
        "relaxed_arithmetic",
        "what holds of finite numbers alone, where the switch is AGGRESSIVE",
        "arithmetic_optimization",
        _rules("relaxed_arithmetic"),
        Toggle.AGGRESSIVE,
    ),
    Pass(
        "push_constants_down",
        "constant meets constant, for folding in the next round",
        "constant_folding",
        _rules("push_constants_down"),
    ),
    Pass(
        "remapping",
        "normalisation of constants becomes weights",
        "remapping",
        _rules("remapping"),
    ),
    Pass(
        "assign_layouts",
        "a convolution is up to ten times faster with channels last; by cost, for whole regions",
        "layout_optimizer",
        assign_layouts,
    ),
    Pass(
        "cancel_transposes",
        "a layout that is changed and changed back need not be",
        "layout_optimizer",
        cancel_transposes,
    ),
    Pass(
        "products",
        "transposes become flags of products, constant factors their weights",
        "arithmetic_optimization",
        _rules("products"),
    ),
    Pass(
        "order_products",
        "a product with a vector is cheap, one of matrices is not",
        "arithmetic_optimization",
        order_products,
    ),
    Pass(
        "merge_products",
        "narrow products of one input fill the vectors together",
        "remapping",
        merge_products,
    ),
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
    Pass(
        "fuse_attention",
        "no score is stored; after mixed precision, which makes products narrow",
        "remapping",
        fuse_attention,
    ),
    Pass(
        "optimize_bodies",
        "what a loop does, it does often; after the others, which make its inputs constants",
        "loop_optimization",
        _unnested,
        is_nested=True,
    ),
    Pass(
        "hoist_invariants",
        "what every iteration would compute again; after bodies are in their final form",
        "loop_optimization",
        hoist_invariants,
    ),
)


@dataclass
class PassReport:
    """What a pass did to a step, in all rounds."""

    name: str
    reason: str
    before: int = 0  # nodes
    after: int = 0
    fired: dict[str, int] = field(default_factory=dict[str, int])  # how often, by rule
    seconds: float = 0.0
    places: list[tuple[str, Node]] = field(default_factory=list[tuple[str, Node]], repr=False)


#: Sees a step before the passes, and after each pass that changed it.
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
    """A pruned step, computed with less. Its feeds stay what they are.

    Args:
        nodes: the nodes, in an order that runs.
        fetches: the tensors that are wanted.
        targets: the nodes that are only run.
        feeds: the tensors whose values are given.
        devices: where the nodes run, if that is not one device.
        switches: which passes run.
        watch: is told of the step before the passes, and after each that changed it.
        processors: those of the devices, by name; where that is one device, by "".
    """
    if not switches.enabled:
        return OptimizedStep(nodes, fetches, targets)
    passes = _passes(frozenset(switches.toggles.items()), switches.without)
    with gc_paused():
        graph = StepGraph(nodes, fetches, targets, frozenset(feeds), devices, processors)
        reports = tuple(run_passes(graph, passes, watch))
    if not graph.is_changed:
        return OptimizedStep(nodes, fetches, targets, reports)
    found, added = _own_fetches(graph, fetches)
    return OptimizedStep([*graph.nodes, *added], found, graph.targets, reports)


@memoized(64)
def _passes(toggles: frozenset[tuple[str, Toggle]], without: frozenset[str]) -> list[Pass]:
    """The passes that switches let run."""
    switches = OptimizerSwitches(toggles=dict(toggles), without=without)
    passes = [each for each in PASSES if switches.is_on(each.switch, each.needs)]
    return nested([each for each in passes if each.name not in without])


def nested(passes: Sequence[Pass]) -> list[Pass]:
    """Passes, of which one runs all of them in the bodies of control nodes."""
    found: list[Pass] = []

    def inside(graph: StepGraph) -> dict[str, int]:
        reports = run_passes(graph, found)
        return {name: count for each in reports for name, count in each.fired.items()}

    for each in passes:
        run = partial(optimize_bodies, inner=inside)
        found.append(replace(each, run=run) if each.is_nested else each)
    return found


def run_passes(
    graph: StepGraph, passes: Sequence[Pass], watch: Watch | None = None
) -> list[PassReport]:
    """Run passes over a step, again as long as others changed what they saw; what each did."""
    if watch is not None:
        watch("", graph)
    reports = [PassReport(each.name, each.reason) for each in passes]
    seen: list[int | None] = [None] * len(passes)
    spec = verify.Spec(graph) if verify.ENABLED else None
    for _ in range(MAX_ROUNDS):
        before = len(graph.changes)
        for number, each in enumerate(passes):
            graph.mark, count = seen[number], len(graph.changes)
            if graph.mark != count:
                _run(each, graph, reports[number])
                seen[number] = len(graph.changes)
                if seen[number] == count:
                    continue
                if spec is not None:
                    spec = spec.checked(graph, each.name)
                if watch is not None:
                    watch(each.name, graph)
        if len(graph.changes) == before:
            break
    return reports


def _run(each: Pass, graph: StepGraph, report: PassReport) -> None:
    start = time.perf_counter()
    count, changes = len(graph), len(graph.changes)
    each.run(graph)
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


def _own_fetches(
    graph: StepGraph, before: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], list[Node]]:
    """Fetches each of which is a value of its own, as the user's were, and nodes to add for that:
    what is fetched must not be what was fed, what the graph keeps, or what another fetch gives."""
    taken: set[Tensor] = {*graph.feeds}
    own: dict[Tensor, Tensor] = {}  # a tensor that is fetched twice is one value
    added: list[Node] = []
    for old, new in zip(before, graph.fetches, strict=True):
        if old in own:
            continue
        own[old] = new
        if new is not old and (new in taken or new.op.type == "Const"):
            named = partial(Identity(), new, name=f"{old.op.name}/")
            own[old], made = graph.workspace.build(old.op, named)
            added += made
        taken.add(own[old])
    return tuple([own[old] for old in before]), added
