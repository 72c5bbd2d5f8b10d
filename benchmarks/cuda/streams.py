"""Loop kernels on a GPU next to a plain copy and to PyTorch's: right, and how fast.

    python benchmarks/cuda/streams.py make FOLDER   # anywhere with Thalweg
    python benchmarks/cuda/streams.py run FOLDER    # on the GPU: the driver, numpy and torch

`make` lowers small graphs for an H200 and writes their kernels, assembled where there is `ptxas`;
`run` holds results to PyTorch's and prints for each the bytes that must move by the time it took,
as a share of what a copy of a gigabyte reaches in the same run, for which the bar is 0.9, and of an
elementwise kernel that moves as many bytes: of a few megabytes, launch and latency are a good part.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

_LIST = "streams.json"
_REPEATS = 30
_FAR_BYTES = 200 << 20  # that calls touch in turn: none finds its inputs in the second cache
Shape = tuple[int, ...]

#: What each case is fed: shapes, and the dtype of all of them.
CASES: dict[str, tuple[list[Shape], str]] = {
    "multiply add": ([(1 << 25,)] * 3, "float32"),
    "multiply add bf16": ([(1 << 26,)] * 3, "bfloat16"),
    "odd sizes": ([(8191, 4097)] * 2, "float32"),
    "gelu": ([(8192, 4096)], "bfloat16"),
    "relu gradient": ([(1 << 26,)] * 2, "bfloat16"),
    "bias gradient": ([(65536, 1024)], "bfloat16"),
    "row sums": ([(16384, 4096)], "float32"),
    "whole sum": ([(1 << 27,)], "float32"),
    "softmax": ([(32768, 1024)], "float32"),
    "softmax of long rows": ([(512, 50304)], "bfloat16"),
    "cross entropy gradient": ([(2048, 50304), (2048,)], "bfloat16"),
    "layer norm": ([(16384, 1024), (1024,), (1024,)], "bfloat16"),
    "transpose": ([(8192, 8192)], "float32"),
    "transpose bf16": ([(64, 1024, 768)], "bfloat16"),
    "max pool": ([(64, 112, 112, 64)], "bfloat16"),
    "max pool gradient": ([(64, 112, 112, 64)], "bfloat16"),
    "max pool 3x3 gradient": ([(128, 28, 28, 256)] * 2, "bfloat16"),
    "max pool 3x3/2 gradient": ([(128, 112, 112, 64), (128, 56, 56, 64)], "bfloat16"),
    "max pool 2x2/2 gradient": ([(64, 224, 224, 64), (64, 112, 112, 64)], "bfloat16"),
    "max pool odd gradient": ([(128, 55, 55, 64), (128, 28, 28, 64)], "bfloat16"),
    "bias gradient 192": ([(128, 56, 56, 192)], "bfloat16"),
    "bias gradient 384": ([(128, 13, 13, 384)], "bfloat16"),
    "bias gradient 64": ([(128, 112, 112, 64)], "bfloat16"),
    "batch norm": ([(128, 56, 56, 64), (64,), (64,)], "bfloat16"),
    "batch norm gradient": ([(128, 56, 56, 64), (64,), (64,), (128, 56, 56, 64)], "bfloat16"),
    "layer norm gradient": ([(16384, 1024), (1024,), (1024,), (16384, 1024)], "bfloat16"),
    "scan": ([(1024, 32768)], "float32"),
}


#: Feeds that must be read again: what is found of all of them is used with each of their elements.
_READ_AGAIN = {"batch norm": (0,), "batch norm gradient": (0, 0, 3)}


def built(name: str, tf: Any, x: list[Any]) -> Any:
    """The result of a case, as Thalweg's graph."""
    a = x[0]
    wide = tf.cast(a, tf.float32)
    found: dict[str, Callable[[], Any]] = {
        "multiply add": lambda: x[0] * x[1] + x[2],
        "odd sizes": lambda: x[0] * x[1],
        "gelu": lambda: tf.cast(0.5 * wide * (1.0 + tf.erf(wide * 0.5**0.5)), a.dtype),
        "relu gradient": lambda: tf.where(x[0] > 0, x[1], tf.zeros_like(x[1])),
        "bias gradient": lambda: tf.reduce_sum(wide, list(range(len(a.shape) - 1))),
        "row sums": lambda: tf.reduce_sum(a, 1),
        "whole sum": lambda: tf.reduce_sum(a),
        "softmax": lambda: tf.nn.softmax(a),
        "softmax of long rows": lambda: tf.nn.softmax(a),
        "cross entropy gradient": lambda: _cross_entropy_gradient(tf, *x),
        "layer norm": lambda: _normalised(tf, wide, *x),
        "transpose": lambda: tf.transpose(a, [1, 0] if len(a.shape) == 2 else [0, 2, 1]),
        "max pool": lambda: _pooled(tf, a),
        "max pool gradient": lambda: tf.gradients(_pooled(tf, a), [a], x[1:] or None)[0],
        "max pool 3x3 gradient": lambda: tf.gradients(_pooled(tf, a, 3, 1), [a], x[1:])[0],
        "max pool 2x2/2 gradient": lambda: tf.gradients(_pooled(tf, a, 2), [a], x[1:])[0],
        "batch norm": lambda: _batch_norm(tf, *x),
        "batch norm gradient": lambda: tf.gradients(_batch_norm(tf, *x[:3]), [a], x[3:])[0],
        "layer norm gradient": lambda: tf.gradients(
            _normalised(tf, wide, *x[:3]), [a], x[3:]
        )[0],
        "scan": lambda: tf.cumsum(a, 1),
    }  # fmt: skip
    return found[_kind(name)]()


