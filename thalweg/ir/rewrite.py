"""Traversing and rewriting expressions: the one rewriter, the one fold, free variables.

All of it is iterative, so that a sum of thousands of terms needs no recursion, and goes by the
identity of nodes, so that what is shared is visited once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import repeat
from operator import attrgetter
from typing import Any, Generic, TypeVar

from thalweg.ir.expr import Call, Cast, Expr, Index, Load, Reduce, Scan, Select, Variable
from thalweg.ir.functions.dtypes import Dtype
from thalweg.ir.index import Affine

T = TypeVar("T")


def walk(
    roots: Iterable[Expr | None], inside: Callable[[Expr], Iterable[Expr]] = attrgetter("parts")
) -> list[Expr]:
    """All expressions under some roots, each once, the last part of each first.

    `inside` says which parts of an expression are gone into.
    """
    pending, found = [root for root in roots if root is not None], dict[Expr, None]()
    while pending:
        part = pending.pop()
        if part not in found:
            found[part] = None
            pending += inside(part)
    return list(found)


def loads_in(roots: Iterable[Expr | None]) -> list[Load]:
    """All loads under some roots."""
    return [part for part in walk(roots) if isinstance(part, Load)]


def postorder(roots: Iterable[Expr | None], known: Container[Expr] = ()) -> list[Expr]:
    """All expressions under some roots, each once, parts before what they are part of.

    Those that are known already are left out, and what is under them.
    """
    pending = [(root, False) for root in roots if root is not None]
    pending.reverse()
    seen, found = set[Expr](), list[Expr]()
    while pending:
        expr, ready = pending.pop()
        if ready:
            found.append(expr)
        elif expr not in seen and expr not in known:
            seen.add(expr)
            pending.append((expr, True))
            pending += zip(reversed(expr.parts), repeat(False))
    return found


class Fold(Generic[T]):
    """A value for every expression, from those of its parts."""

    def __init__(self, compute: Callable[[Expr, Fold[T]], T]) -> None:
        self._compute = compute
        self._known: dict[Expr, T] = {}

    def of(self, expr: Expr) -> T:
        """The value of an expression; while one is computed, those of its parts are known."""
        known = self._known
        if expr not in known:
            for part in postorder([expr], known):
                if part not in known:  # one may ask for another that comes later
                    known[part] = self._compute(part, self)
        return known[expr]

    def parts(self, expr: Expr) -> list[T]:
        """The values of the parts of an expression."""
        return [self._known[part] for part in expr.parts]


class Rewriter:
    """Rebuilds expressions, operands before their users, each once.

    A subclass says what becomes of some of them. `early` replaces an expression whatever
    its parts are; the others get an expression's fields with rewritten parts.
    """

    def __init__(self) -> None:
        self._made: dict[Expr, Expr] = {}

    def of(self, root: Expr) -> Expr:
        """What becomes of an expression."""
        made = self._made
        if root in made:
            return made[root]
        pending = [root]
        while pending:
            node = pending[-1]
            if node in made:
                pending.pop()
                continue
            replaced = self.early(node)
            if replaced is not None:
                made[node] = replaced
                continue
            missing = [part for part in self.needed(node) if part not in made]
            if missing:
                pending += reversed(missing)
            else:
                made[node] = self.rebuilt(node)
        return made[root]

    def of_optional(self, root: Expr | None) -> Expr | None:
        """The same for an expression that may be missing."""
        return None if root is None else self.of(root)

    def new(self, part: Expr) -> Expr:
        """What became of a part."""
        return self._made[part]

    def early(self, node: Expr) -> Expr | None:
        """What takes the place of an expression whatever its parts are; None: it is rebuilt."""
        return None

    def needed(self, node: Expr) -> Iterable[Expr]:
        """The parts to be made before an expression is."""
        return node.parts

    def rebuilt(self, node: Expr) -> Expr:
        """What becomes of an expression whose parts are made."""
        return node.rebuild(self)

    def leaf(self, node: Expr) -> Expr:
        """An expression without parts."""
        return node

    def index(self, variable: Variable) -> Expr:
        """The value of a variable."""
        return Index(variable)

    def variables(self, variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        """The variables that a reduction binds."""
        return variables

    def scanned(self, variable: Variable) -> Variable:
        """The variable that a scan goes along."""
        return variable

    def offset(self, offset: Affine) -> Affine:
        """A place, with what is computed in it rewritten."""
        return offset.rebuild(self)

    def load(self, buffer: Any, offset: Affine) -> Expr:
        """An element of a buffer."""
        return Load(buffer, offset)

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        """A function applied to new parts."""
        return Call(function, arguments)

    def cast(self, value: Expr, target: Dtype) -> Expr:
        """A new part as one of another dtype."""
        return Cast(value, target)

    def select(self, condition: Expr, chosen: Expr, otherwise: Expr) -> Expr:
        """A choice between new parts."""
        return Select(condition, chosen, otherwise)


class Replace(Rewriter):
    """Puts other expressions in the place of some."""

    def __init__(self, replace: Callable[[Expr], Expr | None]) -> None:
        super().__init__()
        self._replace = replace

    def early(self, node: Expr) -> Expr | None:
        return self._replace(node)


def free_variables(expr: Expr) -> frozenset[Variable]:
    """The variables that an expression depends on and does not bind."""
    if expr.free is None:
        for part in postorder([expr], _WithFreeVariables()):
            object.__setattr__(part, "free", _free_of(part))
    assert expr.free is not None
    return expr.free


class _WithFreeVariables(Container[Expr]):
    """The expressions whose free variables were found before."""

    def __contains__(self, expr: object) -> bool:
        return isinstance(expr, Expr) and expr.free is not None


def _free_of(expr: Expr) -> frozenset[Variable]:
    inner = frozenset[Variable]().union(*[part.free for part in expr.parts if part.free])
    match expr:
        case Index():
            return frozenset([expr.variable])
        case Load():
            return inner | expr.offset.variables
        case Reduce():
            return inner - frozenset(expr.variables)
        case Scan():
            return inner | {expr.variable}
        case _:
            return inner
