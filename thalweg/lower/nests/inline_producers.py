"""From an op's loop form to an expression over buffers: producers inlined, indices in normal form.

A tensor that has a buffer is loaded from it; any other is computed where it is read, by its own
loop form at the indices that are asked for. Guards that the ranges of indices settle vanish, equal
parts become one object, and an index that comes from data is clamped into its range, so that no
load leaves its buffer, and noted to be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.errors import OpError
from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import Expr
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine, FloorMod, affine, compared, expressed, is_index, number, total
from thalweg.ir.loop import IndexTuple, NotLowered, Operand, Scatter, Variable, lowered
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.specialise import NotCompiled, Specialised
from thalweg.ops.core.basic import Const

STREAM_WORDS = 6  # the place in a random stream that an op takes: key and counter
_MANY_TERMS = 32  # of a sum; those of fewer are resolved by recursion
_INDEX_ARITHMETIC = frozenset(
    {"index", "affine", "add", "sub", "neg", "mul", "floor_div", "remainder"}
)


@dataclass(frozen=True, eq=False)
class PendingCheck:
    """A condition on data that must hold, or the node fails."""

    condition: Expr
    node: Node


class Operands:
    """The operands of nodes, and back from an operand to its tensor."""

    def __init__(self, spec: Specialised) -> None:
        self._spec = spec
        self.tensors: dict[Operand, Tensor] = {}
        self.streams: dict[Operand, Node] = {}
        self._made: dict[Tensor, Operand] = {}

    def flat(self, node: Node) -> list[Operand]:
        """The operands of a node's inputs, one by one."""
        return [self._operand(tensor) for tensor in node.inputs]

    def of(self, node: Node) -> list[Any]:
        """What the node's loop form takes."""
        flat = self.flat(node)
        grouped = node.op.parsed.group(flat, node.input_counts())
        if node.op.has("stream"):
            stream = Operand(len(flat), (STREAM_WORDS,), np.dtype(np.uint32))
            self.streams[stream] = node
            grouped.append(stream)
        return grouped

    def _operand(self, tensor: Tensor) -> Operand:
        made = self._made.get(tensor)
        if made is None:
            kind = np.dtype(tensor.dtype.base_dtype.as_numpy_dtype)
            value = self._spec.values.get(tensor)
            made = Operand(len(self._made), self._spec.shapes[tensor], kind, value)
            self._made[tensor] = made
            self.tensors[made] = tensor
        return made


