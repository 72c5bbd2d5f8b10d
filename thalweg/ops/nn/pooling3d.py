"""Pooling over volumes."""

from __future__ import annotations

from typing import Any

from thalweg.graph.node import Tensor
from thalweg.ops.nn import pooling, windows
from thalweg.ops.nn.pooling import (
    AvgPooling,
    AvgPoolingGrad,
    MaxPooling,
    MaxPoolingGrad,
    MaxPoolingGradGrad,
)
from thalweg.public import public


class MaxPool3D(MaxPooling):
    """The maximum of each window"""

    data_format: str = "NDHWC"
    partner = "MaxPool3DGrad"


class MaxPool3DGrad(MaxPoolingGrad):
    """dx of MaxPool3D"""

    data_format: str = "NDHWC"
    partner = "MaxPool3DGradGrad"


class MaxPool3DGradGrad(MaxPoolingGradGrad):
    """The adjoint of MaxPool3DGrad in its gradient"""

    data_format: str = "NDHWC"
    partner = "MaxPool3DGrad"


@public("nn.max_pool3d")
def max_pool3d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """The maxima of windows over [batch, depth, height, width, channels]."""
    return MaxPool3D(**_attributes(ksize, strides, padding, data_format))(input, name=name)


class AvgPool3D(AvgPooling):
    """The mean of each window"""

    data_format: str = "NDHWC"
    partner = "AvgPool3DGrad"


class AvgPool3DGrad(AvgPoolingGrad):
    """dx of AvgPool3D"""

    data_format: str = "NDHWC"
    partner = "AvgPool3D"


@public("nn.avg_pool3d")
def avg_pool3d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """The means of windows over [batch, depth, height, width, channels].

    Args:
        input: [batch, depth, height, width, channels].
        ksize: [1, depth, height, width, 1]: the size of the window.
        strides: the distance between windows, of the same form.
        padding: "VALID" or "SAME".
        data_format: "NDHWC" or "NCDHW".
        name: the name of the node.

    Returns:
        A tensor.

    Example:
        >>> ones, x = [1, 1, 1, 1, 1], tf.reshape(tf.range(4.0), [1, 1, 2, 2, 1])
        >>> sess.run(tf.nn.avg_pool3d(x, [1, 1, 2, 2, 1], ones, "VALID")).ravel()
        array([1.5], dtype=float32)
    """
    return AvgPool3D(**_attributes(ksize, strides, padding, data_format))(input, name=name)


def _attributes(ksize: Any, strides: Any, padding: str, data_format: str) -> dict[str, Any]:
    if data_format not in ("NDHWC", "NCDHW"):
        raise ValueError(f"data_format must be NDHWC or NCDHW, not {data_format!r}")
    window = windows.per_axis("ksize", ksize, data_format)
    steps = windows.per_axis("strides", strides, data_format)
    pooling.check(window, steps, padding)
    return {"ksize": window, "strides": steps, "padding": padding, "data_format": data_format}