def _kind(name: str) -> str:
    """What a case computes: the name that several have in common."""
    if name.startswith("bias gradient"):
        return "bias gradient"
    if name.endswith(("/2 gradient", "odd gradient")) and "2x2" not in name:
        return "max pool gradient"
    return name.removesuffix(" bf16")


def _pooled(tf: Any, x: Any, window: int = 3, step: int = 2) -> Any:
    return tf.nn.max_pool(x, window, step, "SAME")


def _batch_norm(tf: Any, x: Any, scale: Any, offset: Any) -> Any:
    scale, offset = (tf.cast(each, tf.float32) for each in (scale, offset))
    return tf.nn.fused_batch_norm(x, scale, offset)[0]


def _cross_entropy_gradient(tf: Any, logits: Any, labels: Any) -> Any:
    numbers = tf.cast(tf.abs(labels) * 1000, tf.int32)
    wide = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=numbers, logits=wide)
    return tf.gradients(tf.reduce_mean(losses), [logits])[0]


def _normalised(tf: Any, wide: Any, x: Any, scale: Any, offset: Any) -> Any:
    mean, variance = tf.nn.moments(wide, [1], keep_dims=True)
    normal = (wide - mean) * tf.rsqrt(variance + 1e-5)
    return tf.cast(normal * tf.cast(scale, tf.float32) + tf.cast(offset, tf.float32), x.dtype)


def peer(name: str, torch: Any, x: list[Any]) -> Callable[[], Any] | None:
    """The same by PyTorch; None where it pads other than we do."""
    f, a = torch.nn.functional, x[0]
    found: dict[str, Callable[[], Any]] = {
        "multiply add": lambda: torch.addcmul(x[2], x[0], x[1]),
        "odd sizes": lambda: x[0] * x[1],
        "gelu": lambda: f.gelu(a),
        "relu gradient": lambda: torch.where(a > 0, x[1], 0),
        "bias gradient": lambda: a.sum(list(range(a.dim() - 1)), dtype=torch.float32),
        "row sums": lambda: a.sum(1),
        "whole sum": lambda: a.sum(),
        "softmax": lambda: f.softmax(a, -1),
        "softmax of long rows": lambda: f.softmax(a, -1),
        "layer norm": lambda: f.layer_norm(a, a.shape[1:], x[1], x[2]),
        "transpose": lambda: a.transpose(-1, -2).contiguous(),
        "scan": lambda: a.cumsum(1),
    }
    return found.get(_kind(name))


