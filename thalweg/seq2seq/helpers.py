"""Helpers: what a decoder samples from its outputs, and what it reads in the next step."""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable
from typing import Any

from thalweg.control.branches import cond
from thalweg.control.tensor_array import TensorArray
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype, int32
from thalweg.graph.likes import DTypeLike, ShapeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.nn import embedding as embeddings
from thalweg.ops.arrays import joining, searching, transposing
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.math import compare, reduce
from thalweg.ops.random import random
from thalweg.public import public

Embedding = Callable[[Any], Any]


def batch_and_time_swapped(values: Any) -> Any:
    """Each tensor of a structure with its first two axes exchanged; scalars and vectors stay."""
    return nest.map_structure(_swapped, values)


def _swapped(value: Any) -> Any:
    value = convert_to_tensor(value)
    rank = value.shape.rank
    if rank is not None and rank < 2:
        return value
    if rank is None:
        rest = filling.range(2, shaping.rank(value))
        return transposing.transpose(value, joining.concat([[1, 0], rest], 0))
    return transposing.transpose(value, [1, 0, *range(2, rank)])


def lookup_function(embedding: Any) -> Embedding:
    """A function from ids to rows: `embedding` itself, or lookups in that table."""
    if callable(embedding):
        return embedding
    return lambda ids: embeddings.embedding_lookup(embedding, ids)


def vector(value: Any, name: str) -> Tensor:
    """A value as a vector of int32."""
    tensor = convert_to_tensor(value, int32, name)
    if tensor.shape.rank != 1:
        raise ValueError(f"{name} must be a vector")
    return tensor


def scalar(value: Any, name: str) -> Tensor:
    """A value as one int32."""
    tensor = convert_to_tensor(value, int32, name)
    if tensor.shape.rank != 0:
        raise ValueError(f"{name} must be a scalar")
    return tensor


def steps_of(values: Any) -> Any:
    """For each tensor of a structure [time, ...], the list of its steps."""

    def listed(value: Any) -> TensorArray:
        value = convert_to_tensor(value)
        size, shape = shaping.shape(value)[0], value.shape[1:]
        return TensorArray(value.dtype, size=size, element_shape=shape).unstack(value)

    return nest.map_structure(listed, values)


def _zero_step(steps: Tensor) -> Tensor:
    return filling.zeros_like(steps[0])


def _read(arrays: Any, time: Any) -> Any:
    return nest.map_structure(operator.methodcaller("read", time), arrays)


def categorical_sample(logits: Any, seed: int | None) -> Tensor:
    """One class for each row of logits, drawn by their softmax."""
    drawn = random.categorical_samples(logits, 1, int32, seed)
    return shaping.squeeze(drawn, [1])


@public("contrib.seq2seq.Helper")
class Helper(abc.ABC):
    """What a `BasicDecoder` asks: what is sampled, and what the next step reads.

    Example:
        >>> issubclass(tf.contrib.seq2seq.TrainingHelper, tf.contrib.seq2seq.Helper)
        True
    """

    @property
    @abc.abstractmethod
    def batch_size(self) -> Any:
        """The size of the batch, as a tensor."""

    @property
    @abc.abstractmethod
    def sample_ids_shape(self) -> Any:
        """The shape of what is sampled, without the batch."""

    @property
    @abc.abstractmethod
    def sample_ids_dtype(self) -> Any:
        """The dtype of what is sampled."""

    @abc.abstractmethod
    def initialize(self, name: str | None = None) -> Any:
        """(which examples have ended, the inputs of the first step)."""

    @abc.abstractmethod
    def sample(
        self, time: TensorLike, outputs: Structure, state: Structure, name: str | None = None
    ) -> Any:
        """What is sampled from the outputs of a step."""

    @abc.abstractmethod
    def next_inputs(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure,
        sample_ids: TensorLike,
        name: str | None = None,
    ) -> Any:
        """(which examples have ended, the inputs of the next step, its state)."""


