"""The weights of layers, made as the layers' attributes say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.nn.layer import Layer


def configured_weight(layer: Layer, name: str, shape: Sequence[int], dtype: Any = None) -> Any:
    """Add a weight with the initializer, regularizer and constraint that a layer has for it as
    attributes: `bias_initializer`, or `depthwise_initializer` for the `depthwise_kernel`."""
    part = name.removesuffix("_kernel")
    kinds = ("initializer", "regularizer", "constraint")
    options = {kind: getattr(layer, f"{part}_{kind}") for kind in kinds}
    return layer.add_weight(name, shape, dtype, **options)
