"""Op blocks: one class per op, which defines everything about the op.

A block has a `signature`, a `shape` rule, a `numpy` kernel (the definition) and optionally a
`gradient` (graph code) and an `element` (the loop lowering: one output element as an expression).
Annotated names in the body are the op's attributes: `Sum(keep_dims=True)` is a value, and calling
it on tensors adds a node to the graph. Properties such as "elementwise" or "commutative" are class
flags; sets of ops are derived from them, never listed by hand.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from thalweg.graph import signature as signatures
from thalweg.graph.analysis.effects import Effect, Footprint, footprint_of
from thalweg.graph.signature import Signature

if TYPE_CHECKING:
    from thalweg.graph.dtypes import DType
    from thalweg.graph.shapes import TensorShape
    from thalweg.graph.subgraph import Body

_REQUIRED: Any = object()  # marks an attribute without a default

REGISTRY: dict[str, type[Op]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Op:
    """The base of every op block."""

    signature: ClassVar[str] = ""
    #: outputs depend on more than the inputs: never folded, merged or precomputed
    stateful: ClassVar[bool] = False
    #: the state it reads and writes; None: derived from the signature (`graph/analysis/effects.py`)
    effects: ClassVar[tuple[Effect, ...] | None] = None
    #: f(x, y) = f(y, x)
    commutative: ClassVar[bool] = False
    #: an output element depends only on the same element of the (broadcast) inputs
    elementwise: ClassVar[bool] = False
    #: inputs and outputs whose axes, or whose elements, are in the order of `data_format`
    laid_out: ClassVar[frozenset[str]] = frozenset()
    #: depends only on shapes and axes: its value is known once a step's shapes are, without a loop
    of_shapes: ClassVar[bool] = False
    #: has no loop form by nature (strings, files, factorisations, Python calls)
    host_only: ClassVar[bool] = False
    #: its state lives within one step (lists, stacks): no other step can see it
    step_local: ClassVar[bool] = False
    #: the gradient with respect to every input is None (indices, comparisons, shapes)
    not_differentiable: ClassVar[bool] = False
    #: its gradient takes `wanted` and `given`: which input gradients are needed, and which output
    #: gradients exist
    chooses_gradients: ClassVar[bool] = False
    #: its gradient takes IndexedSlices; those of other ops get dense tensors
    passes_slices: ClassVar[bool] = False
    #: not an op of TensorFlow: no other system can load a graph with it
    private: ClassVar[bool] = False
    #: its NumPy kernel takes time in proportion to the bytes of its inputs: small inputs are not
    #: worth another thread
    inexpensive: ClassVar[bool] = False
    #: may wait for another node or step: the executor runs all other nodes meanwhile
    blocking: ClassVar[bool] = False
    #: its kernel takes device buffers as they are; other kernels get host arrays
    takes_buffers: ClassVar[bool] = False
    #: whether `start` may be called instead of `kernel`
    can_start: ClassVar[bool] | property = True
    #: placed on accelerators although it is not compiled: its host kernel runs there
    any_device: ClassVar[bool] = False

    #: the GraphDef names of fields and type variables that differ: `shape` is the shape rule here
    graphdef_names: ClassVar[Mapping[str, str]] = {"given_shape": "shape"}

    #: (self, *inputs: Tensor) -> TensorShape or one per output; list arguments are lists
    shape: ClassVar[Callable[..., Any]]
    #: (self, *inputs: ndarray) -> ndarray or one per output
    numpy: ClassVar[Callable[..., Any]]
    #: (self, context, *inputs) -> as numpy; for kernels that touch resources or the step
    kernel: ClassVar[Callable[..., Any]]
    #: (self, context, done, *inputs): the non-blocking form of a blocking op's `kernel`; calls
    #: `done` once with (value, error), on any thread
    start: ClassVar[Callable[..., None]]
    #: (self, node, *dy) -> one gradient tensor or None per flat input
    gradient: ClassVar[Callable[..., Any]]
    #: (self, *inputs: Expr) -> Expr: the loop lowering of an elementwise op
    element: ClassVar[Callable[..., Any]]
    #: (self, at: Place, *inputs: Operand) -> Expr or Scatter: the loop lowering of any other op.
    #: A reference is an operand with the old value, and the result is the new value; if an op
    #: writes several references, `at.output` numbers them in the order of the inputs.
    loop: ClassVar[Callable[..., Any]]
    #: (self, at, *inputs) -> Expr: the same as one fused kernel, for targets that support it;
    #: `can_fuse` says for which inputs, `fused_outputs` which outputs each kernel computes
    fused_loop: ClassVar[Callable[..., Any]]
    can_fuse: ClassVar[Callable[..., bool]]
    fused_outputs: ClassVar[tuple[tuple[int, ...], ...]]
    #: (self, *inputs: Operand) -> `RuntimeCheck`s of its input values. If one fails, compiled code
    #: stops, and the NumPy kernel raises the error. Indices from data are always checked.
    requires: ClassVar[Callable[..., Any]]
    #: (self, context, *inputs) -> the position in its random stream that a run starts at, as words
    #: (`Philox.place`), which are one more operand of its loop
    stream: ClassVar[Callable[..., Any]]
    #: (self, *inputs: Tensor) -> TensorShape: the known elements of an integer vector output
    dimensions: ClassVar[Callable[..., Any]]

    type_name: ClassVar[str]
    parsed: ClassVar[Signature]
    footprint: ClassVar[Footprint] = ()
    fields: ClassVar[dict[str, Any]] = {}
    result: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, *, name: str = "", abstract: bool = False) -> None:
        cls.fields = dict(cls.fields) | dict(_own_fields(cls))
        if abstract:
            return
        cls.type_name = name or cls.__name__
        cls.parsed = signatures.parse(cls.signature)
        cls.result = _result_type(cls)
        declared = cls.effects if cls.effects is not None or cls.stateful else ()
        cls.footprint = footprint_of(declared, cls.parsed, cls.has("stream"))
        _check(cls)
        REGISTRY[cls.type_name] = cls

    def __init__(self, **attributes: Any) -> None:
        for name, default in self.fields.items():
            value = attributes.pop(name, default)
            if value is _REQUIRED:
                raise TypeError(f"op {self.type_name} needs the attribute '{name}'")
            self.__dict__[name] = value
        if attributes:
            raise TypeError(f"op {self.type_name} has no attribute '{next(iter(attributes))}'")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"op {self.type_name} is immutable")

    def __call__(self, *inputs: Any, name: str | None = None) -> Any:
        """Add a node with this op to the graph of its inputs; return its output(s)."""
        return applier[0](self, inputs, name)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attribute values by name."""
        return dict(self.__dict__)

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The sub-graphs that the op runs; it has their effects."""
        return ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{self.type_name}({inner})"

    @classmethod
    def has(cls, part: str) -> bool:
        """Whether the block defines `part` (gradient, element, numpy, kernel, dimensions)."""
        return hasattr(cls, part)


#: Adds a node for a called op; set by `thalweg.graph.build`, which imports this module.
applier: list[Callable[[Op, tuple[Any, ...], str | None], Any]] = []


def _own_fields(cls: type[Op]) -> Iterator[tuple[str, Any]]:
    for name, annotation in inspect.get_annotations(cls).items():
        if not str(annotation).startswith("ClassVar"):
            yield name, cls.__dict__.get(name, _REQUIRED)


def _result_type(cls: type[Op]) -> Callable[..., Any]:
    """The type of an op's result: a named tuple, if it has several outputs."""
    names = [argument.name for argument in cls.parsed.outputs]
    if len(names) < 2:
        return tuple
    return namedtuple(cls.__name__, names)  # pyright: ignore[reportUntypedNamedTuple] - names come from the signature


def _check(cls: type[Op]) -> None:
    """Raise a TypeError unless a block is complete and consistent."""
    if cls.type_name in REGISTRY:
        raise TypeError(f"op {cls.type_name} is defined twice")
    if not cls.has("shape"):
        raise TypeError(f"op {cls.type_name} has no shape rule")
    if not (cls.has("numpy") or cls.has("kernel")):
        raise TypeError(f"op {cls.type_name} has no kernel")
    if cls.stateful and cls.parsed.inputs and cls.effects is None and not cls.footprint:
        raise TypeError(f"op {cls.type_name} is stateful: it must declare its effects, or ()")
    bound = {*cls.fields, *(argument.type for argument in cls.parsed.inputs)}
    for argument in cls.parsed.outputs:
        if argument.fixed is None and argument.type not in bound:
            raise TypeError(f"op {cls.type_name}: output type {argument.type} is never bound")


class Source(Op, abstract=True):
    """The base of ops whose value comes from outside of the graph: fed, captured or stored."""

    signature = "-> output: dtype"
    stateful = True  # each step or call has its own value: never folded or merged
    host_only = True
    not_differentiable = True
    dtype: DType
    given_shape: TensorShape

    def shape(self) -> TensorShape:
        return self.given_shape
