"""Contractions for tests: builders of the common ones, a NumPy oracle, and a runner of code."""

import ctypes
from itertools import product
from threading import Barrier, Thread

import numpy as np

from thalweg.codegen.cache import as_request, load_all
from thalweg.codegen.contraction.kernel import emit_contraction
from thalweg.ir.expr import Accumulated, Bitcast, Call, Cast, Const, Index, Load, Select
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Argument, Contraction, Store
from thalweg.ir.loop import Variable

SUM = Accumulated(np.float32)


def variables(**extents):
    return [Variable(extent, name) for name, extent in extents.items()]


def strides(shape):
    return [int(np.prod(shape[i + 1 :], dtype=int)) for i in range(len(shape))]


def at(shape, *indices):
    """The place of indices, each a list of (factor, variable) and integers, in a shape."""
    terms, constant = {}, 0
    for stride, index in zip(strides(shape), indices, strict=True):
        for part in index if isinstance(index, list) else [index]:
            factor, variable = part if isinstance(part, tuple) else (1, part)
            if isinstance(variable, Variable):
                terms[variable] = terms.get(variable, 0) + stride * factor
            else:
                constant += stride * factor * variable
    return Affine(constant, terms)


def element(argument, offset):
    return Load(argument, offset)


def argument(position, dtype, shape, written=False):
    return Argument(position, np.dtype(dtype), int(np.prod(shape, dtype=int)), written)


def matmul(m, n, k, batch=(), ta=False, tb=False, dtype=np.float32, epilogue=None, rows=None):
    """y[b.., i, j] = Σ a·b, with transposes; the epilogue makes a value of (sum, i, j, extra)."""
    outer = tuple(Variable(extent, f"b{i}") for i, extent in enumerate(batch))
    i, j, kk = Variable(rows if rows is not None else m, "i"), Variable(n, "j"), Variable(k, "k")
    shapes = (*batch, k, m) if ta else (*batch, m, k), (*batch, n, k) if tb else (*batch, k, n)
    args = [argument(p, dtype, shape) for p, shape in enumerate(shapes)]
    target = argument(2, dtype, (*batch, m, n), True)
    a = at(shapes[0], *outer, *((kk, i) if ta else (i, kk)))
    b = at(shapes[1], *outer, *((j, kk) if tb else (kk, j)))
    extra, value = [], Accumulated(dtype)
    if epilogue:
        value, extra = epilogue(i, j, outer, (*batch, m, n))
    return Contraction(
        (*args, target, *extra), outer, (i,), (j,), (kk,),
        Access(element(args[0], a)), Access(element(args[1], b)), np.dtype(dtype),
        (Store(target, (*outer, i, j), at((*batch, m, n), *outer, i, j), value),),
    )  # fmt: skip


def output_size(size, kernel, stride, dilation, pad):
    return (size + sum(pad) - (kernel - 1) * dilation - 1) // stride + 1


