"""Scalar expressions: the value of one element of an output.

An op's block builds them from the elements of its inputs (`element`), or from loads at computed
indices and reductions over index variables (`loop`, see `thalweg.ir.loop`). Lowering replaces loads
of operands by loads of buffers; code generators emit them. `thalweg.ir.interpret` evaluates them on
NumPy arrays, by which tests check lowerings against the reference kernels.

Expressions are typed and hash-consed: equal ones are one object, in a table that holds them weakly,
so `is` compares structure and a dictionary keyed by nodes is a memo. A key of the table holds ids
of objects that its node references: it is valid while the node lives and keeps nothing alive.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

from thalweg.ir.functions.dtypes import BOOL, INT64, Dtype, common_dtype
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.platform.caches import memoized
from thalweg.platform.forks import freed_after_fork

if TYPE_CHECKING:
    from thalweg.ir.dynamic import Dynamic
    from thalweg.ir.index import Affine
    from thalweg.ir.loop import Operand
    from thalweg.ir.rewrite import Rewriter

_ARITHMETIC = frozenset({"add", "sub", "neg", "mul", "floor_div", "remainder"})

COMPARISONS = {name: row.comparison for name, row in FUNCTIONS.items() if row.comparison}

#: Functions whose result has the dtype of all arguments, where these are numbers.
_KEEPS_DTYPE = _ARITHMETIC | {"max", "min"}

#: Functions of int64 and a Python integer that are computed in int64.
_KEEPS_INT64 = _KEEPS_DTYPE | COMPARISONS.keys()

_names = itertools.count()

_NODES = WeakValueDictionary[tuple[Any, ...], Any]()
_LOCK = freed_after_fork(RLock())  # held to add a node, not to find one
_find = _NODES.get
_set = object.__setattr__


@dataclass(frozen=True, eq=False)
class Variable:
    """An index variable: it takes the values 0 … extent - 1."""

    extent: int
    name: str

    @classmethod
    def fresh(cls, extent: int) -> Variable:
        """A new variable."""
        return cls(int(extent), f"i{next(_names)}")


def _operator(function: str) -> Callable[[Expr, Any], Expr]:
    """The operator method that calls a function of the table."""
    return lambda left, right: _applied(function, (left, right))


def _reflected(function: str) -> Callable[[Expr, Any], Expr]:
    """The reflected operator method, for a number on the left."""
    return lambda right, left: _applied(function, (left, right))


class Expr:
    """An expression. `parts` are its operands, those in the offset of a load included.

    `is_index` says that it is integer arithmetic on index variables and constants alone.
    """

    __slots__ = ("__weakref__", "dtype", "free", "is_index", "normal_form", "parts")
    __match_args__: ClassVar[tuple[str, ...]] = ()

    dtype: Dtype
    is_index: bool
    parts: tuple[Expr, ...]
    normal_form: Any  # cached by `thalweg.ir.index.affine`
    free: frozenset[Variable] | None  # cached by `thalweg.ir.rewrite.free_variables`

    def rebuild(self, to: Rewriter) -> Expr:
        """This node with the parts that a rewriter has made."""
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)

    def __repr__(self) -> str:
        fields = ", ".join(repr(getattr(self, name)) for name in self.__match_args__)
        return f"{type(self).__name__}({fields})"

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __floordiv__, __mod__ = _operator("floor_div"), _operator("remainder")
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")
    __and__, __or__ = _operator("and"), _operator("or")

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __invert__(self) -> Expr:
        return call("not", self)

    def __getattr__(self, function: str) -> Callable[..., Expr]:
        """`x.exp()`, `x.max(y)`: any function of the table, with this as first argument."""
        if function not in FUNCTIONS:
            raise AttributeError(f"elements have no function '{function}'")
        return lambda *others: call(function, self, *others)


Node = TypeVar("Node", bound=Expr)


def _intern(
    cls: type[Node],
    key: tuple[Any, ...],
    fields: tuple[Any, ...],
    dtype: Dtype,
    parts: tuple[Expr, ...] = (),
    is_index: bool = False,
) -> Node:
    """Add a node, its fields in the order of `__match_args__`; returns the existing one if another
    thread added it first."""
    node = object.__new__(cls)
    for name, field in zip(cls.__match_args__, fields, strict=True):
        _set(node, name, field)
    _set(node, "dtype", dtype)
    _set(node, "parts", parts)
    _set(node, "is_index", is_index)
    _set(node, "normal_form", None)
    _set(node, "free", None)
    with _LOCK:
        return _NODES.setdefault(key, node)


class Const(Expr):
    """A constant."""

    __slots__ = __match_args__ = ("value",)
    value: Any  # a NumPy scalar

    def __new__(cls, value: Any) -> Const:
        dtype: Dtype = value.dtype
        key = cls, dtype, value.tobytes()
        return _find(key) or _intern(cls, key, (value,), dtype, is_index=dtype.kind in "iu")


class Word(Expr):
    """An integer that is read from the kernel's argument words at run time."""

    __slots__ = ("number",)
    __match_args__ = ("number", "dtype")
    number: Dynamic

    def __new__(cls, number: Dynamic, dtype: Dtype = INT64) -> Word:
        key = cls, number, dtype
        return _find(key) or _intern(cls, key, (number, dtype), dtype)


