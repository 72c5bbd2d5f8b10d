"""Two changes of a kernel's loops: neighbours made one, and scans made reductions.

Nested loops that go through every buffer as one loop would become one. Scans that no single pass
can do (two directions along one variable, or a loop in the wrong order) become reductions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from thalweg.codegen.loops.facts import extent_of, stride
from thalweg.ir.dynamic import times
from thalweg.ir.expr import Expr, Index, Reduce, Scan, Variable, constant, select
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.kernel import KernelRewriter, Loops, RenameVariables


def collapse(form: Loops) -> Loops:
    """The kernel with one loop for neighbours that go through every buffer as one loop would."""
    merge = _Merge(form)
    return merge.loops(form) if merge.find() else form


class _Merge(KernelRewriter):
    """Replaces the inner of two variables by one for both, and drops the outer."""

    def __init__(self, form: Loops) -> None:
        super().__init__()
        self._form = form
        self._into: dict[Variable, Variable | None] = {}
        self._used = set[Variable]()
        self._nests = [form.variables]
        for expr in form.parts:
            if isinstance(expr, Index | Scan):
                self._used.add(expr.variable)
            elif isinstance(expr, Reduce):
                self._nests.append(expr.variables)
                if REDUCTIONS[expr.combine].gives_position:
                    self._used |= set(expr.variables)
        self._strides = [{v: stride(offset, v) for v in offset.strides} for offset in form.offsets]

    def find(self) -> bool:
        """Whether there are variables to merge."""
        while any(self._merge(a, b) for nest in self._nests for a, b in _neighbours(nest)):
            pass
        return bool(self._into)

    def _merge(self, outer: Variable, inner: Variable) -> bool:
        if not self._fits(outer, inner):
            return False
        made = Variable(times(outer.extent, inner.extent), f"{outer.name}.{inner.name}")
        for strides in self._strides:
            strides.pop(outer, None)
            if inner in strides:
                strides[made] = strides.pop(inner)
        self._into |= {outer: None, inner: made}
        self._nests = [_merged(nest, outer, inner, made) for nest in self._nests]
        return True

    def _fits(self, outer: Variable, inner: Variable) -> bool:
        count = extent_of(inner)
        if count is None or {outer, inner} & self._used or not self._together(outer, inner):
            return False
        for strides in self._strides:
            far, near = strides.get(outer, 0), strides.get(inner, 0)
            if far is None or near is None or far != near * count:
                return False
        return True

    def _together(self, outer: Variable, inner: Variable) -> bool:
        """Whether two variables are neighbours wherever they are, and no work is between them."""
        for nest in self._nests:
            if (outer in nest or inner in nest) and (outer, inner) not in _neighbours(nest):
                return False
        works = [work.variables for work in (*self._form.stores, *self._form.checks)]
        return all(
            self._has(group, outer) == self._has(group, inner)
            for group in (self._form.serial, *works)
        )

    def _has(self, variables: Iterable[Variable], wanted: Variable) -> bool:
        return any(self.renamed(variable) is wanted for variable in variables)

    def renamed(self, variable: Variable) -> Variable | None:
        found: Variable | None = variable
        while found is not None and found in self._into:
            found = self._into[found]
        return found


def _neighbours(nest: Sequence[Variable]) -> list[tuple[Variable, Variable]]:
    return list(pairwise(nest))


def _merged(
    nest: tuple[Variable, ...], outer: Variable, inner: Variable, made: Variable
) -> tuple[Variable, ...]:
    return tuple(made if v is inner else v for v in nest if v is not outer)


# Scans that are not done in one pass


def without_scans(form: Loops, slow: set[Scan]) -> Loops:
    """Some scans as reductions over all values of their variable, of which the earlier count."""
    return _Guard(slow).loops(form)


class _Guard(KernelRewriter):
    """Replaces scans by reductions over a guarded body."""

    def __init__(self, slow: set[Scan]) -> None:
        super().__init__()
        self._slow = slow

    def rebuilt(self, node: Expr) -> Expr:
        if not isinstance(node, Scan) or node not in self._slow:
            return super().rebuilt(node)
        here = node.variable
        there = Variable(here.extent, f"{here.name}.scan")
        earlier, later = (Index(there), Index(here))[:: -1 if node.reverse else 1]
        counts = earlier < later if node.exclusive else earlier <= later
        moved = RenameVariables({here: there}).of(self.new(node.body))
        start = constant(REDUCTIONS[node.combine].identity(node.dtype))
        return Reduce(node.combine, (there,), select(counts, moved, start))
