"""What a kernel or an expression is, as a digest, whatever its variables are called.

The digest of a kernel leaves its integers out (`thalweg.ir.parametric` lists them): kernels of one
fingerprint are the same loops over other sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

from thalweg.ir.expr import Call, Const, Expr, Index, Load, Reduce, Scan, Word
from thalweg.ir.index import Affine, Term
from thalweg.ir.kernel import Kernel, Loops
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import postorder

_known = WeakKeyDictionary[Kernel, bytes]()


def fingerprint(kernel: Kernel) -> bytes:
    """A digest of everything in a kernel but its integers."""
    found = _known.get(kernel)
    if found is None:
        found = _known[kernel] = _Digest(with_integers=False).kernel(kernel)
    return found


def note_fingerprint(kernel: Kernel, digest: bytes) -> None:
    """Say what the fingerprint of a kernel is that was made of another one."""
    _known[kernel] = digest


def structure(parts: Sequence[Any], variables: Sequence[Variable]) -> Hashable:
    """A key of expressions and offsets over these variables: equal ones compute the same from the
    same buffers."""
    digest = _Digest(with_integers=True)
    digest.variables(variables)
    for part in parts:
        if isinstance(part, Affine):
            digest.say(digest.affine(part))
        else:
            digest.value(part)
    return digest.result(), tuple(digest.buffers)


def is_integer(part: Expr) -> bool:
    """Whether a part of a kernel is one of its integers."""
    if isinstance(part, Const):
        return part.is_index and -(1 << 63) <= int(part.value) < 1 << 63
    return isinstance(part, Word)


class _Digest:
    """Variables, buffers and expressions are called by numbers, in the order of appearance."""

    def __init__(self, with_integers: bool) -> None:
        self._hash = blake2b(digest_size=16)
        self._with_integers = with_integers
        self._variables: dict[Variable, int] = {}
        self.buffers: dict[Any, int] = {}
        self._nodes: dict[Expr, int] = {}

    def result(self) -> bytes:
        return self._hash.digest()

    def kernel(self, kernel: Kernel) -> bytes:
        self.say(type(kernel).__name__)
        for argument in kernel.arguments:
            self.say(f"{self._buffer(argument)}{argument.dtype}{argument.written}")
        if isinstance(kernel, Loops):
            self.variables(kernel.variables)
            for check in kernel.checks:
                self.say(f"check{check.fault}")
                self.variables(check.variables)
                self.value(check.condition)
            self.say(str(sorted(self._variables[v] for v in kernel.serial)))
        else:
            self.say(str(kernel.dtype))
            for group in (kernel.batch, kernel.rows, kernel.columns, kernel.reduced):
                self.variables(group)
            for access in (kernel.a, kernel.b):
                self.value(access.value)
                for _, place, _ in access.bounds:
                    self._offset(place)
        for store in kernel.stores:
            self.say(f"s{self._buffer(store.buffer)}{store.combine}")
            self.variables(store.variables)
            self._offset(store.offset)
            self.value(store.value)
            self.value(store.inside)
            self.say(str(sorted(self._variables[v] for v in store.distinct)))
        return self.result()

    def say(self, text: str) -> None:
        self._hash.update(text.encode())
        self._hash.update(b";")

    def variables(self, variables: Sequence[Variable]) -> None:
        self.say(",".join([self._variable(variable) for variable in variables]))

    def _variable(self, variable: Variable) -> str:
        number = self._variables.setdefault(variable, len(self._variables))
        # Extents 0 and 1 mean other loops, not other sizes.
        has_extent = self._with_integers or variable.extent < 2
        return f"v{number}:{int(variable.extent)}" if has_extent else f"v{number}"

    def _buffer(self, buffer: Any) -> str:
        return f"b{self.buffers.setdefault(buffer, len(self.buffers))}"

    def value(self, root: Expr | None) -> None:
        """Say what an expression is: the nodes in it that are new, then which it is."""
        if root is None:
            self.say("-")
            return
        for node in postorder([root], self._nodes):
            if self._with_integers or not is_integer(node):
                self._nodes[node] = len(self._nodes)
                self.say(self._line(node))
        self.say(self._part(root))

    def _part(self, part: Expr) -> str:
        number = self._nodes.get(part)
        return f"#{part.dtype}" if number is None else f"@{number}"

    def _line(self, node: Expr) -> str:
        if isinstance(node, Load):
            return f"load {self._buffer(node.buffer)}{self._place(node.offset)}"
        parts = ",".join([self._part(part) for part in node.parts])
        return f"{type(node).__name__}{node.dtype} {self._fields(node)} {parts}"

    def _fields(self, node: Expr) -> str:
        """What distinguishes a node from others of the same parts."""
        match node:
            case Const():
                return repr(node.value)
            case Word():
                return str(node.number.word)
            case Index():
                return self._variable(node.variable)
            case Call():
                return node.function
            case Reduce():
                return f"{node.combine} {','.join(map(self._variable, node.variables))}"
            case Scan():
                along = self._variable(node.variable)
                return f"{node.combine} {along} {node.exclusive} {node.reverse}"
            case _:
                return ""

    def _place(self, offset: Affine) -> str:
        return self.affine(offset) if self._with_integers else self._offset_text(offset)

    def _offset(self, offset: Affine) -> None:
        for part in offset.parts:
            self.value(part)
        self.say(self._offset_text(offset))

    def _offset_text(self, offset: Affine) -> str:
        """A sum in a kernel, in the order in which `thalweg.ir.parametric` lists its integers."""
        terms = [
            f"{'u' if factor == 1 else 'f'}{self._term(term)}"
            for term, factor in offset.terms.items()
        ]
        return f"o{'' if offset.constant else 'z'}{','.join(terms)}"

    def affine(self, place: Affine) -> str:
        """A sum in a nest, whatever the order of its terms."""
        for part in place.parts:
            self.value(part)
        terms = sorted(f"{factor}*{self._term(term)}" for term, factor in place.terms.items())
        return "+".join([str(place.constant), *terms])

    def _term(self, term: Term) -> str:
        if isinstance(term, Variable):
            return self._variable(term)
        if isinstance(term, Expr):
            return self._part(term)
        return f"({self.affine(term.number)}//{term.divisor}%{term.modulus})"
