"""TensorFlow in graph mode: `tf.function`, or a session of the 1.x API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flows
import models
import tensorflow as tf
from models import trainable
from works import Work

from systems import graph_flows, graph_loops, graph_net
from systems.step import Step

v1 = tf.compat.v1


def start(threads: int) -> str:
    """Set the runtime up; returns the version."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return f"TensorFlow {tf.__version__}"


def make(work: Work, threads: int) -> Step:
    """A step of a work, as a `tf.function`."""
    if work.moves_data:
        return Step(lambda i: flows.digest(graph_flows.dataset(tf, work.kind).as_numpy_iterator()))
    if work.kind.startswith("null"):
        x = tf.Variable(1.0)
        add = within_function(lambda: x + 1.0)
        return Step(lambda i: add())
    if work.kind == "counter":
        ((limit,),) = work.batches()
        count, most = within_function(lambda n: graph_loops.count(tf, n)), tf.constant(limit)
        return Step(lambda i: count(most))
    if work.kind == "chain":
        ((value,),) = work.batches()
        x, chain = tf.constant(value), models.chain if work.eager else within_function(models.chain)
        return Step(lambda i: chain(x).numpy())
    variables = {name: tf.Variable(value) for name, value in work.weights().items()}
    batches = [tuple(map(tf.constant, batch)) for batch in work.batches()]
    step = training(work, variables) if work.trains else forward(work, variables)
    return Step(lambda i: step(*batches[i % len(batches)]))


def make_session(work: Work, threads: int) -> Step:
    """A step of a work, through a session."""
    config = v1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
    )
    if work.moves_data:
        with tf.Graph().as_default():
            return graph_flows.make(v1, work.kind, config)
    has_weights = work.model or work.trains
    make_step = graph_net.session_step if has_weights else graph_net.step_without_weights
    with tf.Graph().as_default():
        return make_step(v1, work, config)


def within_function(body: Any) -> Any:
    """`tf.function` without autograph: the bodies hold no Python control flow on tensors."""
    return tf.function(body, autograph=False)


def forward(work: Work, variables: Mapping[str, tf.Variable]) -> Any:
    """The logits of a batch."""
    return within_function(lambda *batch: graph_net.outcome(v1, work, variables, batch)[0])


def training(work: Work, variables: Mapping[str, tf.Variable]) -> Any:
    """A function of a batch that updates the variables and gives the loss."""
    trained = [variable for name, variable in variables.items() if trainable(name)]
    update = Adam(work.rate, trained) if work.optimizer == "adam" else Descent(work.rate)

    def step(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss, _ = graph_net.outcome(v1, work, variables, batch)
        update(trained, tape.gradient(loss, trained))
        return loss

    return step if work.eager else within_function(step)


class Descent:
    """Gradient descent by TensorFlow's own fused kernels; sparse where the gradient is."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, variables: Sequence[tf.Variable], gradients: Sequence[Any]) -> None:
        for variable, gradient in zip(variables, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                change = gradient.values * -self.rate
                tf.raw_ops.ResourceScatterAdd(
                    resource=variable.handle, indices=gradient.indices, updates=change
                )
            else:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=self.rate, delta=gradient
                )


class Adam:
    """Adam by TensorFlow's own fused kernel."""

    def __init__(self, rate: float, variables: Sequence[tf.Variable]) -> None:
        self.rate = rate
        self.slots = [[tf.Variable(tf.zeros_like(v)) for _ in "mv"] for v in variables]
        self.powers = [tf.Variable(0.9), tf.Variable(0.999)]

    def __call__(self, variables: Sequence[tf.Variable], gradients: Sequence[Any]) -> None:
        power1, power2 = (power.read_value() for power in self.powers)
        for variable, gradient, (m, v) in zip(variables, gradients, self.slots, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=power1,
                beta2_power=power2,
                lr=self.rate,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                grad=tf.convert_to_tensor(gradient),
            )
        self.powers[0].assign(power1 * 0.9)
        self.powers[1].assign(power2 * 0.999)
