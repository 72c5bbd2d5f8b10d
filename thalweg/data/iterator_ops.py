"""Iterator ops: handles of a session's iterators, and operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg import errors
from thalweg.data.flow import Element, Flow, Interrupted, Pipeline, Puller, Run
from thalweg.data.functions import Function, captured_values, tensors_of
from thalweg.data.iterator_state import SessionIterator
from thalweg.errors import invalid
from thalweg.graph.analysis.effects import reads, writes
from thalweg.graph.dtypes import DType
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.text import text
from thalweg.runtime.kernels import Context


class IteratorOp(Op, abstract=True):
    """The flags of all ops on iterators."""

    stateful = True
    host_only = True
    not_differentiable = True


class IteratorHandle(IteratorOp, abstract=True):
    """A handle of one of the session's iterators."""

    signature = "-> handle: resource"
    shared_name: str = ""
    container: str = ""
    output_types: tuple[DType, ...]
    output_shapes: tuple[TensorShape, ...]

    def shape(self, *_: Tensor) -> TensorShape:
        return scalar()

    def get_or_create(self, context: Context) -> SessionIterator:
        """The iterator, created on first use."""
        name = self.shared_name or context.node.name
        kinds = self.output_types, self.output_shapes
        return context.resource(name, self.container, lambda: SessionIterator(name, kinds))


class IteratorV2(IteratorHandle):
    """A handle of an iterator that is started by an initializer"""

    def kernel(self, context: Context) -> SessionIterator:
        return self.get_or_create(context)


class OneShotIterator(IteratorHandle):
    """A handle of an iterator that starts on first use"""

    dataset_factory: FunctionName  # the function that creates the dataset

    def kernel(self, context: Context) -> SessionIterator:
        name = self.shared_name or context.node.name
        return context.resource(name, self.container, lambda: self._create(name, context))

    def _create(self, name: str, context: Context) -> SessionIterator:
        session_iterator = SessionIterator(name, (self.output_types, self.output_shapes))
        run = Run(context.resources)
        (pipeline,) = Function(self.dataset_factory, ()).bound(run, context.node).flat()
        session_iterator.initialize(pipeline, context.resources, context.cancellation)
        return session_iterator


class MakeIterator(IteratorOp):
    """Starts an iterator at the first element of a dataset."""

    signature = "dataset: variant, iterator: resource ->"
    effects = (writes("iterator"),)

    def shape(self, *_: Tensor) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, dataset: Pipeline, iterator: SessionIterator) -> Any:
        iterator.initialize(dataset, context.resources, context.cancellation)
        return ()


class ElementOp(IteratorOp, abstract=True):
    """The base of ops whose outputs are the tensors of an element."""

    blocking = True
    output_types: tuple[DType, ...]
    output_shapes: tuple[TensorShape, ...]

    def shape(self, *_: Any) -> list[TensorShape]:
        return list(self.output_shapes)


class IteratorGetNext(ElementOp):
    """The next element."""

    signature = "iterator: resource -> components: [output_types]"

    def kernel(self, context: Context, iterator: SessionIterator) -> list[Any]:
        return [list(tensors_of(iterator.next(context.cancellation)))]


class IteratorToStringHandle(IteratorOp):
    """The handle of an iterator as a string, which can be fed"""

    signature = "resource_handle: resource -> string_handle: string"
    effects = (reads("resource_handle"),)

    def shape(self, resource_handle: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, resource_handle: SessionIterator) -> Any:
        key = f"{resource_handle.name} {id(resource_handle):x}"
        context.resource(key, _HANDLES, lambda: resource_handle)
        return text.text_array(key.encode())


_HANDLES = "iterator handles"