class _IdHelper(Helper):
    """A helper that samples one id for each example."""

    @property
    def sample_ids_shape(self) -> TensorShape:
        """A scalar."""
        return TensorShape([])

    @property
    def sample_ids_dtype(self) -> Any:
        """int32"""
        return int32


@public("contrib.seq2seq.CustomHelper")
class CustomHelper(Helper):
    """A helper of three functions.

    Args:
        initialize_fn: () -> (finished, inputs).
        sample_fn: (time, outputs, state) -> sample ids.
        next_inputs_fn: (time, outputs, state, sample_ids) -> (finished, inputs, state).
        sample_ids_shape: the shape of what is sampled; scalars if None.
        sample_ids_dtype: its dtype; int32 if None.

    Example:
        >>> helper = tf.contrib.seq2seq.CustomHelper(
        ...     lambda: (tf.constant([False]), tf.zeros([1, 2])),
        ...     lambda time, outputs, state: tf.argmax(outputs, -1, output_type=tf.int32),
        ...     lambda time, outputs, state, sample_ids: (time >= [2], outputs, state))
        >>> helper.sample_ids_dtype
        tf.int32
    """

    def __init__(
        self,
        initialize_fn: Callable[[], Any],
        sample_fn: Callable[..., Any],
        next_inputs_fn: Callable[..., Any],
        sample_ids_shape: ShapeLike | None = None,
        sample_ids_dtype: DTypeLike | None = None,
    ) -> None:
        self._initialize_fn, self._sample_fn = initialize_fn, sample_fn
        self._next_inputs_fn = next_inputs_fn
        self._batch_size: Tensor | None = None
        self._sample_ids_shape = TensorShape(() if sample_ids_shape is None else sample_ids_shape)
        self._sample_ids_dtype = as_dtype(sample_ids_dtype or int32)

    @property
    def batch_size(self) -> Tensor:
        """The size of the batch; known once `initialize` was called."""
        if self._batch_size is None:
            raise ValueError("batch_size accessed before initialize was called")
        return self._batch_size

    @property
    def sample_ids_shape(self) -> TensorShape:
        """The shape of what is sampled, without the batch."""
        return self._sample_ids_shape

    @property
    def sample_ids_dtype(self) -> Any:
        """The dtype of what is sampled."""
        return self._sample_ids_dtype

    def initialize(self, name: str | None = None) -> Any:
        """What `initialize_fn` gives."""
        with name_scope(name, "CustomHelperInitialize"):
            finished, inputs = self._initialize_fn()
            if self._batch_size is None:
                self._batch_size = shaping.size(finished)
        return finished, inputs

    def sample(
        self, time: TensorLike, outputs: Structure, state: Structure, name: str | None = None
    ) -> Any:
        """What `sample_fn` gives."""
        with name_scope(name, "CustomHelperSample"):
            return self._sample_fn(time=time, outputs=outputs, state=state)

    def next_inputs(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure,
        sample_ids: TensorLike,
        name: str | None = None,
    ) -> Any:
        """What `next_inputs_fn` gives."""
        with name_scope(name, "CustomHelperNextInputs"):
            return self._next_inputs_fn(
                time=time, outputs=outputs, state=state, sample_ids=sample_ids
            )