class Conv:
    """The three contractions of a convolution, NHWC."""

    def __init__(self, n, h, w, ci, co, kh, kw, stride=1, dilation=1, pad=(0, 0), dtype=np.float32):
        self.stride, self.dilation, self.pad, self.dtype = stride, dilation, pad, np.dtype(dtype)
        self.x, self.f = (n, h, w, ci), (kh, kw, ci, co)
        oh, ow = (output_size(s, k, stride, dilation, pad) for s, k in ((h, kh), (w, kw)))
        self.y = (n, oh, ow, co)
        self.v = dict(zip(["n", "h", "w", "p", "q", "c", "o", "r", "s"], variables(
            n=n, h=h, w=w, oh=oh, ow=ow, ci=ci, co=co, kh=kh, kw=kw), strict=True))  # fmt: skip

    def _window(self, out, tap):
        return [(self.stride, out), (self.dilation, tap), (-self.pad[0], 1)]

    def _input(self, x):
        v = self.v
        windows = [self._window(v["p"], v["r"]), self._window(v["q"], v["s"])]
        bounds = tuple(
            (0, at((1,), window), size)
            for window, size in zip(windows, self.x[1:3], strict=True)
            if self.pad != (0, 0)
        )
        return Access(element(x, at(self.x, v["n"], *windows, v["c"])), bounds)

    def forward(self, epilogue=None):
        v = self.v
        x, f = argument(0, self.dtype, self.x), argument(1, self.dtype, self.f)
        y = argument(2, self.dtype, self.y, True)
        rows, columns = (v["n"], v["p"], v["q"]), (v["o"],)
        place = at(self.y, *rows, v["o"])
        value, extra = epilogue(rows, v["o"], place) if epilogue else (Accumulated(self.dtype), [])
        return Contraction(
            (x, f, y, *extra), (), rows, columns, (v["r"], v["s"], v["c"]), self._input(x),
            Access(element(f, at(self.f, v["r"], v["s"], v["c"], v["o"]))), self.dtype,
            (Store(y, (*rows, *columns), place, value),),
        )  # fmt: skip

    def filter_gradient(self):
        v = self.v
        x, dy = argument(0, self.dtype, self.x), argument(1, self.dtype, self.y)
        df = argument(2, self.dtype, self.f, True)
        rows = (v["r"], v["s"], v["c"])
        return Contraction(
            (x, dy, df), (), rows, (v["o"],), (v["n"], v["p"], v["q"]), self._input(x),
            Access(element(dy, at(self.y, v["n"], v["p"], v["q"], v["o"]))), self.dtype,
            (Store(df, (*rows, v["o"]), at(self.f, *rows, v["o"]), Accumulated(self.dtype)),),
        )  # fmt: skip

    def input_gradient(self):
        """For stride 1 only: strides arrive as one contraction per phase."""
        assert self.stride == 1
        v, d, p = self.v, self.dilation, self.pad[0]
        dy, f = argument(0, self.dtype, self.y), argument(1, self.dtype, self.f)
        dx = argument(2, self.dtype, self.x, True)
        windows = [[v["h"], (p, 1), (-d, v["r"])], [v["w"], (p, 1), (-d, v["s"])]]
        bounds = tuple(
            (0, at((1,), window), size) for window, size in zip(windows, self.y[1:3], strict=True)
        )
        rows, reduced = (v["n"], v["h"], v["w"]), (v["r"], v["s"], v["o"])
        a = Access(element(dy, at(self.y, v["n"], *windows, v["o"])), bounds)
        return Contraction(
            (dy, f, dx), (), rows, (v["c"],), reduced, a,
            Access(element(f, at(self.f, v["r"], v["s"], v["c"], v["o"]))), self.dtype,
            (Store(dx, (*rows, v["c"]), at(self.x, *rows, v["c"]), Accumulated(self.dtype)),),
        )  # fmt: skip


# The oracle


class Oracle:
    """A contraction over explicit index arrays: an axis for each variable."""

    def __init__(self, kernel, arrays):
        self.kernel, self.arrays = kernel, arrays
        self.order = (*kernel.batch, *kernel.rows, *kernel.columns, *kernel.reduced)
        self.indices = {
            v: np.arange(int(v.extent)).reshape([-1 if v is o else 1 for o in self.order])
            for v in self.order
        }

    def run(self):
        k = self.kernel
        a, b = (np.asarray(self.factor(side), np.float64) for side in (k.a, k.b))
        letters = "abcdefghijklmnop"[: len(self.order)]
        kept = letters[: len(letters) - len(k.reduced)]
        full = [int(v.extent) for v in self.order]
        subscripts, squeezed = [], []
        for side in (a, b):
            side = np.broadcast_to(side, [1] * (len(full) - side.ndim) + list(side.shape))
            axes = [i for i, n in enumerate(side.shape) if n != 1 or full[i] == 1]
            squeezed.append(side.reshape([side.shape[i] for i in axes]))
            subscripts.append("".join(letters[i] for i in axes))
        count = 1.0
        for v in k.reduced:  # a reduced variable in neither factor counts its values
            if letters[self.order.index(v)] not in "".join(subscripts):
                count *= int(v.extent)
        present = [c for c in kept if any(c in s for s in subscripts)]
        total = np.einsum(f"{','.join(subscripts)}->{''.join(present)}", *squeezed, optimize=True)
        shape = [full[i] if letters[i] in present else 1 for i in range(len(kept))]
        self.total = (total * count).reshape(shape + [1] * len(k.reduced)).astype(k.dtype)
        values = [np.asarray(self.value(s.value)) for s in k.stores]
        for store, value in zip(k.stores, values, strict=True):
            self.store(store, value)

    def place(self, offset):
        total = np.asarray(offset.constant)
        for term, factor in offset.terms.items():
            index = self.indices[term] if isinstance(term, Variable) else self.value(term)
            total = total + int(factor) * index
        return total

    def factor(self, access):
        self.inside = np.asarray(True)
        for low, offset, high in access.bounds:
            place = self.place(offset)
            self.inside = self.inside & (place >= int(low)) & (place < int(high))
        return np.where(self.inside, self.value(access.value), 0)

    def value(self, expr):
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Accumulated):
            return self.total
        if isinstance(expr, Index):
            return self.indices[expr.variable]
        if isinstance(expr, Load):
            buffer = self.arrays[expr.buffer.position].reshape(-1)
            place = self.place(expr.offset)
            if not buffer.size:
                return np.zeros(place.shape, buffer.dtype)
            return buffer[np.clip(place, 0, buffer.size - 1)]
        values = list(map(self.value, expr.parts))
        if isinstance(expr, Select):
            return np.where(*values)
        if isinstance(expr, Cast | Bitcast):
            return FUNCTIONS[type(expr).__name__.lower()].numpy(*values, expr.dtype)
        assert isinstance(expr, Call)
        return FUNCTIONS[expr.function].numpy(*values)

    def store(self, store, value):
        place = np.broadcast_arrays(
            self.place(store.offset), *(self.indices[v] for v in store.variables)
        )[0]
        target = self.arrays[store.buffer.position].reshape(-1)
        value = np.broadcast_to(value, place.shape).astype(target.dtype)
        keep = np.broadcast_to(
            True if store.inside is None else self.value(store.inside), place.shape
        )
        place, value = place[keep], value[keep]
        target[place] = target[place] + value if store.combine == "sum" else value


