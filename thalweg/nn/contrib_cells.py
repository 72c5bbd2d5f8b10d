"""Recurrent cells of `tf.contrib.rnn`: blocks with peepholes, and with layer normalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg.graph.dtypes import float32
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.nn import normalisation
from thalweg.nn.rnn_cell import BasicLSTMCell, GRUCell, LayerRNNCell, LSTMStateTuple
from thalweg.ops.arrays import joining, splitting
from thalweg.ops.linalg import matmul
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.nn import activation, bias, dropout
from thalweg.public import public
from thalweg.variables.initializers import Constant, Zeros

if TYPE_CHECKING:
    from thalweg.variables.store import ReuseMode


@public("contrib.rnn.LSTMBlockCell")
class LSTMBlockCell(BasicLSTMCell):
    """An LSTM cell that may have peepholes and clip its memory.

    Args:
        num_units: the size of c and h.
        forget_bias: what is added to the forget gate.
        cell_clip: the memory is clipped to ±this; None or a negative number: not at all.
        use_peephole: whether the gates see the memory.
        dtype: the dtype of the variables.
        reuse: whether the variables of the scope are shared.
        name: the name of the layer.

    Example:
        >>> cell = tf.contrib.rnn.LSTMBlockCell(4, use_peephole=True)
        >>> output, state = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
        >>> output.shape.as_list(), len(cell.variables)
        ([2, 4], 5)
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: DTypeLike | None = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = "lstm_cell",
    ) -> None:
        super().__init__(num_units, forget_bias, reuse=reuse, name=name, dtype=dtype)
        self._cell_clip = -1.0 if cell_clip is None else cell_clip
        self._use_peephole = use_peephole

    def build(self, input_shape: TensorShape) -> None:
        super().build(input_shape)
        if self._use_peephole:
            names = ("w_i_diag", "w_f_diag", "w_o_diag")
            self._peepholes = [self.add_weight(name, [self._num_units]) for name in names]

    def call(self, inputs: TensorLike, state: Structure) -> Any:
        memory, shown = state
        joined = joining.concat([inputs, shown], 1)
        gates = bias.bias_add(matmul.matmul(joined, self._kernel), self._bias)
        add, new, keep, show = splitting.split(gates, 4, 1)
        keep = keep + self._forget_bias
        if self._use_peephole:
            add, keep = add + memory * self._peepholes[0], keep + memory * self._peepholes[1]
        kept = memory * transcendental.sigmoid(keep)
        memory = kept + transcendental.sigmoid(add) * transcendental.tanh(new)
        if self._cell_clip > 0:
            memory = arithmetic.clip_by_value(memory, -self._cell_clip, self._cell_clip)
        if self._use_peephole:
            show = show + memory * self._peepholes[2]
        shown = transcendental.tanh(memory) * transcendental.sigmoid(show)
        return shown, LSTMStateTuple(memory, shown)


@public("contrib.rnn.GRUBlockCellV2")
class GRUBlockCellV2(GRUCell):
    """A GRU cell; the variables are those of `GRUCell`.

    Args:
        num_units: the size of the state.
        cell_size: its older name.
        reuse: whether the variables of the scope are shared.
        name: the name of the layer.

    Example:
        >>> cell = tf.contrib.rnn.GRUBlockCellV2(4)
        >>> cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))[0].shape.as_list()
        [2, 4]
    """

    def __init__(
        self,
        num_units: int | None = None,
        cell_size: int | None = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = "gru_cell",
    ) -> None:
        units = num_units if cell_size is None else cell_size
        if units is None or (num_units is not None and cell_size is not None):
            raise ValueError("Exactly one of num_units and cell_size must be given.")
        super().__init__(units, reuse=reuse, name=name)


@public("contrib.rnn.GRUBlockCell")
class GRUBlockCell(GRUBlockCellV2):
    """A GRU cell with the variables `w_ru`, `b_ru`, `w_c` and `b_c`.

    Args:
        num_units: the size of the state.
        cell_size: its older name.
        reuse: whether the variables of the scope are shared.
        name: the name of the layer.

    Example:
        >>> cell = tf.contrib.rnn.GRUBlockCell(4)
        >>> output, state = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
        >>> [v.op.name for v in cell.variables]
        ['gru_cell/w_ru', 'gru_cell/b_ru', 'gru_cell/w_c', 'gru_cell/b_c']
    """

    def build(self, input_shape: TensorShape) -> None:
        units, depth = self._num_units, self._input_depth(input_shape) + self._num_units
        dtype = self._dtype or float32
        self._gate_kernel = self.add_weight("w_ru", [depth, 2 * units])
        ones = Constant(1.0, dtype=dtype)
        self._gate_bias = self.add_weight("b_ru", [2 * units], initializer=ones)
        self._candidate_kernel = self.add_weight("w_c", [depth, units])
        zeros = Zeros(dtype=dtype)
        self._candidate_bias = self.add_weight("b_c", [units], initializer=zeros)