# Making


def make(folder: Path) -> None:
    """Write the kernels of all cases, or of those whose names are given."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[3:]
    made = {n: _made(n, folder) for n in CASES if not wanted or any(w in n for w in wanted)}
    (folder / _LIST).write_text(json.dumps(made))
    print(sum(len(one["launches"]) for one in made.values()), "kernels")


def _made(name: str, folder: Path) -> dict[str, Any]:
    import numpy as np

    import thalweg as tf
    from thalweg.codegen.cuda.target import CudaTarget
    from thalweg.device.local import local_devices
    from thalweg.lower.lowering import lower
    from thalweg.runtime.plan import Step, plan

    shapes, dtype = CASES[name]
    with tf.Graph().as_default():
        feeds = [tf.placeholder(dtype, shape) for shape in shapes]
        result = built(name, tf, feeds)
        step = plan(Step((result,), (), tuple(feeds)), local_devices({}))
        (call,) = [instruction.call for instruction in step.instructions]
        region, target = call.region, CudaTarget()
        given = {tensor: tuple(tensor.shape.as_list()) for tensor in region.inputs}
        lowered = lower(region, given, target)
    buffers = list(dict.fromkeys(b for launch in lowered.launches for b in launch.buffers))
    return {
        "sizes": [b.bytes for b in buffers],
        "constants": {
            n: np.asarray(b.source).ravel().view(np.uint8).tolist()
            for n, b in enumerate(buffers)
            if isinstance(b.source, np.ndarray)
        },
        "inputs": [buffers.index(lowered.buffers[t]) if lowered.buffers.get(t) in buffers else -1
                   for t in feeds],
        "output": buffers.index(lowered.buffers[region.outputs[0]]),
        "launches": [
            {
                "buffers": [buffers.index(b) for b in launch.buffers],
                "shifts": [s * np.dtype(b.dtype).itemsize
                           for s, b in zip(launch.starts, launch.buffers, strict=True)],
                **_variant(launch.kernel, target, folder),
            }
            for launch in lowered.launches
        ],
    }  # fmt: skip


def _variant(kernel: Any, target: Any, folder: Path) -> dict[str, Any]:
    from thalweg.codegen.cuda.compile import to_cubin, to_ptx
    from thalweg.codegen.cuda.kernel import emit, launch_shapes

    made, shapes = emit(kernel, target, aligned=True), launch_shapes(kernel, target, aligned=True)
    name = sha256(made.text.encode()).hexdigest()[:24] + ".cubin"
    text = to_ptx(made.text, target)
    (folder / name).write_bytes(to_cubin(text, target) or text.encode() + b"\0")
    listed = [{"grid": s.grid, "block": s.block, "shared": s.shared_bytes} for s in shapes]
    return {
        "cubin": name, "entries": made.entries, "scratch": made.scratch, "maps": [],
        "shapes": listed,
    }  # fmt: skip


# Running


def run(folder: Path) -> None:
    """Measure all cases."""
    import torch

    torch.manual_seed(1)
    one, other = (torch.empty(1 << 29, dtype=torch.uint8, device="cuda") for _ in range(2))
    # A graph would have the copy engines do it, which take half as long again.
    rate = 2 * one.nbytes / _seconds([lambda: other.copy_(one)], in_graph=False)
    print(f"{torch.cuda.get_device_name()}: a copy moves {rate / 1e9:.0f} GB/s", flush=True)
    for name, entry in json.loads((folder / _LIST).read_text()).items():
        print(_line(name, entry, folder, rate), flush=True)


def _line(name: str, entry: dict[str, Any], folder: Path, rate: float) -> str:
    import torch

    shapes, dtype = CASES[name]
    feeds = [torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for shape in shapes]
    size = sum(entry["sizes"]) + sum(launch["scratch"] for launch in entry["launches"])
    inputs = [
        feeds,
        *([f.clone() for f in feeds] for _ in range(min(_FAR_BYTES // size, _REPEATS))),
    ]
    sets = [_Set(entry, folder, each) for each in inputs]
    seconds = _seconds([one.run for one in sets])
    text = f"{name:23s} {len(entry['launches'])} kernels {seconds * 1e6:8.1f} us"
    moved = sum(f.nbytes for f in feeds) + entry["sizes"][entry["output"]]
    moved += sum(feeds[number].nbytes for number in _READ_AGAIN.get(name, ()))
    text += f" {moved / seconds / rate:5.2f} {_negation_seconds(moved) / seconds:5.2f}"
    if len(entry["launches"]) > 1:
        each = [_seconds([one.steps[n] for one in sets]) for n in range(len(entry["launches"]))]
        text += f" ({' + '.join(f'{1e6 * one:.1f}' for one in each)} us)"
    theirs = [peer(name, torch, each) for each in inputs]
    if theirs[0] is None:
        return text
    wanted, found = theirs[0](), sets[0].result
    found = found.view(wanted.dtype)[: wanted.numel()].reshape(wanted.shape)
    error = float((found.float() - wanted.float()).norm() / wanted.float().norm())
    text += f" | PyTorch {moved / _seconds(theirs) / rate:5.2f}"
    return text + ("" if error < 1e-2 else f" WRONG {error:.1e}")


@cache
def _negation_seconds(moved: int) -> float:
    """The time in which a kernel of PyTorch's that does next to nothing moves so many bytes."""
    import torch

    half = moved // 2 // 16 * 4
    count = 1 + min(_FAR_BYTES // moved, _REPEATS)
    pairs = [torch.ones((2, half), dtype=torch.int32, device="cuda") for _ in range(count)]
    return _seconds([partial(torch.neg, one, out=other) for one, other in pairs])


class _Set:
    """A case on memory of its own."""

    def __init__(self, entry: dict[str, Any], folder: Path, feeds: list[Any]) -> None:
        import torch
        from driver import launcher

        def empty(size: int) -> Any:
            return torch.zeros(size + 256, dtype=torch.uint8, device="cuda")

        given = dict(zip(entry["inputs"], feeds, strict=True))
        memory = [given[n] if n in given else empty(s) for n, s in enumerate(entry["sizes"])]
        for number, values in entry["constants"].items():
            memory[int(number)][: len(values)] = torch.tensor(values, dtype=torch.uint8)
        self._held = memory, [empty(launch["scratch"]) for launch in entry["launches"]]
        fault = empty(8)
        self.result, self.steps = memory[entry["output"]], list[Callable[[], None]]()
        for launch, scratch in zip(entry["launches"], self._held[1], strict=True):
            pairs = zip(launch["buffers"], launch["shifts"], strict=True)
            addresses = [memory[number].data_ptr() + shift for number, shift in pairs]
            words = [fault.data_ptr(), *addresses, scratch.data_ptr()]
            self.steps.append(partial(_on_stream, launcher(launch, folder, words), fault))

    def run(self) -> None:
        for step in self.steps:
            step()


def _on_stream(step: Callable[[int], None], _: Any) -> None:
    import torch

    step(torch.cuda.current_stream().cuda_stream)


def _seconds(calls: Sequence[Callable[[], Any]], in_graph: bool = True) -> float:
    """The median time of a call among others, in turn. In a CUDA graph, as in a step: launched one
    by one, short kernels would wait for the host."""
    import torch

    found = list[float]()

    def run() -> None:
        for number in range(_REPEATS):
            calls[number % len(calls)]()

    run()
    torch.cuda.synchronize()
    if in_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay() if in_graph else run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / _REPEATS)
    return sorted(found)[2]


if __name__ == "__main__":
    begun = time.time()
    {"make": make, "run": run}[sys.argv[1]](Path(sys.argv[2]))
    print(f"{time.time() - begun:.0f} s")
