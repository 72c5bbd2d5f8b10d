"""Contractions on a GPU next to PyTorch's (cuBLAS, cuDNN), in the same run: right, and how fast.

    python benchmarks/cuda/contractions.py make FOLDER   # anywhere with Thalweg and ptxas
    python benchmarks/cuda/contractions.py run FOLDER    # on the GPU: the driver, numpy and torch

`make` writes cubins of the likely best schedules and a list of them; `run` holds each to PyTorch's
result, measures all in turn with PyTorch's own, and prints one line for each case: the schedule
that the cost model chose, the best one, and the ratio of PyTorch's time to either.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cases import Case, cases, kernel_of

_LIST = "contractions.json"
_VARIANTS = 3
_TOLERANCES = {"float32": 1e-4, "tfloat32": 3e-3, "float16": 3e-3, "bfloat16": 1e-2}


# Making


def make(folder: Path) -> None:
    """Write the cubins of all cases."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda case: _made(case, folder), cases()))
    (folder / _LIST).write_text(json.dumps(made))
    count = sum(len(one["variants"]) for one in made)
    print(f"{count} kernels of {len(made)} cases in {time.time() - begun:.0f} s")


def _made(case: Case, folder: Path) -> dict[str, Any]:
    from thalweg.codegen.cuda.contraction.plan import schedules
    from thalweg.codegen.cuda.contraction.problem import problem_of
    from thalweg.codegen.cuda.target import CudaTarget

    target = CudaTarget(allow_tf32=case.dtype == "tfloat32")
    kernel = kernel_of(case)
    found = schedules(problem_of(kernel), target, _VARIANTS)
    variants = [_variant(kernel, target, schedule, folder) for schedule in found]
    return {"case": asdict(case), "variants": variants}


def _variant(kernel: Any, target: Any, schedule: Any, folder: Path) -> dict[str, Any]:
    from thalweg.codegen.cuda.compile import to_cubin, to_ptx
    from thalweg.codegen.cuda.contraction.kernel import contraction_shapes, emit_contraction

    made = emit_contraction(kernel, target, aligned=True, schedule=schedule)
    shapes = contraction_shapes(kernel, target, aligned=True, schedule=schedule)
    name = sha256(made.text.encode()).hexdigest()[:24] + ".cubin"
    if not (folder / name).exists():
        code = to_cubin(to_ptx(made.text, target), target)
        if code is None:
            raise SystemExit("no ptxas here")
        (folder / name).write_bytes(code)
    return {
        "schedule": asdict(schedule),
        "cubin": name,
        "entries": made.entries,
        "scratch": made.scratch,
        "maps": [spec.to_json() for spec in made.tensor_maps],
        "shapes": [
            {"grid": s.grid, "block": s.block, "shared": s.shared_bytes} for s in shapes
        ],
    }  # fmt: skip


# Running


