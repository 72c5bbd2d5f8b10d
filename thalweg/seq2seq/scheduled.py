"""Helpers of scheduled sampling: training inputs, now and then replaced by the model's own."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from thalweg.control.branches import cond
from thalweg.graph import dtypes, nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import joining
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.math import compare, reduce
from thalweg.ops.random import random
from thalweg.public import public
from thalweg.seq2seq.helpers import (
    TrainingHelper,
    batch_and_time_swapped,
    categorical_sample,
    lookup_function,
    steps_of,
)


def _probability(value: Any) -> Tensor:
    tensor = convert_to_tensor(value, name="sampling_probability")
    if tensor.shape.rank not in (0, 1):
        raise ValueError(
            f"sampling_probability must be either a scalar or a vector. saw shape: {tensor.shape}"
        )
    return tensor


def _drawn(probability: Tensor, batch: Any, seed: int | None) -> Tensor:
    """For each example, True with a probability."""
    draws = random.random_uniform(shaping.reshape(batch, [1]), dtype=probability.dtype, seed=seed)
    return compare.less(draws, probability)


def _rows_where(condition: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """Rows of one tensor or of the other; each broadcasts its last axes."""
    chosen = choosing.where(condition, rows, others)
    chosen.set_shape(others.shape)
    return chosen


@public("contrib.seq2seq.ScheduledEmbeddingTrainingHelper")
class ScheduledEmbeddingTrainingHelper(TrainingHelper):
    """A `TrainingHelper` that reads the embedding of a sampled id with some probability.

    Args:
        inputs: [batch, time, ...], or with `time_major` [time, batch, ...].
        sequence_length: the length of each example.
        embedding: a table of rows, or a function from ids to rows.
        sampling_probability: how often an id is sampled, a number or one for each example.
        time_major: whether time comes first.
        seed: the seed of the ids.
        scheduling_seed: the seed of the choice.
        name: the name of the nodes.

    Example:
        >>> helper = tf.contrib.seq2seq.ScheduledEmbeddingTrainingHelper(
        ...     tf.ones([2, 3, 4]), [3, 2], tf.eye(4), 0.5)
        >>> helper.sample(0, tf.ones([2, 4]), ()).shape.as_list()
        [2]
    """

    def __init__(
        self,
        inputs: Structure,
        sequence_length: TensorLike,
        embedding: Structure,
        sampling_probability: TensorLike,
        time_major: bool = False,
        seed: int | None = None,
        scheduling_seed: int | None = None,
        name: str | None = None,
    ) -> None:
        with name_scope(name, "ScheduledEmbeddingSamplingWrapper"):
            self._embedding_fn = lookup_function(embedding)
            self._sampling_probability = _probability(sampling_probability)
            self._seed, self._scheduling_seed = seed, scheduling_seed
            super().__init__(inputs, sequence_length, time_major, name)

    def sample(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure = None,
        name: str | None = None,
    ) -> Any:
        """An id for each example, -1 where the given input is read."""
        with name_scope(name, "ScheduledEmbeddingTrainingHelperSample"):
            chosen = _drawn(self._sampling_probability, self.batch_size, self._scheduling_seed)
            ids = categorical_sample(outputs, self._seed)
            return _rows_where(chosen, ids, filling.fill(shaping.shape(ids), -1))

    def next_inputs(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure,
        sample_ids: Any = None,
        name: str | None = None,
    ) -> Any:
        """As in training, but with the embeddings of the ids that were sampled."""
        with name_scope(name, "ScheduledEmbeddingTrainingHelperNextInputs"):
            finished, given, state = super().next_inputs(time, outputs, state)
            ids = convert_to_tensor(sample_ids)

            def mixed() -> Tensor:
                is_sampled = compare.greater(ids, -1)
                known = choosing.where(is_sampled, ids, filling.zeros_like(ids))
                return _rows_where(is_sampled, self._embedding_fn(known), given)

            return finished, cond(reduce.reduce_all(finished), lambda: given, mixed), state


@public("contrib.seq2seq.ScheduledOutputTrainingHelper")
class ScheduledOutputTrainingHelper(TrainingHelper):
    """A `TrainingHelper` that reads the model's own output with some probability.

    Args:
        inputs: [batch, time, size], or with `time_major` [time, batch, size].
        sequence_length: the length of each example.
        sampling_probability: how often the output is read, a number or one for each example.
        time_major: whether time comes first.
        seed: the seed of the choice.
        next_inputs_fn: outputs -> inputs; the outputs themselves if None.
        auxiliary_inputs: what is put behind the inputs of each step, in any case.
        name: the name of the nodes.

    Example:
        >>> helper = tf.contrib.seq2seq.ScheduledOutputTrainingHelper(
        ...     tf.ones([2, 3, 4]), [3, 2], 0.5)
        >>> helper.sample(0, tf.ones([2, 4]), ()).shape.as_list()
        [2]
    """

    def __init__(
        self,
        inputs: Structure,
        sequence_length: TensorLike,
        sampling_probability: TensorLike,
        time_major: bool = False,
        seed: int | None = None,
        next_inputs_fn: Callable[[Any], Any] | None = None,
        auxiliary_inputs: Structure | None = None,
        name: str | None = None,
    ) -> None:
        with name_scope(name, "ScheduledOutputTrainingHelper"):
            self._sampling_probability = _probability(sampling_probability)
            self._seed, self._next_inputs_fn = seed, next_inputs_fn
            self._auxiliary: Any = None
            if auxiliary_inputs is not None:
                inputs = nest.map_structure(_joined, inputs, auxiliary_inputs)
                extra = nest.map_structure(convert_to_tensor, auxiliary_inputs)
                self._auxiliary = steps_of(extra if time_major else batch_and_time_swapped(extra))
            super().__init__(inputs, sequence_length, time_major, name)

    def sample(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure = None,
        name: str | None = None,
    ) -> Any:
        """1 for each example whose output is read, else 0."""
        with name_scope(name, "ScheduledOutputTrainingHelperSample"):
            drawn = _drawn(self._sampling_probability, self.batch_size, self._seed)
            return casting.cast(drawn, dtypes.int32)

    def next_inputs(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure,
        sample_ids: Any = None,
        name: str | None = None,
    ) -> Any:
        """As in training, but with the outputs of the examples that were chosen."""
        with name_scope(name, "ScheduledOutputTrainingHelperNextInputs"):
            finished, given, state = super().next_inputs(time, outputs, state)
            is_sampled = casting.cast(convert_to_tensor(sample_ids), dtypes.bool)

            def mixed() -> Any:
                own = outputs if self._next_inputs_fn is None else self._next_inputs_fn(outputs)
                if self._auxiliary is not None:
                    following = convert_to_tensor(time) + 1
                    extra = nest.map_structure(
                        operator.methodcaller("read", following), self._auxiliary
                    )
                    own = nest.map_structure(_joined, own, extra)
                return nest.map_structure(functools.partial(_rows_where, is_sampled), own, given)

            none = compare.logical_not(reduce.reduce_any(is_sampled))
            stop = compare.logical_or(reduce.reduce_all(finished), none)
            return finished, cond(stop, lambda: given, mixed), state


def _joined(first: Any, second: Any) -> Tensor:
    return joining.concat([first, second], -1)
