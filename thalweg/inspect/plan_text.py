"""Plans as text: what `print(sess.plan(...))` shows, stage by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg.control.branches import Branching
from thalweg.control.liveness import needed
from thalweg.control.traces import LoopCount, LoopTrace, traced_tensor
from thalweg.device.compiled_kernel import CompiledKernel, short_name
from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body
from thalweg.inspect.plan_walk import HostOp, PlannedRegion, is_variable
from thalweg.lower.memory.arena import Arena
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.regions import with_traces
from thalweg.lower.specialise import ControlRegion
from thalweg.ops.core.basic import Const
from thalweg.platform.amounts import amount, plural, size
from thalweg.runtime.dataflow.control_region import ControlCall

if TYPE_CHECKING:
    from thalweg.inspect.explain import StepPlan

_INDENT = "         "
_MAX_NAME = 56  # characters of a name in a table
_MAX_LISTED = 6  # tensors or nodes that a line names
_KERNEL_HEAD = ("#", "kernel", "kind", "iterations", "flops", "bytes", "threads", "barriers")


def described(tensor: Tensor, shape: Sequence[int | None] | None) -> str:
    """A tensor with its dtype and shape: `x:0 float32[64, 784]`; unknown sizes are question
    marks."""
    sizes = "" if shape is None else str(list(shape)).replace("None", "?")
    return f"{tensor.name} {tensor.dtype.base_dtype.name}{sizes}"


def region_lines(regions: Sequence[PlannedRegion], most: int | None) -> list[str]:
    """The regions with their kernels; at most `most` kernels of each."""
    lines, first = list[str](), 1
    for number, region in enumerate(regions, 1):
        lines += ["", *region_facts(region, number)]
        if region.kernels:
            lines += kernel_lines(region.kernels, first, most)
        first += len(region.kernels)
    return lines


def step_facts(plan: StepPlan) -> list[str]:
    """The lines about a step: its fetches and feeds, the graph, and the nodes that are not compiled
    into regions."""
    fetches, targets, feeds = plan.step
    outputs = [*(node.name for node in targets), *(tensor.name for tensor in fetches)]
    inputs = [described(t, np.shape(value)) for t, value in zip(feeds, plan.feeds, strict=True)]
    hosts, controls, total = plan.host_ops, plan.controls, plan.graph_size
    parts = plan.plan.parts(plan.feeds)
    instructions = [each for part, _ in parts for each in part.instructions]
    kept = len({node.original for step in instructions for node in step.nodes})
    variables = sum(is_variable(step.node) for step in instructions)
    counts = [(len(plan.regions), "region"), (len(hosts), "host op"), (variables, "variable")]
    if controls:
        counts.insert(1, (len(controls), "control node"))
    return [
        f"step     {_listed(outputs)}",
        f"feeds    {_listed(inputs) or 'nothing'}",
        f"graph    {total} nodes, {total - kept} pruned, {kept} in the step",
        f"cut      into {', '.join(plural(count, word) for count, word in counts)}",
        *(line for host in hosts for line in _host_lines(host)),
        *(line for control in controls for line in _control_lines(control)),
    ]


def _host_lines(host: HostOp) -> list[str]:
    node, assigned = host.node, _listed([joined.name for joined in host.joined])
    lines = [f"host     {node.name} ({node.type}): {host.reason}", f"         {node.origin}"]
    if assigned:
        lines.append(f"joined   {assigned}: what is read becomes the variables' memory")
    return lines


def region_facts(region: PlannedRegion, number: int) -> list[str]:
    """The lines about a region: its nodes, shapes, threads and memory."""
    step, nodes = region.step, plural(len(region.region.nodes), "node")
    if step is None:
        return [f"region {number} {nodes}, compiled when the step runs"]
    if not region.kernels:
        return [f"region {number} {nodes}, nothing to run"]
    return [
        *_lowered_lines(region, step, number),
        *_shape_lines(region),
        *_early_lines(region, step),
        *memory_lines(step.listing.arena, region.kernels),
    ]


def _lowered_lines(region: PlannedRegion, step: AnyProgram, number: int) -> list[str]:
    lowered, kernels = step.listing.lowered, region.kernels
    nodes = region.region.nodes
    known = sum(all(t in lowered.spec.values for t in n.outputs) and bool(n.outputs) for n in nodes)
    checks = sum(kernel.kind == "check" for kernel in kernels)
    fused = plural(len(kernels) - checks, "kernel")
    if checks:
        fused += f" and {plural(checks, 'check')} of indices"
    return [
        f"region {number} {plural(len(nodes), 'node')}, {known} known before the step runs",
        f"fused    {plural(lowered.unfused, 'loop nest')} into {fused}",
        f"runs     {step.summary}",
        f"compiled {_compilation(region)}",
    ]


def _compilation(region: PlannedRegion) -> str:
    if region.compilation is None:
        return "before, in this session"
    seconds, before, after = region.compilation
    sources = {
        "compiled": after.misses - before.misses,
        "from disk": after.disk_hits - before.disk_hits,
        "from memory": after.memory_hits - before.memory_hits,
    }
    parts = ", ".join(f"{count} {source}" for source, count in sources.items() if count)
    return f"in {seconds * 1e3:.0f} ms: {parts or 'nothing to compile'}"


def _shape_lines(region: PlannedRegion) -> list[str]:
    """The input shapes, and the changes that caused recompilations."""
    if not region.shapes:
        return []
    pairs = zip(region.region.inputs, region.shapes[-1], strict=True)
    lines = [f"shapes   {_listed([described(*pair) for pair in pairs]) or 'no inputs'}"]
    lines += [f"again    compiled because of {change}" for change in region.recompilations()]
    at_run_time = sum(bool(kernel.specialized.words) for kernel in region.kernels)
    if at_run_time:
        lines.append(f"varying  {plural(at_run_time, 'kernel')} read sizes when they run")
    return lines


def _early_lines(region: PlannedRegion, step: AnyProgram) -> list[str]:
    """The tensors sent to other devices, and the kernels that compute them."""
    count = len(region.kernels)
    outputs = zip(region.region.outputs, step.outputs, strict=True)
    number = {tensor: output.producer % count + 1 for tensor, output in outputs}
    return [f"sends    {t.name} after kernel {number[t]} of {count}" for t in region.region.early]


def memory_lines(arena: Arena, kernels: Sequence[CompiledKernel]) -> list[str]:
    """The buffers that the kernels read and write, and the size of the arena."""
    buffers = dict.fromkeys(b for kernel in kernels for b in kernel.launch.buffers)
    written = Counter(b for kernel in kernels for b in kernel.launch.written)
    kinds = (BufferKind.INPUT, BufferKind.VARIABLE, BufferKind.CONSTANT, BufferKind.OUTPUT)
    parts = [_total(kind, [b for b in buffers if b.kind is kind]) for kind in kinds]
    updated = sum(b.kind is BufferKind.VARIABLE for b in written)
    if updated:
        parts.append(f"{plural(updated, 'variable')} updated in place")
    lines = ["memory   " + ", ".join(part for part in parts if part)]
    return [*lines, _arena_line(arena, kernels, written)] if arena.size else lines


def _arena_line(
    arena: Arena, kernels: Sequence[CompiledKernel], written: Mapping[Buffer, int]
) -> str:
    temporaries = [buffer for buffer in written if buffer.kind is BufferKind.TEMPORARY]
    total = size(sum(buffer.bytes for buffer in temporaries))
    in_place = sum(written[buffer] > 1 for buffer in temporaries)
    scratch = size(max(kernel.scratch for kernel in kernels))
    return (
        f"arena    {size(arena.size)} at its peak: {len(temporaries)} temporaries of {total} "
        f"in all ({in_place} written in place), scratch of up to {scratch}"
    )


def _total(kind: BufferKind, buffers: Sequence[Buffer]) -> str:
    total = size(sum(b.bytes for b in buffers))
    return f"{plural(len(buffers), kind.value)} {total}" if buffers else ""


def kernel_lines(kernels: Sequence[CompiledKernel], first: int, most: int | None) -> list[str]:
    """A table of kernels, numbered from `first`; at most `most`, those with the most work."""
    by_work = sorted(enumerate(kernels, first), key=lambda item: work_of(item[1]), reverse=True)
    shown = sorted(by_work[:most], key=lambda item: item[0])
    rows = [kernel_row(number, kernel) for number, kernel in shown]
    lines = ["", *table(kernel_head(kernels), rows, left=(1, 2, 3))]
    omitted = len(kernels) - len(shown)
    if omitted:
        lines.append(f"  … and {plural(omitted, 'kernel')} with less work")
    return [*lines, f"  {total_work(kernels)}"]


def work_of(kernel: CompiledKernel) -> float:
    """A measure of a kernel's work: operations plus bytes moved."""
    return kernel.flops + kernel.bytes


