"""Demands on images: checked while the graph is built where shapes are known, else in the step."""

from __future__ import annotations

from typing import Any

from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core import basic, checks, shaping
from thalweg.ops.math import compare, reduce


def require(condition: Any, message: str) -> list[Node]:
    """Raise ValueError now if a known condition fails; else the check to run in the step."""
    if isinstance(condition, Tensor):
        known = constant_value(condition)
        if known is not None:
            return require(bool(known), message)
        return [checks.Assert(condition, [message])]
    if not condition:
        raise ValueError(message)
    return []


def require_positive(value: Any, what: str) -> list[Node]:
    """Check that a size is > 0."""
    return require(value > 0, f"{what} must be > 0.")


def require_not_negative(value: Any, what: str) -> list[Node]:
    """Check that an offset is >= 0."""
    return require(value >= 0, f"{what} must be >= 0.")


def require_image(image: Tensor, ranks: tuple[int, ...] = (3,)) -> list[Node]:
    """Check that an image has an allowed rank and no empty dimension."""
    sizes = image.shape.sizes
    wanted = "three-dimensional" if ranks == (3,) else "three-dimensional, or a batch of such"
    if sizes is None:
        return []
    if len(sizes) not in ranks:
        raise ValueError(f"'image' must be {wanted}, got shape {image.shape}")
    if 0 in sizes:
        raise ValueError(f"all dims of 'image.shape' must be > 0: {image.shape}")
    if None not in sizes:
        return []
    positive = reduce.reduce_all(compare.greater(shaping.shape(image), 0))
    return require(positive, "all dims of 'image.shape' must be > 0.")


def after(checks: list[Node], image: Tensor) -> Tensor:
    """The image, once the checks passed."""
    return basic.with_dependencies(checks, image) if checks else image


def sizes_of(image: Tensor) -> list[Any]:
    """The size of each dimension: a number where it is static, else a tensor."""
    static = image.shape.as_list()
    if None not in static:
        return static
    dynamic = shaping.shape(image)
    return [dynamic[i] if size is None else size for i, size in enumerate(static)]


def static(value: Any) -> int | None:
    """A size that is known now, or None."""
    return None if isinstance(value, Tensor) else int(value)
