"""Nodes and tensors: the immutable elements of a graph.

A `Node` (TensorFlow's `Operation`) applies an op to tensors; a `Tensor` is one output of a node.
Dtype and static shape are inferred when the node is created. Neither holds a value: values exist
only while a step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from thalweg.graph import context
from thalweg.graph.dtypes import DType
from thalweg.graph.op import Op
from thalweg.graph.origin import MadeAt, file_and_line
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.graph.signature import Argument
from thalweg.platform.notebook import location
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg import protos
    from thalweg.graph.graph import Graph
    from thalweg.graph.likes import IndexLike, MaybeNone, TensorLike

#: Implementations of Python's operators on tensors, and of methods that need modules above this
#: one; each is registered by the module that defines it.
operators: dict[str, Callable[..., Any]] = {}

Item = TypeVar("Item")
TensorType = tuple[DType, TensorShape]


def operator(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the implementation of Python operators: `@operator("add")`."""

    def install(function: Callable[..., Any]) -> Callable[..., Any]:
        operators.update(dict.fromkeys(names, function))
        return function

    return install


class _UserAttributes:
    """Accepts arbitrary attributes: libraries annotate the tensors they create."""

    __slots__ = ("__dict__",)


@public("Operation")
@dataclass(slots=True, eq=False, repr=False)
class Node(_UserAttributes):
    """One application of an op: its inputs, control inputs, name and device.

    Graphs create nodes; `tensor.op` is the node of a tensor, and `run` runs it.

    Args:
        graph: the graph.
        op: the op with its attributes.
        name: the name.
        inputs: the tensors it reads.
        controls: the nodes it runs after.
        device: the requested device.
        annotations: the attributes that scopes attach.
        made_at: the instruction of the user's code that created it.
        index: its position in the graph.

    Example:
        >>> y = tf.add(1.0, 2.0, name="y")
        >>> y.op.name, y.op.type, [x.name for x in y.op.inputs]
        ('y', 'Add', ['y/x:0', 'y/y:0'])
    """

    graph: Graph
    op: Op
    name: str
    inputs: tuple[Tensor, ...]
    controls: tuple[Node, ...]  # nodes this one waits for without taking a value
    device: str
    annotations: Mapping[str, Any]  # attached by scopes and importers, such as colocation groups
    made_at: MadeAt
    index: int  # position in order of creation
    outputs: tuple[Tensor, ...] = field(default=(), init=False)
    _original: Node | None = field(default=None, init=False)

    @property
    def control_inputs(self) -> list[Node]:
        """The nodes this one waits for without taking a value, as a fresh list."""
        return list(self.controls)

    @property
    def _id(self) -> int:
        """TensorFlow's spelling of `index`."""
        return self.index

    def takes_references(self) -> list[bool]:
        """For each input tensor, whether the op takes it by reference, to write the variable."""
        return [argument.is_ref for argument, tensors in self.arguments() for _ in tensors]

    @property
    def _input_types(self) -> list[DType]:
        """The dtypes that the op takes its inputs as: references only where it writes them."""
        pairs = zip(self.inputs, self.takes_references(), strict=True)
        return [tensor.dtype if is_ref else tensor.dtype.base_dtype for tensor, is_ref in pairs]

    _input_dtypes = _input_types  # the name in TensorFlow of 2016

    @property
    def type(self) -> str:
        """The name of the op, as in GraphDef."""
        return self.op.type_name

    def values(self) -> tuple[Tensor, ...]:
        """TensorFlow's spelling of `outputs`, as a method."""
        return self.outputs

    @property
    def output(self) -> Tensor:
        """The only output."""
        return self.outputs[0]

    @property
    def original(self) -> Node:
        """The node of the user's graph that this one replaces: itself, unless rewritten. Errors and
        state belong to it."""
        return self._original or self

    @original.setter
    def original(self, node: Node) -> None:
        self._original = node.original

    @property
    def origin(self) -> str:
        """Where the user's code created this node: `file:line`, or `Cell In[3], line 4`."""
        return location(*file_and_line(self.made_at))

    @property
    def traceback(self) -> list[tuple[str, int, str, str]]:
        """The user's frame that created this node: (file, line, function, text)."""
        code, _ = self.made_at
        return [(*file_and_line(self.made_at), code.co_name, "")]

    @property
    def node_def(self) -> protos.NodeDef:
        """This node as a NodeDef protobuf."""
        return operators["node_def"](self)

    @property
    def op_def(self) -> protos.OpDef:
        """The definition of this node's op as an OpDef protobuf."""
        return operators["op_def"](type(self.op))

    def colocation_groups(self) -> list[bytes]:
        """The groups (`loc:@name`) of nodes this one must share a device with."""
        groups: list[bytes] = list(self.annotations.get("_class", ()))
        return groups or [b"loc:@" + self.name.encode()]

    def get_attr(self, name: str) -> Any:
        """The value of a GraphDef attribute: a field, a bound dtype, a length or an annotation.

        Strings are bytes, as GraphDefs hold them.
        """
        names = self.op.graphdef_names
        values = {names.get(key, key): value for key, value in self.attributes().items()}
        if name not in values:
            raise ValueError(f"No attr named '{name}' in op '{self.name}' ({self.type})")
        value = values[name]
        return value.encode() if isinstance(value, str) else value

    def attributes(self) -> dict[str, Any]:
        """All GraphDef attributes: fields, bound dtypes, list lengths, annotations."""
        values = self.op.attributes
        for argument, tensors in self.arguments():
            if argument.count:
                values[argument.count] = len(tensors)
            if argument.is_mixed:
                values[argument.type] = [t.dtype.base_dtype for t in tensors]
            elif argument.fixed is None and tensors:
                values[argument.type] = tensors[0].dtype.base_dtype
        return values | dict(self.annotations)

    def arguments(self) -> Iterator[tuple[Argument, tuple[Tensor, ...]]]:
        """Each input argument of the signature, with the tensors bound to it."""
        start = 0
        for argument, count in zip(self.op.parsed.inputs, self.input_counts(), strict=True):
            yield argument, self.inputs[start : start + count]
            start += count

    def input_counts(self) -> tuple[int, ...]:
        """The number of tensors bound to each input argument of the signature."""
        arguments = self.op.parsed.inputs
        if not self.op.parsed.has_lists:
            return (1,) * len(arguments)
        counts = self.annotations.get("_counts")
        if counts is not None:
            return counts
        return self.op.parsed.counts(len(self.inputs))

    def grouped(self, values: Sequence[Any]) -> list[Any]:
        """Values of the inputs, as the op takes them: a list for an argument that is one."""
        return self.op.parsed.group(values, self.input_counts())

    def _update_input(self, index: int, tensor: Tensor, dtype: DType | None = None) -> None:
        """Replace an input. Only a Merge allows it, to close a loop of primitive ops."""
        operators["update_input"](self, index, tensor)

    def run(
        self, feed_dict: Mapping[Any, Any] | None = None, session: context.Runner | None = None
    ) -> None:
        """Run the node in one step of a session.

        Args:
            feed_dict: values by the tensor they replace.
            session: the session; the default one if None.
        """
        context.runner_for(self.graph, session, "run()").run(self, feed_dict)

    def __str__(self) -> str:
        return f"name: {self.name!r} op: {self.type!r} inputs: {[t.name for t in self.inputs]}"

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"


