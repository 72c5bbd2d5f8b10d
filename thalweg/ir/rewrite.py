"""Traversal and rewriting of expressions: the rewriter, the fold, free variables.

All of it is iterative, since expressions may be thousands of nodes deep, and keyed by identity, so
that shared nodes are visited once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import repeat
from operator import attrgetter
from typing import Any, Generic, TypeVar

from thalweg.ir.expr import Call, Expr, Index, Load, Reduce, Scan, Variable, constant
from thalweg.ir.index import Affine, affine

T = TypeVar("T")


def walk(
    roots: Iterable[Expr | None], inside: Callable[[Expr], Iterable[Expr]] = attrgetter("parts")
) -> list[Expr]:
    """All expressions under some roots in preorder, each once, last parts first.

    `inside` gives the parts of an expression to descend into.
    """
    pending, result = [root for root in roots if root is not None], dict[Expr, None]()
    while pending:
        part = pending.pop()
        if part not in result:
            result[part] = None
            pending += inside(part)
    return list(result)


def loads_in(roots: Iterable[Expr | None]) -> list[Load]:
    """All loads under some roots."""
    return [part for part in walk(roots) if isinstance(part, Load)]


def outside_reductions(roots: Iterable[Expr]) -> set[Expr]:
    """All expressions under some roots that are outside the bodies of reductions."""
    return set(walk(roots, lambda part: () if isinstance(part, Reduce) else part.parts))


def postorder(roots: Iterable[Expr | None], known: Container[Expr] = ()) -> list[Expr]:
    """All expressions under some roots in postorder, each once.

    `known` ones are left out, with all that is only under them.
    """
    pending = [(root, False) for root in roots if root is not None]
    pending.reverse()
    seen, result = set[Expr](), list[Expr]()
    while pending:
        expr, ready = pending.pop()
        if ready:
            result.append(expr)
        elif expr not in seen and expr not in known:
            seen.add(expr)
            pending.append((expr, True))
            pending += zip(reversed(expr.parts), repeat(False))
    return result


class Fold(Generic[T]):
    """A memoized bottom-up function of expressions."""

    def __init__(self, compute: Callable[[Expr, Fold[T]], T]) -> None:
        self._compute = compute
        self._known: dict[Expr, T] = {}

    def of(self, expr: Expr) -> T:
        """The value of an expression; those of its parts are computed before."""
        known = self._known
        if expr not in known:
            for part in postorder([expr], known):
                if part not in known:  # `compute` may have asked for it
                    known[part] = self._compute(part, self)
        return known[expr]

    def parts(self, expr: Expr) -> list[T]:
        """The values of the parts of an expression."""
        return [self._known[part] for part in expr.parts]


class Rewriter:
    """Rebuilds expressions bottom-up, each once.

    Subclasses override methods. `early` replaces an expression before its parts are visited; the
    others get an expression's fields with rewritten parts.
    """

    def __init__(self) -> None:
        self._rewritten: dict[Expr, Expr] = {}

    def of(self, root: Expr) -> Expr:
        """The rewritten expression."""
        made = self._rewritten
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

    def new(self, part: Expr) -> Expr:
        """The rewritten part of an expression."""
        return self._rewritten[part]

    def early(self, node: Expr) -> Expr | None:
        """A replacement that does not depend on rewritten parts; None to rebuild."""
        return None

    def needed(self, node: Expr) -> Iterable[Expr]:
        """The parts to rewrite before an expression."""
        return node.parts

    def rebuilt(self, node: Expr) -> Expr:
        """The replacement of an expression whose parts are rewritten."""
        return node.rebuild(self)

    def renamed(self, variable: Variable) -> Variable | None:
        """What replaces a variable; None if it can only be 0."""
        return variable

    def index(self, variable: Variable) -> Expr:
        """The value of a variable."""
        new = self.renamed(variable)
        return constant(0) if new is None else Index(new)

    def variables(self, variables: Iterable[Variable]) -> tuple[Variable, ...]:
        """What replaces the variables of loops, and those that reductions and scans bind."""
        return tuple([new for v in variables if (new := self.renamed(v)) is not None])

    def offset(self, offset: Affine) -> Affine:
        """An offset, with the variables and expressions in it rewritten."""
        return offset.replaced(self.term)

    def term(self, term: Variable | Expr) -> Affine | Variable | None:
        """What replaces a variable or an expression in an offset; None if nothing does."""
        made = self.renamed(term) if isinstance(term, Variable) else self.new(term)
        if made is term:
            return None
        return affine(made) if isinstance(made, Expr) else made or Affine(0)

    def buffer(self, buffer: Any) -> Any:
        """What replaces a buffer."""
        return buffer

    def load(self, buffer: Any, offset: Affine) -> Expr:
        """An element of a buffer, at a rewritten offset."""
        return Load(self.buffer(buffer), offset)

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        """A call with rewritten arguments."""
        return Call(function, arguments)


class Replace(Rewriter):
    """Replaces expressions by a function, top-down."""

    def __init__(self, replace: Callable[[Expr], Expr | None]) -> None:
        super().__init__()
        self._replace = replace

    def early(self, node: Expr) -> Expr | None:
        return self._replace(node)


def free_variables(expr: Expr) -> frozenset[Variable]:
    """The free variables of an expression (cached)."""
    if expr.free is None:
        for part in postorder([expr], _WithFreeVariables()):
            object.__setattr__(part, "free", _free_of(part))
    assert expr.free is not None
    return expr.free


class _WithFreeVariables(Container[Expr]):
    """The expressions whose free variables are cached."""

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