class Index(Expr):
    """The value of an index variable, an int64."""

    __slots__ = __match_args__ = ("variable",)
    variable: Variable

    def __new__(cls, variable: Variable) -> Index:
        key = cls, id(variable)
        return _find(key) or _intern(cls, key, (variable,), INT64, is_index=True)

    def rebuild(self, to: Rewriter) -> Expr:
        return to.index(self.variable)


class OperandLoad(Expr):
    """In an op's loop form: an element of an operand. Its indices may be out of range only under a
    `Select` that does not choose it."""

    __slots__ = ("indices", "operand")
    __match_args__ = ("operand", "indices")
    operand: Operand
    indices: tuple[Expr, ...]

    def __new__(cls, operand: Operand, indices: tuple[Expr, ...]) -> OperandLoad:
        key = cls, id(operand), *map(id, indices)
        return _find(key) or _intern(cls, key, (operand, indices), np.dtype(operand.dtype), indices)

    def rebuild(self, to: Rewriter) -> Expr:
        return OperandLoad(self.operand, tuple(map(to.new, self.indices)))


class Load(Expr):
    """In nests and kernels: the element of a buffer at an offset."""

    __slots__ = __match_args__ = ("buffer", "offset")
    buffer: Any  # a `Buffer` of `thalweg.lower`; in a kernel, its `Argument`
    offset: Affine

    def __new__(cls, buffer: Any, offset: Affine) -> Load:
        key = cls, id(buffer), offset.key
        return _find(key) or _intern(
            cls, key, (buffer, offset), np.dtype(buffer.dtype), offset.parts
        )

    def rebuild(self, to: Rewriter) -> Expr:
        return to.load(self.buffer, to.offset(self.offset))


class Call(Expr):
    """A function of the table. Its arguments are converted to the dtypes of NumPy's loop."""

    __slots__ = ("arguments", "function")
    __match_args__ = ("function", "arguments")
    function: str
    arguments: tuple[Expr, ...]

    def __new__(cls, function: str, arguments: tuple[Expr, ...]) -> Call:
        key = cls, function, *map(id, arguments)
        if (found := _find(key)) is not None:
            return found
        is_index = function in _ARITHMETIC and arguments[0].is_index and arguments[-1].is_index
        dtype = _called_dtype(function, arguments)
        return _intern(cls, key, (function, arguments), dtype, arguments, is_index)

    @property
    def loop(self) -> tuple[Dtype, ...]:
        """The dtypes that the arguments are converted to, and that of the result."""
        return loop_dtypes(self.function, tuple([part.dtype for part in self.arguments]))

    def rebuild(self, to: Rewriter) -> Expr:
        return to.call(self.function, tuple([to.new(part) for part in self.arguments]))


class Conversion(Expr):
    """A value converted to another dtype."""

    __slots__ = ("value",)
    __match_args__ = ("value", "dtype")
    value: Expr

    def __new__(cls, value: Expr, target: Any) -> Self:
        dtype: Dtype = np.dtype(target)
        key = cls, id(value), dtype
        return _find(key) or _intern(cls, key, (value, dtype), dtype, (value,))

    def rebuild(self, to: Rewriter) -> Expr:
        return type(self)(to.new(self.value), self.dtype)


class Cast(Conversion):
    """A value converted to another dtype by NumPy's rules."""

    __slots__ = ()


class Bitcast(Conversion):
    """The bits of a value reinterpreted as another dtype."""

    __slots__ = ()


