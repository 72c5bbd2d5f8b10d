"""The run-time form of datasets: pipelines, flows, and the threads that pull elements from them.

A `Pipeline` is a dataset at run time: an op with the values of its inputs. `Pipeline.start` returns
a `Flow`, from which elements are pulled one by one or, as rows of columns, many at a time.
`Flow.save` returns the position of a flow; `Flow.load` continues there with the next element.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any, ClassVar

from thalweg import errors
from thalweg.data.watching import register_flow
from thalweg.graph.dtypes import DType, variant
from thalweg.graph.node import Node
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.graph.signature import flattened
from thalweg.ops.core.context import Allocate
from thalweg.ops.random.philox import Stream
from thalweg.platform import spans
from thalweg.runtime.kernels import Context, located
from thalweg.runtime.resources import Resources

#: One value per leaf: an array, a NumPy scalar, bytes, a SparseTensorValue or a Pipeline.
Element = tuple[Any, ...]
#: The same of several elements: one array per leaf, one row per element.
Rows = tuple[Any, ...]

_WAKE: Any = object()


class Interrupted(Exception):
    """The pulling thread must stop waiting. Elements pulled so far stay in the flow."""

    def __init__(self, error: errors.OpError) -> None:
        super().__init__(str(error))
        self.error = error


class Run:
    """The state that all flows of one iterator share: the random streams of their functions."""

    def __init__(self, resources: Resources) -> None:
        self.resources = IteratorResources(resources)
        self.holds = ExitStack()  # the locks that a snapshot holds until it is complete

    def save(self) -> Any:
        """The positions in the random streams."""
        return self.resources.save()


class IteratorResources(Resources):
    """The resources of a session, with random streams that belong to one iterator."""

    def __init__(self, session: Resources) -> None:
        super().__init__()
        self._session = weakref.ref(session)  # weak, as the session owns the iterator
        self._saved: dict[str, list[str]] = {}

    def get(self, name: str, container: str, make: Any) -> Any:
        return self._resources().get(name, container, make)

    def delete(self, name: str, container: str) -> bool:
        return self._resources().delete(name, container)

    def allocator(self, request: str) -> Allocate:
        return self._resources().allocator(request)

    def _resources(self) -> Resources:
        session = self._session()
        if session is None:
            raise errors.CancelledError(None, None, "The session of this iterator was closed.")
        return session

    def state(self, node: Any, make: Any) -> Any:
        saved = self._saved.pop(node.name, None)
        if saved is None:
            return super().state(node, make)
        return super().state(node, lambda: _stream(saved))

    def save(self) -> dict[str, list[str]]:
        """The positions of the streams, by node name."""
        result = dict(self._saved)
        for node, state in self._states.items():
            if isinstance(state, Stream):
                place = state.reserve(0)
                result[node.name] = [str(place.key), str(place.counter)]
        return result

    def load(self, saved: dict[str, list[str]]) -> None:
        """Start streams at saved positions."""
        self._saved = dict(saved)


def _stream(saved: Sequence[str]) -> Stream:
    key, counter = int(saved[0]), int(saved[1])
    stream = Stream(key, counter >> 64)
    stream.reserve(counter & (1 << 64) - 1)
    return stream


class Puller:
    """A pulling thread, at most one at a time: it blocks on a queue and can be interrupted."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._asleep_on: SimpleQueue[Any] | None = None
        self._error: errors.OpError | None = None
        self._delegate: Puller | None = None

    def get(self, queue: SimpleQueue[Any], node: Node) -> Any:
        """Block until a queue has an item and return it; `node` is the stage that waits."""
        while True:
            self._asleep_on = queue
            self.check()
            item = _waited(queue, node) if queue.empty() else queue.get()
            self._asleep_on = None
            if item is not _WAKE:
                return item

    def check(self) -> None:
        """Raise `Interrupted` after `interrupt`."""
        if self._error is not None:
            raise Interrupted(self._error)

    @contextmanager
    def in_place_of(self, other: Puller) -> Generator[None]:
        """Inside the block, this thread pulls on behalf of another: interrupts apply to both."""
        self._delegate = other
        try:
            self.check()
            yield
        except Interrupted:
            other.resume()
            raise
        finally:
            self._delegate = None

    def interrupt(self, error: errors.OpError) -> None:
        """Wake the thread; from now on its waits raise."""
        self._error = error
        if self._delegate is not None:
            self._delegate.interrupt(error)
        queue = self._asleep_on
        if queue is not None:
            queue.put(_WAKE)

    def resume(self) -> None:
        """Clear the interrupt: waits block again."""
        self._error = None


def _waited(queue: SimpleQueue[Any], node: Node) -> Any:
    with spans.BlockSpan("waits for an element", node):
        return queue.get()


