"""`tensorflow.python.eager.context`: whether ops run as they are written."""

from __future__ import annotations

import contextlib
from typing import Any

from thalweg.alias import names

tf = names.root()

GRAPH_MODE, EAGER_MODE = 0, 1


def executing_eagerly() -> bool:
    """Whether ops run as they are written."""
    return tf.executing_eagerly()


in_eager_mode = executing_eagerly


def in_graph_mode() -> bool:
    """Whether ops are added to a graph."""
    return not executing_eagerly()


def graph_mode() -> Any:
    """Ops are added to the default graph inside."""
    if not tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.Graph().as_default()


def eager_mode() -> Any:
    """Ops run as they are written inside, where the whole program runs so."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    raise RuntimeError(
        "eager_mode() needs tf.enable_eager_execution() at the start of the program."
    )


def num_gpus() -> int:
    """How many GPUs eager code has."""
    devices = tf.python.client.device_lib.list_local_devices()
    return sum(device.device_type == "GPU" for device in devices)


def context() -> Any:
    """This module: there is one context."""
    import sys

    return sys.modules[__name__]
