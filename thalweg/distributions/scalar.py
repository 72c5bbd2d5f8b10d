"""Distributions whose samples are single numbers: the batch is what the parameters broadcast to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from thalweg.distributions.base import Distribution, ReparameterizationType
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import DTypeLike
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, broadcast_shapes, scalar
from thalweg.ops.arrays import joining
from thalweg.ops.core import broadcast, shaping


class ScalarDistribution(Distribution):
    """A distribution over numbers, with parameters that broadcast to its batch shape."""

    def __init__(
        self,
        parts: list[Tensor],
        reparameterization_type: ReparameterizationType,
        parameters: Mapping[str, Any],
        name: str,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            dtype=parts[0].dtype if dtype is None else dtype,
            reparameterization_type=reparameterization_type,
            validate_args=parameters["validate_args"],
            allow_nan_stats=parameters["allow_nan_stats"],
            parameters=parameters,
            graph_parents=parts,
            name=name,
        )
        self._parts = parts

    def _batch_shape(self) -> TensorShape:
        return broadcast_shapes(*(part.shape for part in self._parts))

    def _batch_shape_tensor(self) -> Tensor:
        return reduce(
            broadcast.broadcast_dynamic_shape, (shaping.shape(part) for part in self._parts)
        )

    def _event_shape(self) -> TensorShape:
        return scalar()

    def _event_shape_tensor(self) -> Tensor:
        return convert_to_tensor([], dtypes.int32)

    def _sizes(self, n: Tensor) -> Tensor:
        """The shape of `n` samples of the batch."""
        return joining.concat([shaping.reshape(n, [1]), self.batch_shape_tensor()], 0)

    def _spread(self, x: Tensor) -> Tensor:
        """`x` broadcast to the shape of the batch."""
        if x.shape.is_fully_defined() and x.shape.sizes == self.batch_shape.sizes:
            return x
        return broadcast.broadcast_to(x, self.batch_shape_tensor())
