"""The contractions that are measured on GPUs: products, and the convolutions of known networks.

What comes in is nothing; what goes out are `Case`s, plain data that both sides of a comparison are
made of, and for each the kernel of the IR. Only `kernel_of` needs Thalweg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A product (m, n, k) or an operation of a convolution (n, h, c, k, r, stride, padding)."""

    name: str
    operation: str  # "nn", "nt", "tn" of products, "fwd", "dgrad", "wgrad" of convolutions
    sizes: tuple[int, ...]
    dtype: str = "bfloat16"

    @property
    def is_product(self) -> bool:
        """Whether it is a product of matrices."""
        return len(self.sizes) == 3

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        if self.is_product:
            return 2.0 * float(np.prod(self.sizes, dtype=float))
        n, _, c, k, r, _, _ = self.sizes
        return 2.0 * n * self.outputs**2 * c * k * r * r

    @property
    def outputs(self) -> int:
        """The side of a convolution's result."""
        _, h, _, _, r, stride, padding = self.sizes
        return (h + 2 * padding - r) // stride + 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Both operands and the result, row-major; images are NHWC, filters HWIO."""
        if self.is_product:
            m, n, k = self.sizes
            a = (k, m) if self.operation == "tn" else (m, k)
            return a, (n, k) if self.operation == "nt" else (k, n), (m, n)
        n, h, c, k, r, *_ = self.sizes
        x, f, y = (n, h, h, c), (r, r, c, k), (n, self.outputs, self.outputs, k)
        return {"fwd": (x, f, y), "dgrad": (y, f, x), "wgrad": (x, y, f)}[self.operation]


SQUARES = [(n, n, n) for n in (1024, 2048, 4096, 8192)]
GPT = [(8192, 2304, 768), (8192, 768, 768), (8192, 3072, 768), (8192, 768, 3072)]
DENSE = [(128, 4096, 9216), (128, 4096, 4096), (128, 1000, 4096), (64, 4096, 25088)]
LAYERS = {
    "alexnet 2": (128, 27, 64, 192, 5, 1, 2),
    "alexnet 3": (128, 13, 192, 384, 3, 1, 1),
    "alexnet 4": (128, 13, 384, 256, 3, 1, 1),
    "overfeat 2": (128, 28, 96, 256, 5, 1, 0),
    "overfeat 4": (128, 12, 512, 1024, 3, 1, 1),
    "vgg 2": (64, 112, 64, 128, 3, 1, 1),
    "vgg 3b": (64, 56, 256, 256, 3, 1, 1),
    "vgg 4b": (64, 28, 512, 512, 3, 1, 1),
    "vgg 5": (64, 14, 512, 512, 3, 1, 1),
    "googlenet 2": (128, 56, 64, 192, 3, 1, 1),
    "googlenet 3a": (128, 28, 96, 128, 3, 1, 1),
    "googlenet 3b 5x5": (128, 28, 32, 96, 5, 1, 2),
    "googlenet 4e": (128, 14, 160, 320, 3, 1, 1),
    "googlenet 4c 1x1": (128, 14, 512, 128, 1, 1, 0),
    "resnet 2 3x3": (128, 56, 64, 64, 3, 1, 1),
    "resnet 3 3x3": (128, 28, 128, 128, 3, 1, 1),
    "resnet 3 stride": (128, 56, 128, 128, 3, 2, 1),
    "resnet 4 3x3": (128, 14, 256, 256, 3, 1, 1),
    "resnet 4 1x1": (128, 14, 1024, 256, 1, 1, 0),
    "resnet 5 3x3": (128, 7, 512, 512, 3, 1, 1),
}


def cases() -> list[Case]:
    """All of them: products first."""
    result = [Case("square", way, size) for size in SQUARES for way in ("nn", "nt", "tn")]
    result += [Case("gpt-2", "nn", size) for size in GPT]
    result += [Case("gpt-2 dx", "nt", (m, k, n)) for m, n, k in GPT[:2]]
    result += [Case("gpt-2 dw", "tn", (k, n, m)) for m, n, k in GPT[:2]]
    result += [Case("dense", "nn", size) for size in DENSE]
    result += [Case("odd pitch", "nn", (4096, 4100, 4101))]
    result += [Case("square", "nn", size, "float32") for size in SQUARES[:3]]
    result += [Case("square", "nn", size, "tfloat32") for size in SQUARES[1:3]]
    result += [Case("square", "nn", SQUARES[2], "float16")]
    for name, layer in LAYERS.items():
        ways = ("fwd", "dgrad", "wgrad") if layer[5] == 1 else ("fwd", "wgrad")
        result += [Case(name, way, layer) for way in ways]
    return result


