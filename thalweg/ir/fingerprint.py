"""Digests of kernels and expressions, up to renaming of variables.

The fingerprint of a kernel leaves out its integers (sizes, strides, bounds, constants) and lists
them: kernels of one fingerprint are the same loops over other sizes. With the integers that differ
replaced by `Dynamic` ones, read at run time, they are the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from thalweg.ir.dynamic import Dynamic, dynamic
from thalweg.ir.expr import Call, Const, Expr, Index, Load, Reduce, Scan, Variable, Word, constant
from thalweg.ir.index import Affine, Term, term_expression
from thalweg.ir.kernel import Access, Argument, Kernel, KernelRewriter, Loops
from thalweg.ir.rewrite import postorder
from thalweg.platform.caches import memoized


class _Summary(NamedTuple):
    """The digest of a kernel, its integers, and which of them are constants of offsets."""

    digest: bytes
    integers: tuple[int, ...]
    starts: frozenset[int]


_summaries = WeakKeyDictionary[Kernel, _Summary]()


def fingerprint(kernel: Kernel) -> bytes:
    """A digest of everything in a kernel but its integers."""
    return _summary(kernel).digest


def integers(kernel: Kernel) -> tuple[int, ...]:
    """All integers of a kernel, in the order in which a rewriter visits them."""
    return _summary(kernel).integers


def places_of_offsets(kernel: Kernel) -> frozenset[int]:
    """Which of a kernel's integers are the constants of offsets of loads and stores."""
    return _summary(kernel).starts


def _summary(kernel: Kernel) -> _Summary:
    found = _summaries.get(kernel)
    if found is None:
        digest = _Digest()
        digest.kernel(kernel)
        numbers, starts = tuple(digest.integers), frozenset(digest.starts)
        found = _summaries[kernel] = _Summary(digest.result(), numbers, starts)
    return found


def _is_integer(part: Expr) -> bool:
    """Whether an expression counts as an integer of the kernel."""
    if isinstance(part, Const):
        return part.is_index and -(1 << 63) <= int(part.value) < 1 << 63
    return isinstance(part, Word)


