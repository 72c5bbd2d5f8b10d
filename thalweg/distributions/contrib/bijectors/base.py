"""What every bijector has: both directions, the logarithms of both Jacobians, shapes of events.

A subclass writes the hooks it knows (`_forward`, `_inverse`, one of the two `_log_det_jacobian`s);
the public methods open the name scope, convert the value, sum the Jacobian over the event and
derive what has no hook of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from thalweg.distributions.parameters import event_axes
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import DTypeLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ops.core import filling, shaping
from thalweg.ops.math import reduce
from thalweg.platform.caches import Bounded
from thalweg.public import public


@public("contrib.distributions.bijectors.Bijector")
class Bijector:
    """An invertible, differentiable function of the last axes of a tensor: the event.

    Args:
        graph_parents: the tensors that it is made of.
        is_constant_jacobian: whether the Jacobian is the same at all points.
        validate_args: whether the step checks parameters and values.
        dtype: the dtype of what it takes and gives, if it takes just one.
        forward_min_event_ndims: how many axes `forward` works on together.
        inverse_min_event_ndims: the same of `inverse`, where it differs.
        name: the scope of the nodes.

    Example:
        >>> class Double(tf.contrib.distributions.bijectors.Bijector):
        ...     def __init__(self):
        ...         super().__init__(forward_min_event_ndims=0, is_constant_jacobian=True)
        ...     def _forward(self, x):
        ...         return 2 * x
        ...     def _inverse(self, y):
        ...         return y / 2
        ...     def _forward_log_det_jacobian(self, x):
        ...         return tf.log(2.0)
        >>> sess.run(Double().inverse([3.0]))
        array([1.5], dtype=float32)
    """

    def __init__(
        self,
        graph_parents: Sequence[Any] | None = None,
        is_constant_jacobian: bool = False,
        validate_args: bool = False,
        dtype: DTypeLike | None = None,
        forward_min_event_ndims: int | None = None,
        inverse_min_event_ndims: int | None = None,
        name: str | None = None,
    ) -> None:
        for number, parent in enumerate(graph_parents or ()):
            if not isinstance(parent, Tensor):
                raise ValueError(f"Graph parent item {number} is not a Tensor; {parent!r}.")
        least = [n for n in (forward_min_event_ndims, inverse_min_event_ndims) if n is not None]
        if not least:
            raise ValueError(
                "Must specify at least one of `forward_min_event_ndims` and "
                "`inverse_min_event_ndims`."
            )
        if min(least) < 0:
            raise ValueError(f"min_event_ndims must not be negative, saw: {least}")
        self._graph_parents = list(graph_parents or ())
        self._is_constant_jacobian = is_constant_jacobian
        self._validate_args = validate_args
        self._dtype = None if dtype is None else as_dtype(dtype).base_dtype
        self._forward_min_event_ndims, self._inverse_min_event_ndims = least[0], least[-1]
        self._name = name or type(self).__name__
        # What was mapped forward need not be mapped back: after saturation that would be lost.
        self._inputs = Bounded[int, tuple[Tensor, Tensor]]("inputs of a bijector", 16)

    # What it is

    @property
    def name(self) -> str:
        """The name of its nodes."""
        return self._name

    @property
    def dtype(self) -> DType | None:
        """The dtype of what it takes and gives, if it takes just one."""
        return self._dtype

    @property
    def graph_parents(self) -> list[Any]:
        """The tensors that it is made of."""
        return self._graph_parents

    @property
    def is_constant_jacobian(self) -> bool:
        """Whether the Jacobian is the same at all points."""
        return self._is_constant_jacobian

    @property
    def validate_args(self) -> bool:
        """Whether parameters and values are checked when they are computed."""
        return self._validate_args

    @property
    def forward_min_event_ndims(self) -> int:
        """How many axes `forward` works on together."""
        return self._forward_min_event_ndims

    @property
    def inverse_min_event_ndims(self) -> int:
        """How many axes `inverse` works on together."""
        return self._inverse_min_event_ndims

    def is_increasing(self) -> bool | Tensor:
        """Whether a scalar function increases: a bool, or a tensor of them.

        Raises:
            NotImplementedError: of a function of vectors.
        """
        if self.forward_min_event_ndims or self.inverse_min_event_ndims:
            raise self._missing("is_increasing")
        return self._is_increasing()

    # Shapes of events

    def forward_event_shape(self, input_shape: Any) -> TensorShape:
        """The shape of an event of `input_shape` after `forward`, as far as it is known."""
        return self._forward_event_shape(as_shape(input_shape))

    def inverse_event_shape(self, output_shape: Any) -> TensorShape:
        """The shape of an event of `output_shape` after `inverse`, as far as it is known."""
        return self._inverse_event_shape(as_shape(output_shape))

    def forward_event_shape_tensor(
        self, input_shape: Any, name: str = "forward_event_shape_tensor"
    ) -> Tensor:
        """The shape of an event of `input_shape` after `forward`."""
        with self._scope(name, [input_shape]):
            shape = convert_to_tensor(input_shape, dtypes.int32, name="input_shape")
            return self._forward_event_shape_tensor(shape)

    def inverse_event_shape_tensor(
        self, output_shape: Any, name: str = "inverse_event_shape_tensor"
    ) -> Tensor:
        """The shape of an event of `output_shape` after `inverse`."""
        with self._scope(name, [output_shape]):
            shape = convert_to_tensor(output_shape, dtypes.int32, name="output_shape")
            return self._inverse_event_shape_tensor(shape)

    # Both directions

    def forward(self, x: Any, name: str = "forward") -> Tensor:
        """The values of `x`."""
        with self._scope(name, [x]):
            given = self._converted(x, "x")
            y = self._forward(given)
            if y is not given:
                self._inputs[id(y)] = given, y
            return y

    def inverse(self, y: Any, name: str = "inverse") -> Tensor:
        """The x with `forward(x)` = y."""
        with self._scope(name, [y]):
            return self._input_of(self._converted(y, "y"))

    def forward_log_det_jacobian(
        self, x: Any, event_ndims: Any = None, name: str = "forward_log_det_jacobian"
    ) -> Tensor:
        """log |det ∂forward(x)/∂x| of events of `event_ndims` axes, or of the fewest."""
        with self._scope(name, [x]):
            given = self._converted(x, "x")
            extra = self._extra_axes(event_ndims, self.forward_min_event_ndims)
            if self._has("_forward_log_det_jacobian"):
                value = self._forward_log_det_jacobian(given)
                return _summed(value, given, self.forward_min_event_ndims, extra)
            y = self.forward(given)
            value = self._inverse_log_det_jacobian(y)
            return -_summed(value, y, self.inverse_min_event_ndims, extra)

    def inverse_log_det_jacobian(
        self, y: Any, event_ndims: Any = None, name: str = "inverse_log_det_jacobian"
    ) -> Tensor:
        """log |det ∂inverse(y)/∂y| of events of `event_ndims` axes, or of the fewest."""
        with self._scope(name, [y]):
            given = self._converted(y, "y")
            extra = self._extra_axes(event_ndims, self.inverse_min_event_ndims)
            known = id(given) in self._inputs and self._has("_forward_log_det_jacobian")
            if self._has("_inverse_log_det_jacobian") and not known:
                value = self._inverse_log_det_jacobian(given)
                return _summed(value, given, self.inverse_min_event_ndims, extra)
            x = self._input_of(given)
            value = self._forward_log_det_jacobian(x)
            return -_summed(value, x, self.forward_min_event_ndims, extra)

    def _input_of(self, y: Tensor) -> Tensor:
        known = self._inputs.get(id(y))
        return self._inverse(y) if known is None else known[0]

    def _extra_axes(self, event_ndims: Any, least: int) -> int:
        """How many axes of an event are left to sum over."""
        axes = least if event_ndims is None else event_axes(event_ndims)
        if axes < least:
            raise ValueError(
                f"event_ndims ({axes}) must be larger than or equal to min_event_ndims ({least}) "
                f"of {self._name}"
            )
        return axes - least

    # Hooks

    def _forward(self, x: Tensor) -> Tensor:
        raise self._missing("forward")

    def _inverse(self, y: Tensor) -> Tensor:
        raise self._missing("inverse")

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        raise self._missing("forward_log_det_jacobian")

    def _inverse_log_det_jacobian(self, y: Tensor) -> Any:
        raise self._missing("inverse_log_det_jacobian")

    def _is_increasing(self) -> Any:
        return True

    def _forward_event_shape(self, input_shape: TensorShape) -> TensorShape:
        return input_shape

    def _inverse_event_shape(self, output_shape: TensorShape) -> TensorShape:
        return output_shape

    def _forward_event_shape_tensor(self, input_shape: Tensor) -> Tensor:
        return input_shape

    def _inverse_event_shape_tensor(self, output_shape: Tensor) -> Tensor:
        return output_shape

    def _has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(Bijector, hook)

    def _missing(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{what} is not implemented: {type(self).__name__}")

    def _converted(self, value: Any, name: str) -> Tensor:
        given = convert_to_tensor(value, name=name, preferred_dtype=self._dtype)
        if self._dtype is not None and given.dtype.base_dtype != self._dtype:
            raise TypeError(
                f"{self._name} takes {self._dtype.name}, but `{name}` is {given.dtype.name}"
            )
        return given

    @contextmanager
    def _scope(self, name: str, values: Sequence[Any] = ()) -> Generator[str]:
        inside = [*values, *self._graph_parents]
        with name_scope(self._name, values=inside), name_scope(name, values=inside) as scope:
            yield scope


def _summed(value: Any, of: Tensor, least: int, extra: int) -> Tensor:
    """The Jacobian's logarithm over the `extra` axes of an event before the `least` it is of."""
    given = convert_to_tensor(value, of.dtype.base_dtype)
    if not extra:
        return given
    sizes = shaping.shape(of)
    end = shaping.size(sizes) - least
    # A Jacobian that is the same everywhere counts once for each element of these axes.
    spread = given + filling.zeros(sizes[end - extra : end], given.dtype)
    return reduce.reduce_sum(spread, axis=list(range(-extra, 0)))
