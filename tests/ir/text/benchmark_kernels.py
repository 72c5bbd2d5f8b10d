"""The kernels of the benchmark's models, at full size or small, lowered and not compiled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import thalweg as tf
from tests.lower.programs import lowered
from thalweg.ir.kernel import Kernel

_FOLDER = Path(__file__).parents[3] / "benchmarks"

#: The shape of an example of each model, as small as its layers allow.
SMALL = {
    "mlp": (20,),
    "lstm": (3, 8),
    "lenet": (12, 12, 1),
    "alexnet": (64, 64, 3),
    "overfeat": (96, 96, 3),
    "oxfordnet": (32, 32, 3),
    "googlenet": (64, 64, 3),
    "gpt": (256,),
}
FULL = {
    "mlp": (784,),
    "lstm": (64, 256),
    "lenet": (28, 28, 1),
    "alexnet": (224, 224, 3),
    "overfeat": (231, 231, 3),
    "oxfordnet": (224, 224, 3),
    "googlenet": (224, 224, 3),
    "resnet50": (224, 224, 3),
    "gpt": (256,),
}


@contextmanager
def _benchmarks() -> Iterator[tuple[Any, Any]]:
    """The benchmark's modules, which import one another by their bare names."""
    before = set(sys.modules)
    sys.path.insert(0, str(_FOLDER))
    try:
        import models
        from systems import graph_net

        yield models, graph_net
    finally:
        sys.path.remove(str(_FOLDER))
        for name in set(sys.modules) - before:
            if str(_FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def kernels_of_model(name: str, example: tuple[int, ...], batch: int) -> list[Kernel]:
    """The kernels of a step that trains a model."""
    with _benchmarks() as (models, graph_net), tf.Graph().as_default():
        shape = (batch, *example) if name != "lstm" else (example[0], batch, *example[1:])
        model = getattr(models, name)
        given = models.declarations(model, shape)
        variables = {key: tf.get_variable(key, size) for key, (size, _) in given.items()}
        is_text = name == "gpt"
        x = tf.placeholder(tf.int32 if is_text else tf.float32, shape)
        net = graph_net.GraphNet(tf, variables, True)
        logits = model(net, x)
        labels = tf.placeholder(tf.int32, logits.shape[:-1])
        loss = graph_net.mean_loss(tf, logits, labels)
        # Adam's updates are fused into products; those of embeddings would be host ops.
        optimizer = tf.train.GradientDescentOptimizer if is_text else tf.train.AdamOptimizer
        train = optimizer(0.1).minimize(loss)
        return [launch.kernel for launch in lowered(loss, train, *net.updates).launches]
