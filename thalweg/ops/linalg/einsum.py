"""Einstein summation: a contraction of any number of tensors, in index notation.

The equation is parsed into one string of letters per tensor and one for the result; the tensors
are then contracted from left to right, each time by a sum, a product or a batched matrix product.
If the number of axes of an ellipsis is known only at run time, they are merged to one axis first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any, cast

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size
from thalweg.ops.arrays import diagonal, joining, transposing
from thalweg.ops.core import broadcast, choosing, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import compare, reduce
from thalweg.public import public

_EQUATION = re.compile(r"[a-zA-Z.,]*(->[a-zA-Z.]*)?")
_ELLIPSIS = "..."


@public("einsum", "linalg.einsum")
def einsum(equation: str, *inputs: TensorLike, name: str | None = None) -> Tensor:
    """The sum of products of an equation in index notation.

    Args:
        equation: such as "ij,jk->ik": a letter for each axis of each input, and of the result;
            letters that the result lacks are summed over. "..." are any axes.
        inputs: the tensors, of one dtype.
        name: the name of the nodes.

    Returns:
        A tensor with the axes of the right side.

    Example:
        >>> a, b = tf.ones([2, 3]), tf.ones([2, 3])
        >>> sess.run(tf.einsum("ij,ij->i", a, b))
        array([3., 3.], dtype=float32)
    """
    if not isinstance(cast("Any", equation), str):
        raise TypeError(f"The equation of einsum must be a string, not {equation!r}")
    with name_scope(name, "einsum", list(inputs)):
        tensors = _tensors(inputs)
        spelled = equation.replace(" ", "")
        _check_format(spelled, tensors)
        if any(tensor.shape.rank is None for tensor in tensors):
            return _einsum_of_unknown_ranks(spelled, tensors)
        return _einsum(spelled, tensors)


def _einsum(equation: str, tensors: list[Tensor]) -> Tensor:
    """The contraction of tensors of known ranks."""
    terms, result = _parsed(equation, tensors)
    operands = [_Operand(*pair) for pair in zip(tensors, terms, strict=True)]
    operands = _without_stretched(operands)
    _check_sizes(equation, operands)
    return _contracted([o.diagonals() for o in operands], result).arranged(result).tensor


def _tensors(inputs: tuple[Any, ...]) -> list[Tensor]:
    given = next((i for i in inputs if isinstance(i, Tensor)), None)
    kind = None if given is None else given.dtype.base_dtype
    return [convert_to_tensor(value, preferred_dtype=kind) for value in inputs]


# The equation


def _parsed(equation: str, tensors: list[Tensor]) -> tuple[list[str], str]:
    """The letters of each tensor, and those of the result; ellipses become digits."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    terms = [_spelled(term, tensor) for term, tensor in zip(terms, tensors, strict=True)]
    hidden = max((_digits(term) for term in terms), key=len)
    if not arrow:
        return terms, hidden + _appearing_once(terms)
    result = _replaced(result, hidden)
    _check_result(result, terms)
    return terms, result


def _check_format(equation: str, tensors: list[Tensor]) -> None:
    if not _EQUATION.fullmatch(equation):
        raise ValueError(f"Indices have incorrect format: {equation!r}")
    count = equation.partition("->")[0].count(",") + 1
    if count != len(tensors):
        raise ValueError(f"Got {len(tensors)} inputs for equation {equation!r}, not {count}")


def _spelled(term: str, tensor: Tensor) -> str:
    """A term with its ellipsis replaced by a digit for each axis, counted from the right."""
    rank = tensor.shape.rank or 0
    missing = rank - len(term.replace(_ELLIPSIS, ""))
    if missing < 0 or (missing and _ELLIPSIS not in term):
        raise ValueError(
            f"The term {term!r} does not fit {tensor.name} of shape {tensor.shape}, of rank {rank}"
        )
    return _replaced(term, "".join(str(i) for i in reversed(range(missing))))


def _replaced(term: str, hidden: str) -> str:
    spelled = term.replace(_ELLIPSIS, hidden, 1)
    if "." in spelled:
        raise ValueError(f"The term {term!r} has a dot that is not part of one ellipsis")
    return spelled


def _digits(term: str) -> str:
    return "".join(letter for letter in term if letter.isdigit())


def _appearing_once(terms: list[str]) -> str:
    letters = [letter for letter in "".join(terms) if not letter.isdigit()]
    return "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))


