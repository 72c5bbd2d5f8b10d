"""Models of `tf.contrib.legacy_seq2seq`: lists of steps in, unrolled graphs out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thalweg.control.branches import cond
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.losses.sequences import legacy_sequence_loss, sequence_loss_by_example
from thalweg.nn import embedding as embeddings
from thalweg.nn.recurrent import rnn_decoder, static_rnn
from thalweg.nn.rnn_cell import RNNCell
from thalweg.nn.rnn_wrapper import EmbeddingWrapper, OutputProjectionWrapper
from thalweg.ops.arrays import joining, searching
from thalweg.ops.core import basic, shaping
from thalweg.ops.linalg import matmul
from thalweg.public import public
from thalweg.seq2seq.legacy_attention import attention_decoder
from thalweg.variables.scope import get_variable, get_variable_scope, variable_scope

if TYPE_CHECKING:
    from thalweg.variables.scope import VariableScope

Outputs = list[Any]
Projection = tuple[Any, Any] | None
Loop = Callable[[Any, int], Any]


def _names(name: str) -> tuple[str, str]:
    return f"contrib.legacy_seq2seq.{name}", f"nn.seq2seq.{name}"


def _feeding_previous(embedding: Any, projection: Projection, update: bool) -> Loop:
    """The next input is the embedding of the most probable id of an output."""

    def next_input(output: Any, _: int) -> Any:
        if projection is not None:
            output = matmul.matmul(output, projection[0]) + projection[1]
        found = embeddings.embedding_lookup(embedding, searching.argmax(output, 1))
        return found if update else basic.stop_gradient(found)

    return next_input


def _check_projection(projection: Projection, symbols: int, dtype: Any) -> None:
    if projection is None:
        return
    weights, offset = (convert_to_tensor(part, dtype) for part in projection)
    weights.shape.assert_is_compatible_with([None, symbols])
    offset.shape.assert_is_compatible_with([symbols])


@public(*_names("basic_rnn_seq2seq"))
def basic_rnn_seq2seq(
    encoder_inputs: Sequence[TensorLike],
    decoder_inputs: Sequence[TensorLike],
    cell: RNNCell,
    dtype: DTypeLike = float32,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """A cell over the encoder's inputs, then one like it over the decoder's, from its last state.

    Args:
        encoder_inputs, decoder_inputs: lists of tensors [batch, size].
        cell: an RNNCell.
        dtype: the dtype of the first state.
        scope: the variable scope.

    Returns:
        (outputs of the decoder, its last state).

    Example:
        >>> steps = [tf.ones([2, 3])] * 4
        >>> cell = tf.nn.rnn_cell.GRUCell(5)
        >>> outputs, _ = tf.contrib.legacy_seq2seq.basic_rnn_seq2seq(steps, steps[:2], cell)
        >>> len(outputs), outputs[0].shape.as_list()
        (2, [2, 5])
    """
    with variable_scope(scope or "basic_rnn_seq2seq"):
        _, state = static_rnn(copy.deepcopy(cell), encoder_inputs, dtype=dtype)
        return rnn_decoder(decoder_inputs, state, cell)


@public(*_names("tied_rnn_seq2seq"))
def tied_rnn_seq2seq(
    encoder_inputs: Sequence[TensorLike],
    decoder_inputs: Sequence[TensorLike],
    cell: RNNCell,
    loop_function: Loop | None = None,
    dtype: DTypeLike = float32,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """As `basic_rnn_seq2seq`, but encoder and decoder share their weights.

    Args:
        encoder_inputs, decoder_inputs: lists of tensors [batch, size].
        cell: an RNNCell.
        loop_function: a function of (output, step) that makes the decoder's next input.
        dtype: the dtype of the first state.
        scope: the variable scope.

    Returns:
        (outputs of the decoder, its last state).

    Example:
        >>> steps = [tf.ones([2, 3])] * 4
        >>> cell = tf.nn.rnn_cell.GRUCell(5)
        >>> outputs, _ = tf.contrib.legacy_seq2seq.tied_rnn_seq2seq(steps, steps[:2], cell)
        >>> len(tf.trainable_variables())
        4
    """
    with variable_scope("combined_tied_rnn_seq2seq"):
        scope = scope or "tied_rnn_seq2seq"
        _, state = static_rnn(cell, encoder_inputs, dtype=dtype, scope=scope)
        get_variable_scope().reuse_variables()
        return rnn_decoder(decoder_inputs, state, cell, loop_function, scope)


@public(*_names("embedding_rnn_decoder"))
def embedding_rnn_decoder(
    decoder_inputs: Sequence[TensorLike],
    initial_state: Structure,
    cell: RNNCell,
    num_symbols: int,
    embedding_size: int,
    output_projection: Projection = None,
    feed_previous: bool = False,
    update_embedding_for_previous: bool = True,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """A decoder of ids, which it embeds.

    Args:
        decoder_inputs: a list of ids [batch].
        initial_state: the state to begin with.
        cell: an RNNCell.
        num_symbols: how many ids there are.
        embedding_size: the size of their embeddings.
        output_projection: (weights, biases) that make logits of outputs.
        feed_previous: after the first, the input of a step is the most probable id of the last.
        update_embedding_for_previous: whether the embedding learns from those inputs.
        scope: the variable scope.

    Returns:
        (outputs, last state).

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(5)
        >>> outputs, _ = tf.contrib.legacy_seq2seq.embedding_rnn_decoder(
        ...     [tf.constant([1, 2])] * 3, cell.zero_state(2, tf.float32), cell, 5, 4,
        ...     feed_previous=True)
        >>> len(outputs)
        3
    """
    with variable_scope(scope or "embedding_rnn_decoder") as opened:
        _check_projection(output_projection, num_symbols, opened.dtype)
        embedding = get_variable("embedding", [num_symbols, embedding_size])
        update = update_embedding_for_previous
        loop = _feeding_previous(embedding, output_projection, update) if feed_previous else None
        inputs = [embeddings.embedding_lookup(embedding, ids) for ids in decoder_inputs]
        return rnn_decoder(inputs, initial_state, cell, loop)


@public(*_names("embedding_rnn_seq2seq"))
def embedding_rnn_seq2seq(
    encoder_inputs: Sequence[TensorLike],
    decoder_inputs: Sequence[TensorLike],
    cell: RNNCell,
    num_encoder_symbols: int,
    num_decoder_symbols: int,
    embedding_size: int,
    output_projection: Projection = None,
    feed_previous: bool | TensorLike = False,
    dtype: DTypeLike | None = None,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """A model from ids to ids: encoder and decoder embed them.

    Args:
        encoder_inputs, decoder_inputs: lists of ids [batch].
        cell: an RNNCell.
        num_encoder_symbols, num_decoder_symbols: how many ids there are.
        embedding_size: the size of their embeddings.
        output_projection: (weights, biases) that make logits of outputs; without, outputs are
            logits.
        feed_previous: whether the decoder reads its own last id; a tensor decides in the step.
        dtype: the dtype of the variables.
        scope: the variable scope.

    Returns:
        (outputs of the decoder, its last state).

    Example:
        >>> ids = [tf.constant([1, 2])] * 3
        >>> outputs, _ = tf.contrib.legacy_seq2seq.embedding_rnn_seq2seq(
        ...     ids, ids, tf.nn.rnn_cell.GRUCell(5), 6, 7, 4)
        >>> outputs[0].shape.as_list()
        [2, 7]
    """
    with variable_scope(scope or "embedding_rnn_seq2seq") as opened:
        if dtype is not None:
            opened.set_dtype(dtype)
        encoder = EmbeddingWrapper(copy.deepcopy(cell), num_encoder_symbols, embedding_size)
        _, state = static_rnn(encoder, encoder_inputs, dtype=opened.dtype)
        if output_projection is None:
            cell = OutputProjectionWrapper(cell, num_decoder_symbols)

        def decoder(feed: bool, update: bool = True) -> tuple[Outputs, Any]:
            return embedding_rnn_decoder(
                decoder_inputs,
                state,
                cell,
                num_decoder_symbols,
                embedding_size,
                output_projection,
                feed,
                update,
            )

        return _decoded(decoder, feed_previous, state)


def _decoded(decoder: Callable[..., Any], feed_previous: Any, state: Any) -> tuple[Outputs, Any]:
    """What a decoder gives; where a tensor says whether to feed back, a conditional of both."""
    if isinstance(feed_previous, bool):
        return decoder(feed_previous)

    def flat(feed: bool) -> list[Any]:
        with variable_scope(get_variable_scope(), reuse=None if feed else True):
            outputs, final = decoder(feed, False)
            return [*outputs, *nest.flatten(final)]

    found = cond(feed_previous, lambda: flat(True), lambda: flat(False))
    count = len(nest.flatten(state))
    return list(found[:-count]), nest.pack_sequence_as(state, list(found[-count:]))


@public(*_names("embedding_tied_rnn_seq2seq"))
def embedding_tied_rnn_seq2seq(
    encoder_inputs: Sequence[TensorLike],
    decoder_inputs: Sequence[TensorLike],
    cell: RNNCell,
    num_symbols: int,
    embedding_size: int,
    num_decoder_symbols: int | None = None,
    output_projection: Projection = None,
    feed_previous: bool | TensorLike = False,
    dtype: DTypeLike | None = None,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """As `embedding_rnn_seq2seq`, but encoder and decoder share weights and embedding.

    Args:
        encoder_inputs, decoder_inputs: lists of ids [batch].
        cell: an RNNCell.
        num_symbols: how many ids there are.
        embedding_size: the size of their embeddings.
        num_decoder_symbols: how many there are in outputs; `num_symbols` if None.
        output_projection: (weights, biases) that make logits of outputs; without, outputs are
            logits.
        feed_previous: whether the decoder reads its own last id; a tensor decides in the step.
        dtype: the dtype of the variables.
        scope: the variable scope.

    Returns:
        (outputs of the decoder, its last state).

    Example:
        >>> ids = [tf.constant([1, 2])] * 3
        >>> outputs, _ = tf.contrib.legacy_seq2seq.embedding_tied_rnn_seq2seq(
        ...     ids, ids, tf.nn.rnn_cell.GRUCell(5), 6, 4)
        >>> outputs[0].shape.as_list()
        [2, 6]
    """
    with variable_scope(scope or "embedding_tied_rnn_seq2seq", dtype=dtype) as opened:
        kind = opened.dtype
        _check_projection(output_projection, num_symbols, kind)
        embedding = get_variable("embedding", [num_symbols, embedding_size], dtype=kind)
        encoded = [embeddings.embedding_lookup(embedding, ids) for ids in encoder_inputs]
        decoded = [embeddings.embedding_lookup(embedding, ids) for ids in decoder_inputs]
        if output_projection is None:
            cell = OutputProjectionWrapper(cell, num_decoder_symbols or num_symbols)

        def decoder(feed: bool, update: bool = True) -> tuple[Outputs, Any]:
            loop = _feeding_previous(embedding, output_projection, update) if feed else None
            return tied_rnn_seq2seq(encoded, decoded, cell, loop, kind)

        return _decoded(decoder, feed_previous, cell.state_size)


@public(*_names("embedding_attention_decoder"))
def embedding_attention_decoder(
    decoder_inputs: Sequence[TensorLike],
    initial_state: Structure,
    attention_states: TensorLike,
    cell: RNNCell,
    num_symbols: int,
    embedding_size: int,
    num_heads: int = 1,
    output_size: int | None = None,
    output_projection: Projection = None,
    feed_previous: bool = False,
    update_embedding_for_previous: bool = True,
    dtype: DTypeLike | None = None,
    scope: str | VariableScope | None = None,
    initial_state_attention: bool = False,
) -> tuple[Outputs, Any]:
    """An `attention_decoder` of ids, which it embeds.

    Args:
        decoder_inputs: a list of ids [batch].
        initial_state: the state to begin with.
        attention_states: what is looked at, [batch, time, size].
        cell: an RNNCell.
        num_symbols: how many ids there are.
        embedding_size: the size of their embeddings.
        num_heads: how often the states are looked at in each step.
        output_size: the size of outputs; that of the cell if None.
        output_projection: (weights, biases) that make logits of outputs.
        feed_previous: after the first, the input of a step is the most probable id of the last.
        update_embedding_for_previous: whether the embedding learns from those inputs.
        dtype: the dtype of the variables.
        scope: the variable scope.
        initial_state_attention: look at the states before the first step too.

    Returns:
        (outputs, last state).

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(5)
        >>> outputs, _ = tf.contrib.legacy_seq2seq.embedding_attention_decoder(
        ...     [tf.constant([1, 2])] * 3, cell.zero_state(2, tf.float32), tf.ones([2, 4, 6]),
        ...     cell, 5, 4, feed_previous=True)
        >>> len(outputs)
        3
    """
    with variable_scope(scope or "embedding_attention_decoder", dtype=dtype) as opened:
        if output_projection is not None:
            offset = convert_to_tensor(output_projection[1], opened.dtype)
            offset.shape.assert_is_compatible_with([num_symbols])
        embedding = get_variable("embedding", [num_symbols, embedding_size])
        update = update_embedding_for_previous
        loop = _feeding_previous(embedding, output_projection, update) if feed_previous else None
        inputs = [embeddings.embedding_lookup(embedding, ids) for ids in decoder_inputs]
        return attention_decoder(
            inputs,
            initial_state,
            attention_states,
            cell,
            output_size,
            num_heads,
            loop,
            initial_state_attention=initial_state_attention,
        )


@public(*_names("embedding_attention_seq2seq"))
def embedding_attention_seq2seq(
    encoder_inputs: Sequence[TensorLike],
    decoder_inputs: Sequence[TensorLike],
    cell: RNNCell,
    num_encoder_symbols: int,
    num_decoder_symbols: int,
    embedding_size: int,
    num_heads: int = 1,
    output_projection: Projection = None,
    feed_previous: bool | TensorLike = False,
    dtype: DTypeLike | None = None,
    scope: str | VariableScope | None = None,
    initial_state_attention: bool = False,
) -> tuple[Outputs, Any]:
    """A model from ids to ids whose decoder looks at all outputs of the encoder.

    Args:
        encoder_inputs, decoder_inputs: lists of ids [batch].
        cell: an RNNCell.
        num_encoder_symbols, num_decoder_symbols: how many ids there are.
        embedding_size: the size of their embeddings.
        num_heads: how often the outputs are looked at in each step.
        output_projection: (weights, biases) that make logits of outputs; without, outputs are
            logits.
        feed_previous: whether the decoder reads its own last id; a tensor decides in the step.
        dtype: the dtype of the variables.
        scope: the variable scope.
        initial_state_attention: look at the outputs before the first step too.

    Returns:
        (outputs of the decoder, its last state).

    Example:
        >>> ids = [tf.constant([1, 2])] * 3
        >>> outputs, _ = tf.contrib.legacy_seq2seq.embedding_attention_seq2seq(
        ...     ids, ids, tf.nn.rnn_cell.GRUCell(5), 6, 7, 4)
        >>> outputs[0].shape.as_list()
        [2, 7]
    """
    with variable_scope(scope or "embedding_attention_seq2seq", dtype=dtype) as opened:
        encoder = EmbeddingWrapper(copy.deepcopy(cell), num_encoder_symbols, embedding_size)
        outputs, state = static_rnn(encoder, encoder_inputs, dtype=opened.dtype)
        tops = [shaping.reshape(output, [-1, 1, cell.output_size]) for output in outputs]
        states = joining.concat(tops, 1)
        output_size = None
        if output_projection is None:
            cell = OutputProjectionWrapper(cell, num_decoder_symbols)
            output_size = num_decoder_symbols

        def decoder(feed: bool, update: bool = True) -> tuple[Outputs, Any]:
            return embedding_attention_decoder(
                decoder_inputs,
                state,
                states,
                cell,
                num_decoder_symbols,
                embedding_size,
                num_heads,
                output_size,
                output_projection,
                feed,
                update,
                initial_state_attention=initial_state_attention,
            )

        return _decoded(decoder, feed_previous, state)


@public(*_names("one2many_rnn_seq2seq"))
def one2many_rnn_seq2seq(
    encoder_inputs: Sequence[TensorLike],
    decoder_inputs_dict: Mapping[Any, Sequence[TensorLike]],
    enc_cell: Any,
    dec_cells_dict: Mapping[Any, Any],
    num_encoder_symbols: int,
    num_decoder_symbols_dict: Mapping[Any, int],
    embedding_size: int,
    feed_previous: bool | TensorLike = False,
    dtype: DTypeLike | None = None,
    scope: str | VariableScope | None = None,
) -> tuple[dict[Any, Outputs], dict[Any, Any]]:
    """One encoder and several decoders of ids, by name.

    Args:
        encoder_inputs: a list of ids [batch].
        decoder_inputs_dict: such a list for each decoder.
        enc_cell: the RNNCell of the encoder.
        dec_cells_dict: those of the decoders.
        num_encoder_symbols: how many ids the encoder knows.
        num_decoder_symbols_dict: how many each decoder knows.
        embedding_size: the size of their embeddings.
        feed_previous: whether decoders read their own last id; a tensor decides in the step.
        dtype: the dtype of the variables.
        scope: the variable scope.

    Returns:
        (outputs, last state) of the decoders, each by name.

    Example:
        >>> ids, cell = [tf.constant([1, 2])] * 3, tf.nn.rnn_cell.GRUCell
        >>> outputs, _ = tf.contrib.legacy_seq2seq.one2many_rnn_seq2seq(
        ...     ids, {"a": ids}, cell(5), {"a": cell(5)}, 6, {"a": 7}, 4)
        >>> outputs["a"][0].shape.as_list()
        [2, 7]
    """
    if set(dec_cells_dict) != set(decoder_inputs_dict):
        raise ValueError("keys of dec_cells_dict != keys of decoder_inputs_dict")
    for cell in (enc_cell, *dec_cells_dict.values()):
        if not isinstance(cell, RNNCell):
            raise TypeError(f"enc_cell or dec_cell is not an RNNCell: {type(cell)}")
    outputs: dict[Any, Outputs] = {}
    states: dict[Any, Any] = {}
    with variable_scope(scope or "one2many_rnn_seq2seq", dtype=dtype) as opened:
        encoder = EmbeddingWrapper(enc_cell, num_encoder_symbols, embedding_size)
        _, state = static_rnn(encoder, encoder_inputs, dtype=opened.dtype)
        for name, inputs in decoder_inputs_dict.items():
            symbols = num_decoder_symbols_dict[name]
            with variable_scope(f"one2many_decoder_{name}"):
                projected = OutputProjectionWrapper(dec_cells_dict[name], symbols)

                def decoder(
                    feed: bool,
                    update: bool = True,
                    inputs: Any = inputs,
                    cell: Any = projected,
                    symbols: int = symbols,
                ) -> tuple[Outputs, Any]:
                    return embedding_rnn_decoder(
                        inputs, state, cell, symbols, embedding_size, feed_previous=feed
                    )

                outputs[name], states[name] = _decoded(decoder, feed_previous, state)
    return outputs, states


@public(*_names("model_with_buckets"))
def model_with_buckets(
    encoder_inputs: Sequence[TensorLike],
    decoder_inputs: Sequence[TensorLike],
    targets: Sequence[TensorLike],
    weights: Sequence[TensorLike],
    buckets: Sequence[tuple[int, int]],
    seq2seq: Callable[[Any, Any], Any],
    softmax_loss_function: Callable[..., Any] | None = None,
    per_example_loss: bool = False,
    name: str | None = None,
) -> tuple[list[Any], list[Tensor]]:
    """A model for each of some pairs of lengths, with shared weights.

    Args:
        encoder_inputs, decoder_inputs: lists of ids [batch], as long as the longest bucket.
        targets: the ids that the decoder should give.
        weights: how much each counts.
        buckets: pairs (encoder length, decoder length), the longest last.
        seq2seq: (encoder inputs, decoder inputs) -> (outputs, state).
        softmax_loss_function: a function of (labels, logits) in place of the softmax loss.
        per_example_loss: whether a loss is a vector [batch], else a scalar.
        name: the name of the nodes.

    Returns:
        (outputs, loss) of each bucket, as two lists.

    Example:
        >>> ids, ones = [tf.constant([1, 2])] * 4, [tf.ones([2])] * 4
        >>> _, losses = tf.contrib.legacy_seq2seq.model_with_buckets(
        ...     ids, ids, ids, ones, [(2, 2), (4, 4)],
        ...     lambda x, y: tf.contrib.legacy_seq2seq.embedding_rnn_seq2seq(
        ...         x, y, tf.nn.rnn_cell.GRUCell(5), 6, 7, 4))
        >>> len(losses)
        2
    """
    longest = {
        "encoder_inputs": (encoder_inputs, 0),
        "targets": (targets, 1),
        "weights": (weights, 1),
    }
    for what, (given, side) in longest.items():
        if len(given) < buckets[-1][side]:
            raise ValueError(
                f"Length of {what} ({len(given)}) must be at least that of last bucket "
                f"({buckets[-1][side]})."
            )
    losses: list[Tensor] = []
    outputs: list[Any] = []
    loss = sequence_loss_by_example if per_example_loss else legacy_sequence_loss
    with name_scope(name, "model_with_buckets"):
        for index, (encoded, decoded) in enumerate(buckets):
            with variable_scope(get_variable_scope(), reuse=True if index else None):
                found, _ = seq2seq(encoder_inputs[:encoded], decoder_inputs[:decoded])
                outputs.append(found)
                losses.append(
                    loss(
                        found,
                        targets[:decoded],
                        weights[:decoded],
                        softmax_loss_function=softmax_loss_function,
                    )
                )
    return outputs, losses
