"""Recurrent networks written out step by step: a list of inputs in, a list of outputs out.

With `sequence_length`, an example that has ended gives zeros and keeps the state it ended with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from thalweg.control.tensor_array import TensorArray
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int32
from thalweg.graph.likes import DTypeLike, TensorLike, TensorStructure, UserObject
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import control_dependencies
from thalweg.graph.shapes import TensorShape
from thalweg.nn.rnn_cell import assert_like_rnncell, zero_states
from thalweg.ops.arrays import joining, splitting, transposing
from thalweg.ops.core import basic, casting, choosing, shaping
from thalweg.ops.math import compare
from thalweg.public import public
from thalweg.variables.scope import variable_scope

if TYPE_CHECKING:
    from thalweg.nn.rnn_cell import CellLike
    from thalweg.variables.scope import VariableScope

Outputs = list[Any]


@public("nn.static_rnn", "contrib.rnn.static_rnn", "nn.rnn")
def static_rnn(
    cell: CellLike,
    inputs: Sequence[TensorStructure],
    initial_state: TensorStructure | None = None,
    dtype: DTypeLike | None = None,
    sequence_length: Any = None,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """Apply a recurrent cell to a list of inputs, unrolled in the graph.

    Args:
        cell: an RNNCell.
        inputs: a list of tensors [batch, ...], one per time.
        initial_state: the state to begin with; needs no `dtype`.
        dtype: the dtype of a zero state to begin with.
        sequence_length: the length of each example; behind it outputs are 0 and the state stays.
        scope: the variable scope; "rnn" if None.

    Returns:
        (a list of outputs, the final state).

    Example:
        >>> cell = tf.nn.rnn_cell.BasicRNNCell(4)
        >>> outputs, state = tf.nn.static_rnn(cell, [tf.ones([2, 3])] * 5, dtype=tf.float32)
        >>> len(outputs), state.shape.as_list()
        (5, [2, 4])
    """
    assert_like_rnncell("cell", cell)
    _check_inputs(inputs)
    with variable_scope("rnn" if scope is None else scope) as opened:
        batch = _batch_size(inputs)
        state = _initial_state(cell, initial_state, batch, dtype)
        lengths = _lengths(sequence_length, batch)
        outputs: Outputs = []
        for time, step_inputs in enumerate(inputs):
            if time > 0:
                opened.reuse_variables()
            output, new_state = cell(step_inputs, state)
            if lengths is not None:
                ended = compare.greater_equal(time, lengths)
                output = frozen(ended, _zero_output(cell, batch, output), output)
                new_state = frozen(ended, state, new_state)
            outputs.append(output)
            state = new_state
        return outputs, state


def _initial_state(cell: Any, initial_state: Any, batch: Any, dtype: Any) -> Any:
    if initial_state is not None:
        return initial_state
    if dtype is None:
        raise ValueError("If no initial_state is provided, dtype must be specified")
    return cell.zero_state(batch, dtype)


def _zero_output(cell: Any, batch: Any, output: Any) -> Any:
    return zero_states(cell.output_size, batch, nest.flatten(output)[0].dtype)


def _check_inputs(inputs: Any) -> None:
    if not nest.is_sequence(inputs):
        raise TypeError("inputs must be a sequence")
    if not inputs:
        raise ValueError("inputs must not be empty")


def _batch_size(inputs: Sequence[Any]) -> Any:
    """The batch size as an int where the shapes tell it, else as a tensor."""
    leaves = nest.flatten(list(inputs))
    sizes = TensorShape([None])
    for leaf in leaves:
        shape = leaf.shape
        if shape.rank is None:
            continue
        sizes = sizes.merge_with(shape.with_rank_at_least(1)[:1])
        for axis, size in enumerate(shape.as_list()[1:], 1):
            if size is None:
                raise ValueError(
                    f"Input size (dimension {axis} of inputs) must be accessible via shape "
                    "inference, but saw value None."
                )
    static = sizes.as_list()[0]
    return shaping.shape(leaves[0])[0] if static is None else static


def _lengths(sequence_length: Any, batch: Any) -> Tensor | None:
    if sequence_length is None:
        return None
    lengths = casting.cast(convert_to_tensor(sequence_length), int32)
    if lengths.shape.rank not in (None, 0, 1):
        raise ValueError(
            f"sequence_length must be a vector of length batch_size, not of shape {lengths.shape}"
        )
    if isinstance(batch, int):
        if lengths.shape.rank == 1:
            lengths.shape.assert_is_compatible_with([batch])
        return shaping.reshape(lengths, [batch]) if lengths.shape.rank != 0 else lengths
    return basic.identity(lengths, name="sequence_length")


def frozen(ended: Tensor, old: Any, new: Any) -> Any:
    """For each example, the old values if its sequence has ended, else the new ones."""

    def chosen(before: Any, after: Any) -> Any:
        if isinstance(after, TensorArray) or after.shape.rank == 0:
            return after  # not per example: lists, counters and the like go on
        result = choosing.where(ended, before, after)
        result.set_shape(after.shape)
        return result

    nest.assert_same_structure(old, new)
    return nest.map_structure(chosen, old, new)


@public("contrib.legacy_seq2seq.rnn_decoder", "nn.seq2seq.rnn_decoder")
def rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: TensorStructure,
    cell: CellLike,
    loop_function: Callable[[Any, int], Any] | None = None,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """As `static_rnn`, but `loop_function(output, step)` may make the next input of an output.

    Args:
        decoder_inputs: a list of tensors [batch, size], one for each step.
        initial_state: the state to begin with.
        cell: an RNNCell.
        loop_function: a function of (output, step) that makes the next input; None: the list's.
        scope: the variable scope.

    Returns:
        (outputs, final state): a list with the output of each step.

    Example:
        >>> cell = tf.nn.rnn_cell.BasicRNNCell(3)
        >>> inputs = [tf.ones([2, 4])] * 5
        >>> decode = tf.contrib.legacy_seq2seq.rnn_decoder
        >>> outputs, state = decode(inputs, cell.zero_state(2, tf.float32), cell)
        >>> len(outputs), outputs[0].shape.as_list()
        (5, [2, 3])
    """
    with variable_scope("rnn_decoder" if scope is None else scope) as opened:
        state = initial_state
        outputs: Outputs = []
        for time, inputs in enumerate(decoder_inputs):
            if time > 0:
                if loop_function is not None:
                    with variable_scope("loop_function", reuse=True):
                        inputs = loop_function(outputs[-1], time)
                opened.reuse_variables()
            output, state = cell(inputs, state)
            outputs.append(output)
        return outputs, state


@public("nn.static_state_saving_rnn", "contrib.rnn.static_state_saving_rnn", "nn.state_saving_rnn")
def static_state_saving_rnn(
    cell: CellLike,
    inputs: Sequence[TensorStructure],
    state_saver: UserObject,
    state_name: str | Sequence[str],
    sequence_length: Any = None,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any]:
    """As `static_rnn`, from the state a saver holds under a name (or nest of names), and back."""
    state_size = cell.state_size
    if nest.is_sequence(state_size) != nest.is_sequence(state_name):
        raise ValueError(
            "state_name should be the same type as cell.state_size: "
            f"{state_name!r} and {state_size!r}"
        )
    names = nest.flatten(state_name)
    if len(names) != len(nest.flatten(state_size)):
        raise ValueError(f"#elems(state_name) != #elems(state_size): {state_name}, {state_size}")
    initial = nest.pack_sequence_as(state_size, [state_saver.state(name) for name in names])
    outputs, state = static_rnn(
        cell, inputs, initial_state=initial, sequence_length=sequence_length, scope=scope
    )
    pairs = zip(names, nest.flatten(state), strict=True)
    saves = [state_saver.save_state(name, value) for name, value in pairs]
    with control_dependencies(saves):
        last = nest.map_structure(basic.identity, outputs[-1])
        return [*outputs[:-1], last], state


@public(
    "nn.static_bidirectional_rnn", "contrib.rnn.static_bidirectional_rnn", "nn.bidirectional_rnn"
)
def static_bidirectional_rnn(
    cell_fw: CellLike,
    cell_bw: CellLike,
    inputs: Sequence[TensorLike],
    initial_state_fw: TensorStructure | None = None,
    initial_state_bw: TensorStructure | None = None,
    dtype: DTypeLike | None = None,
    sequence_length: Any = None,
    scope: str | VariableScope | None = None,
) -> tuple[Outputs, Any, Any]:
    """Two recurrent cells over a list of inputs: one forwards, one backwards.

    Args:
        cell_fw, cell_bw: the cells.
        inputs: a list of tensors [batch, ...], one per time.
        initial_state_fw, initial_state_bw: the states to begin with.
        dtype: the dtype of zero states to begin with.
        sequence_length: the length of each example.
        scope: the variable scope.

    Returns:
        (outputs side by side, state forwards, state backwards).

    Example:
        >>> cells = [tf.nn.rnn_cell.GRUCell(4) for _ in range(2)]
        >>> outputs, _, _ = tf.nn.static_bidirectional_rnn(
        ...     *cells, [tf.ones([2, 3])] * 5, dtype=tf.float32
        ... )
        >>> len(outputs), outputs[0].shape.as_list()
        (5, [2, 8])
    """
    assert_like_rnncell("cell_fw", cell_fw)
    assert_like_rnncell("cell_bw", cell_bw)
    _check_inputs(inputs)
    with variable_scope("bidirectional_rnn" if scope is None else scope):
        with variable_scope("fw") as forwards:
            ahead, state_fw = static_rnn(
                cell_fw, inputs, initial_state_fw, dtype, sequence_length, forwards
            )
        with variable_scope("bw") as backwards:
            backward = reverse_steps(inputs, sequence_length)
            back, state_bw = static_rnn(
                cell_bw, backward, initial_state_bw, dtype, sequence_length, backwards
            )
    back = reverse_steps(back, sequence_length)
    outputs = [
        nest.pack_sequence_as(one, _side_by_side(one, two))
        for one, two in zip(ahead, back, strict=True)
    ]
    return outputs, state_fw, state_bw


def _side_by_side(one: Any, two: Any) -> list[Tensor]:
    pairs = zip(nest.flatten(one), nest.flatten(two), strict=True)
    return [joining.concat([left, right], 1) for left, right in pairs]


def reverse_steps(inputs: Sequence[Any], lengths: Any) -> list[Any]:
    """A list of steps backwards, each example from its own end."""
    if lengths is None:
        return list(reversed(inputs))
    columns = zip(*(nest.flatten(step) for step in inputs), strict=True)
    backward = [_reverse_column(list(column), lengths) for column in columns]
    return [
        nest.pack_sequence_as(step, list(row))
        for step, row in zip(inputs, zip(*backward, strict=True), strict=True)
    ]


def _reverse_column(steps: list[Tensor], lengths: Any) -> list[Tensor]:
    merged = TensorShape(None)
    for step in steps:
        merged = merged.merge_with(step.shape)
    stacked = transposing.reverse_sequence(joining.stack(steps), lengths, seq_axis=0, batch_axis=1)
    backward = splitting.unstack(stacked, num=len(steps))
    for step in backward:
        step.set_shape(merged)
    return backward