class Select(Expr):
    """`chosen` if the condition holds, else `otherwise`; the other one is not evaluated."""

    __slots__ = ("chosen", "condition", "otherwise")
    __match_args__ = ("condition", "chosen", "otherwise")
    condition: Expr
    chosen: Expr
    otherwise: Expr

    def __new__(cls, condition: Expr, chosen: Expr, otherwise: Expr) -> Select:
        key = cls, id(condition), id(chosen), id(otherwise)
        if (found := _find(key)) is not None:
            return found
        dtype = chosen.dtype
        if dtype is not otherwise.dtype:
            dtype = common_dtype((dtype, otherwise.dtype))
        parts = condition, chosen, otherwise
        return _intern(cls, key, parts, dtype, parts)

    def rebuild(self, to: Rewriter) -> Expr:
        return Select(*map(to.new, self.parts))


class Reduce(Expr):
    """The body reduced over all values of the variables that it binds."""

    __slots__ = ("body", "combine", "variables")
    __match_args__ = ("combine", "variables", "body")
    combine: str
    variables: tuple[Variable, ...]
    body: Expr

    def __new__(cls, combine: str, variables: tuple[Variable, ...], body: Expr) -> Reduce:
        key = cls, combine, id(body), *map(id, variables)
        return _find(key) or _intern(
            cls, key, (combine, variables, body), _combined_dtype(combine, body), (body,)
        )

    def rebuild(self, to: Rewriter) -> Expr:
        return Reduce(self.combine, to.variables(self.variables), to.new(self.body))


class Scan(Expr):
    """The body reduced up to the current value of a serial loop's variable."""

    __slots__ = ("body", "combine", "exclusive", "reverse", "variable")
    __match_args__ = ("combine", "variable", "body", "exclusive", "reverse")
    combine: str
    variable: Variable
    body: Expr
    exclusive: bool
    reverse: bool

    def __new__(
        cls, combine: str, variable: Variable, body: Expr, exclusive: bool, reverse: bool
    ) -> Scan:
        key = cls, combine, id(variable), id(body), exclusive, reverse
        fields = combine, variable, body, exclusive, reverse
        return _find(key) or _intern(cls, key, fields, _combined_dtype(combine, body), (body,))

    def rebuild(self, to: Rewriter) -> Expr:
        (variable,) = to.variables((self.variable,))
        return Scan(self.combine, variable, to.new(self.body), self.exclusive, self.reverse)


class Accumulated(Expr):
    """In the stores of a contraction: its finished sum."""

    __slots__ = ()
    __match_args__ = ("dtype",)

    def __new__(cls, target: Any) -> Accumulated:
        dtype: Dtype = np.dtype(target)
        key = cls, dtype
        return _find(key) or _intern(cls, key, (dtype,), dtype)


def _called_dtype(function: str, arguments: tuple[Expr, ...]) -> Dtype:
    first = arguments[0].dtype
    if first is arguments[-1].dtype and function in _KEEPS_DTYPE and first is not BOOL:
        return first
    return loop_dtypes(function, tuple([part.dtype for part in arguments]))[-1]


TRUE, FALSE = Const(np.bool_(True)), Const(np.bool_(False))


def _combined_dtype(combine: str, body: Expr) -> Dtype:
    return REDUCTIONS[combine].result or body.dtype


def constant(value: Any, dtype: Any = None) -> Const:
    """A number as a constant of a dtype, or of its own dtype if none is given."""
    if type(value) is int:
        return _integer(value, INT64 if dtype is None else np.dtype(dtype))
    array = np.asarray(value)
    with np.errstate(all="ignore"):
        return Const(array[()] if dtype is None else array.astype(dtype)[()])


@memoized(4_096)
def _integer(value: int, dtype: Dtype) -> Const:
    with np.errstate(all="ignore"):
        return Const(np.asarray(value).astype(dtype)[()])


def as_expr(value: Any, dtype: Any = None) -> Expr:
    """An expression, or a number as one, of a dtype or of its own dtype if none is given."""
    return value if isinstance(value, Expr) else constant(value, dtype)


def call(function: str, *arguments: Any) -> Expr:
    """A function of the table applied to expressions, numbers and (for casts) a dtype."""
    match function:
        case "select":
            return select(*arguments)
        case "cast":
            return Cast(as_expr(arguments[0]), arguments[1])
        case "bitcast":
            return Bitcast(as_expr(arguments[0]), arguments[1])
        case _:
            return _applied(function, arguments)


