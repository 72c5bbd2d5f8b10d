"""A recurrent cell that looks at a memory: `AttentionWrapper`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from thalweg.control.tensor_array import TensorArray
from thalweg.graph import nest
from thalweg.graph.dtypes import int32
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import control_dependencies, name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.layers.core import Dense
from thalweg.nn.layer import Layer
from thalweg.nn.rnn_cell import CellLike, RNNCell, assert_like_rnncell
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, checks, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.public import public
from thalweg.seq2seq.attention import AttentionMechanism, static_or_dynamic_size, zeros_for

_TILE = (
    "Are you using the BeamSearchDecoder?  You may need to tile the state and the memory with "
    "tf.contrib.seq2seq.tile_batch, multiplier=beam_width."
)


@public("contrib.seq2seq.AttentionWrapperState")
class AttentionWrapperState(NamedTuple):
    """The state of an `AttentionWrapper`.

    Args:
        cell_state: the state of the cell.
        attention: what was last read from the memory.
        time: the number of the step.
        alignments: the last probabilities of the places of the memory.
        alignment_history: those of all steps, a TensorArray, or ().
        attention_state: what the mechanism keeps.

    Example:
        >>> state = tf.contrib.seq2seq.AttentionWrapperState(1, 2, 3, 4, (), 6)
        >>> state.clone(cell_state=7).cell_state
        7
    """

    cell_state: Any
    attention: Any
    time: Any
    alignments: Any
    alignment_history: Any
    attention_state: Any

    def clone(self, **kwargs: Any) -> AttentionWrapperState:
        """The same, with some fields replaced by values of the same shapes."""

        def checked(old: Any, new: Any) -> Any:
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                new.set_shape(old.shape)
            return new

        return nest.map_structure(checked, self, self._replace(**kwargs))


def _attend(mechanism: Any, output: Tensor, state: Any, layer: Any) -> tuple[Any, Any, Any]:
    """(what is read from the memory, the alignments, the next state) for an output of the cell."""
    alignments, next_state = mechanism(output, state=state)
    read = matmul.matmul(shaping.expand_dims(alignments, 1), mechanism.values)
    context = shaping.squeeze(read, [1])
    attention = context if layer is None else layer(joining.concat([output, context], 1))
    return attention, alignments, next_state


@public("contrib.seq2seq.AttentionWrapper")
class AttentionWrapper(RNNCell):
    """A cell that reads, besides its input, what it found in a memory in the step before.

    Args:
        cell: the cell that is wrapped.
        attention_mechanism: a mechanism, or a list of them.
        attention_layer_size: the size of a layer over the output and what was read; without, the
            attention is what was read. A list for a list of mechanisms.
        alignment_history: keep the alignments of all steps in the state.
        cell_input_fn: (input, attention) -> the input of the cell; both side by side if None.
        output_attention: whether the attention is the output, else the output of the cell.
        initial_cell_state: the state of the cell that `zero_state` begins with.
        name: the name of the layer.
        attention_layer: such a layer, or a list of them.
        attention_fn: (mechanism, output, state, layer) -> (attention, alignments, next state).
        dtype: the dtype of the variables.

    Example:
        >>> mechanism = tf.contrib.seq2seq.LuongAttention(4, tf.ones([2, 3, 5]))
        >>> cell = tf.contrib.seq2seq.AttentionWrapper(
        ...     tf.nn.rnn_cell.GRUCell(4), mechanism, attention_layer_size=6)
        >>> output, state = cell(tf.ones([2, 7]), cell.zero_state(2, tf.float32))
        >>> output.shape.as_list(), state.alignments.shape.as_list()
        ([2, 6], [2, 3])
    """

    def __init__(
        self,
        cell: CellLike,
        attention_mechanism: AttentionMechanism | Sequence[AttentionMechanism],
        attention_layer_size: int | Sequence[int] | None = None,
        alignment_history: bool = False,
        cell_input_fn: Callable[[Any, Any], Any] | None = None,
        output_attention: bool = True,
        initial_cell_state: Structure | None = None,
        name: str | None = None,
        attention_layer: Layer | Sequence[Layer] | None = None,
        attention_fn: Callable[..., Any] | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        assert_like_rnncell("cell", cell)
        if cell_input_fn is not None and not callable(cell_input_fn):
            raise TypeError(
                f"cell_input_fn must be callable, saw type: {type(cell_input_fn).__name__}"
            )
        self._is_multi = isinstance(attention_mechanism, (list, tuple))
        self._attention_mechanisms = _mechanisms(attention_mechanism)
        self._cell, self._cell_input_fn = cell, cell_input_fn or _side_by_side
        self._set_layers(attention_layer_size, attention_layer)
        self._attention_fn = attention_fn or _attend
        self._output_attention = output_attention
        self._alignment_history = alignment_history
        self._initial_cell_state: Any = None
        if initial_cell_state is not None:
            with name_scope(name, "AttentionWrapperInit"):
                self._initial_cell_state = self._checked_state(
                    initial_cell_state, "initial_cell_state"
                )

    def _set_layers(self, sizes: Any, layers: Any) -> None:
        """The layers behind the mechanisms, and the size of what they give together."""
        mechanisms: Any = self._attention_mechanisms
        if sizes is not None and layers is not None:
            raise ValueError("Only one of attention_layer_size and attention_layer should be set")
        self._attention_layers: Any = None
        if sizes is not None:
            sizes = _per_mechanism("attention_layer_size", "integer", sizes, mechanisms)
            self._attention_layers = tuple(
                Dense(size, name="attention_layer", use_bias=False, dtype=mechanism.dtype)
                for size, mechanism in zip(sizes, mechanisms, strict=True)
            )
            self._attention_layer_size = sum(sizes)
        elif layers is not None:
            layers = _per_mechanism("attention_layer", "layer", layers, mechanisms)
            self._attention_layers = layers
            pairs = zip(layers, mechanisms, strict=True)
            self._attention_layer_size = sum(self._size_behind(*pair) for pair in pairs)
        else:
            self._attention_layer_size = sum(m.values.shape[-1].value for m in mechanisms)

    def _size_behind(self, layer: Any, mechanism: Any) -> int:
        output: Any = self._cell.output_size
        shape = TensorShape([None, output + mechanism.values.shape[-1].value])
        return layer.compute_output_shape(shape)[-1].value

    def _checked_state(self, state: Any, what: str) -> Any:
        """A state of the cell, checked to have the batch of the memory."""
        batch = static_or_dynamic_size(nest.flatten(state)[-1], 0)
        with control_dependencies(self._batch_checks(batch, what)):
            return nest.map_structure(basic.identity, state)

    def _batch_checks(self, batch: Any, what: str) -> list[Node]:
        message = (
            f"AttentionWrapper {self._name}: Non-matching batch sizes between the memory (encoder "
            f"output) and {what}.  {_TILE}"
        )
        mechanisms: Any = self._attention_mechanisms
        found = [checks.assert_equal(batch, m.batch_size, message=message) for m in mechanisms]
        return [check for check in found if check is not None]

    def _item_or_tuple(self, values: Iterable[Any]) -> Any:
        items = tuple(values)
        return items if self._is_multi else items[0]

    @property
    def output_size(self) -> Any:
        """The size of the attention, or of the output of the cell."""
        return self._attention_layer_size if self._output_attention else self._cell.output_size

    @property
    def state_size(self) -> Any:
        """An `AttentionWrapperState` of sizes."""
        mechanisms = self._attention_mechanisms
        places = [mechanism.alignments_size for mechanism in mechanisms]
        kept = places if self._alignment_history else [()] * len(places)
        return AttentionWrapperState(
            cell_state=self._cell.state_size,
            attention=self._attention_layer_size,
            time=TensorShape([]),
            alignments=self._item_or_tuple(places),
            alignment_history=self._item_or_tuple(kept),
            attention_state=self._item_or_tuple(m.state_size for m in mechanisms),
        )

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The state before the first step."""
        mechanisms: Any = self._attention_mechanisms
        with name_scope(f"{type(self).__name__}ZeroState"):
            state = self._initial_cell_state
            if state is None:
                state = self._cell.zero_state(batch_size, dtype)
            with control_dependencies(self._batch_checks(batch_size, "the batch of zero_state")):
                state = nest.map_structure(basic.identity, state)
            alignments = [m.initial_alignments(batch_size, dtype) for m in mechanisms]
            return AttentionWrapperState(
                cell_state=state,
                attention=zeros_for(self._attention_layer_size, batch_size, dtype),
                time=filling.zeros([], int32),
                alignments=self._item_or_tuple(alignments),
                alignment_history=self._item_or_tuple(
                    self._empty_history(value, dtype) for value in alignments
                ),
                attention_state=self._item_or_tuple(
                    m.initial_state(batch_size, dtype) for m in mechanisms
                ),
            )

    def _empty_history(self, alignments: Tensor, dtype: Any) -> Any:
        if not self._alignment_history:
            return ()
        return TensorArray(dtype, size=0, dynamic_size=True, element_shape=alignments.shape)

    def call(self, inputs: Structure, state: Structure) -> Any:
        if not isinstance(state, AttentionWrapperState):
            raise TypeError(
                "Expected state to be instance of AttentionWrapperState. Received type "
                f"{type(state)} instead."
            )
        cell_inputs = self._cell_input_fn(inputs, state.attention)
        made: Any = self._cell(cell_inputs, state.cell_state)
        output, cell_state = made
        batch = static_or_dynamic_size(output, 0)
        with control_dependencies(self._batch_checks(batch, "the query (decoder output)")):
            output = basic.identity(output, name="checked_cell_output")
        found = [self._attended(i, output, state) for i in range(len(self._attention_mechanisms))]
        attentions, alignments, attention_states, histories = zip(*found, strict=True)
        attention = joining.concat(list(attentions), 1)
        next_state = AttentionWrapperState(
            cell_state=cell_state,
            attention=attention,
            time=state.time + 1,
            alignments=self._item_or_tuple(alignments),
            alignment_history=self._item_or_tuple(histories),
            attention_state=self._item_or_tuple(attention_states),
        )
        return attention if self._output_attention else output, next_state

    def _attended(self, index: int, output: Tensor, state: AttentionWrapperState) -> Any:
        """(attention, alignments, next state, history) of one mechanism."""
        history = state.alignment_history[index] if self._is_multi else state.alignment_history
        before = state.attention_state[index] if self._is_multi else state.attention_state
        layer = self._attention_layers[index] if self._attention_layers else None
        attention, alignments, after = self._attention_fn(
            self._attention_mechanisms[index], output, before, layer
        )
        if self._alignment_history:
            history = history.write(state.time, alignments)
        return attention, alignments, after, history


def _side_by_side(inputs: Any, attention: Any) -> Tensor:
    return joining.concat([inputs, attention], -1)


def _mechanisms(given: Any) -> tuple[AttentionMechanism, ...]:
    mechanisms = tuple(nest.as_list(given))
    for mechanism in mechanisms:
        if not isinstance(mechanism, AttentionMechanism):
            raise TypeError(
                "attention_mechanism must be an AttentionMechanism or list of multiple "
                f"AttentionMechanism instances, saw type: {type(mechanism).__name__}"
            )
    return mechanisms


def _per_mechanism(name: str, what: str, given: Any, mechanisms: Sequence[Any]) -> tuple[Any, ...]:
    values = tuple(nest.as_list(given))
    if len(values) != len(mechanisms):
        raise ValueError(
            f"If provided, {name} must contain exactly one {what} per attention_mechanism, saw: "
            f"{len(values)} vs {len(mechanisms)}"
        )
    return values
