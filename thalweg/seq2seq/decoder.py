"""The loop that decodes: `dynamic_decode` calls a `Decoder` until all examples have ended."""

from __future__ import annotations

import abc
import contextlib
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg.control.loops import while_loop
from thalweg.control.tensor_array import TensorArray
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int32
from thalweg.graph.known import constant_value
from thalweg.graph.likes import Structure, TensorLike, UserObject
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.nn.rnn_cell import zero_states
from thalweg.ops.core import basic, choosing, filling, shaping
from thalweg.ops.math import compare, reduce
from thalweg.public import public
from thalweg.seq2seq.helpers import batch_and_time_swapped, scalar
from thalweg.variables.scope import variable_scope

if TYPE_CHECKING:
    from thalweg.variables.scope import VariableScope


@public("contrib.seq2seq.Decoder")
class Decoder(abc.ABC):
    """What `dynamic_decode` asks for: how a decoder begins, steps, and ends.

    Example:
        >>> issubclass(tf.contrib.seq2seq.BasicDecoder, tf.contrib.seq2seq.Decoder)
        True
    """

    @property
    def batch_size(self) -> Any:
        """The size of the batch."""
        raise NotImplementedError

    @property
    def output_size(self) -> Any:
        """The (nested) sizes of the outputs of a step, without the batch."""
        raise NotImplementedError

    @property
    def output_dtype(self) -> Any:
        """The (nested) dtypes of the outputs of a step."""
        raise NotImplementedError

    @abc.abstractmethod
    def initialize(self, name: str | None = None) -> Any:
        """(which examples have ended, the first inputs, the first state)."""

    @abc.abstractmethod
    def step(
        self, time: TensorLike, inputs: Structure, state: Structure, name: str | None = None
    ) -> Any:
        """(outputs, next state, next inputs, which examples have ended)."""

    def finalize(
        self, outputs: Structure, final_state: Structure, sequence_lengths: TensorLike
    ) -> Any:
        """(outputs, state) of the whole loop, made of those of its steps."""
        raise NotImplementedError

    @property
    def tracks_own_finished(self) -> bool:
        """Whether `step` may say that an example goes on which had ended before."""
        return False


@public("contrib.seq2seq.dynamic_decode")
def dynamic_decode(
    decoder: UserObject,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: TensorLike | None = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: str | VariableScope | None = None,
) -> tuple[Any, Any, Any]:
    """Decode until all examples have ended.

    Args:
        decoder: a `Decoder`.
        output_time_major: whether outputs are [time, batch, ...], else [batch, time, ...].
        impute_finished: behind its end, an example gives zeros and keeps its state.
        maximum_iterations: how many steps there are at most.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: taken for old programs.
        scope: the variable scope; "decoder" if None.

    Returns:
        (outputs, final state, the length of each example).

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> helper = tf.contrib.seq2seq.TrainingHelper(tf.ones([2, 3, 5]), [3, 2])
        >>> decoder = tf.contrib.seq2seq.BasicDecoder(cell, helper, cell.zero_state(2, tf.float32))
        >>> outputs, state, lengths = tf.contrib.seq2seq.dynamic_decode(decoder)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(tf.shape(outputs.rnn_output)), sess.run(lengths)
        (array([2, 3, 4], dtype=int32), array([3, 2], dtype=int32))
    """
    if not isinstance(decoder, Decoder):
        raise TypeError(f"Expected decoder to be type Decoder, but saw: {type(decoder)}")
    with variable_scope(scope, "decoder"):
        limit = (
            None if maximum_iterations is None else scalar(maximum_iterations, "maximum_iterations")
        )
        finished, inputs, state = decoder.initialize()
        if limit is not None:
            finished = compare.logical_or(finished, compare.less_equal(limit, 0))
        loop = _Loop(decoder, impute_finished)
        _, lists, state, _, _, lengths = while_loop(
            loop.goes_on,
            loop.body,
            (
                basic.constant(0, int32),
                loop.empty_lists(),
                state,
                inputs,
                finished,
                filling.zeros_like(finished, dtype=int32),
            ),
            parallel_iterations=parallel_iterations,
            maximum_iterations=limit,
            swap_memory=swap_memory,
        )
        outputs = nest.map_structure(operator.methodcaller("stack"), lists)
        with contextlib.suppress(NotImplementedError):  # most decoders have nothing to finish
            outputs, state = decoder.finalize(outputs, state, lengths)
        return outputs if output_time_major else batch_and_time_swapped(outputs), state, lengths


class _Loop:
    """The condition and the body of the loop over the steps of a decoder."""

    def __init__(self, decoder: Decoder, impute_finished: bool) -> None:
        self.decoder, self.impute_finished = decoder, impute_finished

    def empty_lists(self) -> Any:
        """A list for each output."""
        static = constant_value(convert_to_tensor(self.decoder.batch_size))
        batch = None if static is None else int(static)

        def listed(size: Any, dtype: Any) -> TensorArray:
            shape = _element_shape(batch, size)
            return TensorArray(dtype, size=0, dynamic_size=True, element_shape=shape)

        return nest.map_structure(listed, self.decoder.output_size, self.decoder.output_dtype)

    def goes_on(self, *variables: Any) -> Tensor:
        """Whether an example has not ended."""
        return compare.logical_not(reduce.reduce_all(variables[4]))

    def body(
        self, time: Any, lists: Any, state: Any, inputs: Any, finished: Any, lengths: Any
    ) -> Any:
        """One step."""
        outputs, new_state, new_inputs, ended = self.decoder.step(time, inputs, state)
        if not self.decoder.tracks_own_finished:
            ended = compare.logical_or(ended, finished)
        now = filling.fill(shaping.shape(lengths), time + 1)
        lengths = choosing.where(finished, lengths, now)
        nest.assert_same_structure(state, new_state)
        nest.assert_same_structure(lists, outputs)
        nest.assert_same_structure(inputs, new_inputs)
        if self.impute_finished:
            outputs = nest.map_structure(_kept(finished), self.zero_outputs(), outputs)
            new_state = nest.map_structure(_kept(finished), state, new_state)

        def written(steps: TensorArray, value: Any) -> TensorArray:
            return steps.write(time, value)

        lists = nest.map_structure(written, lists, outputs)
        return time + 1, lists, new_state, new_inputs, ended, lengths

    def zero_outputs(self) -> Any:
        """Zeros of the shapes of the outputs."""

        def zeros(size: Any, dtype: Any) -> Any:
            return zero_states(size, self.decoder.batch_size, dtype)

        return nest.map_structure(zeros, self.decoder.output_size, self.decoder.output_dtype)


def _element_shape(batch: int | None, size: Any) -> TensorShape | None:
    if isinstance(size, Tensor):
        size = constant_value(size)
    if size is None:
        return None
    return TensorShape([batch]).concatenate(size if isinstance(size, TensorShape) else [int(size)])


def _kept(finished: Tensor) -> Callable[[Any, Any], Any]:
    """A choice of the old value for each example that has ended, of the new one for others."""

    def chosen(old: Any, new: Any) -> Any:
        if isinstance(old, TensorArray):
            return new
        new.set_shape(old.shape)
        return new if new.shape.rank == 0 else choosing.where(finished, old, new)

    return chosen
