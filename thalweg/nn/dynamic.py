"""Recurrent networks as loops in the graph: tensors with a time axis in, such tensors out.

With `sequence_length`, the loop ends with the longest sequence; an example that ended before gives
zeros and keeps the state it ended with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from thalweg.control.list_ops import TensorArrayStack
from thalweg.control.loops import while_loop
from thalweg.control.tensor_array import TensorArray
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int32
from thalweg.graph.likes import DTypeLike, TensorLike, TensorStructure
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import control_dependencies
from thalweg.graph.shapes import TensorShape
from thalweg.nn.recurrent import frozen
from thalweg.nn.rnn_cell import assert_like_rnncell, zero_states
from thalweg.ops.arrays import joining, transposing
from thalweg.ops.core import basic, casting, checks, filling, shaping
from thalweg.ops.math import arithmetic, compare, reduce
from thalweg.public import public
from thalweg.variables.scope import variable_scope

if TYPE_CHECKING:
    from thalweg.nn.rnn_cell import CellLike
    from thalweg.variables.scope import VariableScope


@public("nn.dynamic_rnn")
def dynamic_rnn(
    cell: CellLike,
    inputs: TensorStructure,
    sequence_length: Any = None,
    initial_state: TensorStructure | None = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: str | VariableScope | None = None,
) -> tuple[Any, Any]:
    """Apply a recurrent cell along the time axis, in a loop that runs in the graph.

    Args:
        cell: an RNNCell, such as `tf.nn.rnn_cell.LSTMCell(64)`.
        inputs: [batch, time, ...], or with `time_major` [time, batch, ...], or a nesting of such.
        sequence_length: the length of each example; behind it outputs are 0 and the state stays.
        initial_state: the state to begin with; needs no `dtype`.
        dtype: the dtype of a zero state to begin with.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: taken for old programs.
        time_major: whether time comes before the batch, in inputs and outputs.
        scope: the variable scope of the cell's weights; "rnn" if None.

    Returns:
        (outputs, state): the outputs of all times, and the state after the last.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 5, 3])
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> outputs, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
        >>> outputs.shape.as_list(), state.shape.as_list()
        ([None, 5, 4], [None, 4])
    """
    assert_like_rnncell("cell", cell)
    with variable_scope("rnn" if scope is None else scope):
        steps = _Steps(inputs, time_major)
        state = _initial_state(cell, initial_state, steps.batch, dtype)
        lengths = _lengths(sequence_length, steps.batch)
        outputs = _Outputs(cell, steps, as_dtype(dtype or _common_dtype(state)))
        bound = _bound(steps.count, lengths)

        def is_left(time: Tensor, *_: Any) -> Tensor:
            return time < bound

        def body(time: Tensor, lists: Sequence[TensorArray], state: Any) -> Any:
            output, new_state = _step(cell, steps.read(time), state, time, lengths, outputs.zero)
            return time + 1, outputs.write(lists, time, output), new_state

        _, lists, state = while_loop(
            is_left,
            body,
            (basic.constant(0, int32, name="time"), outputs.lists, state),
            parallel_iterations=parallel_iterations or 32,
            swap_memory=swap_memory,
        )
        return outputs.tensors(lists, time_major), state


def _initial_state(cell: Any, given: Any, batch: Any, dtype: Any) -> Any:
    if given is not None:
        return nest.map_structure(convert_to_tensor, given)
    if dtype is None:
        raise ValueError("If there is no initial_state, you must give a dtype.")
    return cell.zero_state(batch, dtype)


def _step(
    cell: Any, inputs: Any, state: Any, time: Tensor, lengths: Tensor | None, zero: Any
) -> tuple[Any, Any]:
    """Output and state of one step; of an example that has ended, zero and the state it had."""
    output, new_state = cell(inputs, state)
    nest.assert_same_structure(zero, output)
    if lengths is None:
        return output, new_state
    ended = compare.greater_equal(time, lengths)
    return frozen(ended, zero, output), frozen(ended, state, new_state)


class _Steps:
    """Inputs as lists of steps."""

    def __init__(self, inputs: Any, time_major: bool) -> None:
        self._structure = inputs
        tensors = [convert_to_tensor(leaf) for leaf in nest.flatten(inputs)]
        if not tensors:
            raise ValueError("inputs must not be empty")
        if not time_major:
            tensors = [_swapped(tensor) for tensor in tensors]
        shape = _time_and_batch(tensors)
        self.fixed_count, self.fixed_batch = shape
        sizes = None if None not in shape else shaping.shape(tensors[0])
        self.count: Any = _size(sizes, 0, self.fixed_count)
        self.batch: Any = _size(sizes, 1, self.fixed_batch)
        self._lists = [
            TensorArray(
                t.dtype,
                self.count,
                clear_after_read=False,  # each step is read once
                element_shape=t.shape[1:],
                name="inputs",
            ).unstack(t)
            for t in tensors
        ]

    def read(self, time: Tensor) -> Any:
        """The inputs of a step."""
        return nest.pack_sequence_as(self._structure, [each.read(time) for each in self._lists])


class _Outputs:
    """The outputs of steps: lists that the loop fills, zeros where it does not."""

    def __init__(self, cell: Any, steps: _Steps, dtype: DType) -> None:
        self._steps = steps
        self.zero = zero_states(cell.output_size, steps.batch, dtype)
        self.lists = [
            TensorArray(dtype, steps.count, element_shape=zero.shape, name="outputs")
            for zero in nest.flatten(self.zero)
        ]

    def write(self, lists: Sequence[TensorArray], time: Tensor, output: Any) -> list[TensorArray]:
        """Keep the output of a step."""
        pairs = zip(lists, nest.flatten(output), strict=True)
        return [each.write(time, value) for each, value in pairs]

    def tensors(self, lists: Sequence[TensorArray], time_major: bool) -> Any:
        """All outputs, with a time axis."""
        found = [self._stacked(each) for each in lists]
        if not time_major:
            found = [_swapped(tensor) for tensor in found]
        return nest.pack_sequence_as(self.zero, found)

    def _stacked(self, entries: TensorArray) -> Tensor:
        op = TensorArrayStack(dtype=entries.dtype, element_shape=entries.element_shape, fills=True)
        return op(entries.flow, self._steps.count)


def _swapped(tensor: Tensor) -> Tensor:
    """The first two axes of a tensor change places."""
    rank = tensor.shape.with_rank_at_least(2).rank
    if rank is None:
        raise ValueError(f"The rank of the inputs must be known: {tensor.name} (at {user_line()})")
    return transposing.transpose(tensor, [1, 0, *range(2, rank)])


def _size(sizes: Tensor | None, axis: int, fixed: int | None) -> Any:
    return fixed if fixed is not None or sizes is None else sizes[axis]


def _time_and_batch(tensors: Sequence[Tensor]) -> tuple[int | None, int | None]:
    """The number of steps and of examples, where the shapes of time-major inputs tell."""
    both = TensorShape([None, None])
    for tensor in tensors:
        shape = tensor.shape
        if shape.rank is None or shape.rank < 3:
            raise ValueError(
                f"Inputs must have rank at least 3 (time, batch and depth), but {tensor.name} has "
                f"shape {shape} (time-major)"
            )
        if not shape[2:].is_fully_defined():
            raise ValueError(
                "Input size (depth of inputs) must be accessible via shape inference, but saw "
                f"shape {shape} (time-major) of {tensor.name}."
            )
        if not both.is_compatible_with(shape[:2]):
            raise ValueError(
                "Time steps and batch size must be the same for all inputs: "
                f"{both} and {shape[:2]} (time-major) of {tensor.name}."
            )
        both = both.merge_with(shape[:2])
    count, batch = both.as_list()
    return count, batch


def _lengths(sequence_length: Any, batch: Any) -> Tensor | None:
    """The lengths as a vector, one for each example."""
    if sequence_length is None:
        return None
    lengths = casting.cast(convert_to_tensor(sequence_length), int32)
    if lengths.shape.rank not in (None, 1):
        raise ValueError(
            f"sequence_length must be a vector of length batch_size, but saw shape: {lengths.shape}"
        )
    if isinstance(batch, int) and lengths.shape.is_fully_defined():
        lengths.shape.assert_is_compatible_with([batch])
        return basic.identity(lengths, name="sequence_length")
    found, wanted = shaping.shape(lengths), joining.stack([batch])
    check = checks.Assert(
        reduce.reduce_all(compare.equal(found, wanted)),
        [f"Expected shape for Tensor {lengths.name} is ", wanted, " but saw shape: ", found],
    )
    with control_dependencies([check]):
        return basic.identity(lengths, name="sequence_length")


def _bound(count: Any, lengths: Tensor | None) -> Any:
    """How many steps to take: one at least, which tells the shapes of the outputs."""
    if lengths is None:
        return count
    return arithmetic.minimum(count, arithmetic.maximum(1, reduce.reduce_max(lengths)))


def _common_dtype(state: Any) -> DType:
    """The dtype of a state, which stands for that of the outputs."""
    dtypes = {tensor.dtype.base_dtype for tensor in nest.flatten(state)}
    if not dtypes:
        raise ValueError("Unable to infer dtype from empty state.")
    if len(dtypes) > 1:
        raise ValueError(
            "State has tensors of different dtypes: unable to infer a single one for the outputs. "
            f"Give `dtype`. Saw: {sorted(dtype.name for dtype in dtypes)}"
        )
    return dtypes.pop()


@public("nn.bidirectional_dynamic_rnn")
def bidirectional_dynamic_rnn(
    cell_fw: CellLike,
    cell_bw: CellLike,
    inputs: TensorStructure,
    sequence_length: Any = None,
    initial_state_fw: TensorStructure | None = None,
    initial_state_bw: TensorStructure | None = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: str | VariableScope | None = None,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Two recurrent cells: one forwards, one from the end of each sequence.

    Args:
        cell_fw, cell_bw: the cells.
        inputs: [batch, time, ...], or with `time_major` [time, batch, ...].
        sequence_length: the length of each example.
        initial_state_fw, initial_state_bw: the states to begin with.
        dtype: the dtype of zero states to begin with.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: taken for old programs.
        time_major: whether time comes before the batch.
        scope: the variable scope; "bidirectional_rnn" if None.

    Returns:
        (outputs, states), each a pair: forwards, backwards.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 5, 3])
        >>> cells = [tf.nn.rnn_cell.GRUCell(4) for _ in range(2)]
        >>> outputs, _ = tf.nn.bidirectional_dynamic_rnn(*cells, x, dtype=tf.float32)
        >>> tf.concat(outputs, 2).shape.as_list()
        [None, 5, 8]
    """
    assert_like_rnncell("cell_fw", cell_fw)
    assert_like_rnncell("cell_bw", cell_bw)

    def along(cell: Any, inputs: Any, initial_state: Any, scope: Any) -> tuple[Any, Any]:
        return dynamic_rnn(
            cell,
            inputs,
            sequence_length,
            initial_state,
            dtype,
            parallel_iterations,
            swap_memory,
            time_major,
            scope,
        )

    with variable_scope("bidirectional_rnn" if scope is None else scope):
        with variable_scope("fw") as forwards:
            ahead, state_fw = along(cell_fw, inputs, initial_state_fw, forwards)
        with variable_scope("bw") as backwards:
            backward_inputs = _reversed(inputs, sequence_length, time_major)
            back, state_bw = along(cell_bw, backward_inputs, initial_state_bw, backwards)
    return (ahead, _reversed(back, sequence_length, time_major)), (state_fw, state_bw)


