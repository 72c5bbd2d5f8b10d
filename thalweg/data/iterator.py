"""`tf.data.Iterator`: reads the elements of a dataset in a graph, one by one.

An iterator is one-shot (it needs no initializer), initializable, reinitializable (with several
datasets of one structure) or feedable (selected by a string that is fed).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from thalweg.data import structure
from thalweg.data.iterator_ops import (
    IteratorFromStringHandleV2,
    IteratorGetNext,
    IteratorRestoreState,
    IteratorSaveState,
    IteratorToStringHandle,
    IteratorV2,
    MakeIterator,
    OneShotIterator,
)
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import resource, string
from thalweg.graph.graph import get_default_graph
from thalweg.graph.graphdef.functions import Lambda
from thalweg.graph.likes import Structure, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.subgraph import Argument, Body, SubGraph, needed
from thalweg.ops.core.basic import Placeholder
from thalweg.platform.described import described
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.data.dataset import Dataset


class Described:
    """Describes the elements of a dataset or iterator: specs, dtypes, shapes, classes."""

    _spec: Any

    @property
    def element_spec(self) -> Structure:
        """The spec of an element: a structure of TensorSpecs and the like."""
        return self._spec

    @property
    def output_types(self) -> Structure:
        """The dtypes of an element."""
        return structure.map_structure(attrgetter("dtype"), self._spec)

    @property
    def output_shapes(self) -> Structure:
        """The shapes of an element."""
        return structure.map_structure(attrgetter("shape"), self._spec)

    @property
    def output_classes(self) -> Structure:
        """The classes of the parts of an element: Tensor, SparseTensor or Dataset."""
        return structure.map_structure(structure.class_of, self._spec)


@public("data.Iterator", "contrib.data.Iterator")
class Iterator(Described):
    """A position in a dataset, stored in the session.

    Made by a dataset's `make_one_shot_iterator()` or `make_initializable_iterator()`;
    `from_structure` makes one that can be bound to several datasets.

    Args:
        handle: the tensor with its handle.
        initializer: the node that starts it, or None.
        spec: the spec of the elements.

    Example:
        >>> size = tf.placeholder(tf.int64, [])
        >>> iterator = tf.data.Dataset.range(size).make_initializable_iterator()
        >>> number = iterator.get_next()
        >>> sess.run(iterator.initializer, {size: 2})
        >>> sess.run(number), sess.run(number)
        (np.int64(0), np.int64(1))
    """

    def __init__(self, handle: Tensor, initializer: Node | None, spec: Structure) -> None:
        self.handle = handle
        self._initializer = initializer
        self._spec = spec

    def __repr__(self) -> str:
        return described(self, self.handle.op.name, element_spec=self._spec)

    @staticmethod
    def from_structure(
        output_types: Structure,
        output_shapes: Structure = None,
        shared_name: str | None = None,
        output_classes: Structure = None,
    ) -> Iterator:
        """An iterator that `make_initializer` binds to a dataset, and can bind to another later.

        Args:
            output_types: the dtypes of an element.
            output_shapes: its static shapes; unknown if None.
            shared_name: a name to share the iterator between sessions by.
            output_classes: the classes of its parts; tensors if None.

        Example:
            >>> iterator = tf.data.Iterator.from_structure(tf.int64, [])
            >>> train = iterator.make_initializer(tf.data.Dataset.range(10))
            >>> test = iterator.make_initializer(tf.data.Dataset.range(100, 110))
            >>> number = iterator.get_next()
            >>> sess.run(train), sess.run(number), sess.run(test), sess.run(number)
            (None, np.int64(0), None, np.int64(100))
        """
        spec = structure.specs_from(output_types, output_shapes, output_classes)
        return Iterator(new_handle(spec, shared_name), None, spec)

    @staticmethod
    def from_string_handle(
        string_handle: Any,
        output_types: Structure,
        output_shapes: Structure = None,
        output_classes: Structure = None,
    ) -> Iterator:
        """The iterator of a string handle: feed the value of an iterator's `string_handle()`."""
        spec = structure.specs_from(output_types, output_shapes, output_classes)
        handle = convert_to_tensor(string_handle, string)
        found = IteratorFromStringHandleV2(**leaves(spec))(handle, name="IteratorFromStringHandle")
        return Iterator(found, None, spec)

    @property
    def initializer(self) -> Node:
        """The node that starts the iterator at the first element."""
        if self._initializer is None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset: Dataset, name: str | None = None) -> Node:
        """A node that starts the iterator at the first element of a dataset of its structure."""
        if not structure.are_compatible(self._spec, dataset.element_spec):
            raise TypeError(
                f"Expected elements of {self._spec!r} but got a dataset with elements of "
                f"{dataset.element_spec!r}."
            )
        return initializer_of(dataset, self.handle, name or "make_initializer")

    def get_next(self, name: str | None = None) -> Structure:
        """The next element; each step gets a new one.

        Args:
            name: the name of the node.

        Returns:
            The structure of an element, with tensors.

        Raises:
            OutOfRangeError: in steps after the last element.
        """
        kinds = structure.all_kinds(self._spec)
        op = IteratorGetNext(
            output_types=tuple(dtype for dtype, _ in kinds),
            output_shapes=tuple(shape for _, shape in kinds),
        )
        return structure.structure_of(self._spec, op(self.handle, name=name or "IteratorGetNext"))

    def string_handle(self, name: str | None = None) -> Tensor:
        """The handle of this iterator as a string, to feed to one of `from_string_handle`."""
        return IteratorToStringHandle()(self.handle, name=name or "IteratorToStringHandle")

    def save_state(self, name: str | None = None) -> Tensor:
        """The position of the iterator, serialized."""
        return IteratorSaveState()(self.handle, name=name)

    def restore_state(self, state: TensorLike, name: str | None = None) -> Node:
        """A node that continues at a saved position."""
        return node_of(IteratorRestoreState(), self.handle, state, name=name)