# Running


def compiled(kernel, target, schedule=None):
    made = emit_contraction(kernel, target, schedule)
    return made, load_all([as_request(made)], target)[0].functions


def call(made, addresses, arrays, threads=1, words=(), in_turn=False):
    """Run all phases, on threads or one after the other; a guard follows the scratch memory."""
    scratch = np.full(made.scratch + 192, 0x7F, np.uint8)
    start = (-scratch.ctypes.data) % 64
    table = [0, *(a.ctypes.data for a in arrays), scratch.ctypes.data + start, *words]
    fault = np.zeros(1, np.int64)
    table[0] = fault.ctypes.data
    packed = (ctypes.c_int64 * len(table))(*table)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    functions = [native(address) for address in addresses]
    barrier = Barrier(threads)

    def work(thread):
        for function in functions:
            function(ctypes.addressof(packed), thread, threads)
            barrier.wait()

    if in_turn:
        for function, thread in product(functions, range(threads)):
            function(ctypes.addressof(packed), thread, threads)
    else:
        others = [Thread(target=work, args=(t,)) for t in range(1, threads)]
        for other in others:
            other.start()
        work(0)
        for other in others:
            other.join()
    assert (scratch[start + made.scratch :] == 0x7F).all()


def guarded(array, rng):
    """A copy in a larger buffer of NaN, not aligned beyond its element."""
    whole = np.full(array.size + 67, np.nan if array.dtype.kind == "f" else 77, array.dtype)
    inner = whole[33 : 33 + array.size]
    inner[:] = array.reshape(-1)
    return whole, inner


def random_arrays(kernel, rng):
    def one(argument):
        if argument.dtype.kind in "iu":
            return rng.integers(0, 100, argument.size).astype(argument.dtype)
        return rng.standard_normal(int(argument.size)).astype(argument.dtype)

    return [one(argument) for argument in kernel.arguments]


def check(kernel, target, threads=1, schedule=None, seed=0, words=(), tolerance=None):
    """Run a kernel and hold it to the oracle; gives the written arrays."""
    made, addresses = compiled(kernel, target, schedule)

    def run(arrays):
        call(made, addresses, arrays, threads, words)

    return check_run(kernel, run, seed, tolerance)


def check_run(kernel, run, seed=0, tolerance=None):
    """Hold what a function makes of a kernel's arrays to the oracle; gives the written ones."""
    rng = np.random.default_rng(seed)
    given = random_arrays(kernel, rng)
    expected = [array.copy() for array in given]
    with np.errstate(all="ignore"):
        Oracle(kernel, expected).run()
    wholes, inners = zip(*(guarded(array, rng) for array in given), strict=True)
    run(inners)
    depth = max(1, int(np.prod([int(v.extent) for v in kernel.reduced])))
    limit = tolerance or (3e-6 if kernel.dtype == np.float32 else 1e-13) * np.sqrt(depth) * 4
    for argument, got, want, whole in zip(kernel.arguments, inners, expected, wholes, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=limit * 10, atol=limit
        )
        if whole.dtype.kind == "f":
            assert np.isnan(whole[:33]).all() and np.isnan(whole[33 + argument.size :]).all()
    return [got.copy() for a, got in zip(kernel.arguments, inners, strict=True) if a.written]
