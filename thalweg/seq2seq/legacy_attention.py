"""The decoder of `tf.contrib.legacy_seq2seq` that looks at states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.nn.rnn_cell import CellLike
from thalweg.nn.rnn_wrapper import linear
from thalweg.ops.arrays import joining
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.math import reduce, transcendental
from thalweg.ops.nn import convolution, softmax
from thalweg.public import public
from thalweg.variables.scope import get_variable, get_variable_scope, variable_scope

if TYPE_CHECKING:
    from thalweg.variables.scope import VariableScope


@public("contrib.legacy_seq2seq.attention_decoder", "nn.seq2seq.attention_decoder")
def attention_decoder(
    decoder_inputs: Sequence[TensorLike],
    initial_state: Structure,
    attention_states: TensorLike,
    cell: CellLike,
    output_size: int | None = None,
    num_heads: int = 1,
    loop_function: Callable[[Any, int], Any] | None = None,
    dtype: DTypeLike | None = None,
    scope: str | VariableScope | None = None,
    initial_state_attention: bool = False,
) -> tuple[list[Any], Any]:
    """A decoder that looks at states in each step, as in "Grammar as a Foreign Language".

    Args:
        decoder_inputs: a list of tensors [batch, size].
        initial_state: the state to begin with.
        attention_states: what is looked at, [batch, time, size].
        cell: an RNNCell.
        output_size: the size of outputs; that of the cell if None.
        num_heads: how often the states are looked at in each step.
        loop_function: a function of (output, step) that makes the next input; None: the list's.
        dtype: the dtype of the variables.
        scope: the variable scope.
        initial_state_attention: look at the states before the first step too; else it reads zeros.

    Returns:
        (outputs, last state).

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(5)
        >>> outputs, _ = tf.contrib.legacy_seq2seq.attention_decoder(
        ...     [tf.ones([2, 3])] * 4, cell.zero_state(2, tf.float32), tf.ones([2, 6, 7]), cell)
        >>> len(outputs), outputs[0].shape.as_list()
        (4, [2, 5])
    """
    if not decoder_inputs:
        raise ValueError("Must provide at least 1 input to attention decoder.")
    if num_heads < 1:
        raise ValueError("With less than 1 heads, use a non-attention decoder.")
    states = convert_to_tensor(attention_states)
    if states.shape[2].value is None:
        raise ValueError(f"Shape[2] of attention_states must be known: {states.shape}")
    size: Any = cell.output_size if output_size is None else output_size
    with variable_scope(scope or "attention_decoder", dtype=dtype) as opened:
        heads = _Heads(states, num_heads, opened.dtype)
        seen = heads.zeros(convert_to_tensor(decoder_inputs[0]))
        if initial_state_attention:
            seen = heads.look(initial_state)
        state: Any = initial_state
        outputs: list[Any] = []
        for time, given in enumerate(decoder_inputs):
            if time > 0:
                get_variable_scope().reuse_variables()
                if loop_function is not None:
                    with variable_scope("loop_function", reuse=True):
                        given = loop_function(outputs[-1], time)
            made: Any = cell(_joined_input(given, seen, opened.dtype), state)
            output, state = convert_to_tensor(made[0]), made[1]
            has_looked = time > 0 or initial_state_attention
            with variable_scope(get_variable_scope(), reuse=True if has_looked else None):
                seen = heads.look(state)
            with variable_scope("AttnOutputProjection"):
                outputs.append(linear([casting.cast(output, opened.dtype), *seen], size, True))
        return outputs, state


def _joined_input(given: Any, seen: list[Tensor], dtype: Any) -> Tensor:
    inputs = convert_to_tensor(given)
    size = inputs.shape.with_rank(2)[1].value
    if size is None:
        raise ValueError(f"Could not infer input size from input: {inputs.name}")
    return linear([casting.cast(part, dtype) for part in (inputs, *seen)], size, True)


class _Heads:
    """Weights that look at states [batch, time, size]: as a convolution of width 1."""

    def __init__(self, states: Tensor, count: int, dtype: Any) -> None:
        self.count, self.dtype = count, dtype
        self.size = int(states.shape[2])
        time = states.shape[1].value
        self.length: Any = shaping.shape(states)[1] if time is None else time
        self.hidden = shaping.reshape(states, [-1, self.length, 1, self.size])
        self.features: list[Tensor] = []
        self.vectors: list[Any] = []
        for head in range(count):
            kernel = get_variable(f"AttnW_{head}", [1, 1, self.size, self.size], dtype=dtype)
            strides = [1, 1, 1, 1]
            self.features.append(convolution.conv2d(self.hidden, kernel, strides, "SAME"))
            self.vectors.append(get_variable(f"AttnV_{head}", [self.size], dtype=dtype))

    def zeros(self, like: Tensor) -> list[Tensor]:
        """What is read before the first look."""
        made = filling.zeros([shaping.shape(like)[0], self.size], self.dtype)
        made.set_shape([None, self.size])
        return [made] * self.count

    def look(self, query: Any) -> list[Tensor]:
        """What each head reads, for a state of the cell."""
        query = joining.concat(nest.flatten(query), 1)
        return [self._read(head, query) for head in range(self.count)]

    def _read(self, head: int, query: Tensor) -> Tensor:
        with variable_scope(f"Attention_{head}"):
            asked = shaping.reshape(linear([query], self.size, True), [-1, 1, 1, self.size])
            seen = transcendental.tanh(self.features[head] + casting.cast(asked, self.dtype))
            scores = reduce.reduce_sum(self.vectors[head] * seen, [2, 3])
            weights = casting.cast(softmax.softmax(casting.cast(scores, float32)), self.dtype)
            weights = shaping.reshape(weights, [-1, self.length, 1, 1])
            read = reduce.reduce_sum(weights * self.hidden, [1, 2])
            return shaping.reshape(read, [-1, self.size])
