"""Bijectors made of others, or of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.distributions.contrib.bijectors.base import Bijector
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ops.math import compare
from thalweg.public import public


@public("contrib.distributions.bijectors.Invert")
class Invert(Bijector):
    """A bijector with its two directions exchanged

    Args:
        bijector: the bijector.
        validate_args: whether the step checks values.
        name: the scope of the nodes.

    Example:
        >>> tfb = tf.contrib.distributions.bijectors
        >>> sess.run(tfb.Invert(tfb.Exp()).forward(1.0))
        np.float32(0.0)
    """

    def __init__(
        self, bijector: Bijector, validate_args: bool = False, name: str | None = None
    ) -> None:
        self._bijector = bijector
        super().__init__(
            graph_parents=bijector.graph_parents,
            is_constant_jacobian=bijector.is_constant_jacobian,
            validate_args=validate_args,
            dtype=bijector.dtype,
            forward_min_event_ndims=bijector.inverse_min_event_ndims,
            inverse_min_event_ndims=bijector.forward_min_event_ndims,
            name=name or f"invert_{bijector.name}",
        )

    @property
    def bijector(self) -> Bijector:
        """The bijector whose directions are exchanged."""
        return self._bijector

    def _forward(self, x: Tensor) -> Tensor:
        return self._bijector.inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._bijector.forward(y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return self._bijector.inverse_log_det_jacobian(x, self.forward_min_event_ndims)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return self._bijector.forward_log_det_jacobian(y, self.inverse_min_event_ndims)

    def _is_increasing(self) -> Any:
        return self._bijector.is_increasing()

    def _forward_event_shape(self, input_shape: TensorShape) -> TensorShape:
        return self._bijector.inverse_event_shape(input_shape)

    def _inverse_event_shape(self, output_shape: TensorShape) -> TensorShape:
        return self._bijector.forward_event_shape(output_shape)

    def _forward_event_shape_tensor(self, input_shape: Tensor) -> Tensor:
        return self._bijector.inverse_event_shape_tensor(input_shape)

    def _inverse_event_shape_tensor(self, output_shape: Tensor) -> Tensor:
        return self._bijector.forward_event_shape_tensor(output_shape)


def _least_axes(steps: Sequence[tuple[int, int]]) -> int:
    """The fewest axes to begin with, so that each step (takes, gives) finds what it takes."""
    least = gained = 0
    for takes, gives in steps:
        least = max(least, takes - gained)
        gained += gives - takes
    return least


@public("contrib.distributions.bijectors.Chain")
class Chain(Bijector):
    """Bijectors one after the other: the last of the list comes first

    Args:
        bijectors: the bijectors; none are the identity.
        validate_args: whether the step checks values.
        name: the scope of the nodes.

    Example:
        >>> tfb = tf.contrib.distributions.bijectors
        >>> sess.run(tfb.Chain([tfb.Exp(), tfb.AffineScalar(scale=2.0)]).inverse(1.0))
        np.float32(0.0)
    """

    def __init__(
        self,
        bijectors: Sequence[Bijector] | None = None,
        validate_args: bool = False,
        name: str | None = None,
    ) -> None:
        self._bijectors = tuple(bijectors or ())
        kinds = {b.dtype for b in self._bijectors if b.dtype is not None}
        if len(kinds) > 1:
            raise ValueError("incompatible dtypes: " + ", ".join(sorted(k.name for k in kinds)))
        axes = [(b.forward_min_event_ndims, b.inverse_min_event_ndims) for b in self._bijectors]
        super().__init__(
            graph_parents=[part for b in self._bijectors for part in b.graph_parents],
            is_constant_jacobian=all(b.is_constant_jacobian for b in self._bijectors),
            validate_args=validate_args,
            dtype=next(iter(kinds), None),
            forward_min_event_ndims=_least_axes(axes[::-1]),
            inverse_min_event_ndims=_least_axes([(gives, takes) for takes, gives in axes]),
            name=name or "_of_".join(["chain", *(b.name for b in self._bijectors)]),
        )

    @property
    def bijectors(self) -> tuple[Bijector, ...]:
        """The bijectors; the last one comes first."""
        return self._bijectors

    def _forward(self, x: Tensor) -> Tensor:
        for member in reversed(self._bijectors):
            x = member.forward(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for member in self._bijectors:
            y = member.inverse(y)
        return y

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        total, axes = 0.0, self.forward_min_event_ndims
        for member in reversed(self._bijectors):
            total = total + member.forward_log_det_jacobian(x, axes)
            x = member.forward(x)
            axes += member.inverse_min_event_ndims - member.forward_min_event_ndims
        return total

    def _inverse_log_det_jacobian(self, y: Tensor) -> Any:
        total, axes = 0.0, self.inverse_min_event_ndims
        for member in self._bijectors:
            total = total + member.inverse_log_det_jacobian(y, axes)
            y = member.inverse(y)
            axes += member.forward_min_event_ndims - member.inverse_min_event_ndims
        return total

    def _is_increasing(self) -> Any:
        answer: Any = True
        for member in self._bijectors:
            own = member.is_increasing()
            answer = (
                own if answer is True else answer if own is True else compare.equal(answer, own)
            )
        return answer

    def _forward_event_shape(self, input_shape: TensorShape) -> TensorShape:
        for member in reversed(self._bijectors):
            input_shape = member.forward_event_shape(input_shape)
        return input_shape

    def _inverse_event_shape(self, output_shape: TensorShape) -> TensorShape:
        for member in self._bijectors:
            output_shape = member.inverse_event_shape(output_shape)
        return output_shape

    def _forward_event_shape_tensor(self, input_shape: Tensor) -> Tensor:
        for member in reversed(self._bijectors):
            input_shape = member.forward_event_shape_tensor(input_shape)
        return input_shape

    def _inverse_event_shape_tensor(self, output_shape: Tensor) -> Tensor:
        for member in self._bijectors:
            output_shape = member.inverse_event_shape_tensor(output_shape)
        return output_shape


@public("contrib.distributions.bijectors.Inline")
class Inline(Bijector):
    """A bijector of functions that are given

    Args:
        forward_fn, inverse_fn: both directions.
        inverse_log_det_jacobian_fn, forward_log_det_jacobian_fn: one of these is enough.
        forward_event_shape_fn, forward_event_shape_tensor_fn, inverse_event_shape_fn,
            inverse_event_shape_tensor_fn: how shapes of events change, if they do.
        is_constant_jacobian: whether the Jacobian is the same at all points.
        validate_args: whether the step checks values.
        forward_min_event_ndims, inverse_min_event_ndims: how many axes are one event.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        forward_fn: Callable[..., Any] | None = None,
        inverse_fn: Callable[..., Any] | None = None,
        inverse_log_det_jacobian_fn: Callable[..., Any] | None = None,
        forward_log_det_jacobian_fn: Callable[..., Any] | None = None,
        forward_event_shape_fn: Callable[..., Any] | None = None,
        forward_event_shape_tensor_fn: Callable[..., Any] | None = None,
        inverse_event_shape_fn: Callable[..., Any] | None = None,
        inverse_event_shape_tensor_fn: Callable[..., Any] | None = None,
        is_constant_jacobian: bool = False,
        validate_args: bool = False,
        forward_min_event_ndims: int | None = None,
        inverse_min_event_ndims: int | None = None,
        name: str = "inline",
    ) -> None:
        self._given = {
            "_forward": forward_fn,
            "_inverse": inverse_fn,
            "_inverse_log_det_jacobian": inverse_log_det_jacobian_fn,
            "_forward_log_det_jacobian": forward_log_det_jacobian_fn,
            "_forward_event_shape": forward_event_shape_fn,
            "_forward_event_shape_tensor": forward_event_shape_tensor_fn,
            "_inverse_event_shape": inverse_event_shape_fn,
            "_inverse_event_shape_tensor": inverse_event_shape_tensor_fn,
        }
        super().__init__(
            is_constant_jacobian=is_constant_jacobian,
            validate_args=validate_args,
            forward_min_event_ndims=forward_min_event_ndims,
            inverse_min_event_ndims=inverse_min_event_ndims,
            name=name,
        )
        for hook, function in self._given.items():
            if function is not None:
                setattr(self, hook, function)

    def _has(self, hook: str) -> bool:
        return self._given.get(hook) is not None