Binary = Callable[["Tensor", "TensorLike"], "Tensor"]


def _operator(name: str) -> tuple[Binary, Binary]:
    """The methods of a binary operator: with the tensor on the left, and on the right."""

    def operate(self: Tensor, other: TensorLike) -> Tensor:
        return operators[name](self, other)

    def operate_reflected(self: Tensor, other: TensorLike) -> Tensor:
        return operators[name](other, self)

    return operate, operate_reflected


_OPERATORS = """
add radd sub rsub mul rmul truediv rtruediv div rdiv floordiv rfloordiv mod rmod pow rpow matmul
rmatmul and rand or ror xor rxor lt le gt ge invert neg abs getitem
"""


class LengthUnknown(TypeError, AttributeError):
    """Raised by `len(tensor)`; an AttributeError too, so that `hasattr` finds no `__len__`."""


@public("Tensor")
class Tensor(_UserAttributes):
    """One output of a node: a value that exists while a step runs.

    Python's operators, indexing and slices on tensors create nodes.

    Args:
        node: the node, `op`.
        value_index: which of its outputs.
        dtype: the dtype of the elements.
        shape: the static shape.

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> y = x[:, 0] * 10 + 1
        >>> y.dtype, y.shape.as_list(), y.eval()
        (tf.float32, [2], array([11., 31.], dtype=float32))
    """

    __slots__ = ("__weakref__", "_shape", "dtype", "op", "value_index")

    __array_priority__ = 100  # NumPy arrays defer to our operators

    def __init__(self, node: Node, value_index: int, dtype: DType, shape: TensorShape) -> None:
        self.op = node
        self.value_index = value_index
        self.dtype = dtype
        self._shape = shape

    @property
    def graph(self) -> Graph:
        """The graph this tensor belongs to."""
        return self.op.graph

    @property
    def name(self) -> str:
        """`node:index`."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def device(self) -> str:
        """The requested device."""
        return self.op.device

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """The static shape."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Merge a shape into the static shape.

        Args:
            shape: a shape; None for unknown sizes.

        Raises:
            ValueError: where the two shapes are incompatible.
        """
        self._shape = self._shape.merge_with(as_shape(shape))

    def widen_shape(self, shape: TensorShape) -> None:
        """Replace the static shape by a less specific one, such as after a Merge got an input."""
        self._shape = shape

    def consumers(self) -> list[Node]:
        """The nodes that have this tensor as an input."""
        return self.graph.consumers(self)

    def eval(
        self, feed_dict: Mapping[Any, Any] | None = None, session: context.Runner | None = None
    ) -> MaybeNone:
        """The value of the tensor in one step of a session.

        Args:
            feed_dict: values by the tensor they replace.
            session: the session; the default one if None.

        Returns:
            A NumPy array or scalar.
        """
        return context.runner_for(self.graph, session, "eval()").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self._shape} dtype={self.dtype.name}>"

    def __str__(self) -> str:
        shape = "" if self._shape.rank is None else f", shape={self._shape}"
        return f'Tensor("{self.name}"{shape}, dtype={self.dtype.name})'

    def __copy__(self) -> Tensor:
        return self

    def __bool__(self) -> NoReturn:
        raise TypeError(operators["as_bool"](self))

    __nonzero__ = __bool__

    def __iter__(self) -> NoReturn:
        raise TypeError(operators["as_iterable"](self))

    def _no_length(self) -> NoReturn:
        raise LengthUnknown(operators["as_sized"](self))

    __len__: Any = property(_no_length)  # looking it up on a tensor raises

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{self.name} is symbolic and has no value to convert to a NumPy array; "
            "fetch it with session.run or eval()"
        )

    def assign(self, value: TensorLike, name: str | None = None) -> Tensor:
        """Assign to the slice of a variable that this tensor is: `variable[1:3].assign(value)`."""
        return operators["slice_assign"](self, value, name)

    def __getitem__(self, key: IndexLike) -> Tensor:
        return operators["getitem"](self, key)

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("truediv")
    __div__, __rdiv__ = _operator("div")
    __floordiv__, __rfloordiv__ = _operator("floordiv")
    __mod__, __rmod__ = _operator("mod")
    __pow__, __rpow__ = _operator("pow")
    __matmul__, __rmatmul__ = _operator("matmul")
    __and__, __rand__ = _operator("and")
    __or__, __ror__ = _operator("or")
    __xor__, __rxor__ = _operator("xor")
    __lt__, __le__, __gt__, __ge__ = (_operator(name)[0] for name in ("lt", "le", "gt", "ge"))

    def __invert__(self) -> Tensor:
        return operators["invert"](self)

    def __neg__(self) -> Tensor:
        return operators["neg"](self)

    def __abs__(self) -> Tensor:
        return operators["abs"](self)

    #: Libraries define these methods on their own classes, by conversion to a tensor.
    OVERLOADABLE_OPERATORS: ClassVar = frozenset(f"__{name}__" for name in _OPERATORS.split())


def program_order(nodes: Iterable[Node]) -> list[Node]:
    """Nodes of one graph in order of creation.

    `thalweg.graph.analysis.order` derives order edges from it; planning uses only those edges.
    """
    return sorted(nodes, key=lambda node: node.index)


def reached(starts: Iterable[Item], sources: Callable[[Item], Iterable[Item]]) -> set[Item]:
    """All that a walk from some nodes, tensors or names finds, the starts included."""
    found: set[Item] = set()
    pending = list(starts)
    while pending:
        item = pending.pop()
        if item not in found:
            found.add(item)
            pending += sources(item)
    return found


def as_node(value: Any) -> Node:
    """A node itself, or the `op` of a tensor, a variable or a composite."""
    if isinstance(value, Node):
        return value
    node = getattr(value, "op", None)
    if isinstance(node, Node):
        return node
    raise TypeError(f"Can not convert a {type(value).__name__} into an Operation: {value!r}")
