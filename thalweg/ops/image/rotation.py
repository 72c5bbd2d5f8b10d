"""Rotations of images by multiples of 90 degrees."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.platform.arrays import Array


class TurnQuarters(Op):
    """Images [..., height, width, channels] rotated counter-clockwise by k · 90 degrees"""

    private = True
    signature = "image: T, k: I -> output: T; I: index"

    def shape(self, image: Tensor, k: Tensor) -> TensorShape:
        k.shape.assert_has_rank(0)
        if image.shape.rank is None:
            return image.shape
        *batch, height, width, channels = image.shape.with_rank_at_least(3).as_list()
        turns = constant_value(k)
        if turns is None:
            height = width = height if height == width else None
        elif int(turns) % 2:
            height, width = width, height
        return TensorShape.of((*batch, height, width, channels))

    def numpy(self, image: Array, k: Any) -> Array:
        return np.rot90(image, int(k), (-3, -2))

    def loop(self, at: IndexTuple, image: Operand, k: Operand) -> Expr:
        *batch, row, column, channel = at
        bottom, right = (size - 1 for size in image.shape[-3:-1])
        rotated = (
            (row, column),
            (column, right - row),
            (bottom - row, right - column),
            (bottom - column, row),
        )
        return image[(*batch, *rotated[int(k.constant()) % 4], channel)]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [TurnQuarters()(dy, -node.inputs[1]), None]