class Pipeline:
    """A dataset at run time: an op, and the values of its inputs."""

    def __init__(self, stage: Stage, node: Node, inputs: Sequence[Any]) -> None:
        self.stage = stage
        self.node = node
        self.inputs = tuple(inputs)
        self.memory: dict[str, Any] = {}  # state that one pass keeps for the next

    def start(self, puller: Puller) -> Flow:
        """Start a pass over the elements."""
        return self.stage.flow(self, puller)

    def fresh(self) -> Pipeline:
        """A copy without the state of earlier passes."""
        inputs = [_fresh(value) for value in self.inputs]
        return Pipeline(self.stage, self.node, inputs)

    @property
    def sources(self) -> list[Pipeline]:
        """The pipelines that its elements come from."""
        return [value for value in flattened(self.inputs) if isinstance(value, Pipeline)]

    @property
    def has_rows(self) -> bool:
        """Whether all elements are dense and of one shape, so that they can be rows of columns."""
        return self.stage.has_rows


def _fresh(value: Any) -> Any:
    if isinstance(value, list):
        return [_fresh(part) for part in value]  # pyright: ignore[reportUnknownVariableType] - any values
    return value.fresh() if isinstance(value, Pipeline) else value


class Flow:
    """A pass over the elements of a pipeline."""

    gives_rows = False  # whether `rows` is supported, and faster than `next`

    def __init__(self, pipeline: Pipeline, puller: Puller) -> None:
        self.pipeline = pipeline
        self.puller = puller
        self.open(*pipeline.inputs)
        register_flow(self)

    def open(self, *inputs: Any) -> None:
        """Initialize the flow from the values of the op's inputs."""
        raise TypeError(f"{type(self).__name__} must define open")

    def next(self) -> Element | None:
        """The next element; None at the end and in all later calls."""
        raise TypeError(f"{type(self).__name__} must define next")

    def rows(self, most: int) -> Rows | None:
        """The next `most` elements as rows, fewer only before the end; None at the end."""
        raise TypeError(f"{type(self).__name__} must define rows")

    def save(self) -> Any:
        """The position of this flow, for `load`."""
        raise TypeError(f"{type(self).__name__} must define save")

    def load(self, state: Any) -> None:
        """Continue at the saved position of a flow of the same pipeline."""
        raise TypeError(f"{type(self).__name__} must define load")

    def close(self) -> None:
        """End the threads of this flow and of its sources."""

    def failed(self, error: Exception) -> Exception:
        """The error annotated with this stage's op and the user's line."""
        if isinstance(error, Interrupted):
            return error
        node = self.pipeline.node
        result = located(error, node)
        if result.op is node:
            return result
        stage = f"in stage {node.name!r} ({node.type}), created at {node.origin}"
        if stage in result.message:
            return result
        return type(result)(None, result.op, f"{result.message}\n  {stage}")


class CountedFlow(Flow):
    """A flow whose only state is the number of elements it has produced."""

    _position = 0
    count: int

    def next(self) -> Element | None:
        place = self._position
        if place >= self.count:
            return None
        self._position = place + 1
        return self.element(place)

    def rows(self, most: int) -> Rows | None:
        start = self._position
        if start >= self.count:
            return None
        self._position = min(start + most, self.count)
        return self.part(start, self._position)

    def element(self, place: int) -> Element:
        """The element at an index."""
        raise TypeError(f"{type(self).__name__} must define element")

    def part(self, start: int, stop: int) -> Rows:
        """The elements of an index range, as rows."""
        raise TypeError(f"{type(self).__name__} must define part")

    def save(self) -> Any:
        return {"given": self._position}

    def load(self, state: Any) -> None:
        self._position = int(state["given"])


class InMemoryFlow(CountedFlow):
    """A flow over elements in memory."""

    def open(self, *elements: Any) -> None:
        self._elements = elements
        self.count = len(elements)

    def element(self, place: int) -> Element:
        return self._elements[place]


class InMemoryPipeline(Pipeline):
    """A dataset of elements in memory: a window or a group."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self.inputs = tuple(elements)

    def start(self, puller: Puller) -> Flow:
        return InMemoryFlow(self, puller)

    def fresh(self) -> Pipeline:
        return self


class UnaryFlow(Flow):
    """A flow with one source."""

    source: Flow

    def close(self) -> None:
        self.source.close()

    def save(self) -> Any:
        return {"source": self.source.save(), **self.own_state()}

    def load(self, state: Any) -> None:
        self.source.load(state["source"])
        self.set_own_state(state)

    def own_state(self) -> dict[str, Any]:
        """The state that this flow saves in addition to its source's."""
        return {}

    def set_own_state(self, state: Any) -> None:
        """Restore the state that this flow saved."""


class Stage(Op, abstract=True):
    """The base of ops whose output is a dataset."""

    signature = "-> handle: variant"
    effects = ()  # a pipeline runs when it is iterated
    stateful = True  # a new pipeline each time
    host_only = True
    not_differentiable = True
    #: the class of its flows
    flow: ClassVar[type[Flow]]
    output_types: tuple[DType, ...]
    output_shapes: tuple[TensorShape, ...]

    def shape(self, *_: Any) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, *inputs: Any) -> Any:
        return Pipeline(self, context.node, inputs)

    @property
    def has_rows(self) -> bool:
        """Whether all elements are dense and of one shape."""
        types, shapes = self.output_types, self.output_shapes
        return variant not in types and all(shape.is_fully_defined() for shape in shapes)
