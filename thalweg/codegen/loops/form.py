"""The form of a loop kernel that the code generator rewrites and plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from thalweg.codegen.loops.facts import roots_of, safety
from thalweg.ir.expr import TRUE, Expr, Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Check, Store
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Fold, Rewriter, postorder


@dataclass(eq=False)
class Form:
    """A kernel in its simplest form.

    `extents` has the extents of loops that are several in one, as factors, where the outermost is
    known only at run time.
    """

    arguments: tuple[Argument, ...]
    variables: tuple[Variable, ...]
    stores: list[Store]
    checks: list[Check]
    serial: frozenset[Variable]
    extents: dict[Variable, tuple[int, ...]] = field(
        default_factory=dict[Variable, tuple[int, ...]]
    )
    safe: Fold[bool] = field(default_factory=safety)

    @property
    def roots(self) -> list[Expr]:
        """All expressions that are computed for a store or a check."""
        return [root for work in (*self.checks, *self.stores) for root in roots_of(work)]

    def factors(self, variable: Variable) -> tuple[int, ...]:
        """Integers whose product is the extent of a variable."""
        return self.extents.get(variable, (variable.extent,))

    def offsets(self) -> Iterator[Affine]:
        """The places of all loads and stores."""
        for expr in postorder(self.roots):
            if isinstance(expr, Load):
                yield expr.offset
        for store in self.stores:
            yield store.offset


def rebuild_form(form: Form, rebuild: Rewriter) -> None:
    """Replace all expressions and places of a form."""
    for root in form.roots:
        rebuild.of(root)
    form.stores = [
        replace(
            store,
            variables=rebuild.variables(store.variables),
            offset=rebuild.offset(store.offset),
            value=rebuild.new(store.value),
            inside=None if store.inside is None else _unless_true(rebuild.new(store.inside)),
        )
        for store in form.stores
    ]
    checks = [
        replace(
            check,
            variables=rebuild.variables(check.variables),
            condition=rebuild.new(check.condition),
        )
        for check in form.checks
    ]
    form.checks = [check for check in checks if _unless_true(check.condition) is not None]
    form.variables = rebuild.variables(form.variables)
    form.serial = frozenset(rebuild.variables(tuple(form.serial)))
    form.safe = safety()


def _unless_true(condition: Expr) -> Expr | None:
    return None if condition is TRUE else condition
