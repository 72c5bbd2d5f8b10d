"""Switches of TensorFlow that programs flip on their first lines."""

from __future__ import annotations

from thalweg.public import public


@public("disable_v2_behavior")
def disable_v2_behavior() -> None:
    """Nothing to do: unless eager execution is enabled, programs build graphs.

    Example:
        >>> tf.disable_v2_behavior()
        >>> tf.executing_eagerly()
        False
    """