class Resolver:
    """Expressions over buffers, made from loop forms. One for the kernels of a region."""

    def __init__(self, spec: Specialised, operands: Operands) -> None:
        self._spec = spec
        self._operands = operands
        self.buffers: dict[Tensor, Buffer] = {}
        self.stream_buffers: dict[Node, Buffer] = {}
        self.needed: list[PendingCheck] = []
        self._interned: dict[Any, Expr] = {}
        self._elements: dict[tuple[Tensor, tuple[Affine, ...]], Any] = {}
        self._node: Node | None = None
        self._guards = 0

    def forget(self) -> None:
        """Let go of what was made: another nest has variables of its own, and shares nothing."""
        self._interned.clear()
        self._elements.clear()

    def form(self, node: Node, at: IndexTuple) -> Any:
        """An output of a node at a place: an expression over buffers, or a Scatter of them."""
        outer, self._node = self._node, node
        raw = lowered(node.op, at, self._operands.of(node))
        known: dict[int, Any] = {}
        if not isinstance(raw, Scatter):
            result = self._resolved(raw, known)
        else:
            result = Scatter(
                raw.combine,
                raw.variables,
                tuple(affine(self._resolved(index, known)) for index in raw.index),
                self._resolved(raw.value, known),
                self._resolved(raw.initial, known),
            )
        self._node = outer
        return result

    def element(self, tensor: Tensor, indices: tuple[Affine, ...]) -> Any:
        """An element of a tensor."""
        key = (tensor, indices)
        if key not in self._elements:
            self._elements[key] = self._element(tensor, indices)
        return self._elements[key]

    def _element(self, tensor: Tensor, indices: tuple[Affine, ...]) -> Any:
        shape = self._spec.shapes[tensor]
        value = self._spec.values.get(tensor)
        if value is not None and _is_literal(tensor, value, indices):
            return value[tuple(index.constant for index in indices)]
        buffer = self.buffers.get(tensor)
        if buffer is not None:
            return self.load(buffer, flat(indices, shape))
        places = [Expr("affine", (index,)) for index in indices]
        return self.form(tensor.op, IndexTuple.of(places, shape, tensor.value_index))

    def load(self, buffer: Buffer, offset: Affine) -> Expr:
        """An element of a buffer; asked for twice, it is the same object."""
        return self._intern(("load", buffer, offset), "load", (buffer, offset))

    def make(self, function: str, *arguments: Any) -> Expr:
        """A call of a function; made twice of the same parts, it is the same object."""
        return self._intern((function, *map(part_key, arguments)), function, arguments)

    def _intern(self, key: Any, function: str, arguments: tuple[Any, ...]) -> Expr:
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = Expr(function, arguments)
        return found

    # The walk

    def _resolved(self, raw: Any, known: dict[int, Any]) -> Any:
        if not isinstance(raw, Expr):
            return raw
        result = known.get(id(raw))
        if result is None:
            for part in first_sums(raw, known):
                known[id(part)] = self._walk(part, known)
            result = known[id(raw)] = self._walk(raw, known)
        return result

    def _walk(self, raw: Expr, known: dict[int, Any]) -> Any:
        function, arguments = raw.function, raw.arguments
        if function == "load":
            operand, indices = arguments
            return self._loaded(operand, indices, known)
        if function in _INDEX_ARITHMETIC and is_index(raw):
            return self._plain(affine(raw))
        if function == "reduce":
            kind, variables, body = arguments
            return self._reduced(kind, variables, body, known)
        if function == "select":
            return self._selected(arguments, known)
        parts = [self._resolved(part, known) for part in arguments]
        if _is_comparison(function) and all(is_index(part) for part in parts):
            settled = compared(function, affine(parts[0]), affine(parts[1]))
            if settled is not None:
                return settled
        if function in ("and", "or", "not"):
            return self._logical(function, parts)
        return self.make(function, *parts)

    def _plain(self, value: Affine) -> Any:
        result = expressed(value)
        if not isinstance(result, Expr):
            return result
        return self._intern(("affine", value), result.function, result.arguments)

    def _selected(self, arguments: tuple[Any, ...], known: dict[int, Any]) -> Any:
        condition = self._resolved(arguments[0], known)
        if isinstance(condition, bool | np.bool_):
            return self._resolved(arguments[1 if condition else 2], known)
        self._guards += 1  # what is read here may be left out, whatever its index is
        chosen, otherwise = (self._resolved(part, known) for part in arguments[1:])
        self._guards -= 1
        return self.make("select", condition, chosen, otherwise)

    def _logical(self, function: str, parts: list[Any]) -> Any:
        if function == "not":
            (only,) = parts
            settled = isinstance(only, bool | np.bool_)
            return (not only) if settled else self.make("not", only)
        absorbing = function == "or"
        settled = [bool(cast("Any", p)) for p in parts if isinstance(p, bool | np.bool_)]
        if absorbing in settled:
            return absorbing
        left = [part for part in parts if not isinstance(part, bool | np.bool_)]
        if not left:
            return not absorbing
        return left[0] if len(left) == 1 else self.make(function, *left)

    def _reduced(
        self, kind: str, variables: tuple[Variable, ...], body: Any, known: dict[int, Any]
    ) -> Any:
        inner = self._resolved(body, known)
        kept = tuple(variable for variable in variables if variable.extent != 1)
        if not kept and kind in ("argmax", "argmin"):
            return 0
        if not kept and kind in ("sum", "prod", "max", "min"):
            return inner
        # A reduction binds its variables: two are never the same object unless their parts are.
        return self.make("reduce", kind, kept or variables[:1], inner)

    def _loaded(self, operand: Operand, indices: Sequence[Any], known: dict[int, Any]) -> Any:
        node = self._operands.streams.get(operand)
        places = [self._index(index, known) for index in indices]
        if node is not None:
            return self.load(self.stream_buffers[node], places[0])
        inside = [
            self._within(place, size, index)
            for place, size, index in zip(places, operand.shape, indices, strict=True)
        ]
        if 0 in operand.shape:  # nothing is there, and nobody asks: places in it mean nothing
            return np.dtype(operand.dtype).type(0)
        return self.element(self._operands.tensors[operand], tuple(inside))

    def _index(self, index: Any, known: dict[int, Any]) -> Affine:
        if is_index(index):
            return affine(index)
        return affine(self._resolved(index, known))

    def _within(self, place: Affine, size: int, index: Any) -> Affine:
        """An index that comes from data, brought into its range; others are right by construction,
        or under a guard that keeps them from being read."""
        if all(not isinstance(atom, Expr) for atom in _atoms(place)):
            outside = place.is_constant and not 0 <= place.constant < size
            if outside and not is_index(index):
                assert self._node is not None
                raise NotCompiled(self._node, f"the index {place.constant} is out of range")
            return place
        low, high = place.bounds
        if low >= 0 and high < size:
            return place
        assert self._node is not None
        if not self._guards:
            self.need_within(place, size, self._node)
        above = self.make("max", self._plain(place), 0)
        return Affine(0, {self.make("min", above, max(size - 1, 0)): 1})

    def need_within(self, place: Affine, size: int, node: Node) -> None:
        """Note that an index from data must lie in [0, size)."""
        index = self._plain(place)
        inside = self.make("and", self.make("ge", index, 0), self.make("lt", index, size))
        self.needed.append(PendingCheck(inside, node))

    def need(self, node: Node) -> None:
        """Note what a node says of its inputs' values."""
        try:
            required = list(node.op.requires(*self._operands.of(node)))
        except (ValueError, TypeError, IndexError, NotLowered, OpError) as error:
            raise NotCompiled(node, f"its inputs do not fit: {error}") from error
        for requirement in required:
            condition = self._resolved(requirement.condition, {})
            if isinstance(condition, Expr):
                self.needed.append(PendingCheck(condition, node))
            elif not condition and all(v.extent for v in requirement.variables):
                raise NotCompiled(node, "its inputs are not what it requires")


