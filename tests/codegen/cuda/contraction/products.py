"""Contractions of narrow floats for tests, as lowering makes them: widened, summed as float32."""

from dataclasses import replace

import numpy as np

from tests.codegen.contraction.contractions import Conv, at
from thalweg.ir.expr import Accumulated, Call, Cast, Const, Load
from thalweg.ir.kernel import Access, Argument, Contraction, Store
from thalweg.ir.loop import Variable


def narrow_product(m, n, k, dtype, ta=False, tb=False, out=np.float32, batch=()):
    """y[b.., i, j] = Σ a·b of narrow floats, stored as `out`."""
    outer = tuple(Variable(extent, f"b{i}") for i, extent in enumerate(batch))
    i, j, kk = Variable(m, "i"), Variable(n, "j"), Variable(k, "k")
    size = int(np.prod(batch, dtype=int))
    m, n, k = map(int, (m, n, k))  # the extents of variables may be known at run time only
    a = Argument(0, np.dtype(dtype), size * m * k)
    b = Argument(1, np.dtype(dtype), size * k * n)
    c = Argument(2, np.dtype(out), size * m * n, True)
    left = at((*batch, k, m), *outer, kk, i) if ta else at((*batch, m, k), *outer, i, kk)
    right = at((*batch, n, k), *outer, j, kk) if tb else at((*batch, k, n), *outer, kk, j)
    value = Accumulated(np.float32)
    return Contraction(
        (a, b, c), outer, (i,), (j,), (kk,),
        Access(Cast(Load(a, left), np.float32)), Access(Cast(Load(b, right), np.float32)),
        np.dtype(np.float32),
        (Store(c, (*outer, i, j), at((*batch, m, n), *outer, i, j), value),),
    )  # fmt: skip


def updated(kernel):
    """w -= 0.5 · sum, in place."""
    (store,) = kernel.stores
    old = Cast(Load(store.buffer, store.offset), np.float32)
    value = Call("sub", (old, Call("mul", (Const(np.float32(0.5)), Accumulated(np.float32)))))
    return replace(kernel, stores=(replace(store, value=value),))


def narrow(kernel):
    """A contraction that was built over a narrow dtype, with its sums in float32."""

    def wide(access):
        return Access(Cast(access.value, np.float32), access.bounds)

    stores = [
        Store(s.buffer, s.variables, s.offset, Accumulated(np.float32)) for s in kernel.stores
    ]
    return Contraction(
        kernel.arguments, kernel.batch, kernel.rows, kernel.columns, kernel.reduced,
        wide(kernel.a), wide(kernel.b), np.dtype(np.float32), tuple(stores),
    )  # fmt: skip


def narrow_convolutions(dtype, *sizes, **more):
    """The three contractions of a convolution of narrow floats (gradients for stride 1)."""
    conv = Conv(*sizes, **more, dtype=dtype)
    kernels = [conv.forward(), conv.filter_gradient()]
    if more.get("stride", 1) == 1:
        kernels.append(conv.input_gradient())
    return [narrow(kernel) for kernel in kernels]