class IteratorFromStringHandleV2(IteratorOp):
    """The iterator of a string handle"""

    signature = "string_handle: string -> resource_handle: resource"
    effects = ()  # it only looks up the iterator
    output_types: tuple[DType, ...]
    output_shapes: tuple[TensorShape, ...]

    def shape(self, string_handle: Tensor) -> TensorShape:
        string_handle.shape.assert_has_rank(0)
        return scalar()

    def kernel(self, context: Context, string_handle: Any) -> SessionIterator:
        key = text.text_item(string_handle).decode(errors="replace")

        def missing() -> SessionIterator:
            raise invalid(f"{key!r} is no handle of an iterator of this session")

        result = context.resource(key, _HANDLES, missing)
        self._check(result)
        return result

    def _check(self, iterator: SessionIterator) -> None:
        types, shapes = iterator.kinds
        if tuple(types) != tuple(self.output_types):
            raise invalid(
                f"the iterator '{iterator.name}' gives elements of types {types}, not "
                f"{self.output_types}"
            )
        for given, wanted in zip(shapes, self.output_shapes, strict=True):
            if not wanted.is_compatible_with(given):
                raise invalid(
                    f"the iterator '{iterator.name}' gives elements of shape {given}, not {wanted}"
                )


class IteratorSaveState(IteratorOp):
    """The position of an iterator, serialized: the state of all stages with prefetched elements"""

    private = True
    signature = "iterator: resource -> state: string"
    effects = (reads("iterator"),)

    def shape(self, iterator: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, iterator: SessionIterator) -> Any:
        return text.text_array(iterator.save(context.cancellation))


class IteratorRestoreState(IteratorOp):
    """Continues an iterator at a saved position."""

    private = True
    signature = "iterator: resource, state: string ->"

    def shape(self, *_: Tensor) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, iterator: SessionIterator, state: Any) -> Any:
        iterator.restore(text.text_item(state), context.resources, context.cancellation)
        return ()


# Passes over a whole dataset in one step


class DatasetPass:
    """One pass over a dataset, in one step."""

    def __init__(self, dataset: Pipeline, context: Context) -> None:
        self.run = Run(context.resources)
        self._puller = Puller(self.run)
        self._context = context
        self.flow: Flow = dataset.fresh().start(self._puller)

    def next(self) -> Element | None:
        """The next element; None at the end."""
        return self.flow.next()

    def __enter__(self) -> DatasetPass:
        stop = errors.CancelledError(None, None, "the step was cancelled")
        cancellation = self._context.cancellation
        self._unregister = cancellation.on_cancel(lambda: self._puller.interrupt(stop))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._unregister()
        self.flow.close()
        if isinstance(error, Interrupted):
            self._context.cancellation.check()


class ReduceDataset(ElementOp):
    """The last state of state = f(state, element) for all elements"""

    signature = (
        "input_dataset: variant, initial_state: [Tstate], other_arguments: [Targuments] "
        "-> components: [output_types]"
    )
    effects = ()  # its pass shares no state with others
    f: FunctionName

    def kernel(
        self,
        context: Context,
        input_dataset: Pipeline,
        initial_state: list[Any],
        other_arguments: list[Any],
    ) -> list[Any]:
        captured = captured_values(context, 1 + len(initial_state), other_arguments)
        state: Sequence[Any] = initial_state
        with DatasetPass(input_dataset, context) as all_elements:
            call = Function(self.f, captured).bound(all_elements.run, context.node)
            while (element := all_elements.next()) is not None:
                state = call.flat(*state, *element)
        return [list(state)]


class DatasetToSingleElement(ElementOp):
    """The only element of a dataset."""

    signature = "dataset: variant -> components: [output_types]"
    effects = ()  # its pass shares no state with others

    def kernel(self, context: Context, dataset: Pipeline) -> list[Any]:
        with DatasetPass(dataset, context) as all_elements:
            element = all_elements.next()
            if element is None:
                raise invalid("Dataset was empty.")
            if all_elements.next() is not None:
                raise invalid("Dataset had more than one element.")
        return [list(tensors_of(element))]
