"""Beam search: a decoder that keeps the best sequences of each example."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from thalweg.control.branches import cond
from thalweg.control.functional import scan as scan_steps
from thalweg.control.tensor_array import TensorArray
from thalweg.graph import dtypes, nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.likes import Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.nn.layer import Layer
from thalweg.nn.rnn_cell import CellLike, assert_like_rnncell
from thalweg.ops.arrays import indexing, joining, marking, scan, searching, transposing
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, division, reduce, transcendental
from thalweg.ops.nn import softmax
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.seq2seq.attention_wrapper import AttentionWrapperState
from thalweg.seq2seq.basic_decoder import check_output_layer, everywhere, size_behind
from thalweg.seq2seq.decoder import Decoder
from thalweg.seq2seq.helpers import lookup_function, scalar, vector


@public("contrib.seq2seq.BeamSearchDecoderState")
class BeamSearchDecoderState(NamedTuple):
    """The state of a beam search.

    Args:
        cell_state: the state of the cell, [batch, beams, ...].
        log_probs: the logarithm of the probability of each beam.
        finished: which beams have ended.
        lengths: how long they are.
        accumulated_attention_probs: what they have looked at, or ().

    Example:
        >>> tf.contrib.seq2seq.BeamSearchDecoderState(1, 2, 3, 4, ()).lengths
        4
    """

    cell_state: Any
    log_probs: Any
    finished: Any
    lengths: Any
    accumulated_attention_probs: Any


@public("contrib.seq2seq.BeamSearchDecoderOutput")
class BeamSearchDecoderOutput(NamedTuple):
    """What a step of a beam search gives, each [batch, beams].

    Args:
        scores: the scores of the beams.
        predicted_ids: their last ids.
        parent_ids: which beam of the step before each goes on.

    Example:
        >>> tf.contrib.seq2seq.BeamSearchDecoderOutput(1, 2, 3).parent_ids
        3
    """

    scores: Any
    predicted_ids: Any
    parent_ids: Any


@public("contrib.seq2seq.FinalBeamSearchDecoderOutput")
class FinalBeamSearchDecoderOutput(NamedTuple):
    """What a beam search gives.

    Args:
        predicted_ids: the ids of the best sequences, best first, [batch, time, beams].
        beam_search_decoder_output: the outputs of the steps.

    Example:
        >>> tf.contrib.seq2seq.FinalBeamSearchDecoderOutput(1, 2).predicted_ids
        1
    """

    predicted_ids: Any
    beam_search_decoder_output: Any


@public("contrib.seq2seq.tile_batch")
def tile_batch(t: Structure, multiplier: int, name: str | None = None) -> Any:
    """Repeat each example of a batch.

    Args:
        t: a tensor [batch, ...], or a nesting of such.
        multiplier: how often.
        name: the name of the nodes.

    Returns:
        Tensors [batch * multiplier, ...].

    Example:
        >>> sess.run(tf.contrib.seq2seq.tile_batch(tf.constant([1, 2]), 2))
        array([1, 1, 2, 2], dtype=int32)
    """
    with name_scope(name, "tile_batch"):
        return nest.map_structure(functools.partial(_tiled, multiplier=multiplier), t)


def _tiled(value: Any, multiplier: int) -> Tensor:
    tensor = convert_to_tensor(value, name="t")
    rank = tensor.shape.rank
    if rank is None or rank < 1:
        raise ValueError("t must have statically known rank")
    sizes = shaping.shape(tensor)
    tiled = joining.tile(shaping.expand_dims(tensor, 1), [1, multiplier, *[1] * (rank - 1)])
    result = shaping.reshape(tiled, joining.concat([[sizes[0] * multiplier], sizes[1:]], 0))
    batch = tensor.shape[0].value
    static = TensorShape([None if batch is None else batch * multiplier])
    result.set_shape(static.concatenate(tensor.shape[1:]))
    return result


@public("contrib.seq2seq.gather_tree")
def gather_tree(
    step_ids: TensorLike,
    parent_ids: TensorLike,
    max_sequence_lengths: TensorLike,
    end_token: TensorLike,
    name: str | None = None,
) -> Tensor:
    """Whole sequences, from the ids and the parents of the steps of a beam search.

    Args:
        step_ids: [time, batch, beams].
        parent_ids: which beam of the step before each goes on, [time, batch, beams].
        max_sequence_lengths: how many steps of an example count, [batch].
        end_token: the id that ends a sequence, and fills what is behind the end.
        name: the name of the nodes.

    Returns:
        The ids of each beam, [time, batch, beams].

    Example:
        >>> ids, parents = [[[1, 2]], [[3, 4]]], [[[0, 1]], [[1, 0]]]
        >>> sess.run(tf.contrib.seq2seq.gather_tree(ids, parents, [2], 9))[:, 0]
        array([[2, 1],
               [3, 4]], dtype=int32)
    """
    with name_scope(name, "GatherTree"):
        ids, parents = convert_to_tensor(step_ids), convert_to_tensor(parent_ids)
        sizes = shaping.shape(ids)
        end = convert_to_tensor(end_token, ids.dtype)
        beams = filling.zeros_like(parents[0]) + casting.cast(
            filling.range(sizes[2]), parents.dtype
        )
        counts = shaping.expand_dims(convert_to_tensor(max_sequence_lengths), 1)

        def back(carried: Any, step: Any) -> Any:
            """One step back: which beam each sequence was in, and its id there."""
            beam, _ = carried
            here, before, time = step
            counted = compare.less(time, counts)
            found = indexing.batch_gather(here, beam)
            parent = indexing.batch_gather(before, beam)
            return (
                choosing.where_v2(counted, parent, beam),
                choosing.where_v2(counted, found, end),
            )

        times = filling.range(sizes[0])
        start = (beams, filling.zeros_like(ids[0]))
        _, sequences = scan_steps(back, (ids, parents, times), start, reverse=True)
        is_end = casting.cast(compare.equal(sequences, end), dtypes.int32)
        ended = compare.greater(scan.cumsum(is_end, axis=0, exclusive=True), 0)
        return choosing.where_v2(ended, end, sequences)


@public("contrib.seq2seq.BeamSearchDecoder")
class BeamSearchDecoder(Decoder):
    """Keeps the `beam_width` most probable sequences of each example.

    Args:
        cell: an RNNCell.
        embedding: a table of rows, or a function from ids to rows.
        start_tokens: the ids of the first step, a vector [batch].
        end_token: the id that ends a sequence.
        initial_state: the state to begin with, for a batch of batch * beam_width (`tile_batch`).
        beam_width: how many sequences are kept.
        output_layer: a layer that makes logits of outputs.
        length_penalty_weight: how much longer sequences are favoured.
        coverage_penalty_weight: how much it counts that all of the memory was looked at.
        reorder_tensor_arrays: put the lists in the cell's state in the order of the sequences.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> decoder = tf.contrib.seq2seq.BeamSearchDecoder(
        ...     cell, tf.eye(5), start_tokens=[1, 1], end_token=0,
        ...     initial_state=cell.zero_state(2 * 3, tf.float32), beam_width=3,
        ...     output_layer=tf.layers.Dense(5))
        >>> outputs, _, _ = tf.contrib.seq2seq.dynamic_decode(decoder, maximum_iterations=4)
        >>> outputs.predicted_ids.shape.as_list()
        [2, None, 3]
    """

    def __init__(
        self,
        cell: CellLike,
        embedding: Structure,
        start_tokens: TensorLike,
        end_token: TensorLike,
        initial_state: Structure,
        beam_width: int,
        output_layer: Layer | None = None,
        length_penalty_weight: TensorLike = 0.0,
        coverage_penalty_weight: TensorLike = 0.0,
        reorder_tensor_arrays: bool = True,
    ) -> None:
        assert_like_rnncell("cell", cell)
        check_output_layer(output_layer)
        self._cell, self._output_layer = cell, output_layer
        self._embedding_fn = lookup_function(embedding)
        tokens = vector(start_tokens, "start_tokens")
        self._end_token = scalar(end_token, "end_token")
        self._beam_width = beam_width
        self._penalties = Penalties(length_penalty_weight, coverage_penalty_weight)
        self._reorder_tensor_arrays = reorder_tensor_arrays
        self._batch_size = shaping.size(tokens)
        self._beams = Beams(self._batch_size, beam_width)
        self._initial_cell_state = nest.map_structure(self._beams.split, initial_state)
        tiled = joining.tile(shaping.expand_dims(tokens, 1), [1, beam_width])
        self._start_inputs = self._embedding_fn(tiled)
        self._first = filling.zeros([self._batch_size], dtypes.int32)

    @property
    def batch_size(self) -> Tensor:
        """The size of the batch, without beams."""
        return self._batch_size

    @property
    def tracks_own_finished(self) -> bool:
        """Beams change places: what has ended may be in another place in the next step."""
        return True

    @property
    def output_size(self) -> BeamSearchDecoderOutput:
        """One of each for each beam."""
        return BeamSearchDecoderOutput(*[TensorShape([self._beam_width])] * 3)

    @property
    def output_dtype(self) -> BeamSearchDecoderOutput:
        """The dtype of the state for scores, int32 for ids."""
        dtype = nest.flatten(self._initial_cell_state)[0].dtype
        sizes = size_behind(self._output_layer, self._cell.output_size)
        return BeamSearchDecoderOutput(everywhere(dtype, sizes), dtypes.int32, dtypes.int32)

    def initialize(self, name: str | None = None) -> Any:
        """All beams but the first of an example have ended: they would all be the same."""
        dtype = nest.flatten(self._initial_cell_state)[0].dtype
        width = self._beam_width
        finished = marking.one_hot(
            self._first, width, on_value=False, off_value=True, dtype=dtypes.bool
        )
        log_probs = marking.one_hot(
            self._first,
            width,
            on_value=convert_to_tensor(0.0, dtype),
            off_value=convert_to_tensor(-math.inf, dtype),
            dtype=dtype,
        )
        attention = self._penalties.attention(self._initial_cell_state)
        state = BeamSearchDecoderState(
            cell_state=self._initial_cell_state,
            log_probs=log_probs,
            finished=finished,
            lengths=filling.zeros([self._batch_size, width], dtypes.int64),
            accumulated_attention_probs=() if attention is None else attention,
        )
        return finished, self._start_inputs, state

    def step(self, time: TensorLike, inputs: Structure, state: Any, name: str | None = None) -> Any:
        """(outputs, next state, next inputs, which beams have ended)."""
        with name_scope(name, "BeamSearchDecoderStep"):
            merged = nest.map_structure(self._beams.merge, (inputs, state.cell_state))
            made: Any = self._cell(*merged)
            logits, cell_state = nest.map_structure(self._beams.split, made)
            if self._output_layer is not None:
                logits = self._output_layer(logits)
            output, next_state = beam_search_step(
                logits, cell_state, state, self._beams, self._end_token, self._penalties
            )
            next_inputs = cond(
                reduce.reduce_all(next_state.finished),
                lambda: self._start_inputs,
                lambda: self._embedding_fn(output.predicted_ids),
            )
        return output, next_state, next_inputs, next_state.finished

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: TensorLike) -> Any:
        """The whole sequences, and the state with its lists in their order."""
        longest = casting.cast(reduce.reduce_max(final_state.lengths, axis=1), dtypes.int32)
        ids = gather_tree(outputs.predicted_ids, outputs.parent_ids, longest, self._end_token)
        if self._reorder_tensor_arrays:

            def ordered(part: Any) -> Any:
                return self._beams.reorder(part, outputs.parent_ids, final_state.lengths)

            cell_state = nest.map_structure(ordered, final_state.cell_state)
            final_state = final_state._replace(cell_state=cell_state)
        return FinalBeamSearchDecoderOutput(ids, outputs), final_state


class Beams:
    """[batch, beams, ...] as [batch * beams, ...] and back; picks beams."""

    def __init__(self, batch: Tensor, width: int) -> None:
        self.batch, self.width = batch, width
        static = constant_value(batch)
        self.static_batch = None if static is None else int(static)

    def merge(self, value: Any) -> Any:
        """[batch, beams, ...] as [batch * beams, ...]; lists and scalars stay."""
        if isinstance(value, TensorArray) or value.shape.rank < 2:
            return value
        count = None if self.static_batch is None else self.static_batch * self.width
        sizes = joining.concat([[self.batch * self.width], shaping.shape(value)[2:]], 0)
        result = shaping.reshape(value, sizes)
        result.set_shape(TensorShape([count]).concatenate(value.shape[2:]))
        return result

    def split(self, value: Any) -> Any:
        """[batch * beams, ...] as [batch, beams, ...]; lists and scalars stay."""
        if isinstance(value, TensorArray):
            return value
        if value.shape.rank is None:
            raise ValueError(f"Expected tensor ({value}) to have known rank, but ndims == None.")
        if value.shape.rank == 0:
            return value
        sizes = joining.concat([[self.batch, self.width], shaping.shape(value)[1:]], 0)
        expected = TensorShape([self.static_batch, self.width]).concatenate(value.shape[1:])
        try:
            result = shaping.reshape(value, sizes)
            result.set_shape(expected)
        except ValueError as error:
            raise ValueError(
                "Unexpected behavior when reshaping between beam width and batch size.  The tensor "
                f"has shape: {value.shape}.  We expected to reshape it to (batch_size, beam_width, "
                f"depth) == {expected}.  Perhaps you forgot to create a zero_state with "
                "batch_size=encoder_batch_size * beam_width?"
            ) from error
        return result

    def pick(self, beams: Tensor, value: Any) -> Any:
        """The values of some beams, [batch, beams]; lists and what is not per beam stay."""
        if isinstance(value, TensorArray) or value.shape.rank < 2:
            return value
        result = indexing.batch_gather(value, beams)
        result.set_shape(value.shape)
        return result

    def reorder(self, value: Any, parents: Tensor, lengths: Tensor) -> Any:
        """The steps in a list, put in the order of the sequences; what is no list stays."""
        if not isinstance(value, TensorArray):
            return value
        shape = value.element_shape
        if shape.rank is None or shape.rank < 1:
            tf_logging.warning(
                "The TensorArray %s in the cell state is not amenable to sorting based on the beam "
                "search result: its elements have the shape %s",
                value,
                shape,
            )
            return value
        return gather_tree_from_array(value.stack(), parents, lengths)


def gather_tree_from_array(t: Tensor, parent_ids: Tensor, sequence_length: Tensor) -> Tensor:
    """What was written for each beam at each step, for the whole sequences.

    Args:
        t: [time, batch * beams, ...] or [time, batch, beams, ...].
        parent_ids: [time, batch, beams].
        sequence_length: [batch, beams].

    Returns:
        A tensor of the shape of `t`.
    """
    sizes = shaping.shape(parent_ids)
    width = sizes[2]
    beams = filling.zeros_like(parent_ids) + filling.range(width)
    longest = casting.cast(reduce.reduce_max(sequence_length, axis=1), dtypes.int32)
    ordered = gather_tree(beams, parent_ids, longest, width + 1)
    within = filling.sequence_mask(sequence_length, maxlen=sizes[0])
    ordered = choosing.where(transposing.transpose(within, [2, 0, 1]), ordered, beams)
    flat = shaping.reshape(t, joining.concat([sizes, [-1]], 0))
    found = indexing.gather(flat, ordered, batch_dims=2)
    return shaping.reshape(found, shaping.shape(t))


class Penalties:
    """How the score of a sequence is made of its probability."""

    def __init__(self, length_weight: Any, coverage_weight: Any) -> None:
        self.length_weight = convert_to_tensor(length_weight, dtypes.float32)
        self.coverage_weight = convert_to_tensor(coverage_weight, dtypes.float32)
        if self.coverage_weight.shape.rank != 0:
            raise ValueError(
                "coverage_penalty_weight should be a scalar, but saw shape: "
                f"{self.coverage_weight.shape}"
            )

    @property
    def has_coverage(self) -> bool:
        """Whether it counts what was looked at."""
        return constant_value(self.coverage_weight) != 0

    def attention(self, cell_state: Any) -> Tensor | None:
        """The mean alignments of the cells that attend, or None if they do not count."""
        if not self.has_coverage:
            return None
        states = [cell_state] if isinstance(cell_state, AttentionWrapperState) else cell_state
        found = [state.alignments for state in states if isinstance(state, AttentionWrapperState)]
        if not found:
            raise ValueError("coverage_penalty_weight must be 0.0 if no cell is attentional.")
        return _mean([_mean(a) if isinstance(a, tuple) else a for a in found])

    def scores(self, log_probs: Tensor, lengths: Tensor, finished: Tensor, seen: Any) -> Tensor:
        """The scores of sequences of some lengths: [batch, beams, vocabulary]."""
        scores = log_probs
        if constant_value(self.length_weight) != 0:
            long: Any = arithmetic.power(5.0 + casting.to_float(lengths), self.length_weight)
            penalty = convert_to_tensor(long / arithmetic.power(6.0, self.length_weight))
            scores = log_probs / casting.cast(penalty, log_probs.dtype)
        if seen is None:
            return scores
        counted = choosing.where(compare.equal(seen, 0.0), filling.ones_like(seen), seen)
        coverage = reduce.reduce_sum(transcendental.log(arithmetic.minimum(counted, 1.0)), 2)
        coverage *= casting.to_float(finished)
        return scores + shaping.expand_dims(coverage * self.coverage_weight, 2)


def _mean(values: Any) -> Tensor:
    return reduce.reduce_mean(joining.stack(list(values), -1), -1)


def beam_search_step(
    logits: Tensor,
    cell_state: Any,
    state: BeamSearchDecoderState,
    beams: Beams,
    end_token: Tensor,
    penalties: Penalties,
) -> tuple[BeamSearchDecoderOutput, BeamSearchDecoderState]:
    """The best beams that follow from `state`, given the logits [batch, beams, vocabulary]."""
    ended = state.finished
    goes_on = compare.logical_not(ended)
    total = shaping.expand_dims(state.log_probs, 2) + masked_probs(
        softmax.log_softmax(logits), end_token, ended
    )
    vocabulary = shaping.shape(logits)[2]
    # A beam grows by one, unless it has ended or ends now.
    grown = marking.one_hot(
        filling.fill([beams.batch, beams.width], end_token),
        vocabulary,
        on_value=casting.to_int64(0),
        off_value=casting.to_int64(1),
        dtype=dtypes.int64,
    ) * shaping.expand_dims(casting.to_int64(goes_on), 2)
    lengths = grown + shaping.expand_dims(state.lengths, 2)
    seen = penalties.attention(cell_state)
    if seen is not None:
        seen = state.accumulated_attention_probs + seen * shaping.expand_dims(
            casting.to_float(goes_on), 2
        )
    scores = penalties.scores(total, lengths, ended, seen)

    flat_scores = shaping.reshape(scores, [beams.batch, -1])
    best, places = searching.top_k(flat_scores, k=beams.width)
    for value in (best, places):
        value.set_shape([beams.static_batch, beams.width])
    ids = division.floormod(places, vocabulary)
    parents = division.floordiv(places, vocabulary)
    log_probs = indexing.batch_gather(shaping.reshape(total, [beams.batch, -1]), places)
    log_probs.set_shape(best.shape)
    ended = beams.pick(parents, ended)
    next_state = BeamSearchDecoderState(
        cell_state=nest.map_structure(functools.partial(beams.pick, parents), cell_state),
        log_probs=log_probs,
        finished=compare.logical_or(ended, compare.equal(ids, end_token)),
        lengths=beams.pick(parents, state.lengths) + casting.to_int64(compare.logical_not(ended)),
        accumulated_attention_probs=() if seen is None else beams.pick(parents, seen),
    )
    return BeamSearchDecoderOutput(best, ids, parents), next_state


def masked_probs(log_probs: Tensor, end_token: Any, finished: Any) -> Tensor:
    """For a beam that has ended, the end token is certain."""
    count = shaping.shape(log_probs)[2]
    dtype = log_probs.dtype
    row = marking.one_hot(
        end_token,
        count,
        on_value=convert_to_tensor(0.0, dtype),
        off_value=convert_to_tensor(dtype.min, dtype),
        dtype=dtype,
    )
    return choosing.where_v2(shaping.expand_dims(finished, 2), row, log_probs)
