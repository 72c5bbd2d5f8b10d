"""Thalweg: a session's callable, fed with NumPy arrays; or eager code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flows
import models
from works import Work

import thalweg as tf
from systems import graph_flows, graph_net
from systems.step import Step


def start(threads: int) -> str:
    """Set the runtime up; returns the version."""
    return f"Thalweg {tf.__version__}"


def make(work: Work, threads: int) -> Step:
    """A step of a work."""
    if work.eager:
        tf.enable_eager_execution()
        return eager_step(work)
    config = tf.ConfigProto(intra_op_parallelism_threads=threads)
    if work.moves_data:
        with tf.Graph().as_default():
            return graph_flows.make(tf, work.kind, config)
    has_weights = work.model or work.trains
    make_step = graph_net.session_step if has_weights else graph_net.step_without_weights
    with tf.Graph().as_default():
        return make_step(tf, work, config)


def make_saving(work: Work, threads: int) -> Step:
    """A training step while the weights are saved in the background, again and again."""
    config = tf.ConfigProto(intra_op_parallelism_threads=threads)
    with tf.Graph().as_default():
        made = graph_net.session_step(tf, work, config)
        saver = tf.train.Saver(max_to_keep=2)

    def step(i: int) -> Any:
        if not saver.is_saving:
            prefix = str(flows.folder() / "model")
            saver.save(made.session, prefix, i, write_meta_graph=False, background=True)
        return made.call(i)

    return replace(made, call=step, settle=saver.wait)


def planned_by(session: Any, plan: Any, switches: Any) -> Any:
    """A step's plan by other passes of the optimiser, which older checkouts do not have."""
    from thalweg.inspect.explain import explain
    from thalweg.runtime.plan import plan as plan_step

    engine = session._engine
    made = plan_step(plan.step, engine.devices, engine.placer, switches=switches)
    return explain(made, plan.step, plan.feeds, plan.resources, plan.graph_size)


def code_of(plan: Any) -> list[Any]:
    """What a step runs, on which memory: nothing where that is known only after it ran."""
    if plan.controls:
        return []
    templates = [region.step.template for region in plan.regions if region.step]
    return [
        [op.node.type for op in plan.host_ops],
        *[
            (t.kernels, t.words.tobytes(), t.bases.tobytes(), t.arena, list(t.calls))
            for t in templates
        ],
        *[constant.tobytes() for t in templates for constant in t.constants],
    ]


def eager_step(work: Work) -> Step:
    """A step of eager code, whose result is looked at."""
    if work.kind == "null-function":
        x, add = tf.constant(1.0), tf.function(lambda x: x + 1.0)
        return Step(lambda i: add(x))
    (batch,) = [tuple(map(tf.constant, batch)) for batch in work.batches()]
    if work.kind == "chain":
        return Step(lambda i: models.chain(batch[0]).numpy())
    variables = {name: tf.Variable(value) for name, value in work.weights().items()}
    trained = list(variables.values())
    optimizer = tf.train.GradientDescentOptimizer(work.rate)

    def step(i: int) -> float:
        with tf.GradientTape() as tape:
            loss, _ = graph_net.outcome(tf, work, variables, batch)
        slopes = tape.gradient(loss, trained)
        optimizer.apply_gradients(list(zip(slopes, trained, strict=True)))
        return float(loss)

    return Step(step)