def _check_result(result: str, terms: list[str]) -> None:
    for letter in result:
        if result.count(letter) > 1:
            raise ValueError(f"Index {letter!r} appears twice in the result {result!r}")
        if not any(letter in term for term in terms):
            raise ValueError(f"Unknown index {letter!r} in the result: no input has it")


# Ellipses of unknown rank


def _einsum_of_unknown_ranks(equation: str, tensors: list[Tensor]) -> Tensor:
    """Merge the broadcast axes of ellipses to one axis, which is split again at the end."""
    left, _, result = equation.partition("->")
    terms = left.split(",")
    if "->" not in equation:
        result = (_ELLIPSIS if _ELLIPSIS in left else "") + _appearing_once(
            [term.replace(_ELLIPSIS, "") for term in terms]
        )
    led = [_LeadingEllipsis.of(*pair) for pair in zip(terms, tensors, strict=True)]
    hidden = [operand.hidden for operand in led if operand.hidden is not None]
    if not hidden:
        return _einsum(equation, [operand.tensor for operand in led])
    common = fold(broadcast.broadcast_dynamic_shape, hidden)
    flat = _einsum(
        ",".join(operand.term for operand in led) + "->" + _leading(result),
        [operand.merged(common) for operand in led],
    )
    if _ELLIPSIS not in result:
        return flat
    split = shaping.reshape(flat, joining.concat([common, shaping.shape(flat)[1:]], 0))
    return transposing.transpose(split, _order_from_leading(result, shaping.rank(split)))


def _leading(term: str) -> str:
    """A term with its ellipsis first."""
    if _ELLIPSIS not in term:
        return term
    return _ELLIPSIS + _replaced(term, "")


@dataclass(frozen=True)
class _LeadingEllipsis:
    """A tensor with the axes of the ellipsis first, and their sizes, if it has any."""

    tensor: Tensor
    term: str
    hidden: Tensor | None

    @staticmethod
    def of(term: str, tensor: Tensor) -> _LeadingEllipsis:
        named = len(_replaced(term, ""))
        if _ELLIPSIS not in term:
            return _LeadingEllipsis(shaping.ensure_shape(tensor, [None] * named), term, None)
        moved = transposing.transpose(tensor, _order_to_leading(term, shaping.rank(tensor)))
        sizes = shaping.shape(moved)
        return _LeadingEllipsis(moved, _leading(term), sizes[: shaping.rank(moved) - named])

    def merged(self, common: Tensor) -> Tensor:
        """The tensor with the axes of the ellipsis broadcast to `common` and merged."""
        if self.hidden is None:
            return self.tensor
        count = len(_replaced(self.term, ""))
        sizes = shaping.shape(self.tensor)
        named = sizes[shaping.rank(self.tensor) - count :]
        whole = broadcast.broadcast_to(self.tensor, joining.concat([common, named], 0))
        one = shaping.reshape(reduce.reduce_prod(common), [1])
        flat = shaping.reshape(whole, joining.concat([one, named], 0))
        flat.set_shape([None] * (1 + count))
        return flat


def _order_to_leading(term: str, rank: Tensor) -> Tensor:
    """The permutation that moves the axes of the ellipsis to the front."""
    before, _, after = term.partition(_ELLIPSIS)
    end = rank - len(after)
    parts = filling.range(len(before), end), filling.range(len(before)), filling.range(end, rank)
    return joining.concat(parts, 0)


def _order_from_leading(term: str, rank: Tensor) -> Tensor:
    """The inverse of `_order_to_leading`."""
    before, _, after = term.partition(_ELLIPSIS)
    end, hidden = rank - len(after), rank - len(after) - len(before)
    parts = filling.range(hidden, end), filling.range(hidden), filling.range(end, rank)
    return joining.concat(parts, 0)


# Operands


