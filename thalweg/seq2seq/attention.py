"""Attention mechanisms: a query and a memory in, a probability for each place of the memory out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, float32
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import control_dependencies, name_scope
from thalweg.layers.core import Dense
from thalweg.nn.layer import Layer
from thalweg.nn.rnn_cell import zero_states
from thalweg.ops.arrays import marking, searching
from thalweg.ops.core import checks, choosing, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.ops.nn import softmax
from thalweg.public import public
from thalweg.variables.initializers import Constant, Ones, Zeros
from thalweg.variables.scope import get_variable, variable_scope

#: (scores, the state before) -> probabilities
Probabilities = Callable[[Tensor, Any], Tensor]


@public("contrib.seq2seq.AttentionMechanism")
class AttentionMechanism:
    """The base of attention mechanisms: a callable (query, state) -> (alignments, next state).

    Example:
        >>> issubclass(tf.contrib.seq2seq.LuongAttention, tf.contrib.seq2seq.AttentionMechanism)
        True
    """

    @property
    def alignments_size(self) -> Any:
        """How many places the memory has."""
        raise NotImplementedError

    @property
    def state_size(self) -> Any:
        """The size of the state that it keeps from step to step."""
        raise NotImplementedError


class BaseAttentionMechanism(AttentionMechanism):
    """A mechanism with a memory [batch, time, ...] and layers for the memory and the query."""

    def __init__(
        self,
        query_layer: Any,
        memory: TensorLike,
        probability_fn: Probabilities,
        memory_sequence_length: TensorLike | None = None,
        memory_layer: Any = None,
        check_inner_dims_defined: bool = True,
        score_mask_value: TensorLike | None = None,
        custom_key_value_fn: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
    ) -> None:
        for what, layer in (("query_layer", query_layer), ("memory_layer", memory_layer)):
            if layer is not None and not isinstance(layer, Layer):
                raise TypeError(f"{what} is not a Layer: {type(layer).__name__}")
        if not callable(probability_fn):
            raise TypeError(
                f"probability_fn must be callable, saw type: {type(probability_fn).__name__}"
            )
        self._query_layer, self._memory_layer = query_layer, memory_layer
        self._lengths = memory_sequence_length
        self._score_to_probabilities = probability_fn
        with name_scope(name, "BaseAttentionMechanismInit"):
            self._values = prepared_memory(memory, memory_sequence_length, check_inner_dims_defined)
            first = nest.flatten(self._values)[0]
            self.dtype: DType = as_dtype(getattr(memory_layer, "dtype", None) or first.dtype)
            self._mask_value = -math.inf if score_mask_value is None else score_mask_value
            self._keys = memory_layer(self._values) if memory_layer else self._values
            if custom_key_value_fn is not None:
                self._keys, self._values = custom_key_value_fn(self._keys, self._values)
            self._batch_size = static_or_dynamic_size(self._keys, 0)
            self._alignments_size = static_or_dynamic_size(self._keys, 1)

    def _probability_fn(self, score: Tensor, previous: Any) -> Tensor:
        """Probabilities of scores; those behind the end of the memory do not count."""
        masked = masked_score(score, self._lengths, self._mask_value)
        return self._score_to_probabilities(masked, previous)

    @property
    def memory_layer(self) -> Layer | None:
        """The layer that makes keys of the memory."""
        return self._memory_layer

    @property
    def query_layer(self) -> Layer | None:
        """The layer that is applied to queries."""
        return self._query_layer

    @property
    def values(self) -> Any:
        """The memory, zero behind the end of each example."""
        return self._values

    @property
    def keys(self) -> Any:
        """What queries are compared with."""
        return self._keys

    @property
    def batch_size(self) -> Any:
        """The size of the batch."""
        return self._batch_size

    @property
    def alignments_size(self) -> Any:
        """How many places the memory has."""
        return self._alignments_size

    @property
    def state_size(self) -> Any:
        """As many: the state is the last alignments."""
        return self._alignments_size

    def initial_alignments(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The alignments before the first step: zeros."""
        return zeros_for(self._alignments_size, batch_size, dtype)

    def initial_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The state before the first step."""
        return self.initial_alignments(batch_size, dtype)


def zeros_for(size: Any, batch: Any, dtype: Any) -> Any:
    """Zeros [batch, size], where a size may be known only in the step."""
    if not isinstance(size, Tensor):
        return zero_states(size, batch, dtype)
    result = filling.zeros([batch, size], dtype)
    result.set_shape([batch if isinstance(batch, int) else None, None])
    return result


def static_or_dynamic_size(tensor: Tensor, axis: int) -> Any:
    """A size as an int if it is known, else as a tensor."""
    static = tensor.shape[axis].value
    return shaping.shape(tensor)[axis] if static is None else static


def prepared_memory(memory: Any, lengths: Any, check_inner: bool) -> Any:
    """The memory as tensors, zero behind the end of each example."""
    memory = nest.map_structure(functools.partial(convert_to_tensor, name="memory"), memory)
    for part in nest.flatten(memory) if check_inner else ():
        if not part.shape[2:].is_fully_defined():
            raise ValueError(
                f"Expected memory {part.name} to have fully defined inner dims, but saw shape: "
                f"{part.shape}"
            )
    if lengths is None:
        return memory

    def masked(part: Tensor) -> Tensor:
        mask = filling.sequence_mask(lengths, maxlen=shaping.shape(part)[1], dtype=part.dtype)
        for _ in range((part.shape.rank or 2) - 2):
            mask = shaping.expand_dims(mask, -1)
        return part * mask

    return nest.map_structure(masked, memory)


def masked_score(score: Tensor, lengths: Any, mask_value: Any) -> Tensor:
    """Scores, with `mask_value` behind the end of each example."""
    if lengths is None:
        return score
    message = "All values in memory_sequence_length must be greater than zero."
    with control_dependencies([checks.assert_positive(lengths, message=message)]):
        mask = filling.sequence_mask(lengths, maxlen=shaping.shape(score)[1])
    return choosing.where(mask, score, mask_value * filling.ones_like(score))


def _dense(units: int, name: str, dtype: Any) -> Dense:
    return Dense(units, name=name, use_bias=False, dtype=as_dtype(dtype or float32))


class LuongScores(BaseAttentionMechanism):
    """Scores that are products of the query and the keys."""

    scope = "luong_attention"

    def __init__(
        self,
        num_units: int,
        memory: Any,
        lengths: Any,
        scale: bool,
        probability_fn: Probabilities,
        dtype: Any,
        **options: Any,
    ) -> None:
        super().__init__(
            None,
            memory,
            probability_fn,
            lengths,
            _dense(num_units, "memory_layer", dtype),
            **options,
        )
        self._num_units, self._scale = num_units, scale
        self._name = options.get("name")

    def score(self, query: Tensor) -> Tensor:
        """The scores of a query, in the open variable scope."""
        depth, units = query.shape[-1].value, self._keys.shape[-1].value
        if depth != units or depth is None:
            raise ValueError(
                "Incompatible or unknown inner dimensions between query and keys.  Query "
                f"({query}) has units: {depth}.  Keys ({self._keys}) have units: {units}.  Perhaps "
                f"you need to set num_units to the keys' dimension ({units})?"
            )
        product = matmul.matmul(shaping.expand_dims(query, 1), self._keys, transpose_b=True)
        score = shaping.squeeze(product, [1])
        if not self._scale:
            return score
        return get_variable("attention_g", (), query.dtype, Ones()) * score

    def __call__(self, query: TensorLike, state: Structure) -> tuple[Any, Any]:
        """(alignments, next state) of a query."""
        with variable_scope(None, self.scope):
            score = self.score(convert_to_tensor(query))
        alignments = self._probability_fn(score, state)
        return alignments, alignments


class BahdanauScores(BaseAttentionMechanism):
    """Scores that are a small network of the query and the keys."""

    scope = "bahdanau_attention"

    def __init__(
        self,
        num_units: int,
        memory: Any,
        lengths: Any,
        normalize: bool,
        probability_fn: Probabilities,
        dtype: Any,
        **options: Any,
    ) -> None:
        super().__init__(
            _dense(num_units, "query_layer", dtype),
            memory,
            probability_fn,
            lengths,
            _dense(num_units, "memory_layer", dtype),
            **options,
        )
        self._num_units, self._normalize = num_units, normalize
        self._name = options.get("name")

    def score(self, query: Tensor) -> Tensor:
        """The scores of a query, in the open variable scope."""
        asked = self._query_layer(query) if self._query_layer else query
        seen = self._keys + shaping.expand_dims(asked, 1)
        weights: Any = get_variable("attention_v", [self._num_units], query.dtype)
        if self._normalize:
            start = Constant(math.sqrt(1.0 / self._num_units))
            gain: Any = get_variable("attention_g", (), query.dtype, start)
            seen += get_variable("attention_b", [self._num_units], query.dtype, Zeros())
            length = transcendental.rsqrt(reduce.reduce_sum(arithmetic.square(weights)))
            weights = gain * weights * length
        return reduce.reduce_sum(weights * transcendental.tanh(seen), [2])

    def __call__(self, query: TensorLike, state: Structure) -> tuple[Any, Any]:
        """(alignments, next state) of a query."""
        with variable_scope(None, self.scope):
            score = self.score(convert_to_tensor(query))
        alignments = self._probability_fn(score, state)
        return alignments, alignments


def _stateless(function: Callable[[Any], Any] | None) -> Probabilities:
    """A function of scores as one of scores and the state before."""
    chosen = softmax.softmax if function is None else function
    return lambda score, _: chosen(score)


@public("contrib.seq2seq.LuongAttention")
class LuongAttention(LuongScores):
    """Luong's attention: the score of a place is the product of its key and the query.

    Args:
        num_units: the size of keys, which must be that of queries.
        memory: what is looked at, [batch, time, ...].
        memory_sequence_length: how many places count in each example.
        scale: multiply scores by a weight, `attention_g`.
        probability_fn: makes probabilities of scores; softmax if None.
        score_mask_value: the score behind the end of an example; -inf if None.
        dtype: the dtype of the layer.
        custom_key_value_fn: (keys, values) -> (keys, values).
        name: the name of the nodes.

    Example:
        >>> attention = tf.contrib.seq2seq.LuongAttention(4, tf.ones([2, 3, 5]), [3, 1])
        >>> alignments, _ = attention(tf.ones([2, 4]), attention.initial_state(2, tf.float32))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(alignments)[1]
        array([1., 0., 0.], dtype=float32)
    """

    def __init__(
        self,
        num_units: int,
        memory: TensorLike,
        memory_sequence_length: TensorLike | None = None,
        scale: bool = False,
        probability_fn: Callable[[Any], Any] | None = None,
        score_mask_value: TensorLike | None = None,
        dtype: DTypeLike | None = None,
        custom_key_value_fn: Callable[[Any, Any], Any] | None = None,
        name: str = "LuongAttention",
    ) -> None:
        super().__init__(
            num_units,
            memory,
            memory_sequence_length,
            scale,
            _stateless(probability_fn),
            dtype,
            score_mask_value=score_mask_value,
            custom_key_value_fn=custom_key_value_fn,
            name=name,
        )


@public("contrib.seq2seq.BahdanauAttention")
class BahdanauAttention(BahdanauScores):
    """Bahdanau's attention: the score of a place is v tanh(key + query W).

    Args:
        num_units: the size of keys and queries, behind their layers.
        memory: what is looked at, [batch, time, ...].
        memory_sequence_length: how many places count in each example.
        normalize: normalize v, with a gain `attention_g` and an offset `attention_b`.
        probability_fn: makes probabilities of scores; softmax if None.
        score_mask_value: the score behind the end of an example; -inf if None.
        dtype: the dtype of the layers.
        custom_key_value_fn: (keys, values) -> (keys, values).
        name: the name of the nodes.

    Example:
        >>> attention = tf.contrib.seq2seq.BahdanauAttention(4, tf.ones([2, 3, 5]), [3, 1])
        >>> alignments, _ = attention(tf.ones([2, 7]), attention.initial_state(2, tf.float32))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(alignments)[1]
        array([1., 0., 0.], dtype=float32)
    """

    def __init__(
        self,
        num_units: int,
        memory: TensorLike,
        memory_sequence_length: TensorLike | None = None,
        normalize: bool = False,
        probability_fn: Callable[[Any], Any] | None = None,
        score_mask_value: TensorLike | None = None,
        dtype: DTypeLike | None = None,
        custom_key_value_fn: Callable[[Any, Any], Any] | None = None,
        name: str = "BahdanauAttention",
    ) -> None:
        super().__init__(
            num_units,
            memory,
            memory_sequence_length,
            normalize,
            _stateless(probability_fn),
            dtype,
            score_mask_value=score_mask_value,
            custom_key_value_fn=custom_key_value_fn,
            name=name,
        )


@public("contrib.seq2seq.hardmax")
def hardmax(logits: TensorLike, name: str | None = None) -> Tensor:
    """1 where a row is greatest, else 0.

    Args:
        logits: [batch, depth].
        name: the name of the nodes.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.contrib.seq2seq.hardmax([[0.1, 0.7, 0.2]]))
        array([[0., 1., 0.]], dtype=float32)
    """
    with name_scope(name, "Hardmax"):
        scores = convert_to_tensor(logits, name="logits")
        depth = static_or_dynamic_size(scores, -1)
        return marking.one_hot(searching.argmax(scores, -1), depth, dtype=scores.dtype)
