"""Conditional random fields over sequences of tags: `tf.contrib.crf`.

The score of a sequence of tags is the sum of its potentials, one per place and tag (`inputs`,
[batch, time, tags]), and of a transition per pair of neighbours ([tags, tags], from row to column).
Places past the length of a sequence count for nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.control.functional import foldl, scan
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int32
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import indexing, joining, searching, transposing
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, reduce
from thalweg.platform.docstrings import family
from thalweg.public import public
from thalweg.variables.scope import get_variable

crf = family(
    {
        "inputs": "potentials [batch, time, tags].",
        "potentials": "potentials [batch, time, tags].",
        "tag_indices": "int32 tags [batch, time].",
        "tag_bitmap": "which tags each place may have, booleans [batch, time, tags].",
        "sequence_lengths": "int32 [batch]: how many places count.",
        "sequence_length": "int32 [batch]: how many places count.",
        "transition_params": "what going from a tag (row) to a tag (column) adds, [tags, tags].",
    },
    "A tensor [batch].",
)


@public("contrib.crf.crf_unary_score")
@crf()
def crf_unary_score(
    tag_indices: TensorLike, sequence_lengths: TensorLike, inputs: TensorLike
) -> Tensor:
    """The sum of the potentials of each sequence's tags."""
    values = convert_to_tensor(inputs)
    tags = shaping.expand_dims(casting.cast(tag_indices, int32), -1)
    chosen = shaping.squeeze(indexing.batch_gather(values, tags), [-1])
    return reduce.reduce_sum(chosen * _mask(sequence_lengths, values, values.dtype), 1)


@public("contrib.crf.crf_binary_score")
@crf()
def crf_binary_score(
    tag_indices: TensorLike, sequence_lengths: TensorLike, transition_params: TensorLike
) -> Tensor:
    """The sum of the transitions of each sequence's tags."""
    tags = casting.cast(tag_indices, int32)
    transitions = convert_to_tensor(transition_params)
    pairs = joining.stack([tags[:, :-1], tags[:, 1:]], -1)
    counted = _mask(sequence_lengths, tags, transitions.dtype)[:, 1:]
    return reduce.reduce_sum(indexing.gather_nd(transitions, pairs) * counted, 1)


@public("contrib.crf.crf_sequence_score")
@crf()
def crf_sequence_score(
    inputs: TensorLike,
    tag_indices: TensorLike,
    sequence_lengths: TensorLike,
    transition_params: TensorLike,
) -> Tensor:
    """The score of each sequence of tags, not normalised."""
    potentials = crf_unary_score(tag_indices, sequence_lengths, inputs)
    return potentials + crf_binary_score(tag_indices, sequence_lengths, transition_params)


@public("contrib.crf.crf_multitag_sequence_score")
@crf()
def crf_multitag_sequence_score(
    inputs: TensorLike,
    tag_bitmap: TensorLike,
    sequence_lengths: TensorLike,
    transition_params: TensorLike,
) -> Tensor:
    """The logarithm of the sum over all sequences of allowed tags, not normalised."""
    values = convert_to_tensor(inputs)
    never = filling.fill(shaping.shape(values), -np.inf)
    allowed = choosing.where(
        convert_to_tensor(tag_bitmap), values, casting.cast(never, values.dtype)
    )
    return crf_log_norm(allowed, sequence_lengths, transition_params)


@public("contrib.crf.crf_log_norm")
@crf("A tensor [batch]; 0 for sequences without places.")
def crf_log_norm(
    inputs: TensorLike, sequence_lengths: TensorLike, transition_params: TensorLike
) -> Tensor:
    """The logarithm of the sum over all sequences of tags of the exponential of their score."""
    values = convert_to_tensor(inputs)
    transitions = shaping.expand_dims(convert_to_tensor(transition_params), 0)

    def step(scores: Tensor, row: Any) -> Tensor:
        potentials, counts = row
        paths = shaping.expand_dims(scores, 2) + transitions
        return choosing.where(counts, potentials + reduce.reduce_logsumexp(paths, 1), scores)

    scores: Any = foldl(step, _steps(values, sequence_lengths), values[:, 0])
    norm = reduce.reduce_logsumexp(scores, 1)
    has_places = compare.greater(convert_to_tensor(sequence_lengths), 0)
    return choosing.where(has_places, norm, filling.zeros_like(norm))