def node_of(op: Any, *inputs: Any, name: str | None = None) -> Node:
    """The node of an op that has no outputs."""
    made = op(*inputs, name=name)
    return made if isinstance(made, Node) else get_default_graph().nodes[-1]


def leaves(spec: Any) -> dict[str, Any]:
    """The attributes that describe elements, one entry per leaf."""
    return {
        "output_types": structure.leaf_types(spec),
        "output_shapes": structure.leaf_shapes(spec),
    }


def new_handle(spec: Any, shared_name: str | None) -> Tensor:
    """A handle of an initializable iterator."""
    container = get_default_graph().container_name
    op = IteratorV2(shared_name=shared_name or "", container=container, **leaves(spec))
    return op(name="Iterator")


def initializer_of(dataset: Any, handle: Tensor, name: str) -> Node:
    """A node that starts an iterator at the first element of a dataset."""
    with get_default_graph().colocate_with(handle.op):
        return node_of(MakeIterator(), dataset.variant, handle, name=name)


def initializable(dataset: Any, shared_name: str | None) -> Iterator:
    """An iterator that is started by its initializer."""
    handle = new_handle(dataset.element_spec, shared_name)
    return Iterator(handle, initializer_of(dataset, handle, "MakeIterator"), dataset.element_spec)


def one_shot(dataset: Any) -> Iterator:
    """An iterator that needs no initializer."""
    factory = Lambda(_factory(dataset.variant), ())
    spec = dataset.element_spec
    container = get_default_graph().container_name
    op = OneShotIterator(dataset_factory=factory, container=container, **leaves(spec))
    return Iterator(op(name="OneShotIterator"), None, spec)


def _factory(dataset: Tensor) -> Body:
    """A body without arguments that creates a dataset: a copy of all nodes that it depends on."""
    graph = SubGraph(dataset.graph, "a one-shot iterator")
    rewriter = Rewriter(graph)
    for node in needed([dataset], (), {}):
        _check_captured(node)
        rewriter.copy(node)
    return Body(graph, (), (rewriter.tensors[dataset],))


def _check_captured(node: Node) -> None:
    kinds = [tensor.dtype for tensor in node.outputs]
    is_state = any(kind.is_ref_dtype or kind is resource for kind in kinds)
    if not is_state and not isinstance(node.op, Placeholder | Argument):
        return
    raise ValueError(
        "Failed to create a one-shot iterator for a dataset. `Dataset.make_one_shot_iterator()` "
        "does not support datasets that capture stateful objects, such as a `Variable`, a "
        "`LookupTable` or a placeholder. In these cases, use "
        f"`Dataset.make_initializable_iterator()`. (It captures {node.name!r}, a {node.type} made "
        f"at {node.origin})"
    )
