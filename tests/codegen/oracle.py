"""What a loop kernel means, read plainly with NumPy, and machine code held to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from thalweg.codegen.cache import as_request, load_all
from thalweg.codegen.loops.kernel import emit_loops
from thalweg.codegen.machine import host_supports, named
from thalweg.ir.expr import (
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Scan,
    Select,
    Word,
    as_expr,
)
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine, total
from thalweg.ir.kernel import Argument, Loops
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import postorder
from thalweg.platform.dtype_traits import bounds, compute_dtype, is_float, is_narrow_float

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TARGETS = [t for t in ("native", "x86-64-v3", "x86-64-v2", "aarch64") if host_supports(named(t))]
UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "all": np.logical_and,
    "any": np.logical_or,
}


class Oracle:
    """A kernel on NumPy arrays: every variable is an axis of its own."""

    def __init__(self, kernel: Loops, arrays: Sequence[np.ndarray]) -> None:
        self.kernel, self.arrays = kernel, [a.reshape(-1) for a in arrays]
        self.before = [a.copy() for a in self.arrays]
        self.axes: dict[Variable, int] = {v: i for i, v in enumerate(kernel.variables)}
        for store in kernel.stores:
            self.find([store.value, store.inside, *store.offset.parts])
        for check in kernel.checks:
            self.find([check.condition])
        self.known: dict[Expr, Any] = {}

    def find(self, roots: Sequence[Expr | None]) -> None:
        for part in postorder(roots):
            for variable in part.variables if isinstance(part, Reduce) else ():
                self.axes.setdefault(variable, len(self.axes))

    def run(self) -> int:
        fault = 0
        for check in self.kernel.checks:
            if not np.all(self.over(self.value(check.condition), check.variables)):
                fault = check.fault
        written = []
        for store in self.kernel.stores:
            value = self.over(self.value(store.value), store.variables).ravel()
            place = self.over(self.place(store.offset), store.variables).ravel()
            inside = True if store.inside is None else self.value(store.inside)
            written.append((store, value, place, self.over(inside, store.variables).ravel()))
        for store, value, place, inside in written:
            target = self.arrays[store.buffer.position]
            value, place = value[inside].astype(target.dtype), place[inside]
            if store.combine == "set":
                target[place] = value
            else:
                UFUNCS[store.combine].at(target, place, value)
        return fault

    def over(self, value: Any, variables: Sequence[Variable]) -> np.ndarray:
        shape = [int(v.extent) for v in variables]
        array = np.asarray(value)
        if array.ndim > len(shape):
            array = array.reshape(array.shape[: len(shape)])
        return np.broadcast_to(array, shape)

    def axis(self, variable: Variable) -> np.ndarray:
        shape = [1] * len(self.axes)
        shape[self.axes[variable]] = int(variable.extent)
        return np.arange(int(variable.extent)).reshape(shape)

    def place(self, offset: Affine) -> Any:
        total: Any = np.full([1] * len(self.axes), int(offset.constant))
        for term, factor in offset.terms.items():
            at = self.axis(term) if isinstance(term, Variable) else self.value(term)
            total = total + int(factor) * np.asarray(at).astype(np.int64)
        return total

    def value(self, part: Any) -> Any:
        with np.errstate(all="ignore"):
            for each in postorder([part], self.known):
                self.known[each] = self.compute(each)
        return self.known[part]

    def compute(self, part: Expr) -> Any:
        values = [self.known[inner] for inner in part.parts]
        match part:
            case Const():
                return part.value
            case Word():
                return np.asarray(int(part.number)).astype(part.dtype)[()]
            case Index():
                return self.axis(part.variable)
            case Load():
                return self.load(self.before[part.buffer.position], self.place(part.offset))
            case Reduce():
                return self.reduce(part.combine, part.variables, part.body)
            case Scan():
                return self.scan(
                    part.combine, part.variable, part.body, part.exclusive, part.reverse
                )
            case Select():
                return np.where(*values)
            case Cast() | Bitcast():
                return FUNCTIONS[type(part).__name__.lower()].numpy(*values, part.dtype)
            case Call():
                return FUNCTIONS[part.function].numpy(*values)
            case _:
                raise TypeError(type(part))

    def load(self, array: np.ndarray, place: np.ndarray) -> np.ndarray:
        if not array.size:
            return np.zeros(place.shape, array.dtype)
        return array[np.clip(place, 0, array.size - 1)]

    def full(self, body: Any, variables: Sequence[Variable]) -> np.ndarray:
        value = np.asarray(self.value(body))
        shape = list(value.shape or [1] * len(self.axes))
        for variable in variables:
            shape[self.axes[variable]] = int(variable.extent)
        return np.broadcast_to(value, shape)

    def reduce(self, kind: str, variables: tuple[Variable, ...], body: Any) -> Any:
        full = self.full(body, variables)
        axes = tuple(self.axes[v] for v in variables)
        if kind[:3] == "arg":
            if is_float(full.dtype):  # NaN is never the most extreme
                full = np.where(np.isnan(full), worst(kind[3:], full.dtype), full)
            return (np.argmax if kind == "argmax" else np.argmin)(full, axes[0], keepdims=True)
        options: dict[str, Any] = {}
        if kind in ("max", "min"):
            options["initial"] = worst(kind, full.dtype)
        elif kind in ("sum", "prod"):
            options["dtype"] = compute_dtype(full.dtype)
        return (
            UFUNCS[kind]
            .reduce(full, axis=axes, keepdims=True, **options)
            .astype(bool if kind in ("all", "any") else full.dtype)
        )

    def scan(self, kind: str, variable: Variable, body: Any, exclusive: bool, reverse: bool) -> Any:
        full, axis = self.full(body, [variable]), self.axes[variable]
        moved = np.moveaxis(full, axis, 0)
        moved = moved[::-1] if reverse else moved
        done = UFUNCS[kind].accumulate(moved, axis=0, dtype=compute_dtype(full.dtype))
        done = done.astype(full.dtype)
        if exclusive:
            first = np.full_like(done[:1], {"sum": 0, "prod": 1}.get(kind, worst(kind, full.dtype)))
            done = np.concatenate([first, done[:-1]])
        return np.moveaxis(done[::-1] if reverse else done, 0, axis)


def worst(kind: str, dtype: Any) -> Any:
    return bounds(dtype)[kind == "min"]


def native(
    kernel: Loops,
    arrays: Sequence[np.ndarray],
    target: str = "native",
    threads: int = 1,
    words: Sequence[int] = (),
) -> int:
    """Run a kernel in machine code, one thread after the other; what is in the fault word."""
    return call(compiled(kernel, target), arrays, threads, words)


def compiled(kernel: Loops, target: str) -> Callable[[int, int, int], None]:
    """The machine code of a kernel."""
    wanted = as_request(emit_loops(kernel, named(target)))
    (address,) = load_all([wanted], named(target))[0].functions
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)


def call(
    function: Callable[[int, int, int], None],
    arrays: Sequence[np.ndarray],
    threads: int,
    words: Sequence[int],
) -> int:
    """Call machine code as `native` says."""
    fault = np.zeros(1, np.int64)
    given = [fault.ctypes.data, *(array.ctypes.data for array in arrays), *words]
    held = np.array(given, np.int64)
    for thread in reversed(range(threads)):
        function(held.ctypes.data, thread, threads)
    return int(fault[0])


def agree(
    kernel: Loops,
    arrays: Sequence[np.ndarray],
    targets: Sequence[str] = TARGETS,
    words: Sequence[int] = (),
    tolerance: float = 2e-5,
) -> int:
    """Hold machine code to the oracle: all targets, several numbers of threads."""
    expected = [array.copy() for array in arrays]
    fault = Oracle(kernel, expected).run()
    for target in targets:
        single: list[np.ndarray] = []
        function = compiled(kernel, target)
        for threads in (1, 3):
            found, guards = guarded(arrays)
            assert call(function, found, threads, words) == fault, target
            for guard in guards:
                assert (guard == 0xA5).all(), "written outside a buffer"
            for one, other in zip(found, expected, strict=True):
                close(one, other, tolerance, target)
            for one, other in zip(single, found, strict=False):
                assert one.tobytes() == other.tobytes(), "depends on the number of threads"
            single = single or found
    return fault


def guarded(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Copies of arrays at odd addresses, with bytes around them that must not change."""
    copies, guards = [], []
    for array in arrays:
        start = 64 + array.itemsize
        memory = np.full(start + array.nbytes + 64, 0xA5, np.uint8)
        inner = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        inner[...] = array
        copies.append(inner)
        guards += [memory[:start], memory[start + array.nbytes :]]
    return copies, guards