@public("contrib.rnn.LayerNormBasicLSTMCell")
class LayerNormBasicLSTMCell(LayerRNNCell):
    """An LSTM cell that normalizes its gates and its memory, with dropout of what it adds to it.

    Args:
        num_units: the size of c and h.
        forget_bias: what is added to the forget gate.
        input_size: taken for old programs.
        activation: the function in place of tanh.
        layer_norm: whether to normalize.
        norm_gain, norm_shift: what gain and shift of a normalization begin with.
        dropout_keep_prob: the share of new memory that is kept.
        dropout_prob_seed: the seed of that choice.
        reuse: whether the variables of the scope are shared.

    Example:
        >>> cell = tf.contrib.rnn.LayerNormBasicLSTMCell(4)
        >>> output, state = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
        >>> output.shape.as_list(), len(cell.variables)
        ([2, 4], 11)
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: int | None = None,
        activation: Callable[[Tensor], Structure] | str | None = None,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: TensorLike = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: bool | ReuseMode | None = None,
    ) -> None:
        super().__init__(num_units, activation, reuse, None)
        self._forget_bias = forget_bias
        self._layer_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> Structure:
        """The sizes of c and h."""
        return LSTMStateTuple(self._num_units, self._num_units)

    def build(self, input_shape: TensorShape) -> None:
        units, depth = self._num_units, self._input_depth(input_shape)
        self._kernel = self.add_weight("kernel", [depth + units, 4 * units])
        if not self._layer_norm:
            self._bias = self.add_weight("bias", [4 * units])
            return
        gain, shift = Constant(self._gain), Constant(self._shift)
        self._norms = {
            name: (
                self.add_weight(f"{name}/gamma", [units], initializer=gain),
                self.add_weight(f"{name}/beta", [units], initializer=shift),
            )
            for name in ("input", "transform", "forget", "output", "state")
        }

    def _norm(self, x: Any, name: str) -> Any:
        if not self._layer_norm:
            return x
        gamma, beta = self._norms[name]
        mean, variance = normalisation.moments(x, [1], keepdims=True)
        return (x - mean) * transcendental.rsqrt(variance + 1e-12) * gamma + beta

    def call(self, inputs: TensorLike, state: Structure) -> Any:
        memory, shown = state
        gates = matmul.matmul(joining.concat([inputs, shown], 1), self._kernel)
        if not self._layer_norm:
            gates = bias.bias_add(gates, self._bias)
        names = ("input", "transform", "forget", "output")
        parts = splitting.split(gates, 4, 1)
        add, new, keep, show = (self._norm(x, n) for x, n in zip(parts, names, strict=True))
        new = self._activation(new)
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            new = dropout.dropout(new, self._keep_prob, seed=self._seed)
        kept = memory * transcendental.sigmoid(keep + self._forget_bias)
        memory = self._norm(kept + transcendental.sigmoid(add) * new, "state")
        shown = self._activation(memory) * transcendental.sigmoid(show)
        return shown, LSTMStateTuple(memory, shown)


@public("contrib.rnn.NASCell")
class NASCell(LayerRNNCell):
    """The cell that a search of architectures found: eight gates in three layers.

    Args:
        num_units: the size of c.
        num_proj: the size of the output; `num_units` if None.
        use_bias: whether the gates have a bias.
        reuse: whether the variables of the scope are shared.
        kwargs: what every layer takes.

    Example:
        >>> cell = tf.contrib.rnn.NASCell(4, num_proj=3)
        >>> output, state = cell(tf.ones([2, 5]), cell.zero_state(2, tf.float32))
        >>> output.shape.as_list(), state.c.shape.as_list()
        ([2, 3], [2, 4])
    """

    def __init__(
        self,
        num_units: int,
        num_proj: int | None = None,
        use_bias: bool = False,
        reuse: bool | ReuseMode | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, None, reuse, kwargs.pop("name", None), **kwargs)
        self._num_proj, self._use_bias = num_proj, use_bias

    @property
    def output_size(self) -> int:
        """The size of h."""
        return self._num_proj or self._num_units

    @property
    def state_size(self) -> LSTMStateTuple:
        """The sizes of c and h."""
        return LSTMStateTuple(self._num_units, self.output_size)

    def build(self, input_shape: TensorShape) -> None:
        gates = 8 * self._num_units
        self._recurrent_kernel = self.add_weight("recurrent_kernel", [self.output_size, gates])
        self._kernel = self.add_weight("kernel", [self._input_depth(input_shape), gates])
        if self._use_bias:
            self._bias = self.add_weight("bias", [gates], initializer=Zeros())
        if self._num_proj is not None:
            shape = [self._num_units, self._num_proj]
            self._projection = self.add_weight("projection_weights", shape)

    def call(self, inputs: TensorLike, state: Structure) -> Any:
        memory, shown = state
        sigmoid, tanh = transcendental.sigmoid, transcendental.tanh
        recurrent = matmul.matmul(shown, self._recurrent_kernel)
        if self._use_bias:
            recurrent = bias.bias_add(recurrent, self._bias)
        h = splitting.split(recurrent, 8, 1)
        x = splitting.split(matmul.matmul(inputs, self._kernel), 8, 1)
        first = tanh(sigmoid(x[0] + h[0]) * activation.relu(x[1] + h[1]))
        second = tanh(sigmoid(x[2] + h[2]) + activation.relu(x[3] * h[3]))
        third = tanh(tanh(x[4] + h[4]) * sigmoid(x[5] + h[5]))
        fourth = sigmoid(tanh(x[6] + h[6]) + sigmoid(x[7] + h[7]))
        memory = tanh(first + memory) * second
        shown = tanh(memory * tanh(third + fourth))
        if self._num_proj is not None:
            shown = matmul.matmul(shown, self._projection)
        return shown, LSTMStateTuple(memory, shown)
