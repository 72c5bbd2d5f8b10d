"""Random numbers. The seed of a node is an attribute; without one, that of the graph."""

from __future__ import annotations

from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import cast_to, elements
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import compare
from thalweg.ops.random import random


def _seed(node: NodeView) -> int | None:
    return int(node.get("seed")) if "seed" in node.attributes else None


def _drawn(node: NodeView, shape: Any, kind: Any) -> Tensor:
    wide = kind if kind in (dtypes.float32, dtypes.float64) else dtypes.float32
    if node.op.startswith("RandomNormal"):
        mean, scale = node.get("mean", 0.0), node.get("scale", 1.0)
        found = random.random_normal(shape, mean, scale, wide, seed=_seed(node))
    else:
        low, high = node.get("low", 0.0), node.get("high", 1.0)
        found = random.random_uniform(shape, low, high, wide, seed=_seed(node))
    return casting.cast(found, kind)


@operator("RandomNormal", "RandomUniform")
def drawn(node: NodeView) -> Tensor:
    return _drawn(node, list(node.get("shape")), elements(int(node.get("dtype", 1))))


@operator("RandomNormalLike", "RandomUniformLike")
def drawn_like(node: NodeView, x: Tensor) -> Tensor:
    stated = node.get("dtype")
    kind = x.dtype.base_dtype if stated is None else elements(int(stated))
    return _drawn(node, shaping.shape(x), kind)


@operator("Bernoulli", since=15)
def bernoulli(node: NodeView, x: Tensor) -> Tensor:
    stated = node.get("dtype")
    kind = x.dtype.base_dtype if stated is None else elements(int(stated))
    uniform = random.random_uniform(shaping.shape(x), dtype=dtypes.float32, seed=_seed(node))
    return cast_to(compare.less(uniform, cast_to(x, dtypes.float32)), kind)


@operator("Multinomial", since=7)
def multinomial(node: NodeView, x: Tensor) -> Tensor:
    count = int(node.get("sample_size", 1))
    kind = elements(int(node.get("dtype", 6)))
    return casting.cast(random.multinomial(x, count, seed=_seed(node)), kind)