def close(found: np.ndarray, expected: np.ndarray, tolerance: float, message: str) -> None:
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected, message)
        return
    if is_narrow_float(found.dtype):
        tolerance = 2 * float(ml_dtypes.finfo(found.dtype).eps)
    elif found.dtype.itemsize == 8:
        tolerance = 1e-10
    wide = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance, err_msg=message)


def place(*terms: Any, constant: int = 0) -> Affine:
    """The sum of (factor, variable or expression) pairs and a constant."""
    return total([Affine(constant), *(Affine(0, {term: factor}) for factor, term in terms)])


def at(argument: Argument, *terms: Any, constant: int = 0) -> Expr:
    return Load(argument, place(*terms, constant=constant))


def over(kind: str, variables: Variable | tuple[Variable, ...], body: Any) -> Expr:
    several = variables if isinstance(variables, tuple) else (variables,)
    return Reduce(kind, several, as_expr(body))


def index(variable: Variable) -> Expr:
    return Index(variable)


def numbers(size: Any, dtype: Any, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    known = np.dtype(dtype)
    if known.kind == "b":
        return random.integers(0, 2, size).astype(bool)
    if known.kind in "iu":
        return random.integers(0 if known.kind == "u" else -9, 9, size).astype(known)
    return random.standard_normal(size).astype(known)
