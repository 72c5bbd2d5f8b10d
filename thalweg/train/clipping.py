"""Clipping by norm: tensors (gradients, mostly) scaled down where they are too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, reduce
from thalweg.ops.math.transcendental import rsqrt, sqrt
from thalweg.public import public


def _values(t: Any) -> Tensor:
    return t.values if isinstance(t, IndexedSlices) else convert_to_tensor(t, name="t")


def _with_values(t: Any, values: Tensor) -> Any:
    return (
        IndexedSlices(values, t.indices, t.dense_shape) if isinstance(t, IndexedSlices) else values
    )


@public("clip_by_norm")
def clip_by_norm(
    t: TensorLike, clip_norm: Any, axes: Any = None, name: str | None = None
) -> Tensor:
    """`t` scaled so that its L2 norm is at most `clip_norm`.

    Args:
        t: a floating tensor, or IndexedSlices.
        clip_norm: the limit, a scalar.
        axes: axes to take the norm along; None means all.
        name: the name of the nodes.

    Returns:
        What `t` is, of the same shape and dtype.

    Example:
        >>> sess.run(tf.clip_by_norm([3.0, 4.0], 1.0))
        array([0.6, 0.8], dtype=float32)
    """
    with name_scope(name, "clip_by_norm", [t, clip_norm]) as scope:
        values = _values(t)
        squares = reduce.reduce_sum(values * values, axes, keepdims=True)
        # The gradient of a root at zero is infinite: roots are taken of ones there instead.
        positive = squares > 0
        safe = choosing.where(positive, squares, filling.ones_like(squares))
        norm = choosing.where(positive, sqrt(safe), squares)
        scaled = values * clip_norm
        values.shape.assert_is_compatible_with(scaled.shape)
        clipped = scaled / arithmetic.maximum(norm, clip_norm)
        return _with_values(t, basic.identity(clipped, name=scope))


@public("global_norm", "linalg.global_norm")
def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """The L2 norm of several tensors as one vector.

    Args:
        t_list: tensors or IndexedSlices; None among them counts nothing.
        name: the name of the nodes.

    Returns:
        A scalar.

    Example:
        >>> sess.run(tf.global_norm([[3.0], [4.0]]))
        np.float32(5.0)
    """
    tensors = _checked(t_list)
    with name_scope(name, "global_norm", tensors):
        values = [_values(t) for t in tensors if t is not None]
        sums = [reduce.reduce_sum(v * v) for v in values]
        return sqrt(reduce.reduce_sum(joining.stack(sums)), name="global_norm")


def _checked(t_list: Any) -> list[Any]:
    if not isinstance(t_list, Sequence) or isinstance(t_list, str):
        raise TypeError("t_list should be a sequence")
    return list(cast("Sequence[Any]", t_list))


@public("clip_by_global_norm")
def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """All tensors scaled by one factor, so that their global norm is at most `clip_norm`.

    A norm that is not finite makes the results NaN: bad gradients must not look good.

    Args:
        t_list: tensors or IndexedSlices, often gradients; None among them stays None.
        clip_norm: the limit, a scalar.
        use_norm: the global norm, where it is known already.
        name: the name of the nodes.

    Returns:
        (a list of the scaled tensors, the global norm before).

    Example:
        >>> clipped, norm = tf.clip_by_global_norm([[3.0], [4.0]], 1.0)
        >>> sess.run([norm, *clipped])
        [np.float32(5.0), array([0.6], dtype=float32), array([0.8], dtype=float32)]
    """
    tensors = _checked(t_list)
    norm = global_norm(tensors, name) if use_norm is None else convert_to_tensor(use_norm)
    with name_scope(name, "clip_by_global_norm", [*tensors, clip_norm]) as scope:
        limit = _as_limit(clip_norm, norm)
        scale = limit * arithmetic.minimum(1 / norm, 1 / limit) + (norm - norm)
        clipped = [
            None if t is None else _with_values(t, _scaled(_values(t), scale, f"{scope}_{i}"))
            for i, t in enumerate(tensors)
        ]
    return clipped, norm


def _as_limit(clip_norm: Any, like: Tensor) -> Tensor:
    """A number in the dtype of `like` at once: by way of float32 it would lose digits."""
    if isinstance(clip_norm, Tensor):
        return casting.cast(clip_norm, like.dtype.base_dtype)
    return convert_to_tensor(clip_norm, like.dtype.base_dtype)


def _scaled(values: Tensor, scale: Tensor, name: str) -> Tensor:
    with values.graph.colocate_with(values.op):
        scaled = values * casting.cast(scale, values.dtype.base_dtype)
        return basic.identity(scaled, name=name.rpartition("/")[2])


@public("clip_by_average_norm")
def clip_by_average_norm(t: Any, clip_norm: Any, name: str | None = None) -> Tensor:
    """`t` scaled so that its L2 norm over its number of elements is at most `clip_norm`."""
    with name_scope(name, "clip_by_average_norm", [t, clip_norm]) as scope:
        tensor = convert_to_tensor(t, name="t")
        count = casting.cast(shaping.size(tensor), tensor.dtype.base_dtype)
        inverse = rsqrt(reduce.reduce_sum(tensor * tensor))
        limit = _as_limit(clip_norm, tensor)
        scale = limit * arithmetic.minimum(inverse * count, 1 / limit)
        return basic.identity(tensor * scale, name=scope)