@dataclass(frozen=True)
class _Operand:
    """A tensor and the letter of each of its axes."""

    tensor: Tensor
    letters: str

    def static(self, letter: str) -> Size:
        """The static size of an axis."""
        sizes = self.tensor.shape.sizes or ()
        return sizes[self.letters.index(letter)]

    def size(self, letter: str) -> Any:
        """The size of an axis: a number, or a scalar tensor if it is not static."""
        known = self.static(letter)
        return shaping.shape(self.tensor)[self.letters.index(letter)] if known is None else known

    def arranged(self, letters: str) -> _Operand:
        """The operand with its axes permuted."""
        if letters == self.letters:
            return self
        order = [self.letters.index(letter) for letter in letters]
        return _Operand(transposing.transpose(self.tensor, order), letters)

    def summed(self, kept: str) -> _Operand:
        """The sum over the axes that are not kept."""
        axes = [axis for axis, letter in enumerate(self.letters) if letter not in kept]
        if not axes:
            return self
        letters = "".join(letter for letter in self.letters if letter in kept)
        return _Operand(reduce.reduce_sum(self.tensor, axes), letters)

    def diagonals(self) -> _Operand:
        """Replace axes with equal letters by their diagonal."""
        for letter in self.letters:
            if self.letters.count(letter) > 1:
                return self._diagonal(letter).diagonals()
        return self

    def _diagonal(self, letter: str) -> _Operand:
        first = self.letters.index(letter)
        second = self.letters.index(letter, first + 1)
        others = [axis for axis in range(len(self.letters)) if axis not in (first, second)]
        moved = transposing.transpose(self.tensor, [*others, first, second])
        letters = "".join(self.letters[axis] for axis in others) + letter
        return _Operand(diagonal.matrix_diag_part(moved), letters)


def _without_stretched(operands: list[_Operand]) -> list[_Operand]:
    """Remove axes of an ellipsis that broadcast: those of size 1 beside another size."""
    stretched = [
        "".join(d for d in _digits(o.letters) if o.static(d) == 1 and _elsewhere(d, operands))
        for o in operands
    ]
    return [
        o.summed("".join(letter for letter in o.letters if letter not in out))
        for o, out in zip(operands, stretched, strict=True)
    ]


def _elsewhere(letter: str, operands: list[_Operand]) -> bool:
    return any(letter in o.letters and o.static(letter) != 1 for o in operands)


def _check_sizes(equation: str, operands: list[_Operand]) -> None:
    sizes: dict[str, int] = {}
    for operand in operands:
        for letter, size in zip(operand.letters, operand.tensor.shape.sizes or (), strict=True):
            if size is not None and sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"Inconsistent sizes {sizes[letter]} and {size} of index {letter!r} in "
                    f"{equation!r}"
                )


# Contraction


def _contracted(operands: list[_Operand], result: str) -> _Operand:
    """Contract all operands to one, whose letters are a permutation of the result's."""
    remaining = list(operands)
    total = remaining.pop(0)
    while True:
        needed = result + "".join(operand.letters for operand in remaining)
        total = total.summed(needed)
        if not remaining:
            return total
        following = remaining.pop(0)
        later = result + "".join(operand.letters for operand in remaining)
        total = _pair(total, following.summed(later + total.letters), later)


def _pair(left: _Operand, right: _Operand, later: str) -> _Operand:
    """The product of two operands, summed over their common letters that are not needed later."""
    shared = [letter for letter in left.letters if letter in right.letters]
    # The axes of an ellipsis may broadcast at run time: they are kept, and summed last.
    batch = "".join(letter for letter in shared if letter in later or letter.isdigit())
    inner = "".join(letter for letter in shared if letter not in batch)
    rows = "".join(letter for letter in left.letters if letter not in right.letters)
    columns = "".join(letter for letter in right.letters if letter not in left.letters)
    x = _as_matrices(left, batch, rows, inner)
    y = _as_matrices(right, batch, inner, columns)
    product = matmul.matmul(x, y) if inner else x * y
    sizes = [_first_size(letter, left, right) for letter in batch + rows + columns]
    return _Operand(shaping.reshape(product, sizes), batch + rows + columns)


def _as_matrices(operand: _Operand, batch: str, rows: str, columns: str) -> Tensor:
    """[*batch, all of rows, all of columns]"""
    arranged = operand.arranged(batch + rows + columns)
    if len(rows) == len(columns) == 1:
        return arranged.tensor
    sizes = [arranged.size(letter) for letter in batch]
    groups = [_product([arranged.size(letter) for letter in group]) for group in (rows, columns)]
    return shaping.reshape(arranged.tensor, sizes + groups)


def _product(sizes: list[Any]) -> Any:
    return fold(lambda x, y: x * y, sizes, 1)


def _first_size(letter: str, *operands: _Operand) -> Any:
    holders = [operand for operand in operands if letter in operand.letters]
    known = [o.static(letter) for o in holders if o.static(letter) is not None]
    if known:
        return known[0]
    sizes = [holder.size(letter) for holder in holders]
    if len(sizes) == 1 or not letter.isdigit():
        return sizes[0]
    return choosing.where_v2(compare.equal(sizes[0], 1), sizes[1], sizes[0])