def reads_data(place: Affine) -> bool:
    """Whether an index is more than sums of variables and their digits."""
    return any(isinstance(atom, Expr) for atom in _atoms(place))


def is_from_data(place: Affine) -> bool:
    """Whether an index was read from memory; one that is the place of an extreme was not."""
    found = [atom for atom in _atoms(place) if isinstance(atom, Expr)]
    return any(atom.function != "reduce" for atom in found)


def _is_literal(tensor: Tensor, value: Any, indices: tuple[Affine, ...]) -> bool:
    """Whether a known element goes into the code as a number. One that follows from sizes is read
    from memory: other sizes, the same code."""
    fixed = isinstance(tensor.op.op, Const) or value.dtype.kind in "iub"
    return fixed and all(index.is_constant for index in indices)


def _atoms(value: Affine) -> list[Any]:
    """The atoms of a sum, those inside digits among them."""
    found: list[Any] = []
    for atom in value.terms:
        found += _atoms(atom.number) if isinstance(atom, FloorMod) else [atom]
    return found


def part_key(part: Any) -> Any:
    """What an argument of an expression is told by; of an expression, its identity."""
    if isinstance(part, Expr):
        return id(part)
    if isinstance(part, tuple):
        return cast("Any", part)
    if isinstance(part, int | float | np.generic):
        return type(cast("Any", part)).__name__, repr(cast("Any", part))
    return str(part)


def flat(indices: Sequence[Affine], shape: Sequence[int]) -> Affine:
    """The row-major number of an element."""
    parts: list[Affine] = []
    stride = 1
    for index, size in zip(reversed(indices), reversed(shape), strict=True):
        parts.append(index.scaled(stride))
        stride *= size
    return total(parts) if parts else number(0)


def first_sums(part: Expr, known: Container[int]) -> list[Expr]:
    """The sums that a long sum begins with, the innermost first and without known ones: what makes
    a sum of thousands of terms again goes by them, as calls of Python do not go that deep."""
    found: list[Expr] = []
    first = part.arguments[0] if part.function == "add" else None
    while isinstance(first, Expr) and first.function == "add" and id(first) not in known:
        found.append(first)
        first = first.arguments[0]
    return found[::-1] if len(found) > _MANY_TERMS else []


def walk(roots: Sequence[Any], visit: Callable[[Expr], None]) -> None:
    """Call `visit` on every expression once, those inside offsets among them."""
    pending, seen = list(roots), set[int]()
    while pending:
        part = pending.pop()
        # Far quicker than asking for instances, and none is of a subclass.
        kind = part.__class__
        if kind is Expr:
            if id(part) not in seen:
                seen.add(id(part))
                visit(part)
                pending += part.arguments
        elif kind is Affine:
            pending += _atoms(part)
        elif kind is tuple:
            pending += part


def _is_comparison(function: str) -> bool:
    row = FUNCTIONS.get(function)
    return row is not None and row.comparison is not None