def total_work(kernels: Sequence[CompiledKernel]) -> str:
    """The operations and bytes of all kernels, as text."""
    total, moved = (sum(k.flops for k in kernels), sum(k.bytes for k in kernels))
    return f"in all {amount(total)} flops, {size(moved)} read and written"


def kernel_head(kernels: Sequence[CompiledKernel]) -> tuple[str, ...]:
    """The column heads for the kernels of a region, which all are on one device."""
    return (*_KERNEL_HEAD, *(kernels[0].code_sizes if kernels else ()))


def kernel_row(number: int, kernel: CompiledKernel) -> tuple[str, ...]:
    """The cells of a kernel under `kernel_head`."""
    return (
        str(number),
        clipped(kernel.name),
        kernel.kind,
        kernel.space,
        amount(kernel.flops),
        size(kernel.bytes),
        str(kernel.users),
        str(kernel.barriers or ""),
        *(size(count) if count else "" for count in kernel.code_sizes.values()),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int]) -> list[str]:
    """A table with a head; the columns in `left` are left-aligned, the others right-aligned."""
    every = [head, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return ("  " + "  ".join(cells)).rstrip()

    return [line(row) for row in every]


def clipped(name: str) -> str:
    """A name, cut to the width of its column."""
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - _MAX_LISTED
    return ", ".join(parts[:_MAX_LISTED]) + (f", … {more} more" if more > 0 else "")


# Control nodes, their bodies indented


def _control_lines(control: ControlCall) -> list[str]:
    """A control node: how it last ran, the tensors it saves for gradients, and its bodies."""
    first, *rest = _unit_lines(control.unit)
    if control.was_native is not None:
        first += ": native" if control.was_native else f": on the executor ({control.reason})"
    return [f"control  {first}", *(f"{_INDENT}{line}" for line in rest)]


def _unit_lines(unit: ControlRegion) -> Iterator[str]:
    node = unit.node
    yield f"{node.name} ({node.type})"
    yield node.origin
    traces = [trace for trace in unit.nodes[1:] if not isinstance(trace.op, LoopCount)]
    for trace in traces:
        suffix = " (per iteration)" if isinstance(trace.op, LoopTrace) else ""
        tensor = traced_tensor(trace)
        yield f"saves {described(tensor, tensor.shape.sizes)}{suffix}"
    if not traces:
        yield "saves nothing"
    for name, body in zip(_body_names(node), node.op.bodies, strict=True):
        yield f"{name}:"
        inner = [tensor for tensor in map(traced_tensor, traces) if tensor.graph is body.graph]
        yield from (f"  {line}" for line in _body_lines(body, inner))


def _body_lines(body: Body, traced: Sequence[Tensor]) -> Iterator[str]:
    wanted = [*body.outputs, *traced]
    nodes = [
        node
        for node in needed(wanted, body.targets, {})
        if not isinstance(node.op, Argument | Const)
    ]
    units = with_traces(nodes, wanted)
    types = [unit.type for unit in units if isinstance(unit, Node)]
    yield short_name(types) if types else "nothing to compute"
    for unit in units:
        if isinstance(unit, ControlRegion):
            yield from _unit_lines(unit)


def _body_names(node: Node) -> list[str]:
    if not isinstance(node.op, Branching):
        return ["condition", "body"]
    if node.type == "If":
        return ["otherwise", "then"]
    return [f"branch {number}" for number in range(len(node.op.branches))]