class _Digest:
    """Hashes a kernel. Variables, buffers and expressions are numbered in order of appearance."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self._variables: dict[Variable, int] = {}
        self._buffers: dict[Any, int] = {}
        self._nodes: dict[Expr, int] = {}
        self.integers: list[int] = []
        self.starts: list[int] = []

    def result(self) -> bytes:
        return self._hash.digest()

    def kernel(self, kernel: Kernel) -> None:
        """Hash a kernel, in the order in which `KernelRewriter` visits it."""
        self.update(type(kernel).__name__)
        for argument in kernel.arguments:
            self.update(f"{self._buffer(argument)}{argument.dtype}{argument.written}")
            self.integers.append(argument.size)
        if isinstance(kernel, Loops):
            self.variables(kernel.variables)
            self.update(str(sorted(self._variables[v] for v in kernel.serial)))
        else:
            self.update(str(kernel.dtype))
            for group in (kernel.batch, kernel.rows, kernel.columns, kernel.reduced):
                self.variables(group)
            for access in (kernel.a, kernel.b):
                self._access(access)
        for store in kernel.stores:
            self.update(f"s{self._buffer(store.buffer)}{store.combine}")
            self.variables(store.variables)
            self._offset(store.offset, begins=True)
            self.value(store.value)
            self.value(store.inside)
            self.update(str(sorted(self._variables[v] for v in store.distinct)))
        for check in kernel.checks if isinstance(kernel, Loops) else ():
            self.update(f"check{check.fault}")
            self.variables(check.variables)
            self.value(check.condition)

    def _access(self, access: Access) -> None:
        self.value(access.value)
        for low, place, high in access.bounds:
            self.integers.append(low)
            self._offset(place)
            self.integers.append(high)

    def update(self, text: str) -> None:
        self._hash.update(text.encode())
        self._hash.update(b";")

    def variables(self, variables: Sequence[Variable]) -> None:
        self.update(",".join([self._variable(variable) for variable in variables]))

    def _variable(self, variable: Variable) -> str:
        number = self._variables.get(variable)
        if number is None:
            number = self._variables[variable] = len(self._variables)
            self.integers.append(variable.extent)
        # Loops of extents 0 and 1 are other code, not other sizes.
        return f"v{number}:{int(variable.extent)}" if variable.extent < 2 else f"v{number}"

    def _buffer(self, buffer: Any) -> str:
        return f"b{self._buffers.setdefault(buffer, len(self._buffers))}"

    def value(self, root: Expr | None) -> None:
        """Hash an expression: its new nodes, then its number."""
        if root is None:
            self.update("-")
            return
        for node in postorder([root], self._nodes):
            if not _is_integer(node):
                self._nodes[node] = len(self._nodes)
                self.update(self._node_text(node))
        self.update(self._reference(root))

    def _reference(self, part: Expr) -> str:
        number = self._nodes.get(part)
        if number is not None:
            return f"@{number}"
        assert isinstance(part, Const | Word)
        self.integers.append(part.number if isinstance(part, Word) else int(part.value))
        return f"#{part.dtype}"

    def _node_text(self, node: Expr) -> str:
        if isinstance(node, Load):
            self.starts.append(len(self.integers))
            return f"load {self._buffer(node.buffer)}{self._offset_text(node.offset)}"
        fields = self._fields(node)
        parts = ",".join([self._reference(part) for part in node.parts])
        return f"{type(node).__name__}{node.dtype} {fields} {parts}"

    def _fields(self, node: Expr) -> str:
        """The fields of a node besides its parts."""
        match node:
            case Const():
                return repr(node.value)
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

    def _offset(self, offset: Affine, begins: bool = False) -> None:
        for part in offset.parts:
            self.value(part)
        if begins:
            self.starts.append(len(self.integers))
        self.update(self._offset_text(offset))

    def _offset_text(self, offset: Affine) -> str:
        """An offset as text; terms in their order."""
        self.integers.append(offset.constant)
        terms: list[str] = []
        for term, factor in offset.terms.items():
            self.integers.append(factor)
            terms.append(f"{'u' if factor == 1 else 'f'}{self._term(term)}")
        return f"o{'' if offset.constant else 'z'}{','.join(terms)}"

    def _term(self, term: Term) -> str:
        if isinstance(term, Variable):
            return self._variable(term)
        assert isinstance(term, Expr), "in a kernel quotients and remainders are expressions"
        return self._reference(term)


# Replacing integers


def with_dynamic(kernel: Kernel, places: Collection[int], first_word: int) -> Kernel:
    """The kernel with some of its `integers` read from argument words, from `first_word` on."""
    words = {place: first_word + number for number, place in enumerate(sorted(places))}
    numbers = [
        dynamic(number, words[place]) if place in words else number
        for place, number in enumerate(integers(kernel))
    ]
    result = _ReplaceIntegers(numbers).kernel(kernel)
    _summaries[result] = _summary(kernel)._replace(integers=tuple(numbers))
    return result


class _ReplaceIntegers(KernelRewriter):
    """Replaces the integers of a kernel, in the order of `integers`.

    Equal integers at two positions are distinct: for another size only one of them may change.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self._numbers = iter(numbers)
        self._variables: dict[Variable, Variable] = {}
        self._arguments: dict[Argument, Argument] = {}

    def buffer(self, buffer: Argument) -> Argument:
        if buffer not in self._arguments:
            self._arguments[buffer] = replace(buffer, size=next(self._numbers))
        return self._arguments[buffer]

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            self._variables[variable] = Variable(next(self._numbers), variable.name)
        return self._variables[variable]

    def access(self, access: Access) -> Access:
        value = self.of(access.value)
        bounds = [
            (next(self._numbers), self.place(place), next(self._numbers))
            for _, place, _ in access.bounds
        ]
        return Access(value, tuple(bounds))

    # Expressions

    def of(self, root: Expr) -> Expr:
        return self.new(root) if _is_integer(root) else super().of(root)

    def needed(self, node: Expr) -> Iterable[Expr]:
        return [part for part in node.parts if not _is_integer(part)]

    def new(self, part: Expr) -> Expr:
        if not _is_integer(part):
            return super().new(part)
        number = next(self._numbers)
        if isinstance(number, Dynamic):
            return Word(number, part.dtype.name)
        return constant(number, part.dtype)

    def offset(self, offset: Affine) -> Affine:
        constant, terms = next(self._numbers), dict[Term, int]()
        for term in offset.terms:
            number = next(self._numbers)
            is_variable = isinstance(term, Variable)
            made = self.renamed(term) if is_variable else self.new(term_expression(term))
            terms[made] = number
        return Affine(constant, terms)

    def load(self, buffer: Argument, offset: Affine) -> Expr:
        return Load(self.buffer(buffer), offset)


# Expressions of nests


def structure(parts: Sequence[Expr | Affine], variables: Sequence[Variable]) -> Hashable:
    """A key of expressions and offsets over these variables: equal keys compute the same values
    from the same buffers."""
    to = _Canonical()
    extents = tuple([to.renamed(variable).extent for variable in variables])
    return extents, *[to.place(p) if isinstance(p, Affine) else to.of(p) for p in parts]


class _Canonical(KernelRewriter):
    """Renames variables by extent and order of appearance, so that equal expressions become one
    object."""

    def __init__(self) -> None:
        super().__init__()
        self._variables: dict[Variable, Variable] = {}

    def renamed(self, variable: Variable) -> Variable:
        if variable not in self._variables:
            self._variables[variable] = _canonical(len(self._variables), variable.extent)
        return self._variables[variable]


@memoized(4_096)
def _canonical(number: int, extent: int) -> Variable:
    return Variable(extent, f"v{number}")
