"""Recurrence of `tensorflow.python.keras.backend`: a step function over the time of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.alias import names

tf = names.root()

Step = Callable[[Any, list[Any]], tuple[Any, Any]]


def rnn(
    step_function: Step,
    inputs: Any,
    initial_states: Any,
    go_backwards: bool = False,
    mask: Any = None,
    constants: Any = None,
    unroll: bool = False,
    input_length: Any = None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
) -> tuple[Any, Any, list[Any]]:
    """The last output, all outputs in time, and the last states.

    Args:
        step_function: (inputs of one time, states) -> (output, new states).
        inputs: tensors of [samples, time, ...], one or a structure of them.
        initial_states: the states before the first time.
        go_backwards: whether time runs backwards.
        mask: [samples, time]: where it is false, states stay, and outputs repeat.
        constants: what every step gets behind the states.
        unroll: whether to write all steps out.
        input_length: the number of times, where the shape does not say it.
        time_major: whether time comes first in inputs, mask and outputs.
        zero_output_for_mask: whether outputs are zero where the mask is false.
    """
    flat = [x if time_major else _swapped(x) for x in tf.nest.flatten(inputs)]
    masks = None if mask is None else _time_major_mask(mask, time_major)
    if go_backwards:
        flat = [tf.reverse(x, [0]) for x in flat]
        masks = None if masks is None else tf.reverse(masks, [0])
    walk = _Walk(step_function, inputs, flat, masks, tuple(constants or ()), zero_output_for_mask)
    run = walk.unrolled if unroll else walk.loop
    last, outputs, states = run(list(initial_states))
    return last, outputs if time_major else tf.nest.map_structure(_swapped, outputs), states


def _swapped(x: Any) -> Any:
    """[a, b, ...] -> [b, a, ...]"""
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def _time_major_mask(mask: Any, time_major: bool) -> Any:
    if mask.dtype is not tf.bool:
        mask = tf.cast(mask, tf.bool)
    if mask.shape.rank == 2:
        mask = tf.expand_dims(mask, -1)
    return mask if time_major else _swapped(mask)


class _Walk:
    """One walk of a step function over time; inputs are [time, samples, ...]."""

    def __init__(
        self,
        step: Step,
        structure: Any,
        inputs: list[Any],
        masks: Any,
        constants: tuple[Any, ...],
        zero_output: bool,
    ) -> None:
        self.step, self.structure, self.inputs = step, structure, inputs
        self.masks, self.constants, self.zero_output = masks, constants, zero_output

    def at(self, time: Any) -> Any:
        """The inputs of one time, in their structure."""
        return tf.nest.pack_sequence_as(self.structure, [x[time] for x in self.inputs])

    def call(self, time: Any, states: list[Any], before: Any) -> tuple[list[Any], list[Any], Any]:
        """Flat outputs and states after a step, held back where the mask is false."""
        output, new = self.step(self.at(time), [*states, *self.constants])
        outputs, new = tf.nest.flatten(output), list(tf.nest.flatten(new))
        if self.masks is not None:
            mask = self.masks[time]
            if before is None or self.zero_output:
                before = [tf.zeros_like(x) for x in outputs]
            outputs = [_chosen(mask, x, old) for x, old in zip(outputs, before, strict=True)]
            new = [_chosen(mask, x, old) for x, old in zip(new, states, strict=True)]
        return outputs, [self._shaped(x, old) for x, old in zip(new, states, strict=True)], output

    def _shaped(self, new: Any, old: Any) -> Any:
        if hasattr(new, "set_shape") and new.shape.rank == old.shape.rank:
            new.set_shape(
                old.shape.merge_with(new.shape) if new.shape.is_compatible_with(old.shape) else None
            )
        return new

    def unrolled(self, states: list[Any]) -> tuple[Any, Any, list[Any]]:
        """All steps written out; the number of times must be known."""
        length = self.inputs[0].shape[0].value
        if not length:
            raise ValueError("Unrolling requires a fixed number of timesteps.")
        collected: list[list[Any]] = []
        before, output = None, None
        for time in range(length):
            before, states, output = self.call(time, states, before)
            collected.append(before)
        stacked = [tf.stack(values) for values in zip(*collected, strict=True)]
        pack = tf.nest.pack_sequence_as
        return pack(output, collected[-1]), pack(output, stacked), states

    def loop(self, states: list[Any]) -> tuple[Any, Any, list[Any]]:
        """A while loop."""
        steps = tf.shape(self.inputs[0])[0]
        output, _ = self.step(self.at(0), [*states, *self.constants])  # for dtypes and shapes
        shapes = [x.shape for x in tf.nest.flatten(output)]
        arrays = [tf.TensorArray(x.dtype, size=steps) for x in tf.nest.flatten(output)]
        before = (
            [tf.zeros_like(x) for x in tf.nest.flatten(output)] if self.masks is not None else []
        )

        def more(time: Any, *_: Any) -> Any:
            return time < steps

        def body(time: Any, arrays: Any, before: Any, states: Any) -> Any:
            outputs, new, _ = self.call(time, list(states), list(before) or None)
            written = [a.write(time, x) for a, x in zip(arrays, outputs, strict=True)]
            return time + 1, written, outputs if before else [], new

        _, arrays, _, states = tf.while_loop(
            more,
            body,
            [tf.constant(0), arrays, before, list(states)],
            parallel_iterations=32,
            swap_memory=True,
        )
        stacked = [array.stack() for array in arrays]
        for value, shape in zip(stacked, shapes, strict=True):
            value.set_shape(self.inputs[0].shape[:1].concatenate(shape))
        last = [value[-1] for value in stacked]
        pack = tf.nest.pack_sequence_as
        return pack(output, last), pack(output, stacked), list(states)


def _chosen(mask: Any, new: Any, old: Any) -> Any:
    """Elements of `new` where the mask of samples is true, of `old` elsewhere."""
    for _ in range(new.shape.rank - mask.shape.rank):
        mask = tf.expand_dims(mask, -1)
    return tf.where(tf.logical_and(mask, tf.ones_like(new, dtype=tf.bool)), new, old)