def kernel_of(case: Case) -> Any:
    """The contraction of a case, as lowering makes it, over both operands and the result."""
    import ml_dtypes  # the measuring side has none

    from thalweg.ir.expr import Accumulated, Cast, Load, Variable
    from thalweg.ir.index import Affine
    from thalweg.ir.kernel import Access, Argument, Contraction, Store

    dtype = np.dtype({"bfloat16": ml_dtypes.bfloat16}.get(case.dtype, case.dtype.lstrip("t")))
    arguments = [
        Argument(n, dtype, int(np.prod(shape)), n == 2) for n, shape in enumerate(case.shapes)
    ]

    def strides(number: int) -> list[int]:
        shape = case.shapes[number]
        return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]

    def place(number: int, *terms: dict[Variable, int], start: int = 0) -> Affine:
        found: dict[Any, int] = {}
        for stride, axis in zip(strides(number), terms, strict=True):
            for variable, factor in axis.items():
                found[variable] = found.get(variable, 0) + stride * factor
        return Affine(start, found)

    def load(number: int, offset: Affine, bounds: tuple[Any, ...] = ()) -> Access:
        value = Load(arguments[number], offset)
        return Access(value if dtype == np.float32 else Cast(value, np.float32), bounds)

    total = Accumulated(np.float32)
    if case.is_product:
        m, n, k = (Variable(e, name) for e, name in zip(case.sizes, "ijk", strict=True))
        a = place(0, {k: 1}, {m: 1}) if case.operation == "tn" else place(0, {m: 1}, {k: 1})
        b = place(1, {n: 1}, {k: 1}) if case.operation == "nt" else place(1, {k: 1}, {n: 1})
        store = Store(arguments[2], (m, n), place(2, {m: 1}, {n: 1}), total)
        rows, columns, reduced = (m,), (n,), (k,)
        return Contraction(
            tuple(arguments), (), rows, columns, reduced, load(0, a), load(1, b),
            np.dtype(np.float32), (store,),
        )  # fmt: skip
    count, h, c, k, r, stride, pad = case.sizes
    names = {"n": count, "p": case.outputs, "q": case.outputs, "h": h, "w": h, "c": c, "o": k}
    v = {name: Variable(extent, name) for name, extent in {**names, "r": r, "s": r}.items()}
    one = {name: {variable: 1} for name, variable in v.items()}
    if case.operation == "dgrad":
        windows = [{v["h"]: 1, v["r"]: -1}, {v["w"]: 1, v["s"]: -1}]
        pitch = strides(0)
        a = place(0, one["n"], *windows, one["o"], start=pad * (pitch[1] + pitch[2]))
        bounds = tuple((0, Affine(pad, dict(w)), case.outputs) for w in windows)
        rows, columns, reduced = (v["n"], v["h"], v["w"]), (v["c"],), (v["r"], v["s"], v["o"])
        b = place(1, one["r"], one["s"], one["c"], one["o"])
        store = Store(arguments[2], (*rows, *columns), place(2, *(one[x] for x in "nhwc")), total)
    else:
        windows = [{v["p"]: stride, v["r"]: 1}, {v["q"]: stride, v["s"]: 1}]
        pitch = strides(0)
        a = place(0, one["n"], *windows, one["c"], start=-pad * (pitch[1] + pitch[2]))
        bounds = tuple((0, Affine(-pad, dict(w)), h) for w in windows)
        pixels, taps = (v["n"], v["p"], v["q"]), (v["r"], v["s"], v["c"])
        is_forward = case.operation == "fwd"
        rows, reduced = (pixels, taps) if is_forward else (taps, pixels)
        columns = (v["o"],)
        b = place(1, *(one[x] for x in ("rsco" if is_forward else "npqo")))
        stored = place(2, *(one[x] for x in ("npqo" if is_forward else "rsco")))
        store = Store(arguments[2], (*rows, *columns), stored, total)
    return Contraction(
        tuple(arguments), (), rows, columns, reduced, load(0, a, bounds), load(1, b),
        np.dtype(np.float32), (store,),
    )  # fmt: skip
