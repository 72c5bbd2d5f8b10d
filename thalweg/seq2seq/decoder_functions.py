"""The decoders of TensorFlow 1.0: a function says what follows each step of `dynamic_rnn_decoder`.

A decoder function takes (time, cell state, cell input, cell output, context state), with None for
the state and the output before the first step, and gives (done, next state, next input, what is
emitted, next context state).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg.control.branches import cond
from thalweg.graph import dtypes, nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.layers.contrib import fully_connected
from thalweg.nn.dynamic import raw_rnn
from thalweg.nn.rnn_cell import CellLike, LSTMStateTuple
from thalweg.ops.arrays import indexing, joining, searching
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import compare, reduce, transcendental
from thalweg.ops.nn import softmax
from thalweg.public import public
from thalweg.seq2seq.attention import static_or_dynamic_size
from thalweg.seq2seq.helpers import batch_and_time_swapped, steps_of
from thalweg.variables.scope import get_variable, variable_scope

if TYPE_CHECKING:
    from thalweg.variables.scope import VariableScope

DecoderFunction = Callable[..., Any]


@public("contrib.seq2seq.simple_decoder_fn_train")
def simple_decoder_fn_train(encoder_state: Structure, name: str | None = None) -> DecoderFunction:
    """A decoder function that reads given inputs.

    Args:
        encoder_state: the state to begin with.
        name: the name of the nodes.

    Returns:
        A decoder function for `dynamic_rnn_decoder`.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> outputs, _, _ = tf.contrib.seq2seq.dynamic_rnn_decoder(
        ...     cell, tf.contrib.seq2seq.simple_decoder_fn_train(cell.zero_state(2, tf.float32)),
        ...     inputs=tf.ones([2, 3, 5]), sequence_length=[3, 2])
        >>> outputs.shape.as_list()
        [2, None, 4]
    """

    def decoder_fn(time: Any, state: Any, given: Any, output: Any, context: Any) -> Any:
        with name_scope(name, "simple_decoder_fn_train"):
            return None, encoder_state if state is None else state, given, output, context

    return decoder_fn


@public("contrib.seq2seq.attention_decoder_fn_train")
def attention_decoder_fn_train(
    encoder_state: Structure,
    attention_keys: TensorLike,
    attention_values: TensorLike,
    attention_score_fn: Callable[..., Any],
    attention_construct_fn: Callable[..., Any],
    name: str | None = None,
) -> DecoderFunction:
    """A decoder function that reads given inputs and what the last output attends to.

    Args:
        encoder_state: the state to begin with.
        attention_keys, attention_values, attention_score_fn, attention_construct_fn: what
            `prepare_attention` gives.
        name: the name of the nodes.

    Returns:
        A decoder function for `dynamic_rnn_decoder`.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> attention = tf.contrib.seq2seq.prepare_attention(tf.ones([2, 6, 4]), "luong", 4)
        >>> decoder = tf.contrib.seq2seq.attention_decoder_fn_train(
        ...     cell.zero_state(2, tf.float32), *attention)
        >>> outputs, _, _ = tf.contrib.seq2seq.dynamic_rnn_decoder(
        ...     cell, decoder, inputs=tf.ones([2, 3, 5]), sequence_length=[3, 2])
        >>> outputs.shape.as_list()
        [2, None, 4]
    """

    def decoder_fn(time: Any, state: Any, given: Any, output: Any, context: Any) -> Any:
        with name_scope(name, "attention_decoder_fn_train"):
            if state is None:
                state, attention = encoder_state, _no_attention(encoder_state)
            else:
                attention = attention_construct_fn(output, attention_keys, attention_values)
                output = attention
            return None, state, joining.concat([given, attention], 1), output, context

    return decoder_fn


class _Inference:
    """Reads the embedding of the most probable id of the step before."""

    def __init__(
        self,
        output_fn: Any,
        encoder_state: Any,
        embeddings: Any,
        start: Any,
        end: Any,
        maximum_length: Any,
        symbols: Any,
        dtype: Any,
    ) -> None:
        self.output_fn = output_fn
        self.encoder_state, self.embeddings = encoder_state, embeddings
        self.start, self.end, self.maximum_length, self.symbols = (
            convert_to_tensor(value, dtype) for value in (start, end, maximum_length, symbols)
        )
        self.dtype = dtype
        self.batch = static_or_dynamic_size(nest.flatten(encoder_state)[0], 0)

    def first(self) -> Any:
        """(ids, done, what is emitted) before the first step."""
        ids = filling.ones([self.batch], self.dtype) * self.start
        done = filling.zeros([self.batch], dtypes.bool)
        return ids, done, filling.zeros([casting.cast(self.symbols, dtypes.int32)])

    def following(self, output: Any) -> Any:
        """(ids, done, what is emitted) after a step."""
        logits: Any = output if self.output_fn is None else self.output_fn(output)
        ids = casting.cast(searching.argmax(logits, 1), self.dtype)
        return ids, compare.equal(ids, self.end), logits

    def limited(self, time: Tensor, done: Tensor) -> Tensor:
        """All are done once the maximum length is reached."""
        is_over = compare.greater(casting.cast(time, self.dtype), self.maximum_length)
        return cond(is_over, lambda: filling.ones([self.batch], dtypes.bool), lambda: done)


def _check_no_input(given: Any) -> None:
    if given is not None:
        raise ValueError(f"Expected cell_input to be None, but saw: {given}")


@public("contrib.seq2seq.simple_decoder_fn_inference")
def simple_decoder_fn_inference(
    output_fn: Callable[[Any], Any] | None,
    encoder_state: Structure,
    embeddings: TensorLike,
    start_of_sequence_id: TensorLike,
    end_of_sequence_id: TensorLike,
    maximum_length: TensorLike,
    num_decoder_symbols: TensorLike,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> DecoderFunction:
    """A decoder function that reads the embedding of the most probable id of the step before.

    Args:
        output_fn: makes logits of the cell's output; None: the output is logits.
        encoder_state: the state to begin with.
        embeddings: a table of rows.
        start_of_sequence_id: the first id.
        end_of_sequence_id: the id that ends an example.
        maximum_length: how many steps there are at most.
        num_decoder_symbols: how many ids there are.
        dtype: the dtype of ids.
        name: the name of the nodes.

    Returns:
        A decoder function for `dynamic_rnn_decoder`.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> decoder = tf.contrib.seq2seq.simple_decoder_fn_inference(
        ...     None, cell.zero_state(2, tf.float32), tf.ones([4, 3]), 1, 0, 5, 4)
        >>> outputs, _, _ = tf.contrib.seq2seq.dynamic_rnn_decoder(cell, decoder)
        >>> outputs.shape.as_list()
        [2, None, 4]
    """
    state_and_ids = (output_fn, encoder_state, embeddings, start_of_sequence_id)
    limits = (end_of_sequence_id, maximum_length, num_decoder_symbols)
    inference = _Inference(*state_and_ids, *limits, dtype)

    def decoder_fn(time: Any, state: Any, given: Any, output: Any, context: Any) -> Any:
        with name_scope(name, "simple_decoder_fn_inference"):
            _check_no_input(given)
            is_first = output is None
            ids, done, emitted = inference.first() if is_first else inference.following(output)
            state = encoder_state if is_first else state
            following = indexing.gather(embeddings, ids)
            return inference.limited(time, done), state, following, emitted, context

    return decoder_fn


@public("contrib.seq2seq.attention_decoder_fn_inference")
def attention_decoder_fn_inference(
    output_fn: Callable[[Any], Any] | None,
    encoder_state: Structure,
    attention_keys: TensorLike,
    attention_values: TensorLike,
    attention_score_fn: Callable[..., Any],
    attention_construct_fn: Callable[..., Any],
    embeddings: TensorLike,
    start_of_sequence_id: TensorLike,
    end_of_sequence_id: TensorLike,
    maximum_length: TensorLike,
    num_decoder_symbols: TensorLike,
    dtype: DTypeLike = dtypes.int32,
    name: str | None = None,
) -> DecoderFunction:
    """As `simple_decoder_fn_inference`, with what the last output attends to.

    Args:
        output_fn: makes logits of what is attended to; None: that is logits.
        encoder_state: the state to begin with.
        attention_keys, attention_values, attention_score_fn, attention_construct_fn: what
            `prepare_attention` gives.
        embeddings: a table of rows.
        start_of_sequence_id: the first id.
        end_of_sequence_id: the id that ends an example.
        maximum_length: how many steps there are at most.
        num_decoder_symbols: how many ids there are.
        dtype: the dtype of ids.
        name: the name of the nodes.

    Returns:
        A decoder function for `dynamic_rnn_decoder`.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> attention = tf.contrib.seq2seq.prepare_attention(tf.ones([2, 6, 4]), "luong", 4)
        >>> decoder = tf.contrib.seq2seq.attention_decoder_fn_inference(
        ...     None, cell.zero_state(2, tf.float32), *attention, tf.ones([4, 3]), 1, 0, 5, 4)
        >>> outputs, _, _ = tf.contrib.seq2seq.dynamic_rnn_decoder(cell, decoder)
        >>> outputs.shape.as_list()
        [2, None, 4]
    """
    state_and_ids = (output_fn, encoder_state, embeddings, start_of_sequence_id)
    limits = (end_of_sequence_id, maximum_length, num_decoder_symbols)
    inference = _Inference(*state_and_ids, *limits, dtype)

    def decoder_fn(time: Any, state: Any, given: Any, output: Any, context: Any) -> Any:
        with name_scope(name, "attention_decoder_fn_inference"):
            _check_no_input(given)
            if output is None:
                ids, done, emitted = inference.first()
                state, attention = encoder_state, _no_attention(encoder_state)
            else:
                attention = attention_construct_fn(output, attention_keys, attention_values)
                ids, done, emitted = inference.following(attention)
            following = joining.concat([indexing.gather(embeddings, ids), attention], 1)
            return inference.limited(time, done), state, following, emitted, context

    return decoder_fn


def _no_attention(state: Any) -> Tensor:
    """Zeros of the shape of the top state."""
    top = nest.as_list(state)[-1] if not isinstance(state, LSTMStateTuple) else state
    return filling.zeros_like(top.h if isinstance(top, LSTMStateTuple) else top)


@public("contrib.seq2seq.prepare_attention")
def prepare_attention(
    attention_states: TensorLike, attention_option: str, num_units: int, reuse: bool = False
) -> tuple[Any, Any, Callable[..., Any], Callable[..., Any]]:
    """What the decoder functions with attention need.

    Args:
        attention_states: what is looked at, [batch, time, size].
        attention_option: "luong" or "bahdanau".
        num_units: the size of keys, queries and of the attention.
        reuse: whether the variables exist already.

    Returns:
        (keys, values, a function for the context, one for the attention).

    Example:
        >>> keys, values, _, _ = tf.contrib.seq2seq.prepare_attention(
        ...     tf.ones([2, 6, 5]), "bahdanau", 4)
        >>> keys.shape.as_list()
        [2, 6, 4]
    """
    if attention_option not in ("luong", "bahdanau"):
        raise ValueError(f"Unknown attention option {attention_option}!")
    with variable_scope("attention_keys", reuse=reuse) as scope:
        keys = _projected(attention_states, num_units, scope)
    score = _score_function(attention_option, num_units, reuse)
    with variable_scope("attention_construct", reuse=reuse) as scope:

        def construct(query: Any, keys: Any, values: Any) -> Tensor:
            found = joining.concat([query, score(query, keys, values)], 1)
            return _projected(found, num_units, scope)

    return keys, attention_states, score, construct


def _projected(inputs: Any, units: int, scope: Any) -> Any:
    options: dict[str, Any] = {"activation_fn": None, "biases_initializer": None, "scope": scope}
    return fully_connected(inputs, units, **options)


def _score_function(option: str, units: int, reuse: bool) -> Callable[..., Any]:
    """The function of (query, keys, values) that gives what the query attends to."""
    weights: Any = None
    vector: Any = None
    if option == "bahdanau":
        with variable_scope("attention_score", reuse=reuse):
            weights = get_variable("attnW", [units, units], dtypes.float32)
            vector = get_variable("attnV", [units], dtypes.float32)

    def context(query: Any, keys: Any, values: Any) -> Tensor:
        if option == "bahdanau":
            asked = shaping.reshape(matmul.matmul(query, weights), [-1, 1, units])
            scores = reduce.reduce_sum(vector * transcendental.tanh(keys + asked), [2])
        else:
            scores = reduce.reduce_sum(keys * shaping.reshape(query, [-1, 1, units]), [2])
        alignments = shaping.expand_dims(softmax.softmax(scores), 2)
        result = reduce.reduce_sum(alignments * values, [1])
        result.set_shape([None, units])
        return result

    return context


@public("contrib.seq2seq.dynamic_rnn_decoder")
def dynamic_rnn_decoder(
    cell: CellLike,
    decoder_fn: DecoderFunction,
    inputs: TensorLike | None = None,
    sequence_length: TensorLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: str | VariableScope | None = None,
    name: str | None = None,
) -> tuple[Any, Any, Any]:
    """Decode with a cell and a decoder function.

    Args:
        cell: an RNNCell.
        decoder_fn: a decoder function.
        inputs: [batch, time, size], or with `time_major` [time, batch, size]; None: what the
            decoder function makes.
        sequence_length: the length of each example, where the decoder function does not say.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: taken for old programs.
        time_major: whether time comes first, in inputs and outputs.
        scope: the variable scope.
        name: the name of the nodes.

    Returns:
        (outputs, final state, final context state).

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> outputs, state, _ = tf.contrib.seq2seq.dynamic_rnn_decoder(
        ...     cell, tf.contrib.seq2seq.simple_decoder_fn_train(cell.zero_state(2, tf.float32)),
        ...     inputs=tf.ones([2, 3, 5]), sequence_length=[3, 2])
        >>> state.shape.as_list()
        [2, 4]
    """
    with name_scope(name, "dynamic_rnn_decoder"):
        given = None if inputs is None else convert_to_tensor(inputs)
        if given is not None and (given.shape.rank or 2) < 2:
            raise ValueError("Inputs must have at least two dimensions")
        read = None if given is None else _reader(given, time_major)

        def loop_fn(time: Any, output: Any, state: Any, loop_state: Any) -> Any:
            context = _context_of(loop_state)
            now = None if read is None else read(0 if state is None else time)
            done, state, following, emitted, context = decoder_fn(time, state, now, output, context)
            if done is None:
                done = compare.greater_equal(time, sequence_length)
            return done, following, state, emitted, done if context is None else (done, context)

        outputs, state, loop_state = raw_rnn(
            cell,
            loop_fn,
            parallel_iterations=parallel_iterations,
            swap_memory=swap_memory,
            scope=scope,
        )
        stacked = outputs.stack()
        ordered = stacked if time_major else batch_and_time_swapped(stacked)
        return ordered, state, _context_of(loop_state)


def _context_of(loop_state: Any) -> Any:
    """The context state that the loop carries beside what is done, None if it has none."""
    return nest.as_list(loop_state)[1] if nest.is_sequence(loop_state) else None


def _reader(inputs: Tensor, time_major: bool) -> Callable[[Any], Tensor]:
    """A function that reads a step of the inputs, zeros behind their end."""
    ordered = inputs if time_major else batch_and_time_swapped(inputs)
    steps, count = steps_of(ordered), static_or_dynamic_size(ordered, 0)

    def read(time: Any) -> Tensor:
        if isinstance(time, int):
            return steps.read(time)
        zeros = filling.zeros_like(ordered[0])
        return cond(compare.greater_equal(time, count), lambda: zeros, lambda: steps.read(time))

    return read
