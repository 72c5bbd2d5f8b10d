"""A decoder that runs a recurrent cell, with inputs that a helper picks."""

from __future__ import annotations

from typing import Any, NamedTuple

from thalweg.graph import nest
from thalweg.graph.likes import Structure, TensorLike, UserObject
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.nn.layer import Layer
from thalweg.nn.rnn_cell import CellLike, assert_like_rnncell
from thalweg.public import public
from thalweg.seq2seq.decoder import Decoder
from thalweg.seq2seq.helpers import Helper


@public("contrib.seq2seq.BasicDecoderOutput")
class BasicDecoderOutput(NamedTuple):
    """What a step of a `BasicDecoder` gives.

    Args:
        rnn_output: the output of the cell, or of the output layer.
        sample_id: what the helper sampled from it.

    Example:
        >>> tf.contrib.seq2seq.BasicDecoderOutput(1, 2).sample_id
        2
    """

    rnn_output: Any
    sample_id: Any


@public("contrib.seq2seq.BasicDecoder")
class BasicDecoder(Decoder):
    """Runs a recurrent cell, with inputs that a helper picks.

    Args:
        cell: an RNNCell.
        helper: a `Helper`.
        initial_state: the state to begin with.
        output_layer: a layer that is applied to each output before it is sampled from.

    Example:
        >>> cell = tf.nn.rnn_cell.GRUCell(4)
        >>> helper = tf.contrib.seq2seq.GreedyEmbeddingHelper(tf.eye(6), [1, 1], 0)
        >>> decoder = tf.contrib.seq2seq.BasicDecoder(
        ...     cell, helper, cell.zero_state(2, tf.float32), tf.layers.Dense(6))
        >>> decoder.output_size.rnn_output
        TensorShape([Dimension(6)])
    """

    def __init__(
        self,
        cell: CellLike,
        helper: UserObject,
        initial_state: Structure,
        output_layer: Layer | None = None,
    ) -> None:
        assert_like_rnncell("cell", cell)
        if not isinstance(helper, Helper):
            raise TypeError(f"helper must be a Helper, received: {type(helper)}")
        check_output_layer(output_layer)
        self._cell, self._helper = cell, helper
        self._initial_state, self._output_layer = initial_state, output_layer

    @property
    def batch_size(self) -> Any:
        """The size of the batch."""
        return self._helper.batch_size

    @property
    def output_size(self) -> BasicDecoderOutput:
        """The sizes of the output and of the sample."""
        size = size_behind(self._output_layer, self._cell.output_size)
        return BasicDecoderOutput(size, self._helper.sample_ids_shape)

    @property
    def output_dtype(self) -> BasicDecoderOutput:
        """The dtypes of the output, which is that of the state, and of the sample."""
        dtype = nest.flatten(self._initial_state)[0].dtype
        sizes = self.output_size.rnn_output
        return BasicDecoderOutput(everywhere(dtype, sizes), self._helper.sample_ids_dtype)

    def initialize(self, name: str | None = None) -> Any:
        """(which examples have ended, the first inputs, the initial state)."""
        return (*self._helper.initialize(), self._initial_state)

    def step(
        self, time: TensorLike, inputs: Structure, state: Structure, name: str | None = None
    ) -> Any:
        """(outputs, next state, next inputs, which examples have ended)."""
        with name_scope(name, "BasicDecoderStep"):
            outputs, cell_state = self._cell(inputs, state)
            if self._output_layer is not None:
                outputs = self._output_layer(outputs)
            ids = self._helper.sample(time=time, outputs=outputs, state=cell_state)
            finished, next_inputs, next_state = self._helper.next_inputs(
                time=time, outputs=outputs, state=cell_state, sample_ids=ids
            )
        return BasicDecoderOutput(outputs, ids), next_state, next_inputs, finished


def check_output_layer(layer: Any) -> None:
    """Raise TypeError unless it is a layer or None."""
    if layer is not None and not isinstance(layer, Layer):
        raise TypeError(f"output_layer must be a Layer, received: {type(layer)}")


def size_behind(layer: Layer | None, size: Any) -> Any:
    """The size of a cell's output, or of what a layer makes of it."""
    if layer is None:
        return size
    made = layer.compute_output_shape(nest.map_structure(_with_batch, size))
    return nest.map_structure(_without_batch, made)


def everywhere(value: Any, structure: Any) -> Any:
    """A structure of that form with `value` as every leaf."""

    def same(_: Any) -> Any:
        return value

    return nest.map_structure(same, structure)


def _with_batch(size: Any) -> TensorShape:
    shape = size if isinstance(size, TensorShape) else TensorShape([size])
    return TensorShape([None]).concatenate(shape)


def _without_batch(shape: TensorShape) -> TensorShape:
    return shape[1:]