@public("contrib.seq2seq.TrainingHelper")
class TrainingHelper(_IdHelper):
    """Reads given inputs: teacher forcing. It samples the most probable id.

    Args:
        inputs: [batch, time, ...], or with `time_major` [time, batch, ...]; may be nested.
        sequence_length: the length of each example.
        time_major: whether time comes first.
        name: the name of the nodes.

    Example:
        >>> helper = tf.contrib.seq2seq.TrainingHelper(tf.ones([2, 3, 4]), [3, 2])
        >>> finished, inputs = helper.initialize()
        >>> inputs.shape.as_list()
        [2, 4]
    """

    def __init__(
        self,
        inputs: Structure,
        sequence_length: TensorLike,
        time_major: bool = False,
        name: str | None = None,
    ) -> None:
        with name_scope(name, "TrainingHelper"):
            self._inputs = nest.map_structure(convert_to_tensor, inputs)
            ordered = self._inputs if time_major else batch_and_time_swapped(self._inputs)
            self._steps = steps_of(ordered)
            self._sequence_length = convert_to_tensor(sequence_length, name="sequence_length")
            if self._sequence_length.shape.rank != 1:
                raise ValueError(
                    "Expected sequence_length to be a vector, but received shape: "
                    f"{self._sequence_length.shape}"
                )
            self._zero_inputs = nest.map_structure(_zero_step, ordered)
            self._batch_size = shaping.size(self._sequence_length)

    @property
    def inputs(self) -> Any:
        """The inputs as given."""
        return self._inputs

    @property
    def sequence_length(self) -> Tensor:
        """The length of each example."""
        return self._sequence_length

    @property
    def batch_size(self) -> Tensor:
        """The size of the batch."""
        return self._batch_size

    def _inputs_at(self, time: Any, finished: Tensor) -> Any:
        return cond(
            reduce.reduce_all(finished),
            lambda: self._zero_inputs,
            lambda: _read(self._steps, time),
        )

    def initialize(self, name: str | None = None) -> Any:
        """(examples of length 0, the first inputs)."""
        with name_scope(name, "TrainingHelperInitialize"):
            finished = compare.equal(self._sequence_length, 0)
            return finished, self._inputs_at(0, finished)

    def sample(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure = None,
        name: str | None = None,
    ) -> Any:
        """The most probable id of each example."""
        with name_scope(name, "TrainingHelperSample"):
            return casting.cast(searching.argmax(outputs, -1), int32)

    def next_inputs(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure,
        sample_ids: TensorLike | None = None,
        name: str | None = None,
    ) -> Any:
        """(examples that end with the next step, what is given for it, the same state)."""
        with name_scope(name, "TrainingHelperNextInputs"):
            following = convert_to_tensor(time) + 1
            finished = compare.greater_equal(following, self._sequence_length)
            return finished, self._inputs_at(following, finished), state


@public("contrib.seq2seq.GreedyEmbeddingHelper")
class GreedyEmbeddingHelper(_IdHelper):
    """Reads the embedding of the most probable id of the step before.

    Args:
        embedding: a table of rows, or a function from ids to rows.
        start_tokens: the ids of the first step, a vector [batch].
        end_token: the id that ends an example.

    Example:
        >>> helper = tf.contrib.seq2seq.GreedyEmbeddingHelper(tf.eye(5), [1, 1], 0)
        >>> sess.run(helper.sample(0, tf.constant([[0.1, 0.9], [0.8, 0.2]]), ()))
        array([1, 0], dtype=int32)
    """

    def __init__(
        self, embedding: Structure, start_tokens: TensorLike, end_token: TensorLike
    ) -> None:
        self._embedding_fn = lookup_function(embedding)
        self._start_tokens = vector(start_tokens, "start_tokens")
        self._end_token = scalar(end_token, "end_token")
        self._batch_size = shaping.size(self._start_tokens)
        self._start_inputs = self._embedding_fn(self._start_tokens)

    @property
    def batch_size(self) -> Tensor:
        """The size of the batch."""
        return self._batch_size

    def initialize(self, name: str | None = None) -> Any:
        """(none has ended, the embeddings of the start tokens)."""
        return joining.tile([False], [self._batch_size]), self._start_inputs

    def sample(
        self, time: TensorLike, outputs: Structure, state: Structure, name: str | None = None
    ) -> Any:
        """The most probable id of each example."""
        return searching.argmax(_one_tensor(outputs), -1, output_type=int32)

    def next_inputs(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure,
        sample_ids: TensorLike,
        name: str | None = None,
    ) -> Any:
        """(examples whose id is the end token, the embeddings of the ids, the same state)."""
        finished = compare.equal(sample_ids, self._end_token)
        inputs = cond(
            reduce.reduce_all(finished),
            lambda: self._start_inputs,
            lambda: self._embedding_fn(sample_ids),
        )
        return finished, inputs, state