def run(folder: Path) -> None:
    """Measure all cases."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    ratios: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    begun = time.time()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for entry in json.loads((folder / _LIST).read_text()):
        given = entry["case"]
        case = Case(given["name"], given["operation"], tuple(given["sizes"]), given["dtype"])
        chosen, best = _measured(case, entry["variants"], folder)
        if not math.isnan(best):
            ratios[_group(case)].append((chosen, best))
    for name, pairs in ratios.items():
        means = [math.exp(sum(math.log(p[n]) for p in pairs) / len(pairs)) for n in (0, 1)]
        least = min(pair[1] for pair in pairs)
        print(f"{name:22s} {len(pairs):3d} cases: chosen {means[0]:.2f}, best {means[1]:.2f} "
              f"of PyTorch's speed in the geometric mean, the least {least:.2f}")  # fmt: skip
    print(f"{time.time() - begun:.0f} s")


def _group(case: Case) -> str:
    return f"products {case.dtype}" if case.is_product else f"convolutions {case.operation}"


def _measured(case: Case, variants: list[dict[str, Any]], folder: Path) -> tuple[float, float]:
    """PyTorch's time over that of the chosen schedule, and of the best; prints a line."""
    import torch
    from driver import launcher

    kind = {"tfloat32": torch.float32}.get(case.dtype) or getattr(torch, case.dtype)
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tfloat32"
    a, b = (torch.randn(shape, device="cuda", dtype=kind) * 0.5 for shape in case.shapes[:2])
    y = torch.empty(case.shapes[2], device="cuda", dtype=kind)
    theirs, wanted = _peer(case, a, b)
    scratch = torch.empty(
        max(v["scratch"] for v in variants) + 256, device="cuda", dtype=torch.uint8
    )
    fault = torch.zeros(1, device="cuda", dtype=torch.int64)
    words = [t.data_ptr() for t in (fault, a, b, y, scratch)]
    reference = _seconds(lambda _: theirs())
    line = (
        f"{case.name:17s} {case.operation:5s} {'x'.join(map(str, case.sizes)):26s} {case.dtype:9s}"
    )
    line += f" PyTorch {reference * 1e6:8.1f} us {case.flops / reference / 1e12:6.1f} TF |"
    times: list[float] = []
    for variant in variants:
        y.fill_(float("nan"))
        launch = launcher(variant, folder, words)
        launch(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        error = float((y.float() - wanted).norm() / wanted.norm())
        right = error < _TOLERANCES[case.dtype]
        times.append(_seconds(launch) if right else float("nan"))
        s = variant["schedule"]
        shares = f"/{s['workers']}" if s["workers"] else ""
        line += f" {s['unit']} {s['m']}x{s['n']}{shares} {times[-1] * 1e6:.1f}"
        line += "" if right else f" WRONG {error:.1e}"
    right = [t for t in times if not math.isnan(t)]
    chosen, best = reference / times[0], reference / min(right, default=float("nan"))
    print(f"{line} | {chosen:.2f} {best:.2f}", flush=True)
    return (best if math.isnan(chosen) else chosen), best


def _peer(case: Case, a: Any, b: Any) -> tuple[Callable[[], Any], Any]:
    """PyTorch's way, and its result as ours lies in memory, in float32."""
    import torch

    if case.is_product:
        left = a.t() if case.operation == "tn" else a
        right = b.t() if case.operation == "nt" else b
        return (lambda: left @ right), (left @ right).float()
    *_, stride, pad = case.sizes
    images = [t.permute(0, 3, 1, 2) for t in (a, b)]
    if case.operation == "fwd":
        f = b.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        theirs = lambda: torch.nn.functional.conv2d(images[0], f, stride=stride, padding=pad)  # noqa: E731 - one of three
        return theirs, theirs().permute(0, 2, 3, 1).float()
    n, h, c, k, r, *_ = case.sizes
    is_filter = case.operation == "wgrad"
    x = (
        images[0]
        if is_filter
        else torch.empty(n, h, h, c, device="cuda", dtype=a.dtype).permute(0, 3, 1, 2)
    )
    f = torch.empty(k, r, r, c, device="cuda", dtype=a.dtype).permute(0, 3, 1, 2)
    if not is_filter:
        f = b.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    dy = images[1] if is_filter else images[0]

    def theirs() -> Any:
        return torch.ops.aten.convolution_backward(
            dy, x, f, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1,
            [not is_filter, is_filter, False],
        )[int(is_filter)]  # fmt: skip

    made = theirs()
    return theirs, (made.permute(2, 3, 1, 0) if is_filter else made.permute(0, 2, 3, 1)).float()


def _seconds(launch: Callable[[int], Any]) -> float:
    """The time of a launch: the best of some rounds of several, back to back."""
    import torch

    stream = torch.cuda.current_stream().cuda_stream
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for _ in range(2):
        launch(stream)
    best, count = float("inf"), 10
    for _ in range(3):
        events[0].record()
        for _ in range(count):
            launch(stream)
        events[1].record()
        events[1].synchronize()
        best = min(best, events[0].elapsed_time(events[1]) / count / 1e3)
    return best


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](Path(sys.argv[2]))
