"""Writes docs/ops.md: every op with its kernel, gradient and loop lowering, from the registry."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import thalweg  # noqa: F401 - importing registers the ops
from thalweg.graph.op import REGISTRY, Op

HEADER = """# The ops

Generated from the registry by `make docs`; do not edit. *Kernel*: `numpy` is a pure function of
the inputs, `stateful` also touches variables, random streams or the step. *Gradient*: `yes`, or
`none` where nothing flows back by nature (indices, comparisons, shapes, state), or `first order
only` for the gradient ops of a few poolings and samplers, which have no gradients themselves.
*Lowering*: `yes` has a loop form in its block, `folded` works on shapes alone and is known before a
step runs, `host-only` has none by nature (strings, files, factorisations, Python calls, state),
`later` is arithmetic on indices that still runs on NumPy alone.
"""


def kernel(op: type[Op]) -> str:
    """How the op runs."""
    return "numpy" if op.has("numpy") else "stateful"


def gradient(op: type[Op]) -> str:
    """Whether gradients flow through the op."""
    if op.has("gradient") and not op.not_differentiable:
        return "yes"
    if op.not_differentiable or not op.parsed.inputs:
        return "none"
    return "yes, by the user" if op.type_name == "CustomGradient" else "first order only"


def lowering(op: type[Op]) -> str:
    """Whether the op has a loop form."""
    if op.has("element") or op.has("loop"):
        return "yes"
    if op.of_shapes:
        return "folded"
    return "host-only" if op.host_only else "later"


def table() -> str:
    """The whole document."""
    families: dict[str, list[type[Op]]] = defaultdict(list)
    for op in REGISTRY.values():
        families[op.__module__.removeprefix("thalweg.")].append(op)
    counts = [f"{len(REGISTRY)} ops"]
    for title, column in (("gradient", gradient), ("lowering", lowering)):
        found: dict[str, int] = defaultdict(int)
        for op in REGISTRY.values():
            found[column(op)] += 1
        counts.append(f"{title}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(found.items())))
    parts = [HEADER, "; ".join(counts) + ".\n"]
    for family, ops in sorted(families.items()):
        parts.append(f"\n## {family}\n\n| op | meaning | kernel | gradient | lowering |")
        parts.append("|---|---|---|---|---|")
        for op in sorted(ops, key=lambda o: o.type_name):
            meaning = (op.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")
            cells = (op.type_name, meaning, kernel(op), gradient(op), lowering(op))
            parts.append("| " + " | ".join(cells) + " |")
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", default=Path("docs/ops.md"))
    page: Path = parser.parse_args().page
    page.write_text(table())
    print(f"{page}: {len(REGISTRY)} ops")


if __name__ == "__main__":
    main()