def _one_tensor(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TypeError(f"Expected outputs to be a single Tensor, got: {type(outputs)}")
    return outputs


@public("contrib.seq2seq.SampleEmbeddingHelper")
class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """As `GreedyEmbeddingHelper`, with an id that is drawn by its probability.

    Args:
        embedding: a table of rows, or a function from ids to rows.
        start_tokens: the ids of the first step, a vector [batch].
        end_token: the id that ends an example.
        softmax_temperature: outputs are divided by it; below 1, likely ids are drawn more often.
        seed: the seed of the draws.

    Example:
        >>> helper = tf.contrib.seq2seq.SampleEmbeddingHelper(tf.eye(3), [1, 1], 0, seed=1)
        >>> sess.run(helper.sample(0, tf.constant([[0.0, 99.0], [99.0, 0.0]]), ()))
        array([1, 0], dtype=int32)
    """

    def __init__(
        self,
        embedding: Structure,
        start_tokens: TensorLike,
        end_token: TensorLike,
        softmax_temperature: TensorLike | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding, start_tokens, end_token)
        self._softmax_temperature, self._seed = softmax_temperature, seed

    def sample(
        self, time: TensorLike, outputs: Structure, state: Structure, name: str | None = None
    ) -> Any:
        """An id for each example, drawn by the softmax of its outputs."""
        logits = _one_tensor(outputs)
        if self._softmax_temperature is not None:
            logits = logits / self._softmax_temperature
        return categorical_sample(logits, self._seed)


@public("contrib.seq2seq.InferenceHelper")
class InferenceHelper(Helper):
    """Reads what was sampled, by functions of the user's.

    Args:
        sample_fn: outputs -> sample.
        sample_shape: the shape of a sample, without the batch.
        sample_dtype: its dtype.
        start_inputs: the inputs of the first step.
        end_fn: sample -> which examples have ended.
        next_inputs_fn: sample -> inputs; the sample itself if None.

    Example:
        >>> helper = tf.contrib.seq2seq.InferenceHelper(
        ...     lambda outputs: outputs, [2], tf.float32, tf.zeros([1, 2]), lambda s: s[:, 0] > 1)
        >>> helper.sample_ids_shape.as_list()
        [2]
    """

    def __init__(
        self,
        sample_fn: Callable[[Any], Any],
        sample_shape: ShapeLike,
        sample_dtype: DTypeLike,
        start_inputs: TensorLike,
        end_fn: Callable[[Any], Any],
        next_inputs_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self._sample_fn, self._end_fn = sample_fn, end_fn
        self._sample_shape = TensorShape(sample_shape)
        self._sample_dtype = as_dtype(sample_dtype)
        self._next_inputs_fn = next_inputs_fn
        self._start_inputs = convert_to_tensor(start_inputs, name="start_inputs")
        self._batch_size = shaping.shape(self._start_inputs)[0]

    @property
    def batch_size(self) -> Tensor:
        """The size of the batch."""
        return self._batch_size

    @property
    def sample_ids_shape(self) -> TensorShape:
        """The shape of a sample, without the batch."""
        return self._sample_shape

    @property
    def sample_ids_dtype(self) -> Any:
        """The dtype of a sample."""
        return self._sample_dtype

    def initialize(self, name: str | None = None) -> Any:
        """(none has ended, the start inputs)."""
        return joining.tile([False], [self._batch_size]), self._start_inputs

    def sample(
        self, time: TensorLike, outputs: Structure, state: Structure, name: str | None = None
    ) -> Any:
        """What `sample_fn` gives."""
        return self._sample_fn(outputs)

    def next_inputs(
        self,
        time: TensorLike,
        outputs: Structure,
        state: Structure,
        sample_ids: TensorLike,
        name: str | None = None,
    ) -> Any:
        """(what `end_fn` says, the inputs made of the sample, the same state)."""
        inputs = sample_ids if self._next_inputs_fn is None else self._next_inputs_fn(sample_ids)
        return self._end_fn(sample_ids), inputs, state