@public("contrib.crf.crf_log_likelihood")
@crf("(the log-likelihoods [batch], the transitions).")
def crf_log_likelihood(
    inputs: TensorLike,
    tag_indices: TensorLike,
    sequence_lengths: TensorLike,
    transition_params: TensorLike | None = None,
) -> tuple[Tensor, Any]:
    """The log-likelihood of each sequence of tags; transitions that are not given are a variable.

    Example:
        >>> scores, tags = tf.ones([1, 3, 2]), [[0, 1, 0]]
        >>> likelihood, _ = tf.contrib.crf.crf_log_likelihood(scores, tags, [3], tf.zeros([2, 2]))
        >>> sess.run(tf.exp(likelihood))
        array([0.125], dtype=float32)
    """
    values = convert_to_tensor(inputs)
    transitions: Any = transition_params
    if transitions is None:
        count = values.shape[2].value
        transitions = get_variable("transitions", [count, count])
    score = crf_sequence_score(values, tag_indices, sequence_lengths, transitions)
    return score - crf_log_norm(values, sequence_lengths, transitions), transitions


@public("contrib.crf.crf_decode")
@crf("(the best tags [batch, time], 0 past the lengths; their scores [batch]).")
def crf_decode(
    potentials: TensorLike, transition_params: TensorLike, sequence_length: TensorLike
) -> tuple[Tensor, Tensor]:
    """The sequences of tags with the highest score, by Viterbi's algorithm."""
    with name_scope(None, "crf_decode", [potentials]):
        values = convert_to_tensor(potentials)
        transitions = shaping.expand_dims(convert_to_tensor(transition_params), 0)
        stay = filling.zeros_like(values[:, 0], int32) + filling.range(shaping.shape(values)[2])

        def step(held: Any, row: Any) -> Any:
            scores, _ = held
            potential, counts = row
            paths = shaping.expand_dims(scores, 2) + transitions
            found = potential + reduce.reduce_max(paths, 1)
            origins = searching.argmax(paths, 1, output_type=int32)
            return choosing.where(counts, found, scores), choosing.where(counts, origins, stay)

        begin = (values[:, 0], stay)
        all_scores, origins = scan(step, _steps(values, sequence_length), begin)
        last = searching.argmax(all_scores[-1], 1, output_type=int32)
        before = scan(_origin, origins, last, reverse=True)
        tags = transposing.transpose(joining.concat([before[1:], [last]], 0))
        lengths = arithmetic.maximum(convert_to_tensor(sequence_length), 1)
        tags = tags * _mask(lengths, values, int32)
        tags.set_shape(values.shape[:2])
        return tags, reduce.reduce_max(all_scores[-1], 1)


def _origin(tags: Tensor, origins: Tensor) -> Tensor:
    """Where the best paths to these tags came from."""
    return shaping.squeeze(indexing.batch_gather(origins, shaping.expand_dims(tags, -1)), [-1])


def _mask(lengths: TensorLike, values: Tensor, dtype: Any) -> Tensor:
    """Which places of [batch, time, ...] count."""
    return filling.sequence_mask(lengths, shaping.shape(values)[1], dtype.base_dtype)


def _steps(values: Tensor, lengths: TensorLike) -> tuple[Tensor, Tensor]:
    """Potentials [time, batch, tags], and whether a step to that place counts: none leads to the
    first one."""
    places = filling.range(shaping.shape(values)[1])
    inside = compare.less(places, shaping.expand_dims(casting.cast(lengths, int32), 1))
    counts = compare.logical_and(inside, compare.greater(places, 0))
    return transposing.transpose(values, [1, 0, 2]), transposing.transpose(counts)


@public("contrib.crf.viterbi_decode")
def viterbi_decode(
    score: NDArray[Any], transition_params: NDArray[Any]
) -> tuple[list[int], np.floating[Any]]:
    """The sequence of tags with the highest score, by NumPy.

    Args:
        score: potentials [time, tags].
        transition_params: what going from a tag (row) to a tag (column) adds, [tags, tags].

    Returns:
        (the tags, their score).

    Example:
        >>> tf.contrib.crf.viterbi_decode(np.array([[1.0, 0.0], [0.0, 3.0]]), np.zeros([2, 2]))
        ([0, 1], np.float64(4.0))
    """
    scores: Any = np.asarray(score[0])
    origins: list[Any] = []
    for potentials in score[1:]:
        paths = scores[:, None] + transition_params
        origins.append(np.argmax(paths, 0))
        scores = potentials + np.max(paths, 0)
    tags = [int(np.argmax(scores))]
    for origin in reversed(origins):
        tags.append(int(origin[tags[-1]]))
    return tags[::-1], np.max(scores)
