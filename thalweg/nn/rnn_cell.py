"""Recurrent cells: (input of a step, state) goes in, (output, next state) comes out.

A cell is a layer, so its variables are made on the first call and shared by all later steps:
`rnn/basic_lstm_cell/kernel`. States may nest: an LSTM's is an `LSTMStateTuple`, a stack's a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, float32, int32
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.nn.layer import InputSpec, Layer, resolve_activation
from thalweg.ops.arrays import joining, splitting
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.nn import bias
from thalweg.public import public
from thalweg.variables.initializers import Constant, Zeros
from thalweg.variables.partitions import fixed_size_partitioner
from thalweg.variables.scope import get_variable_scope, variable_scope

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike
    from thalweg.variables.scope import VariableScope
    from thalweg.variables.store import ReuseMode


def _names(name: str) -> tuple[str, ...]:
    return (f"nn.rnn_cell.{name}", f"contrib.rnn.{name}")


class CellLike(Protocol):
    """What recurrent networks ask of a cell: `RNNCell` has it, and so may other classes."""

    @property
    def state_size(self) -> Structure:
        """The size (or shape) of the state, or a nest of them."""
        ...

    @property
    def output_size(self) -> Structure:
        """The size (or shape) of the output."""
        ...

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Structure:
        """A state of zeros."""
        ...

    def __call__(self, inputs: Structure, state: Structure) -> Structure:
        """One step: (output, next state)."""
        ...


def assert_like_rnncell(cell_name: str, cell: Any) -> None:
    """Raise TypeError unless `cell` can be used as a cell."""
    wanted = ("output_size", "state_size", "zero_state")
    known = {*dir(cell.__class__), *getattr(cell, "__dict__", ())}
    if not callable(cell) or not known.issuperset(wanted):
        raise TypeError(f"The argument {cell_name!r} ({cell}) is not an RNNCell")


@public(*_names("LSTMStateTuple"))
class LSTMStateTuple(NamedTuple):
    """The state of an LSTM: what it remembers and what it showed.

    Args:
        c: the memory.
        h: the last output.

    Example:
        >>> state = tf.nn.rnn_cell.LSTMStateTuple(tf.zeros([2, 4]), tf.zeros([2, 4]))
        >>> state.c.shape.as_list()
        [2, 4]
    """

    c: Any
    h: Any

    @property
    def dtype(self) -> DType:
        """The dtype of both."""
        if self.c.dtype != self.h.dtype:
            raise TypeError(f"Inconsistent internal state: {self.c.dtype} vs {self.h.dtype}")
        return self.c.dtype


@public(*_names("RNNCell"))
class RNNCell(Layer):
    """The base of cells: a subclass gives `call`, `state_size` and `output_size`.

    Args:
        trainable: whether optimizers change the variables by default.
        name: the name of the layer.
        dtype: the dtype of the variables.
        kwargs: what every layer takes.

    Example:
        >>> class Sum(tf.nn.rnn_cell.RNNCell):
        ...     state_size = output_size = 1
        ...     def call(self, inputs, state):
        ...         return inputs + state, inputs + state
        >>> outputs, _ = tf.nn.dynamic_rnn(Sum(), tf.ones([1, 3, 1]), dtype=tf.float32)
        >>> sess.run(outputs).ravel()
        array([1., 2., 3.], dtype=float32)
    """

    def __call__(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None = None
    ) -> Structure:
        """One step: (output, next state)."""
        base = get_variable_scope() if scope is None else scope
        with variable_scope(base, custom_getter=self._get_variable) as opened:
            if scope is None:
                return super().__call__(inputs, state)
            return super().__call__(inputs, state, scope=opened)

    def _get_variable(self, getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keep what `call` gets by `tf.get_variable` among the cell's variables."""
        variable = getter(*args, **kwargs)
        self._keep(variable, kwargs.get("trainable") is not False)
        return variable

    @property
    def state_size(self) -> Structure:
        """The size (or shape) of the state, or a nest of them."""
        raise NotImplementedError("A cell must define state_size")

    @property
    def output_size(self) -> Structure:
        """The size (or shape) of the output."""
        raise NotImplementedError("A cell must define output_size")

    def get_initial_state(
        self,
        inputs: TensorLike | None = None,
        batch_size: TensorLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> Structure:
        """The zero state for a batch like that of `inputs`, or of a size and dtype."""
        if inputs is not None:
            inputs = convert_to_tensor(inputs)
            batch_size, dtype = shaping.shape(inputs)[0], inputs.dtype
        if batch_size is None or dtype is None:
            raise ValueError(
                "batch_size and dtype cannot be None while constructing initial state: "
                f"batch_size={batch_size}, dtype={dtype}"
            )
        return self.zero_state(batch_size, dtype)

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Structure:
        """A state of zeros."""
        with name_scope(f"{type(self).__name__}ZeroState", values=[batch_size]):
            return zero_states(self.state_size, batch_size, dtype)


def zero_states(state_size: Any, batch_size: Any, dtype: Any) -> Any:
    """Zeros for each of the (nested) sizes, with the batch as first dimension."""

    def zeros(size: Any) -> Tensor:
        sizes = _size_list(size)
        if isinstance(batch_size, int):
            return filling.zeros([batch_size, *sizes], dtype)
        batch = shaping.reshape(casting.cast(batch_size, int32), [1])
        result = filling.zeros(joining.concat([batch, convert_to_tensor(sizes, int32)], 0), dtype)
        result.set_shape([None, *sizes])
        return result

    return nest.map_structure(zeros, state_size)


def _size_list(size: Any) -> list[int]:
    if isinstance(size, TensorShape):
        return [int(s or 0) for s in size.as_list()]
    return [int(size)]


class LayerRNNCell(RNNCell):
    """A cell of some units that makes its variables in `build`, in the scope of a layer."""

    def __init__(
        self,
        num_units: int,
        activation: Callable[[Tensor], Structure] | str | None,
        reuse: bool | ReuseMode | None,
        name: str | None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("input_size", None)  # what cells were once told, and now see for themselves
        super().__init__(name=name, _reuse=reuse, **kwargs)
        self.input_spec = InputSpec(ndim=2)
        self._num_units = num_units
        self._activation: Callable[..., Any] = resolve_activation(activation) or transcendental.tanh

    @property
    def output_size(self) -> int:
        """The number of units."""
        return self._num_units

    def __call__(
        self,
        inputs: Structure,
        state: Structure,
        scope: str | VariableScope | None = None,
        *args: Any,
    ) -> Structure:
        """One step: (output, next state)."""
        return Layer.__call__(self, inputs, state, *args, scope=scope)

    def _input_depth(self, inputs_shape: TensorShape) -> int:
        depth = inputs_shape[-1].value
        if depth is None:
            raise ValueError(
                f"Expected inputs.shape[-1] to be known, saw shape: {inputs_shape} for cell "
                f"{self._name}"
            )
        return depth


def _affine(inputs: Sequence[Any], kernel: Any, offset: Any) -> Tensor:
    """[inputs] kernel + offset, with the inputs side by side."""
    return bias.bias_add(matmul.matmul(joining.concat(list(inputs), 1), kernel), offset)


@public(*_names("BasicRNNCell"))
class BasicRNNCell(LayerRNNCell):
    """The simplest recurrent cell: h' = tanh([x, h] W + b), which is also the output.

    Args:
        num_units: the size of h.
        activation: the function in place of tanh.
        reuse: whether the variables of the scope are shared.
        name: the name of the layer.
        dtype: the dtype of the variables.
        kwargs: what every layer takes.

    Example:
        >>> cell = tf.nn.rnn_cell.BasicRNNCell(4)
        >>> output, state = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
        >>> output.shape.as_list()
        [2, 4]
    """

    def __init__(
        self,
        num_units: int,
        activation: Callable[[Tensor], Structure] | str | None = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype=dtype, **kwargs)

    @property
    def state_size(self) -> int:
        """The number of units."""
        return self._num_units

    def build(self, input_shape: TensorShape) -> None:
        depth = self._input_depth(input_shape)
        self._kernel = self.add_weight("kernel", [depth + self._num_units, self._num_units])
        self._bias = self.add_weight("bias", [self._num_units], initializer=Zeros())

    def call(self, inputs: TensorLike, state: TensorLike) -> Any:
        output = self._activation(_affine([inputs, state], self._kernel, self._bias))
        return output, output


@public(*_names("GRUCell"))
class GRUCell(LayerRNNCell):
    """A gated recurrent unit: r, u = σ([x, h] Wg + bg); h' = u h + (1 - u) tanh([x, r h] Wc + bc)

    Args:
        num_units: the size of h, which is also the output.
        activation: the function in place of tanh.
        reuse: whether the variables of the scope are shared.
        kernel_initializer, bias_initializer: how the variables begin; biases of the gates at 1.
        name: the name of the layer.
        dtype: the dtype of the variables.
        kwargs: what every layer takes.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> output, state = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
        >>> output.shape.as_list()
        [2, 4]
    """

    def __init__(
        self,
        num_units: int,
        activation: Callable[[Tensor], Structure] | str | None = None,
        reuse: bool | ReuseMode | None = None,
        kernel_initializer: InitializerLike = None,
        bias_initializer: InitializerLike = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype=dtype, **kwargs)
        self._kernel_initializer = kernel_initializer
        self._bias_initializer = bias_initializer

    @property
    def state_size(self) -> int:
        """The number of units."""
        return self._num_units

    def build(self, input_shape: TensorShape) -> None:
        units, depth = self._num_units, self._input_depth(input_shape) + self._num_units
        kernel, offset = self._kernel_initializer, self._bias_initializer
        dtype = self._dtype or float32
        self._gate_kernel = self.add_weight("gates/kernel", [depth, 2 * units], initializer=kernel)
        # Gates that start open pass gradients on from the first step.
        self._gate_bias = self.add_weight(
            "gates/bias", [2 * units], initializer=offset or Constant(1.0, dtype=dtype)
        )
        self._candidate_kernel = self.add_weight(
            "candidate/kernel", [depth, units], initializer=kernel
        )
        self._candidate_bias = self.add_weight(
            "candidate/bias", [units], initializer=offset or Zeros(dtype=dtype)
        )

    def call(self, inputs: TensorLike, state: TensorLike) -> Any:
        gates = transcendental.sigmoid(_affine([inputs, state], self._gate_kernel, self._gate_bias))
        reset, update = splitting.split(gates, 2, 1)
        candidate = self._activation(
            _affine([inputs, reset * state], self._candidate_kernel, self._candidate_bias)
        )
        output = update * state + (1 - update) * candidate
        return output, output


@public(*_names("BasicLSTMCell"))
class BasicLSTMCell(LayerRNNCell):
    """An LSTM cell without peepholes or projection.

    i, j, f, o = [x, h] W + b; c' = σ(f + forget_bias) c + σ(i) tanh(j); h' = σ(o) tanh(c')

    Args:
        num_units: the size of c and h.
        forget_bias: what is added to the forget gate; 1 keeps memory at the start of training.
        state_is_tuple: the state is an LSTMStateTuple (c, h), else their concatenation.
        activation: the function in place of tanh.
        reuse: whether the variables of the scope are shared.
        name: the name of the layer.
        dtype: the dtype of the variables.
        kwargs: what every layer takes.

    Example:
        >>> cell = tf.nn.rnn_cell.BasicLSTMCell(4)
        >>> state = cell.zero_state(batch_size=2, dtype=tf.float32)
        >>> output, state = cell(tf.ones([2, 3]), state)
        >>> output.shape.as_list(), state.c.shape.as_list()
        ([2, 4], [2, 4])
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Callable[[Tensor], Structure] | str | None = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype=dtype, **kwargs)
        self._forget_bias = forget_bias
        self._state_is_tuple = state_is_tuple

    @property
    def state_size(self) -> Structure:
        """The sizes of c and h, or their sum."""
        units = self._num_units
        return LSTMStateTuple(units, units) if self._state_is_tuple else 2 * units

    def build(self, input_shape: TensorShape) -> None:
        units, depth = self._num_units, self._input_depth(input_shape)
        self._kernel = self.add_weight("kernel", [depth + units, 4 * units])
        zeros = Zeros(dtype=self._dtype or float32)
        self._bias = self.add_weight("bias", [4 * units], initializer=zeros)

    def call(self, inputs: TensorLike, state: Structure) -> Any:
        memory, shown = state if self._state_is_tuple else splitting.split(state, 2, 1)
        gates = _affine([inputs, shown], self._kernel, self._bias)
        add, new, keep, show = splitting.split(gates, 4, 1)
        kept = memory * transcendental.sigmoid(keep + self._forget_bias)
        memory = kept + transcendental.sigmoid(add) * self._activation(new)
        shown = self._activation(memory) * transcendental.sigmoid(show)
        return shown, _lstm_state(memory, shown, self._state_is_tuple)


def _lstm_state(memory: Tensor, shown: Tensor, is_tuple: bool) -> Any:
    return LSTMStateTuple(memory, shown) if is_tuple else joining.concat([memory, shown], 1)


@public(*_names("LSTMCell"))
class LSTMCell(LayerRNNCell):
    """An LSTM cell with optional peepholes, clipping and projection of the output.

    Args:
        num_units: the size of c.
        use_peepholes: whether the gates see c.
        cell_clip: a bound for the absolute value of c.
        initializer: the initializer of the weights.
        num_proj: the size that h is projected to; None: not at all.
        proj_clip: a bound for the absolute value of the projection.
        num_unit_shards, num_proj_shards: into how many variables the weights are cut.
        forget_bias: what is added to the forget gate.
        state_is_tuple: the state is an LSTMStateTuple (c, h), else their concatenation.
        activation: the function in place of tanh.
        reuse: whether the variables of the scope are shared.
        name: the name of the layer.
        dtype: the dtype of the variables.
        kwargs: what every layer takes.

    Example:
        >>> cell = tf.nn.rnn_cell.LSTMCell(8, num_proj=4)
        >>> output, state = cell(tf.ones([2, 3]), cell.zero_state(2, tf.float32))
        >>> state.c.shape.as_list(), state.h.shape.as_list()
        ([2, 8], [2, 4])
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: InitializerLike = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: int | None = None,
        num_proj_shards: int | None = None,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Callable[[Tensor], Structure] | str | None = None,
        reuse: bool | ReuseMode | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype=dtype, **kwargs)
        self._use_peepholes = use_peepholes
        self._cell_clip = cell_clip
        self._initializer = initializer
        self._num_proj = num_proj
        self._proj_clip = proj_clip
        self._num_unit_shards = num_unit_shards
        self._num_proj_shards = num_proj_shards
        self._forget_bias = forget_bias
        self._state_is_tuple = state_is_tuple

    @property
    def state_size(self) -> Structure:
        """The sizes of c and h, or their sum."""
        sizes = LSTMStateTuple(self._num_units, self.output_size)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> int:
        """The number of units, or of projections."""
        return self._num_proj or self._num_units

    def build(self, input_shape: TensorShape) -> None:
        units, depth = self._num_units, self._input_depth(input_shape) + self.output_size
        self._kernel = self._weight("kernel", [depth, 4 * units], self._num_unit_shards)
        zeros = Zeros(dtype=self._dtype or float32)
        self._bias = self.add_weight("bias", [4 * units], initializer=zeros)
        if self._use_peepholes:
            self._peep_keep = self._weight("w_f_diag", [units])
            self._peep_add = self._weight("w_i_diag", [units])
            self._peep_show = self._weight("w_o_diag", [units])
        if self._num_proj is not None:
            shape = [units, self._num_proj]
            self._projection = self._weight("projection/kernel", shape, self._num_proj_shards)

    def _weight(self, name: str, shape: list[int], shards: int | None = None) -> Any:
        partitioner = fixed_size_partitioner(shards) if shards and shards > 1 else None
        return self.add_weight(name, shape, initializer=self._initializer, partitioner=partitioner)

    def call(self, inputs: TensorLike, state: Structure) -> Any:
        memory, shown = self._split_state(state)
        gates = _affine([inputs, shown], self._kernel, self._bias)
        add, new, keep, show = splitting.split(gates, 4, 1)
        keep = keep + self._forget_bias
        if self._use_peepholes:
            keep, add = keep + self._peep_keep * memory, add + self._peep_add * memory
        kept = transcendental.sigmoid(keep) * memory
        memory = kept + transcendental.sigmoid(add) * self._activation(new)
        memory = _clipped(memory, self._cell_clip)
        if self._use_peepholes:
            show = show + self._peep_show * memory
        shown = transcendental.sigmoid(show) * self._activation(memory)
        if self._num_proj is not None:
            shown = _clipped(matmul.matmul(shown, self._projection), self._proj_clip)
        return shown, _lstm_state(memory, shown, self._state_is_tuple)

    def _split_state(self, state: Any) -> tuple[Any, Any]:
        if self._state_is_tuple:
            memory, shown = state
            return memory, shown
        return state[:, : self._num_units], state[:, self._num_units :]


def _clipped(values: Tensor, bound: float | None) -> Tensor:
    return values if bound is None else arithmetic.clip_by_value(values, -bound, bound)


@public(*_names("MultiRNNCell"))
class MultiRNNCell(RNNCell):
    """Cells on top of each other: each one's output is the next one's input.

    Args:
        cells: a list of cells; make each one anew, for a cell has one set of variables.
        state_is_tuple: the state is a tuple of the cells' states, else their concatenation.

    Example:
        >>> cell = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.GRUCell(n) for n in (4, 2)])
        >>> output, state = cell(tf.ones([1, 3]), cell.zero_state(1, tf.float32))
        >>> output.shape.as_list(), [part.shape.as_list() for part in state]
        ([1, 2], [[1, 4], [1, 2]])
    """

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not cells:
            raise ValueError("Must specify at least one cell for MultiRNNCell.")
        if not nest.is_sequence(cells):
            raise TypeError(f"cells must be a list or tuple, but saw: {cells}.")
        for number, cell in enumerate(cells):
            assert_like_rnncell(f"cells[{number}]", cell)
        self._cells = list(cells)
        self._state_is_tuple = state_is_tuple
        if not state_is_tuple and any(nest.is_sequence(c.state_size) for c in self._cells):
            raise ValueError(
                "Some cells return tuples of states, but the flag state_is_tuple is not set. "
                f"State sizes are: {[c.state_size for c in self._cells]}"
            )

    @property
    def state_size(self) -> Structure:
        """The tuple of the cells' state sizes, or their sum."""
        sizes = tuple(cell.state_size for cell in self._cells)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Structure:
        """The output size of the last cell."""
        return self._cells[-1].output_size

    @property
    def trainable_variables(self) -> list[Any]:
        """The trained variables of all cells."""
        return [v for cell in self._cells for v in getattr(cell, "trainable_variables", ())]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The other variables of all cells."""
        return [v for cell in self._cells for v in getattr(cell, "non_trainable_variables", ())]

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Structure:
        """A state of zeros, made by each cell."""
        if not self._state_is_tuple:
            return super().zero_state(batch_size, dtype)
        with name_scope(f"{type(self).__name__}ZeroState", values=[batch_size]):
            return tuple(cell.zero_state(batch_size, dtype) for cell in self._cells)

    def call(self, inputs: Structure, state: Structure) -> Any:
        self._check_state(state)
        states: list[Any] = []
        start = 0
        for number, cell in enumerate(self._cells):
            with variable_scope(f"cell_{number}"):
                current = state[number] if self._state_is_tuple else None
                if current is None:
                    current = state[:, start : start + cell.state_size]
                    start += cell.state_size
                inputs, new_state = cell(inputs, current)
                states.append(new_state)
        return inputs, tuple(states) if self._state_is_tuple else joining.concat(states, 1)

    def _check_state(self, state: Any) -> None:
        if self._state_is_tuple and not nest.is_sequence(state):
            raise ValueError(
                f"Expected state to be a tuple of length {len(self._cells)}, but received: {state}"
            )
