"""Random loop kernels in machine code against a plain NumPy reading of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.codegen.oracle import agree, at, index, numbers, over, place
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable


class Maker:
    """Makes a random kernel: arguments, expressions of several levels, stores."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        rank = int(self.random.integers(1, 4))
        sizes = [1, 2, 3, 5, 8, 16, 17, 33, 70]
        self.variables = tuple(
            Variable.fresh(int(self.random.choice(sizes[: 9 if rank < 3 else 7])))
            for _ in range(rank)
        )
        self.dtype = np.dtype(self.random.choice(["float32", "int32", "float64", "int64"]))
        self.arguments: list[Argument] = []
        self.arrays: list[np.ndarray] = []
        self.pool: list[Expr] = []
        self.limits: dict[Variable, int] = {}  # of variables where a select has been chosen

    def extent(self, variable: Variable) -> int:
        return self.limits.get(variable, variable.extent)

    def argument(self, size: int, written: bool = False) -> Argument:
        made = Argument(len(self.arguments), self.dtype, size, written)
        self.arguments.append(made)
        self.arrays.append(numbers(size, self.dtype, len(self.arrays)))
        return made

    def load(self, variables: Sequence[Variable]) -> Expr:
        """A load over some of the variables, in any order, of an argument of its own."""
        chosen = [v for v in variables if self.random.random() < 0.7]
        if self.random.random() < 0.3:
            self.random.shuffle(chosen)  # type: ignore[arg-type]
        terms, size = [], 1
        for variable in reversed(chosen):
            terms.append((size, variable))
            size *= self.extent(variable)
        return at(self.argument(size), *reversed(terms))

    def expression(self, variables: Sequence[Variable], depth: int) -> Expr:
        if self.pool and self.random.random() < 0.2:
            return self.pool[int(self.random.integers(len(self.pool)))]
        choice = self.random.random()
        if depth <= 0 or choice < 0.25:
            return self.load(variables)
        if choice < 0.45:
            known = [1, 3, 8, 20, *(variable.extent for variable in self.variables)]
            extents = [int(self.random.choice(known)) for _ in range(2)]
            bound = tuple(map(Variable.fresh, extents[: int(self.random.integers(1, 3))]))
            kind = str(self.random.choice(["sum", "max", "min"]))
            outer = [v for v in variables if self.random.random() < 0.6]
            pool, self.pool = self.pool, []
            body = self.expression([*outer, *bound], depth - 1)
            self.pool = pool
            return over(kind, bound, body)
        if choice < 0.55:
            return self.guarded(variables, depth)
        if choice < 0.65 and len(variables) > 1:
            return self.related(variables, depth)
        if choice < 0.7 and self.dtype.kind == "f":
            return call("exp", call("min", self.expression(variables, depth - 1), 1.0))
        function = str(self.random.choice(["add", "sub", "max", "min"]))
        result = call(
            function, self.expression(variables, depth - 1), self.expression(variables, depth - 1)
        )
        return result

    def guarded(self, variables: Sequence[Variable], depth: int) -> Expr:
        """A load that is in range only where a select chooses it."""
        variable = variables[int(self.random.integers(len(variables)))]
        shift = int(self.random.integers(0, 4))
        at_shift = index(variable) - shift
        inner = at(self.argument(max(self.extent(variable) - shift, 1)), (1, at_shift))
        return select(at_shift >= 0, inner, self.expression(variables, depth - 1))

    def related(self, variables: Sequence[Variable], depth: int) -> Expr:
        """An expression that is in range only where a condition on two variables holds."""
        pair = [variables[n] for n in self.random.permutation(len(variables))[:2]]
        outer, pool, self.pool = self.limits, self.pool, []
        limit = int(self.random.integers(1, min(self.extent(v) for v in pair) + 1))
        self.limits = {**outer, **dict.fromkeys(pair, limit)}
        chosen, other = (self.expression(variables, depth - 1) for _ in range(2))
        if self.random.random() < 0.5:
            bound = int(self.random.integers(0, limit + 1))
            chosen = select(index(pair[0]) < bound, chosen, other)
        self.limits, self.pool = outer, pool
        inside = index(pair[0]) + index(pair[1]) < limit
        return select(inside, chosen, self.expression(variables, depth - 1))

    def kernel(self) -> Loops:
        stores = []
        for _ in range(int(self.random.integers(1, 4))):
            count = int(self.random.integers(0, len(self.variables) + 1))
            variables = self.variables[:count] if stores else self.variables
            self.pool = []
            value = (
                self.expression(variables, 3)
                if variables
                else over("sum", (k := Variable.fresh(9),), self.load([k]))
            )
            size, terms = 1, []
            order = list(variables)
            if self.random.random() < 0.3:
                self.random.shuffle(order)  # type: ignore[arg-type]
            for variable in reversed(order):
                terms.append((size, variable))
                size *= variable.extent
            out = self.argument(size, True)
            stores.append(Store(out, variables, place(*terms), value))
        return Loops(tuple(self.arguments), self.variables, tuple(stores))


@pytest.mark.parametrize("seed", range(60))
def test_random_kernels(seed: int) -> None:
    maker = Maker(seed)
    kernel = maker.kernel()
    agree(kernel, maker.arrays, tolerance=1e-4)


@pytest.mark.parametrize("seed", range(40))
def test_loads_guarded_by_what_branches_compute(seed: int) -> None:
    """A row is chosen, and whether it is read, by selects of sums of loads that do not depend on
    the place in the row."""
    random = np.random.default_rng(seed)
    rows, columns = (
        Variable.fresh(int(random.choice(sizes))) for sizes in ([2, 5], [2, 7, 16, 33])
    )
    choices = Argument(0, np.dtype("float32"), 8 * rows.extent, False)
    table = Argument(1, np.dtype("float32"), 4 * columns.extent, False)
    out = Argument(2, np.dtype("float32"), columns.extent, True)

    def number(first: int) -> Expr:
        """A small number that depends on the row alone."""
        places = [first + int(place) for place in random.permutation(4)]
        if random.random() < 0.3:
            return at(choices, (8, rows), constant=places[0])
        one, other = (
            at(choices, (8, rows), constant=places[k])
            + at(choices, (8, rows), constant=places[k + 1])
            for k in (0, 2)
        )
        return select(index(rows) < 1, one, other)

    row = call("min", call("max", number(0).cast(np.int64), 0), 3)
    shift = int(random.integers(0, 2))
    read = at(table, (columns.extent, row), (1, index(columns) - shift))
    guard = number(4) > 1
    if shift:
        guard = guard & (index(columns) - shift >= 0)
    value = over("sum", rows, select(guard, read, float(random.integers(0, 2))))
    stores = (Store(out, (columns,), place((1, columns)), value),)
    arrays = [
        random.integers(0, 3, choices.size),
        random.normal(size=table.size),
        np.zeros(out.size),
    ]
    kernel = Loops((choices, table, out), (columns,), stores)
    agree(kernel, [array.astype(np.float32) for array in arrays])
