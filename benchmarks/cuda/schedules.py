"""The contractions of training steps on a GPU under several schedules: what the cost model chose,
what else it likes, and how the epilogue in shared memory compares with the one by threads.

    python benchmarks/cuda/schedules.py alexnet-tf32 [--shapes 9216x4096x128 …] [--most 4]

A line for each contraction, the longest first: its operations, what the chosen schedule takes and
reaches, then each schedule with its time relative to the chosen one.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[n]) for n in (1, 2))]

from rows import ROWS  # noqa: E402 - found on the path above


def subjects(name: str) -> dict[str, Any]:
    """The contractions of a row's step on its GPU, by their form."""
    from sides import on_thalweg

    from thalweg.codegen.kernels import key_of
    from thalweg.device.cuda.tuner import CudaSubject
    from thalweg.ir.kernel import Contraction

    plan = on_thalweg.make(name, False).plan
    assert plan is not None
    result: dict[str, Any] = {}
    for kernel in plan().kernels:
        if isinstance(kernel.kernel, Contraction):
            code = kernel.code
            given = kernel.name, code.specialized, code.call.aligned, code._memory, code._target
            result.setdefault(key_of(kernel.kernel), CudaSubject(*given))
    return result


def _kind(made: Any) -> Any:
    fed = made.transposed, made.fragments, made.swapped, made.rewritten
    stored = made.buffers > 0, made.residents, made.chunk
    return made.unit, made.m, made.n, made.splits > 1, *stored, fed


def variants(problem: Any, target: Any, most: int) -> list[Any]:
    """The likely schedules, those with other tiles first, and the best one without buffers."""
    from thalweg.codegen.cuda.contraction.plan import schedules

    ranked = schedules(problem, target, 200)
    distinct = {_kind(s): s for s in reversed(ranked)}
    likely = sorted(distinct.values(), key=ranked.index)[:most]
    plain = next((s for s in ranked if s.buffers == 0 and s.unit == "wgmma"), None)
    shared = next((s for s in ranked if s.residents > 1), None)
    return list(dict.fromkeys(s for s in (*likely, plain, shared) if s is not None))


def measure(network: str, given: argparse.Namespace) -> None:
    """Print the lines of a network."""
    from thalweg.codegen.contraction.form import NotContraction
    from thalweg.codegen.cuda.contraction.problem import problem_of
    from thalweg.device.cuda.tuner import ScheduleBench

    lines: list[tuple[float, str]] = []
    with ThreadPoolExecutor(16) as pool:
        waiting = []
        for subject in subjects(network).values():
            try:
                problem = problem_of(subject.kernel, subject.is_aligned)
            except NotContraction:
                continue
            form = "x".join(map(str, problem.shape[1:]))
            if given.shapes and form not in given.shapes:
                continue
            bench = ScheduleBench(subject)
            found = variants(problem, subject.target, given.most)
            codes = [pool.submit(bench.compiled, made) for made in found]
            waiting.append((form, problem, bench, found, codes))
        for form, problem, bench, found, codes in waiting:
            times = [
                bench.seconds(made, code.result()) for made, code in zip(found, codes, strict=True)
            ]
            bench.close()
            lines.append((times[0], _line(form, problem, found, times)))
    for _, line in sorted(lines, reverse=True)[: given.lines]:
        print(line)


def _line(form: str, problem: Any, found: list[Any], times: list[float]) -> str:
    import numpy as np

    batch, m, n, k = problem.shape
    moved = sum(int(a.size) * np.dtype(a.dtype).itemsize for a in problem.kernel.arguments)
    moved += sum(
        int(s.buffer.size) * np.dtype(s.buffer.dtype).itemsize
        for s in problem.kernel.stores
        if s.buffer in {load.buffer for load in _loads(s.value)}
    )
    rates = f"{2 * batch * m * n * k / times[0] / 1e12:6.1f} TF {moved / times[0] / 1e9:6.0f} GB/s"
    others = "  ".join(
        f"{made.summary.replace(' stages', 's').replace(' buffers', 'b')}"
        f"{' own' if made.loaders > 1 else ''} {seconds / times[0]:.2f}"
        for made, seconds in zip(found, times, strict=True)
    )
    return f"{form:20s} {1e6 * times[0]:7.1f} us {rates} | {others}"


def _loads(value: Any) -> list[Any]:
    from thalweg.codegen.contraction.form import loads_of

    return loads_of(value)


def main() -> None:
    """Measure what is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("networks", nargs="*", default=["alexnet"], choices=ROWS, metavar="ROW")
    options.add_argument("--shapes", nargs="*", default=[])
    options.add_argument("--most", type=int, default=4)
    options.add_argument("--lines", type=int, default=40)
    given = options.parse_args()
    for name in given.networks:
        begun = time.time()
        print(f"== {name}", flush=True)
        measure(name, given)
        print(f"{time.time() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
