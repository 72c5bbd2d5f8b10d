"""Plans as HTML: what a notebook shows for `sess.plan(...)`.

Comes in: the lines of the plan's text and its regions. Goes out: tables in the colours of the
notebook's theme, with a bar for each kernel's work relative to the largest of its region.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.inspect.plan_text import (
    kernel_head,
    kernel_row,
    region_facts,
    total_work,
    work_of,
)
from thalweg.inspect.plan_walk import PlannedRegion

#: Instead of `html.escape`: the module `html` loads half a megabyte of tables.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})
_LABEL = 9  # columns of the label at the start of a line
_MAX_KERNELS = 60
#: The class is doubled so that these rules override the notebooks' own rules for tables.
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
    """A plan: the lines about the whole step, then the regions."""
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
    most = max(map(work_of, kernels)) or 1.0
    heads = "".join(f"<th>{head}</th>" for head in (*kernel_head(kernels), "work"))
    shown = enumerate(kernels[:_MAX_KERNELS], first)
    rows = "".join(_row(number, kernel, most) for number, kernel in shown)
    omitted = len(kernels) - _MAX_KERNELS
    more = f"<p>… and {omitted} more: print the plan to see them</p>" if omitted > 0 else ""
    table = f"<table><tr>{heads}</tr>{rows}</table>{more}"
    return f"<details open><summary>{_escaped(total_work(kernels))}</summary>{table}</details>"


def _row(number: int, kernel: CompiledKernel, most: float) -> str:
    lines = _escaped("\n".join(kernel.lines))
    cells = "".join(
        f'<td class="{"kernel" if column in (1, 2, 3) else "number"}">{_escaped(cell)}</td>'
        for column, cell in enumerate(kernel_row(number, kernel))
    )
    width = 100 * work_of(kernel) / most
    bar = f'<td class="share"><div style="width: {width:.0f}%"></div></td>'
    return f'<tr title="{lines}">{cells}{bar}</tr>'


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
