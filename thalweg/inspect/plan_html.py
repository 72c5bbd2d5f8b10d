"""Plans as HTML: what a notebook shows for `sess.plan(...)`.

Comes in: the lines of the plan's text and its regions. Goes out: tables in the colours of the
notebook, whatever its theme, in which a bar shows each kernel's share of the region's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.inspect.plan_text import kernel_head, kernel_row, region_facts, total_work
from thalweg.inspect.plan_walk import PlannedRegion

#: The module `html` would bring half a megabyte of tables into every process.
_SPECIAL = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})
_LABEL = 9  # columns of a line of text that say what it is about
_MAX_KERNELS = 60
#: The class is named twice so that these rules win over those that notebooks have for all tables.
_STYLE = """<style>
.thalweg.thalweg table {border-collapse: collapse; margin: 0 0 .6em 0; font-size: 90%}
.thalweg.thalweg :is(th, td) {text-align: left; padding: .15em .7em .15em 0; border: none}
.thalweg.thalweg th {font-weight: 600; opacity: .65; vertical-align: top}
.thalweg.thalweg td.number {text-align: right; font-variant-numeric: tabular-nums}
.thalweg.thalweg .kernel {font-family: monospace}
.thalweg.thalweg .share {width: 8em}
.thalweg.thalweg .share div {height: .7em; background: currentColor; opacity: .35}
.thalweg.thalweg summary {cursor: pointer; opacity: .8}
</style>"""


def page(facts: Sequence[str], regions: Sequence[PlannedRegion]) -> str:
    """A plan: what holds for the whole step, then each region."""
    first, parts = 1, [_STYLE, _facts(facts)]
    for number, region in enumerate(regions, 1):
        parts += [_facts(region_facts(region, number)), _kernels(region.kernels, first)]
        first += len(region.kernels)
    return f'<div class="thalweg">{"".join(parts)}</div>'


def _facts(lines: Iterable[str]) -> str:
    rows = (
        f"<tr><th>{_escaped(line[:_LABEL].strip())}</th><td>{_escaped(line[_LABEL:])}</td></tr>"
        for line in lines
    )
    return f"<table>{''.join(rows)}</table>"


def _kernels(kernels: Sequence[CompiledKernel], first: int) -> str:
    if not kernels:
        return ""
    most = max(_work(kernel) for kernel in kernels) or 1.0
    heads = "".join(f"<th>{head}</th>" for head in (*kernel_head(kernels), "work"))
    shown = enumerate(kernels[:_MAX_KERNELS], first)
    rows = "".join(_row(number, kernel, most) for number, kernel in shown)
    left = len(kernels) - _MAX_KERNELS
    more = f"<p>… and {left} more: print the plan to see them</p>" if left > 0 else ""
    table = f"<table><tr>{heads}</tr>{rows}</table>{more}"
    return f"<details open><summary>{_escaped(total_work(kernels))}</summary>{table}</details>"


def _row(number: int, kernel: CompiledKernel, most: float) -> str:
    where = _escaped("\n".join(kernel.lines))
    cells = "".join(
        f'<td class="{"kernel" if column in (1, 2, 3) else "number"}">{_escaped(cell)}</td>'
        for column, cell in enumerate(kernel_row(number, kernel))
    )
    width = 100 * _work(kernel) / most
    bar = f'<td class="share"><div style="width: {width:.0f}%"></div></td>'
    return f'<tr title="{where}">{cells}{bar}</tr>'


def _work(kernel: CompiledKernel) -> float:
    """What ranks kernels in the text as well."""
    return kernel.flops + kernel.bytes


def _escaped(text: str) -> str:
    return text.translate(_SPECIAL)
