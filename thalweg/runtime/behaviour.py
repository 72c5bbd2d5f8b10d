"""Switches of TensorFlow that programs flip on their first lines; here graphs are the only way."""

from __future__ import annotations

from thalweg.public import public


@public("disable_v2_behavior")
def disable_v2_behavior() -> None:
    """Nothing to do: programs build graphs and run them in sessions."""


@public("disable_eager_execution")
def disable_eager_execution() -> None:
    """Nothing to do: programs build graphs and run them in sessions."""


@public("executing_eagerly")
def executing_eagerly() -> bool:
    """False: ops add nodes to a graph."""
    return False