def _applied(function: str, arguments: tuple[Any, ...]) -> Expr:
    for part in arguments:
        if not isinstance(part, Expr):
            return _applied_to_numbers(function, arguments)
    return Call(function, arguments)


def _applied_to_numbers(function: str, arguments: tuple[Any, ...]) -> Expr:
    left, right = arguments[0], arguments[-1]
    if type(right) is int and function in _KEEPS_INT64 and _is_int64(left, right):
        return Call(function, (left, _integer(right, INT64)))
    if not any(isinstance(part, Expr) for part in arguments):
        return Call(function, tuple(map(constant, arguments)))
    dtypes = loop_dtypes(function, tuple(map(_weak_dtype, arguments)))
    if function in COMPARISONS:
        decided = _out_of_range_comparison(function, arguments, dtypes)
        if decided is not None:
            return TRUE if decided else FALSE
    return Call(function, tuple(map(as_expr, arguments, dtypes)))


def _is_int64(left: Any, right: int) -> bool:
    return isinstance(left, Expr) and left.dtype is INT64 and abs(right) < 1 << 62


def _out_of_range_comparison(
    function: str, sides: tuple[Any, ...], dtypes: tuple[Dtype, ...]
) -> bool | None:
    """The result of a comparison with a Python integer out of the other side's range, if so."""
    for side, (part, dtype) in enumerate(zip(sides, dtypes, strict=False)):
        if isinstance(part, int) and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if not limits.min <= part <= limits.max:
                where, left_is_less = COMPARISONS[function], (part < limits.min) == (side == 0)
                return where.if_less if left_is_less else where.if_greater
    return None


def select(condition: Any, chosen: Any, otherwise: Any) -> Expr:
    """`chosen` if the condition holds, else `otherwise`; the other one is not evaluated."""
    sides = chosen, otherwise
    if not all(isinstance(side, Expr) for side in sides):
        dtype = common_dtype(tuple(map(_weak_dtype, sides)))
        sides = tuple(as_expr(side, dtype) for side in sides)
    return Select(as_expr(condition), *sides)


def simplified_select(condition: Expr, chosen: Expr, otherwise: Expr) -> Expr:
    """A `Select`; what a constant condition selects is returned."""
    result = Select(condition, chosen, otherwise)
    if not isinstance(condition, Const):
        return result
    return converted(chosen if condition.value else otherwise, result.dtype)


def converted(value: Expr, dtype: Any) -> Expr:
    """An expression converted to a dtype; itself if it has it, folded if it is constant."""
    if value.dtype == dtype:
        return value
    return constant(value.value, dtype) if isinstance(value, Const) else Cast(value, dtype)


def logical(function: str, arguments: tuple[Expr, ...]) -> Expr:
    """`and`, `or` or `not` with constants folded."""
    if not all(part.dtype == BOOL for part in arguments):
        return Call(function, arguments)
    known = [bool(part.value) for part in arguments if isinstance(part, Const)]
    left = [part for part in arguments if not isinstance(part, Const)]
    if function == "not":
        return Call(function, arguments) if left else (FALSE if known[0] else TRUE)
    absorbing = function == "or"
    if absorbing in known:
        return TRUE if absorbing else FALSE
    if not left:
        return FALSE if absorbing else TRUE
    return left[0] if len(left) == 1 else Call(function, tuple(left))


def uncast(value: Expr) -> Expr:
    """A value without conversions."""
    while isinstance(value, Cast):
        value = value.value
    return value


def is_zero(value: Expr) -> bool:
    """Whether an expression is the number 0."""
    return isinstance(value, Const) and bool(value.value == 0)


# Dtypes, by NumPy's promotion: Python numbers are weak


def _weak_dtype(value: Any) -> Any:
    """The dtype of an expression or NumPy scalar; the type of a Python number, which is weak."""
    if hasattr(value, "dtype"):
        return value.dtype
    return BOOL if isinstance(value, bool) else cast("Any", type(value))


@memoized(10_000)
def loop_dtypes(function: str, parts: tuple[Any, ...]) -> tuple[Dtype, ...]:
    """The dtypes NumPy converts the parts to, and that of the result."""
    row = FUNCTIONS[function]
    return row.dtypes(row.numpy, parts)
