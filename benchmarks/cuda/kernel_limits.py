"""Every kernel of the four networks on a GPU, next to what the GPU can do at best.

    python benchmarks/cuda/kernel_limits.py [--only alexnet ...]     # writes ROOFLINE_GPU.md

A kernel is timed by events around it, one kernel after the other; in a step many run side by side.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[n]) for n in (1, 2))]

from roofline import kernel_lines  # noqa: E402 - on the path above
from sides import on_thalweg  # noqa: E402

from thalweg.device.cuda.device import cuda_devices  # noqa: E402
from thalweg.device.cuda.peaks import product_peak  # noqa: E402
from thalweg.device.gpu_options import GpuOptions  # noqa: E402

PAGE = Path(__file__).parents[1] / "ROOFLINE_GPU.md"
NETWORKS = ("alexnet", "overfeat", "oxfordnet", "googlenet")
_MIN_SHARE = 0.004  # of a step's time: smaller groups of kernels are taken together
HEAD = """# Roofline on a GPU

`make roofline-cuda`: every kernel of the training steps in bfloat16 of
`benchmarks/cuda/networks.py`, on one {name}: {flops:.0f} TFLOP/s of its tensor cores at
{clock:.2f} GHz and {bytes:.0f} GB/s of its memory, as its maker gives them. A copy reaches some 87%
of the latter; products of real numbers, for which the clock goes down, some 83% of the former.
*Of peak* is the nearer limit. Kernels are timed one after the other, each with a microsecond or two
of its launch; in a step many run side by side. Those of the same ops and sizes are one line, with
their number.
"""


def step_lines(name: str, is_tiny: bool, runs: int) -> list[str]:
    """The table of a network's kernels."""
    side = on_thalweg.make(name, is_tiny)
    for _ in range(3):
        side.step()
    assert side.plan is not None
    return [f"## {name}", "", *kernel_lines(side.plan().profile(runs).rows, 0.6, _MIN_SHARE)]


def main() -> None:
    """Profile the networks and write the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="*", choices=NETWORKS, default=NETWORKS)
    options.add_argument("--tiny", action="store_true", help="sizes for an emulated GPU; prints")
    options.add_argument("--runs", type=int, default=10)
    given = options.parse_args()
    (gpu, *_) = cuda_devices(None, "/job:localhost/replica:0/task:0", GpuOptions())
    text = HEAD.format(
        name=gpu.properties.name,
        flops=product_peak(2, gpu.target) / 1e12,
        bytes=gpu.target.memory_rate / 1e9,
        clock=gpu.target.clock / 1e9,
    )
    lines = [text]
    for name in given.only:
        lines += [*step_lines(name, given.tiny, given.runs), ""]
    page = "\n".join(lines).rstrip() + "\n"
    if given.tiny:
        print(page)
    else:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
