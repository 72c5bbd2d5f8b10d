"""Attention on a GPU: right or wrong, what its kernels take, and PyTorch's next to them.

    python benchmarks/cuda/attention.py [--peer] [--tiny]
    THALWEG_CACHE=0 python benchmarks/cuda/attention.py --cases 1 --schedule 1 64

The program is what people write: two products with a softmax between them, and its gradients.
Errors are relative to the largest value of float32 arithmetic on the host, for two of the heads.
Rates count the products that attention needs: two forward, five backward, half of them if causal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import thalweg as tf
from thalweg.codegen.cuda.attention import schedule

#: batch, heads, length, elements of a head, causal
CASES = (
    (8, 12, 1024, 64, True),
    (8, 12, 1024, 64, False),
    (4, 8, 2048, 128, True),
    (3, 5, 1000, 80, True),
)
TINY = ((1, 2, 80, 64, True), (2, 1, 40, 128, False))

Case = tuple[int, int, int, int, bool]


def values_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Queries, keys and values of all heads, and the slope of the output."""
    batch, heads, length, size, _ = case
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((batch, length, 3, heads, size), np.float32)
    slope = rng.standard_normal((batch, heads, length, size), np.float32)
    return qkv.astype(ml_dtypes.bfloat16), slope.astype(ml_dtypes.bfloat16)


def ours(case: Case) -> tuple[list[np.ndarray], list[tuple[float, str]]]:
    """The output and the gradients of the first two heads, and the time of each kernel."""
    *_, length, size, causal = case
    with tf.Graph().as_default(), tf.Session() as session:
        fed = [tf.placeholder(tf.bfloat16, x.shape) for x in values_of(case)]
        qkv, slope = (tf.Variable(x, trainable=False) for x in fed)
        q, k, v = tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))
        scores = tf.matmul(q, k, transpose_b=True) * size**-0.5
        if causal:
            mask = np.triu(np.full((length, length), -1e9), 1)
            scores += mask.astype(ml_dtypes.bfloat16)
        y = tf.matmul(tf.nn.softmax(scores), v)
        every = [y, *tf.gradients(y, [q, k, v], slope)]
        fetches = [tf.cast(x[0, :2], tf.float32) for x in every]
        session.run(tf.global_variables_initializer(), dict(zip(fed, values_of(case), strict=True)))
        found = session.run(fetches)
        rows = session.plan(fetches).profile(5).rows
    return found, [(row.median, "+".join(op.split("/")[-1] for op in row.ops)) for row in rows]


def wanted(case: Case) -> list[np.ndarray]:
    """The same on the host, in float32."""
    *_, length, size, causal = case
    qkv, slope = (x.astype(np.float32) for x in values_of(case))
    q, k, v = qkv[0, :, :, :2].transpose(1, 2, 0, 3)
    dy = slope[0, :2]
    scores = q @ k.swapaxes(-1, -2) * size**-0.5
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf) if causal else scores
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = dy @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * size**-0.5
    return [p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dy]


def peer(case: Case) -> tuple[float, float]:
    """The time of PyTorch's flash attention: forward, and backward."""
    import torch

    *_, causal = case
    qkv, slope = (torch.from_numpy(x.astype(np.float32)).cuda().bfloat16() for x in values_of(case))
    q, k, v = (x.requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4).detach())
    attend = torch.nn.functional.scaled_dot_product_attention

    def timed(call: Callable[[], Any]) -> float:
        found: list[float] = []
        for _ in range(12):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) * 1e-3)
        return min(found)

    y = attend(q, k, v, is_causal=causal)
    forward = timed(lambda: attend(q, k, v, is_causal=causal))
    backward = timed(lambda: torch.autograd.grad(y, (q, k, v), slope, retain_graph=True))
    return forward, backward


def report(case: Case, with_peer: bool) -> str:
    """The lines of a case."""
    batch, heads, length, size, causal = case
    found, kernels = ours(case)
    errors = [
        np.abs(one - other).max() / np.abs(other).max()
        for one, other in zip(found, wanted(case), strict=True)
    ]
    product = 2 * batch * heads * length**2 * size / (2 if causal else 1)
    lines = [f"{case}: errors " + " ".join(f"{error:.1e}" for error in errors)]
    for seconds, name in kernels:
        products = 5 if "Grad" in name else 2
        rate = f"({products * product / seconds / 1e12:6.1f} TFLOP/s)" if "Fused" in name else ""
        lines.append(f"  {1e6 * seconds:9.1f} us {name[:60]} {rate}")
    if with_peer:
        forward, backward = peer(case)
        rates = 2 * product / forward / 1e12, 5 * product / backward / 1e12
        times = f"forward {1e6 * forward:.1f} us, backward {1e6 * backward:.1f} us"
        lines.append(f"  PyTorch: {times} ({rates[0]:.0f}, {rates[1]:.0f} TFLOP/s)")
    return "\n".join(lines)


def main() -> None:
    """Print all cases."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--peer", action="store_true")
    options.add_argument("--tiny", action="store_true", help="sizes for an emulated GPU")
    options.add_argument("--cases", type=int, default=len(CASES), help="the first of them")
    options.add_argument(
        "--schedule", type=int, nargs=2, help="tiles of rows, and others at once; with no cache"
    )
    given = options.parse_args()
    if given.schedule:
        schedule.CHOICES[:] = [tuple(given.schedule)]
        schedule.SHORT_GRADIENT = tuple(given.schedule)
    for case in TINY if given.tiny else CASES[: given.cases]:
        print(report(case, given.peer), flush=True)


if __name__ == "__main__":
    main()
