"""Plans as text: what `print(sess.plan(...))` shows, stage by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from thalweg.control.branches import Branching
from thalweg.control.liveness import needed
from thalweg.control.traces import LoopCount, LoopTrace, traced_tensor
from thalweg.device.compiled_kernel import CompiledKernel, short_name
from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body
from thalweg.inspect.plan_walk import HostOp, PlannedControl, PlannedRegion, is_variable
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.regions import with_traces
from thalweg.lower.specialise import ControlRegion
from thalweg.ops.core.basic import Const
from thalweg.platform.amounts import amount, plural, size
from thalweg.runtime.plan import Plan

_INDENT = "         "
_WIDEST = 56
_MAX_SHAPES = 6
_KERNEL_HEAD = ("#", "kernel", "kind", "iterations", "flops", "bytes", "threads", "barriers")
Shapes = Mapping[Tensor, tuple[int, ...]]


def heading(fetches: Sequence[Tensor], targets: Sequence[Node], feeds: Shapes) -> list[str]:
    """What is asked for and what is given."""
    wanted = [*(node.name for node in targets), *(tensor.name for tensor in fetches)]
    given = [described(tensor, shape) for tensor, shape in feeds.items()]
    return [f"step     {_some(wanted)}", f"feeds    {_some(given) or 'nothing'}"]


def described(tensor: Tensor, shape: Sequence[int]) -> str:
    """A tensor with its dtype and shape: `x:0 float32[64, 784]`."""
    return f"{tensor.name} {tensor.dtype.base_dtype.name}{list(shape)}"


def listing(regions: Sequence[PlannedRegion], most: int | None) -> list[str]:
    """Each region down to its kernels."""
    lines, first = list[str](), 1
    for number, region in enumerate(regions, 1):
        lines += ["", *region_facts(region, number)]
        if region.kernels:
            lines += kernel_lines(region.kernels, first, most)
        first += len(region.kernels)
    return lines


def graph_facts(
    plan: Plan,
    regions: Sequence[PlannedRegion],
    hosts: Sequence[HostOp],
    controls: Sequence[PlannedControl],
    graph_size: int,
) -> list[str]:
    """What becomes of the graph as a whole, and what of it is not compiled."""
    lines = [
        _graph_line(plan, graph_size),
        _cut_line(plan, len(regions), len(hosts), len(controls)),
    ]
    lines += [line for host in hosts for line in _host_lines(host)]
    return lines + [line for control in controls for line in _control_lines(control)]


def _graph_line(plan: Plan, graph_size: int) -> str:
    every = [node for instruction in plan.every_instruction for node in instruction.nodes]
    needed = len({node.original for node in every})
    return f"graph    {graph_size} nodes, {graph_size - needed} pruned, {needed} in the step"


def _cut_line(plan: Plan, regions: int, hosts: int, controls: int) -> str:
    variables = sum(is_variable(i.node) for i in plan.every_instruction)
    parts = [(regions, "region"), (hosts, "host op"), (variables, "variable")]
    if controls:
        parts.insert(1, (controls, "control node"))
    return "cut      into " + ", ".join(plural(count, word) for count, word in parts)


def _host_lines(host: HostOp) -> list[str]:
    node, assigned = host.node, _some([joined.name for joined in host.joined])
    lines = [f"host     {node.name} ({node.type}): {host.reason}", f"         {node.origin}"]
    if assigned:
        lines.append(f"joined   {assigned}: what is read becomes the variables' memory")
    return lines


def region_facts(region: PlannedRegion, number: int) -> list[str]:
    """What became of a region: its nodes, shapes, threads and memory."""
    step, about = region.step, plural(len(region.region.nodes), "node")
    if step is None:
        return [f"region {number} {about}, compiled when the step runs"]
    if not region.kernels:
        return [f"region {number} {about}, nothing to run"]
    return [
        *_lowered_lines(region, step, number),
        *_shape_lines(region),
        *_early_lines(region, step),
        *memory_lines(step, region.kernels),
    ]


def _lowered_lines(region: PlannedRegion, step: AnyProgram, number: int) -> list[str]:
    lowered, kernels = step.lowered, region.kernels
    nodes = region.region.nodes
    known = sum(all(t in lowered.spec.values for t in n.outputs) and bool(n.outputs) for n in nodes)
    checks = sum(kernel.kind == "check" for kernel in kernels)
    kept = plural(len(kernels) - checks, "kernel") + (
        f" and {plural(checks, 'check')} of indices" if checks else ""
    )
    return [
        f"region {number} {plural(len(nodes), 'node')}, {known} known before the step runs",
        f"fused    {plural(lowered.unfused, 'loop nest')} into {kept}",
        f"runs     {step.summary}",
        f"compiled {_made(region)}",
    ]


def _made(region: PlannedRegion) -> str:
    if region.made is None:
        return "before, in this session"
    seconds, before, after = region.made
    sources = {
        "compiled": after.misses - before.misses,
        "from disk": after.disk_hits - before.disk_hits,
        "from memory": after.memory_hits - before.memory_hits,
    }
    parts = ", ".join(f"{count} {source}" for source, count in sources.items() if count)
    return f"in {seconds * 1e3:.0f} ms: {parts or 'nothing to compile'}"


def _shape_lines(region: PlannedRegion) -> list[str]:
    """The shapes that came in, and what made it compile again."""
    if not region.seen:
        return []
    pairs = zip(region.region.inputs, region.seen[-1], strict=True)
    lines = [f"shapes   {_some([described(*pair) for pair in pairs]) or 'no inputs'}"]
    for change in region.changes():
        lines.append(f"again    compiled because of {change}")
    at_run_time = sum(bool(kernel.specialized.words) for kernel in region.kernels)
    if at_run_time:
        lines.append(f"varying  {plural(at_run_time, 'kernel')} read sizes when they run")
    return lines


def _early_lines(region: PlannedRegion, step: AnyProgram) -> list[str]:
    """What leaves for other devices, and which kernel of the region it waits for."""
    makers = [output.producer % len(region.kernels) for output in step.outputs]
    made = dict(zip(region.region.outputs, makers, strict=True))
    count = len(region.kernels)
    return [f"sends    {t.name} after kernel {made[t] + 1} of {count}" for t in region.region.early]


def memory_lines(step: AnyProgram, kernels: Sequence[CompiledKernel]) -> list[str]:
    """What the kernels read and write, and what the arena holds at its fullest."""
    buffers = dict.fromkeys(b for kernel in kernels for b in kernel.launch.buffers)
    written = Counter(b for kernel in kernels for b in kernel.launch.written)
    kinds = (BufferKind.INPUT, BufferKind.VARIABLE, BufferKind.CONSTANT, BufferKind.OUTPUT)
    parts = [_held(kind, [b for b in buffers if b.kind is kind]) for kind in kinds]
    updated = sum(b.kind is BufferKind.VARIABLE for b in written)
    if updated:
        parts.append(f"{plural(updated, 'variable')} updated in place")
    lines = ["memory   " + ", ".join(part for part in parts if part)]
    return [*lines, _arena_line(step, kernels, written)] if step.arena.size else lines


def _arena_line(
    step: AnyProgram, kernels: Sequence[CompiledKernel], written: Mapping[Buffer, int]
) -> str:
    temporaries = [buffer for buffer in written if buffer.kind is BufferKind.TEMPORARY]
    total = size(sum(buffer.bytes for buffer in temporaries))
    in_place = sum(written[buffer] > 1 for buffer in temporaries)
    scratch = size(max(kernel.scratch for kernel in kernels))
    return (
        f"arena    {size(step.arena.size)} at its peak: {len(temporaries)} temporaries of {total} "
        f"in all ({in_place} written in place), scratch of up to {scratch}"
    )


def _held(kind: BufferKind, buffers: Sequence[Buffer]) -> str:
    total = size(sum(b.bytes for b in buffers))
    return f"{plural(len(buffers), kind.value)} {total}" if buffers else ""


def kernel_lines(kernels: Sequence[CompiledKernel], first: int, most: int | None) -> list[str]:
    """A table of kernels, numbered; with `most`, those with most work."""
    numbered = list(enumerate(kernels, first))
    shown = numbered
    if most is not None and len(numbered) > most:
        heaviest = sorted(numbered, key=lambda item: item[1].flops + item[1].bytes, reverse=True)
        shown = sorted(heaviest[:most], key=lambda item: item[0])
    rows = [kernel_row(number, kernel) for number, kernel in shown]
    lines = ["", *table(kernel_head(kernels), rows, left=(1, 2, 3))]
    rest = [kernel for _, kernel in numbered if (_, kernel) not in shown]
    if rest:
        lines.append(f"  … and {plural(len(rest), 'kernel')} with less work")
    return [*lines, f"  {total_work(kernels)}"]


def total_work(kernels: Sequence[CompiledKernel]) -> str:
    """What kernels do together."""
    total, moved = (sum(k.flops for k in kernels), sum(k.bytes for k in kernels))
    return f"in all {amount(total)} flops, {size(moved)} read and written"


def kernel_head(kernels: Sequence[CompiledKernel]) -> tuple[str, ...]:
    """The heads of the columns for the kernels of a region, which are all on one device."""
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
    """Columns under their heads; those in `left` begin at their left edge."""
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
    """A name that fits its column."""
    return name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…"


def _some(parts: Sequence[str]) -> str:
    more = len(parts) - _MAX_SHAPES
    return ", ".join(parts[:_MAX_SHAPES]) + (f", … {more} more" if more > 0 else "")


# Control nodes, their bodies indented


def _control_lines(control: PlannedControl) -> list[str]:
    """A control node: how it ran, what it saves for gradients, what its bodies are made of."""
    first, *rest = _described(control.unit)
    return [f"control  {first}{_ran(control)}", *(f"{_INDENT}{line}" for line in rest)]


def _ran(control: PlannedControl) -> str:
    if control.was_native is None:
        return ""
    return ": native" if control.was_native else f": on the executor ({control.reason})"


def _described(unit: ControlRegion) -> Iterator[str]:
    node = unit.node
    yield f"{node.name} ({node.type})"
    yield node.origin
    traces = [trace for trace in unit.nodes[1:] if not isinstance(trace.op, LoopCount)]
    for trace in traces:
        often = " (per iteration)" if isinstance(trace.op, LoopTrace) else ""
        yield f"saves {_tensor(traced_tensor(trace))}{often}"
    if not traces:
        yield "saves nothing"
    for name, body in zip(_names(node), node.op.bodies, strict=True):
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
            yield from _described(unit)


def _names(node: Node) -> list[str]:
    if not isinstance(node.op, Branching):
        return ["condition", "body"]
    if node.type == "If":
        return ["otherwise", "then"]
    return [f"branch {number}" for number in range(len(node.op.branches))]


def _tensor(tensor: Tensor) -> str:
    shape = "" if tensor.shape.rank is None else str(tensor.shape.as_list()).replace("None", "?")
    return f"{tensor.name} {tensor.dtype.base_dtype.name}{shape}"
