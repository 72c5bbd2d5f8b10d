"""Iterators of eager code: the elements of a dataset in a Python loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from thalweg import errors
from thalweg.data import structure
from thalweg.data.columns import as_array
from thalweg.data.flow import Pipeline
from thalweg.data.functions import Function, tensors_of
from thalweg.data.iterator import Described
from thalweg.data.iterator_state import NeverCancelled, SessionIterator
from thalweg.functions.devices import resources
from thalweg.functions.eager import EAGER
from thalweg.functions.tensors import known
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import Structure
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.shapes import scalar
from thalweg.graph.subgraph import SubGraph
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.data.dataset import Dataset


@public("data.experimental.EagerIterator", "contrib.eager.Iterator")
class EagerIterator(Described):
    """A position in a dataset, for `for element in dataset` in eager code."""

    def __init__(self, dataset: Dataset) -> None:
        self._spec = dataset.element_spec
        self._kinds = structure.all_kinds(self._spec)
        self._iterator = SessionIterator("eager iterator")
        pipeline: Pipeline = cast("Any", dataset.variant).held()
        self._has_variables = _reads_variables(pipeline)
        self._iterator.initialize(pipeline, resources, NeverCancelled())

    def __iter__(self) -> EagerIterator:
        return self

    def __next__(self) -> Structure:
        try:
            return self.get_next()
        except errors.OutOfRangeError:
            raise StopIteration from None

    next = __next__

    def get_next(self, name: str | None = None) -> Structure:
        """The next element; raises OutOfRangeError after the last."""
        if isinstance(get_default_graph(), SubGraph):
            raise RuntimeError(
                "An iterator of eager code has no next element while a function, a branch or a "
                f"loop is traced (at {user_line()}): it would be the same one in every call. Pass "
                "elements as arguments, or use `Dataset.reduce`"
            )
        if self._has_variables:
            EAGER.flush()  # the recorded trace may update them
        values = tensors_of(self._iterator.next(NeverCancelled()))
        pairs = zip(values, self._kinds, strict=True)
        made: list[Tensor] = [_tensor(value, dtype) for value, (dtype, _) in pairs]
        return structure.structure_of(self._spec, made)

    def save_state(self) -> bytes:
        """The position, serialized."""
        return self._iterator.save(NeverCancelled())

    def restore_state(self, state: bytes) -> None:
        """Continue at a saved position."""
        self._iterator.restore(state, resources, NeverCancelled())


def _reads_variables(pipeline: Pipeline) -> bool:
    """Whether a function of a pipeline has captured a variable."""
    return any(
        isinstance(value, Function)
        and any(isinstance(each, VariableCell) for each in value.captured)
        for value in pipeline.inputs
    ) or any(_reads_variables(source) for source in pipeline.sources)


def _tensor(value: Any, dtype: Any) -> Tensor:
    if isinstance(value, Pipeline):
        return known(value, dtype, scalar())
    if isinstance(value, Buffer):
        value.freeze()
        return known(value, dtype)
    return known(as_array(value), dtype)
