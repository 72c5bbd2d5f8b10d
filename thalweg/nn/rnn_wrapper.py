"""Cells around cells: dropout, residual connections, devices, projections and embeddings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from thalweg.graph import nest
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.likes import DeviceLike, DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import device as on_device
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.nn import embedding
from thalweg.nn.layer import resolve_activation
from thalweg.nn.rnn_cell import LSTMStateTuple, RNNCell, assert_like_rnncell
from thalweg.ops.arrays import joining
from thalweg.ops.core import shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import rounding
from thalweg.ops.nn import bias as bias_ops
from thalweg.ops.nn import dropout as dropout_ops
from thalweg.ops.random import random
from thalweg.public import public
from thalweg.variables.initializers import Constant, RandomUniform
from thalweg.variables.scope import get_variable, get_variable_scope, variable_scope

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike
    from thalweg.variables.scope import VariableScope
    from thalweg.variables.store import ReuseMode


def _names(name: str) -> tuple[str, ...]:
    return (f"nn.rnn_cell.{name}", f"contrib.rnn.{name}")


class Wrapper(RNNCell):
    """A cell that adds to what another one does, without a scope of its own."""

    def __init__(self, cell: RNNCell) -> None:
        super().__init__()
        assert_like_rnncell("cell", cell)
        self._cell = cell

    def __call__(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None = None
    ) -> Structure:
        """One step: (output, next state)."""
        return self.step(inputs, state, scope)

    def step(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None
    ) -> Structure:
        """One step of the wrapped cell, with what the wrapper adds."""
        return self._cell(inputs, state, scope)

    @property
    def wrapped_cell(self) -> RNNCell:
        """The cell inside."""
        return self._cell

    @property
    def state_size(self) -> Structure:
        """The wrapped cell's."""
        return self._cell.state_size

    @property
    def output_size(self) -> Structure:
        """The wrapped cell's."""
        return self._cell.output_size

    @property
    def trainable_variables(self) -> list[Any]:
        """The wrapped cell's."""
        return self._cell.trainable_variables

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The wrapped cell's."""
        return self._cell.non_trainable_variables

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Structure:
        """The wrapped cell's zero state."""
        with name_scope(f"{type(self).__name__}ZeroState", values=[batch_size]):
            return self._cell.zero_state(batch_size, dtype)


def _memory_untouched(substate: Any) -> Any:
    """Which parts of a state are dropped by default: an LSTM's memory is not."""
    return LSTMStateTuple(c=False, h=True) if isinstance(substate, LSTMStateTuple) else True


