"""What a kernel or an expression is, as a digest, whatever its variables are called.

The digest of a kernel leaves its integers out, every size, stride, bound and whole number, and
lists them: kernels of one fingerprint are the same loops over other sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from thalweg.ir.expr import Call, Const, Expr, Index, Load, Reduce, Scan, Word
from thalweg.ir.index import Affine, Term
from thalweg.ir.kernel import Access, Kernel, Loops
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import postorder


class _Facts(NamedTuple):
    """The digest of a kernel, its integers, and which of them are where a load or store begins."""

    digest: bytes
    integers: tuple[int, ...]
    starts: frozenset[int]


_known = WeakKeyDictionary[Kernel, _Facts]()


def fingerprint(kernel: Kernel) -> bytes:
    """A digest of everything in a kernel but its integers."""
    return _facts(kernel).digest


def integers(kernel: Kernel) -> tuple[int, ...]:
    """All integers of a kernel, in the order in which a rewriter comes to them."""
    return _facts(kernel).integers


def places_of_offsets(kernel: Kernel) -> frozenset[int]:
    """Which of a kernel's integers are where a load or store begins: the constants of offsets."""
    return _facts(kernel).starts


def note_integers(kernel: Kernel, like: Kernel, numbers: Sequence[int]) -> None:
    """Say that a kernel was made of another one, with these integers in the place of its own."""
    _known[kernel] = _facts(like)._replace(integers=tuple(numbers))


def _facts(kernel: Kernel) -> _Facts:
    found = _known.get(kernel)
    if found is None:
        digest = _Digest(with_integers=False)
        digest.kernel(kernel)
        numbers, starts = tuple(digest.integers), frozenset(digest.starts)
        found = _known[kernel] = _Facts(digest.result(), numbers, starts)
    return found


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
        self.integers: list[int] = []
        self.starts: list[int] = []

    def result(self) -> bytes:
        return self._hash.digest()

    def kernel(self, kernel: Kernel) -> None:
        """Say what a kernel is, in the order of `thalweg.ir.kernel.KernelRewriter`."""
        self.say(type(kernel).__name__)
        for argument in kernel.arguments:
            self.say(f"{self._buffer(argument)}{argument.dtype}{argument.written}")
            self.integers.append(argument.size)
        if isinstance(kernel, Loops):
            self.variables(kernel.variables)
            self.say(str(sorted(self._variables[v] for v in kernel.serial)))
        else:
            self.say(str(kernel.dtype))
            for group in (kernel.batch, kernel.rows, kernel.columns, kernel.reduced):
                self.variables(group)
            for access in (kernel.a, kernel.b):
                self._access(access)
        for store in kernel.stores:
            self.say(f"s{self._buffer(store.buffer)}{store.combine}")
            self.variables(store.variables)
            self._offset(store.offset, begins=True)
            self.value(store.value)
            self.value(store.inside)
            self.say(str(sorted(self._variables[v] for v in store.distinct)))
        for check in kernel.checks if isinstance(kernel, Loops) else ():
            self.say(f"check{check.fault}")
            self.variables(check.variables)
            self.value(check.condition)

    def _access(self, access: Access) -> None:
        self.value(access.value)
        for low, place, high in access.bounds:
            self.integers.append(low)
            self._offset(place)
            self.integers.append(high)

    def say(self, text: str) -> None:
        self._hash.update(text.encode())
        self._hash.update(b";")

    def variables(self, variables: Sequence[Variable]) -> None:
        self.say(",".join([self._variable(variable) for variable in variables]))

    def _variable(self, variable: Variable) -> str:
        number = self._variables.get(variable)
        if number is None:
            number = self._variables[variable] = len(self._variables)
            self.integers.append(variable.extent)
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
        if number is not None:
            return f"@{number}"
        assert isinstance(part, Const | Word)
        self.integers.append(part.number if isinstance(part, Word) else int(part.value))
        return f"#{part.dtype}"

    def _line(self, node: Expr) -> str:
        if isinstance(node, Load):
            return f"load {self._buffer(node.buffer)}{self._place(node.offset)}"
        fields = self._fields(node)
        parts = ",".join([self._part(part) for part in node.parts])
        return f"{type(node).__name__}{node.dtype} {fields} {parts}"

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
        if self._with_integers:
            return self.affine(offset)
        self.starts.append(len(self.integers))
        return self._offset_text(offset)

    def _offset(self, offset: Affine, begins: bool = False) -> None:
        for part in offset.parts:
            self.value(part)
        if begins:
            self.starts.append(len(self.integers))
        self.say(self._offset_text(offset))

    def _offset_text(self, offset: Affine) -> str:
        """A sum in a kernel, its terms in their order."""
        self.integers.append(offset.constant)
        terms: list[str] = []
        for term, factor in offset.terms.items():
            self.integers.append(factor)
            terms.append(f"{'u' if factor == 1 else 'f'}{self._term(term)}")
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