def _reversed(values: Any, lengths: Any, time_major: bool) -> Any:
    """Values along their time axis backwards, each example from its own end."""
    time, batch = (0, 1) if time_major else (1, 0)

    def reversed_steps(tensor: Any) -> Tensor:
        if lengths is None:
            return transposing.reverse(tensor, [time])
        return transposing.reverse_sequence(tensor, lengths, time, batch)

    return nest.map_structure(reversed_steps, values)


@public("contrib.rnn.stack_bidirectional_dynamic_rnn")
def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: TensorLike,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: DTypeLike | None = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: str | VariableScope | None = None,
    swap_memory: bool = False,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Layers of bidirectional networks, each over both outputs of the one below, side by side:
    (outputs, final states forwards, final states backwards).

    Args:
        cells_fw, cells_bw: lists of cells, one for each layer and direction.
        inputs: [batch, time, size].
        initial_states_fw, initial_states_bw: lists of states to begin with; zeros if None.
        dtype: the dtype of zero states.
        sequence_length: [batch]: how many steps count.
        parallel_iterations, swap_memory: taken for old programs.
        time_major: whether time comes first.
        scope: the variable scope.

    Returns:
        (outputs of the last layer, final states forwards, final states backwards).

    Example:
        >>> cells = [[tf.nn.rnn_cell.GRUCell(3)] for _ in range(2)]
        >>> outputs, _, _ = tf.contrib.rnn.stack_bidirectional_dynamic_rnn(
        ...     *cells, tf.ones([2, 5, 4]), dtype=tf.float32
        ... )
        >>> outputs.shape.as_list()
        [2, 5, 6]
    """
    count = len(cells_fw)
    if not count or count != len(cells_bw):
        raise ValueError("Forward and Backward cells must be as many, and one at least.")
    starts_fw = _starts("initial_states_fw", initial_states_fw, count)
    starts_bw = _starts("initial_states_bw", initial_states_bw, count)
    states: list[tuple[Any, Any]] = []
    with variable_scope("stack_bidirectional_rnn" if scope is None else scope):
        for number, (cell_fw, cell_bw) in enumerate(zip(cells_fw, cells_bw, strict=True)):
            with variable_scope(f"cell_{number}"):
                outputs, state = bidirectional_dynamic_rnn(
                    cell_fw,
                    cell_bw,
                    inputs,
                    sequence_length,
                    starts_fw[number],
                    starts_bw[number],
                    dtype,
                    parallel_iterations,
                    swap_memory,
                    time_major,
                )
                inputs = joining.concat(outputs, 2)
            states.append(state)
    return inputs, tuple(state for state, _ in states), tuple(state for _, state in states)


def _starts(name: str, states: Sequence[Any] | None, count: int) -> Sequence[Any]:
    if states is None:
        return [None] * count
    if len(states) != count:
        raise ValueError(f"{name} must be a list of {count} states, one for each layer.")
    return states


@public("nn.raw_rnn")
def raw_rnn(
    cell: CellLike,
    loop_fn: Callable[..., Any],
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: str | VariableScope | None = None,
) -> tuple[Any, Any, Any]:
    """A network that decides as it goes: (lists of what it emitted, final state, loop state).

    `loop_fn(time, cell_output, cell_state, loop_state)` gives (which examples have finished, next
    input, next state, what to emit, next loop state). At time 0 output and state are None; what it
    emits then tells the shapes of an example's emissions, and may be None for the cell's outputs.

    Args:
        cell: an RNNCell.
        loop_fn: a function of (time, output, state, loop state), called with None at first; it
            gives (finished, next input, next state, what is emitted, loop state).
        parallel_iterations, swap_memory: taken for old programs.
        scope: the variable scope.

    Returns:
        (TensorArrays of what was emitted, final state, final loop state).

    Example:
        >>> cell = tf.nn.rnn_cell.BasicRNNCell(3)
        >>> def loop_fn(time, output, state, loop_state):
        ...     state = cell.zero_state(2, tf.float32) if output is None else state
        ...     return tf.fill([2], time >= 4), tf.ones([2, 5]), state, output, None
        >>> emitted, _, _ = tf.nn.raw_rnn(cell, loop_fn)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(emitted.stack()).shape
        (4, 2, 3)
    """
    assert_like_rnncell("cell", cell)
    if not callable(loop_fn):
        raise TypeError("loop_fn must be a callable")
    with variable_scope("rnn" if scope is None else scope):
        time = basic.constant(0, int32, name="time")
        finished, given, state, emitted, loop_state = loop_fn(time, None, None, None)
        given, state = nest.map_structure(convert_to_tensor, (given, state))
        nest.assert_same_structure(state, cell.state_size)
        zero = _zero_emission(cell, emitted, _batch_of(given), state)
        loop = _RawLoop(cell, loop_fn, zero, loop_state is not None)
        lists = [_emissions(tensor) for tensor in nest.flatten(zero)]
        kept = loop_state if loop.has_loop_state else 0
        _, _, _, lists, state, kept = while_loop(
            loop.is_left,
            loop.body,
            (time, finished, given, lists, state, kept),
            parallel_iterations=parallel_iterations or 32,
            swap_memory=swap_memory,
        )
        found = nest.pack_sequence_as(zero, lists)
        return found, state, kept if loop.has_loop_state else None


@dataclass(frozen=True)
class _RawLoop:
    """The loop of `raw_rnn`: its variables are time, which examples have finished, the next input,
    lists of emissions, the state and the loop state (a number, where there is none)."""

    cell: Any
    loop_fn: Callable[..., Any]
    zero: Any  # what examples that have finished emit
    has_loop_state: bool

    def is_left(self, time: Tensor, finished: Tensor, *_: Any) -> Tensor:
        """Whether an example goes on."""
        return compare.logical_not(reduce.reduce_all(finished))

    def body(
        self, time: Tensor, finished: Tensor, given: Any, lists: Any, state: Any, kept: Any
    ) -> Any:
        """One step."""
        output, new_state = self.cell(given, state)
        nest.assert_same_structure(state, new_state)
        nest.assert_same_structure(self.cell.output_size, output)
        ended, next_given, next_state, emitted, next_kept = self.loop_fn(
            time + 1, output, new_state, kept if self.has_loop_state else None
        )
        nest.assert_same_structure(given, next_given)
        if not self.has_loop_state or next_kept is None:
            next_kept = kept
        return (
            time + 1,
            compare.logical_or(finished, ended),
            next_given,
            self._write(lists, time, frozen(finished, self.zero, emitted)),
            frozen(finished, state, next_state),
            next_kept,
        )

    def _write(self, lists: Sequence[TensorArray], time: Tensor, emitted: Any) -> list[TensorArray]:
        values = nest.flatten(emitted)
        return [each.write(time, value) for each, value in zip(lists, values, strict=True)]


def _emissions(like: Tensor) -> TensorArray:
    """An empty list of what is emitted."""
    return TensorArray(like.dtype, 0, dynamic_size=True, element_shape=like.shape, name="emissions")


def _batch_of(given: Any) -> Any:
    """The batch size of a step's inputs: an int where the shapes tell, else a tensor."""
    tensors = nest.flatten(given)
    first = TensorShape([None])
    for tensor in tensors:
        shape = tensor.shape.with_rank_at_least(1)
        if not first.is_compatible_with(shape[:1]):
            raise ValueError(
                f"Batch size must be the same for all inputs: {first} and {shape[:1]} of "
                f"{tensor.name}."
            )
        first = first.merge_with(shape[:1])
    fixed = first.as_list()[0]
    return shaping.shape(tensors[0])[0] if fixed is None else fixed


def _zero_emission(cell: Any, emitted: Any, batch: Any, state: Any) -> Any:
    """What examples that have finished emit; `emitted` has the form of one example's emission."""
    if emitted is None:
        return zero_states(cell.output_size, batch, nest.flatten(state)[0].dtype.base_dtype)

    def zeros(example: Any) -> Tensor:
        tensor = convert_to_tensor(example)
        if isinstance(batch, int) and tensor.shape.is_fully_defined():
            sizes = cast("list[int]", tensor.shape.as_list())
            return filling.zeros([batch, *sizes], tensor.dtype.base_dtype)
        sizes = joining.concat([joining.stack([batch]), shaping.shape(tensor)], 0)
        result = filling.zeros(sizes, tensor.dtype.base_dtype)
        first = batch if isinstance(batch, int) else None
        result.set_shape(TensorShape([first]).concatenate(tensor.shape))
        return result

    return nest.map_structure(zeros, emitted)