@public(*_names("DropoutWrapper"))
class DropoutWrapper(Wrapper):
    """A cell with dropout on its inputs, outputs and states.

    Args:
        cell: the cell.
        input_keep_prob, output_keep_prob, state_keep_prob: the probability to keep an element.
        variational_recurrent: drop the same elements at every time; needs `dtype`.
        input_size: the shape of inputs, for variational dropout of them.
        dtype: the dtype of inputs, outputs and states.
        seed: a number that fixes the sequence of values.
        dropout_state_filter_visitor: a function that says which parts of a state take part; of LSTM
            states, c does not by default.

    Example:
        >>> cell = tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.GRUCell(4), output_keep_prob=0.5)
        >>> cell.output_size
        4
    """

    def __init__(
        self,
        cell: RNNCell,
        input_keep_prob: Any = 1.0,
        output_keep_prob: Any = 1.0,
        state_keep_prob: Any = 1.0,
        variational_recurrent: bool = False,
        input_size: Structure = None,
        dtype: DTypeLike | None = None,
        seed: int | None = None,
        dropout_state_filter_visitor: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(cell)
        if dropout_state_filter_visitor is not None and not callable(dropout_state_filter_visitor):
            raise TypeError("dropout_state_filter_visitor must be callable")
        self._keep_probs = {
            "input": _probability("input_keep_prob", input_keep_prob),
            "state": _probability("state_keep_prob", state_keep_prob),
            "output": _probability("output_keep_prob", output_keep_prob),
        }
        self._variational = variational_recurrent
        self._seed = seed
        self._filter = dropout_state_filter_visitor or _memory_untouched
        self._noise: dict[str, list[Tensor]] = {}
        if variational_recurrent:
            self._make_noise(input_size, dtype)

    def _make_noise(self, input_size: Any, dtype: Any) -> None:
        """One draw for each tensor that is dropped from, used at all steps."""
        if dtype is None:
            raise ValueError("When variational_recurrent=True, dtype must be provided")
        sizes = {"input": input_size, "state": self.state_size, "output": self.output_size}
        for what, size in sizes.items():
            if what == "input" and not self._drops("input"):
                continue
            if size is None:
                raise ValueError(
                    "When variational_recurrent=True and input_keep_prob < 1.0 or is unknown, "
                    "input_size must be provided"
                )
            self._noise[what] = [
                self._draw(what, index, leaf, dtype)
                for index, leaf in enumerate(nest.flatten(size))
            ]

    def _draw(self, what: str, index: int, size: Any, dtype: Any) -> Tensor:
        sizes = size.as_list() if isinstance(size, TensorShape) else [int(size)]
        seed = self._seed_for(what, index)
        return random.random_uniform([1, *sizes], seed=seed, dtype=as_dtype(dtype))

    def _seed_for(self, what: str, index: int) -> int | None:
        """A seed of its own for each tensor, made of the wrapper's."""
        if self._seed is None:
            return None
        text = f"{self._seed}{what}_{index}".encode()
        return int(hashlib.md5(text, usedforsecurity=False).hexdigest()[:8], 16) & 0x7FFFFFFF

    def _drops(self, what: str) -> bool:
        keep = self._keep_probs[what]
        return not isinstance(keep, float) or keep < 1.0

    def step(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None
    ) -> Structure:
        if self._drops("input"):
            inputs = self._dropped("input", inputs)
        output, new_state = self._cell(inputs, state, scope)
        if self._drops("state"):
            new_state = self._dropped("state", new_state, _selected(self._filter, new_state))
        if self._drops("output"):
            output = self._dropped("output", output)
        return output, new_state

    def _dropped(self, what: str, values: Any, selected: list[bool] | None = None) -> Any:
        """The nest of values with parts of those dropped that are selected."""
        leaves = nest.flatten(values)
        dropped = [
            self._drop(what, index, leaf) if selected is None or selected[index] else leaf
            for index, leaf in enumerate(leaves)
        ]
        return nest.pack_sequence_as(values, dropped)

    def _drop(self, what: str, index: int, value: Tensor) -> Tensor:
        keep = self._keep_probs[what]
        if not self._variational:
            return dropout_ops.dropout(value, keep_prob=keep, seed=self._seed_for(what, index))
        kept = rounding.floor(self._noise[what][index] + keep)
        result = value / keep * kept
        result.set_shape(value.shape)
        return result


def _probability(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value
    number = float(value)
    if not 0.0 <= number <= 1.0 or math.isnan(number):
        raise ValueError(f"Parameter {name} must be between 0 and 1: {value}")
    return number


def _selected(visitor: Callable[[Any], Any], state: Any) -> list[bool]:
    """For each leaf of a state, whether the visitor (asked from the outside in) selects it."""
    answer = visitor(state)
    leaves = len(nest.flatten(state))
    if nest.is_sequence(answer):
        nest.assert_shallow_structure(answer, state)
        pairs = zip(nest.flatten(answer), nest.flatten_up_to(answer, state), strict=True)
        return [bool(chosen) for chosen, part in pairs for _ in nest.flatten(part)]
    if not answer or not nest.is_sequence(state):
        return [bool(answer)] * leaves
    return [chosen for part in state for chosen in _selected(visitor, part)]


def _add_all(inputs: Any, outputs: Any) -> Any:
    def added(one: Tensor, other: Tensor) -> Tensor:
        one.shape.assert_is_compatible_with(other.shape)
        return one + other

    nest.assert_same_structure(inputs, outputs)
    return nest.map_structure(added, inputs, outputs)


@public(*_names("ResidualWrapper"))
class ResidualWrapper(Wrapper):
    """Adds the inputs to the outputs, or does what `residual_fn(inputs, outputs)` says.

    Args:
        cell: an RNNCell whose outputs have the size of its inputs.
        residual_fn: a function of (inputs, outputs) in place of the sum.

    Example:
        >>> cell = tf.contrib.rnn.ResidualWrapper(tf.nn.rnn_cell.BasicRNNCell(4))
        >>> outputs, _ = tf.nn.static_rnn(cell, [tf.ones([2, 4])], dtype=tf.float32)
        >>> outputs[0].shape.as_list()
        [2, 4]
    """

    def __init__(self, cell: RNNCell, residual_fn: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__(cell)
        self._residual = residual_fn or _add_all

    def step(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None
    ) -> Structure:
        outputs, new_state = self._cell(inputs, state, scope)
        return self._residual(inputs, outputs), new_state


@public(*_names("DeviceWrapper"))
class DeviceWrapper(Wrapper):
    """Puts a cell on a device.

    Args:
        cell: an RNNCell.
        device: a device name, or a function from nodes to names.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(3)
        >>> outputs, _ = tf.nn.static_rnn(
        ...     tf.contrib.rnn.DeviceWrapper(cell, "/cpu:0"), [tf.ones([2, 4])], dtype=tf.float32
        ... )
        >>> outputs[0].device
        '/device:CPU:0'
    """

    def __init__(self, cell: RNNCell, device: DeviceLike) -> None:
        super().__init__(cell)
        self._device = device

    def step(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None
    ) -> Structure:
        with on_device(self._device):
            return self._cell(inputs, state, scope)

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Structure:
        """The wrapped cell's zero state, on the device."""
        with on_device(self._device):
            return super().zero_state(batch_size, dtype)


@public("nn.rnn_cell.linear", "nn.rnn_cell._linear")
def linear(
    args: TensorLike | Sequence[TensorLike],
    output_size: int,
    bias: bool,
    bias_start: float = 0.0,
    scope: str | VariableScope | None = None,
) -> Tensor:
    """Σ args[i] W[i] + b, with the variables `kernel` and `bias` of the open scope.

    Args:
        args: a tensor [batch, n], or a list of them.
        output_size: the size of the result.
        bias: whether a bias is added.
        bias_start: what the bias starts as.
        scope: the variable scope.

    Returns:
        A tensor [batch, output_size].

    Example:
        >>> tf.nn.rnn_cell.linear([tf.ones([2, 3]), tf.ones([2, 4])], 5, True).shape.as_list()
        [2, 5]
        >>> [v.name for v in tf.trainable_variables()]
        ['kernel:0', 'bias:0']
    """
    inputs = nest.as_list(args)
    if not inputs or inputs[0] is None:
        raise ValueError("`args` must be specified")
    depth = sum(_depth(tensor) for tensor in inputs)
    dtype = inputs[0].dtype.base_dtype
    with variable_scope(get_variable_scope() if scope is None else scope):
        kernel = get_variable("kernel", [depth, output_size], dtype=dtype)
        side_by_side = inputs[0] if len(inputs) == 1 else joining.concat(list(inputs), 1)
        product = matmul.matmul(side_by_side, kernel)
        if not bias:
            return product
        start = Constant(bias_start, dtype=dtype)
        offset = get_variable("bias", [output_size], dtype=dtype, initializer=start)
        return bias_ops.bias_add(product, offset)


def _depth(tensor: Tensor) -> int:
    sizes = tensor.shape.sizes
    if sizes is None or len(sizes) != 2:
        raise ValueError(f"linear is expecting 2D arguments: {tensor.shape}")
    if sizes[1] is None:
        raise ValueError(f"linear expects shape[1] to be provided for shape {tensor.shape}")
    return sizes[1]


class _ScopedWrapper(Wrapper):
    """A wrapper with variables, and so a scope, of its own."""

    def __init__(self, cell: RNNCell, reuse: bool | ReuseMode | None) -> None:
        super().__init__(cell)
        self._reuse = reuse

    def __call__(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None = None
    ) -> Structure:
        """One step: (output, next state)."""
        return RNNCell.__call__(self, inputs, state, scope)

    @property
    def trainable_variables(self) -> list[Any]:
        """The wrapper's own and the wrapped cell's."""
        own = RNNCell.trainable_variables.fget(self)  # pyright: ignore[reportOptionalCall] - a property has a getter
        return _distinct([*own, *self._cell.trainable_variables])

    def call(self, inputs: Structure, state: Structure) -> Structure:
        return self.step(inputs, state, None)


def _distinct(values: list[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())


@public("nn.rnn_cell.InputProjectionWrapper", "contrib.rnn.InputProjectionWrapper")
class InputProjectionWrapper(_ScopedWrapper):
    """Projects the inputs to `num_proj` sizes first."""

    def __init__(
        self,
        cell: RNNCell,
        num_proj: int,
        activation: Callable[[Tensor], Structure] | None = None,
        input_size: int | None = None,
        reuse: bool | ReuseMode | None = None,
    ) -> None:
        super().__init__(cell, reuse)
        self._num_proj = num_proj
        self._activation = resolve_activation(activation)

    def step(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None
    ) -> Structure:
        projected = linear(inputs, self._num_proj, bias=True)
        if self._activation is not None:
            projected = self._activation(projected)
        return self._cell(projected, state)


@public("nn.rnn_cell.OutputProjectionWrapper", "contrib.rnn.OutputProjectionWrapper")
class OutputProjectionWrapper(_ScopedWrapper):
    """Projects the outputs to `output_size` sizes.

    Args:
        cell: an RNNCell.
        output_size: the size of the outputs.
        activation: a function of the projected outputs.
        reuse: whether the variables of the scope are shared.

    Example:
        >>> cell = tf.contrib.rnn.OutputProjectionWrapper(tf.nn.rnn_cell.BasicRNNCell(4), 2)
        >>> outputs, state = tf.nn.static_rnn(cell, [tf.ones([3, 5])], dtype=tf.float32)
        >>> outputs[0].shape.as_list(), state.shape.as_list()
        ([3, 2], [3, 4])
    """

    def __init__(
        self,
        cell: RNNCell,
        output_size: int,
        activation: Callable[[Tensor], Structure] | None = None,
        reuse: bool | ReuseMode | None = None,
    ) -> None:
        super().__init__(cell, reuse)
        if output_size < 1:
            raise ValueError(f"Parameter output_size must be > 0: {output_size}.")
        self._output_size = output_size
        self._activation = resolve_activation(activation)

    @property
    def output_size(self) -> int:
        """The size projected to."""
        return self._output_size

    def step(
        self, inputs: Structure, state: Structure, scope: str | VariableScope | None
    ) -> Structure:
        output, new_state = self._cell(inputs, state)
        projected = linear(output, self._output_size, bias=True)
        if self._activation is not None:
            projected = self._activation(projected)
        return projected, new_state


@public("nn.rnn_cell.EmbeddingWrapper", "contrib.rnn.EmbeddingWrapper")
class EmbeddingWrapper(_ScopedWrapper):
    """Looks the inputs, class numbers, up in a table of vectors first."""

    def __init__(
        self,
        cell: RNNCell,
        embedding_classes: int,
        embedding_size: int,
        initializer: InitializerLike = None,
        reuse: bool | ReuseMode | None = None,
    ) -> None:
        super().__init__(cell, reuse)
        if embedding_classes <= 0 or embedding_size <= 0:
            raise ValueError(
                "Both embedding_classes and embedding_size must be > 0: "
                f"{embedding_classes}, {embedding_size}."
            )
        self._shape = [embedding_classes, embedding_size]
        self._initializer = initializer

    def step(
        self, inputs: TensorLike, state: Structure, scope: str | VariableScope | None
    ) -> Structure:
        first = nest.flatten(state)[0]
        bound = math.sqrt(3)  # a variance of 1
        start = self._initializer or get_variable_scope().initializer
        table = get_variable(
            "embedding",
            self._shape,
            dtype=first.dtype.base_dtype,
            initializer=start or RandomUniform(-bound, bound),
        )
        return self._cell(embedding.embedding_lookup(table, shaping.reshape(inputs, [-1])), state)
