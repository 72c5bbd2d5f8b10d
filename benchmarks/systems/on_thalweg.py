"""Thalweg: a session's callable, fed with NumPy arrays."""

from __future__ import annotations

from works import Work

import thalweg as tf
from systems import graph_net
from systems.step import Step


def start(threads: int) -> str:
    """Set the runtime up; returns the version."""
    return f"Thalweg {tf.__version__}"


def make(work: Work, threads: int) -> Step:
    """A step of a work."""
    config = tf.ConfigProto(intra_op_parallelism_threads=threads)
    has_weights = work.model or work.trains
    make_step = graph_net.session_step if has_weights else graph_net.step_without_weights
    with tf.Graph().as_default():
        return make_step(tf, work, config)
