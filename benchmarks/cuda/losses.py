"""Losses of training on a GPU next to the CPU's: the same programs, with another device.

    python benchmarks/cuda/losses.py [--steps 8]            # THALWEG_CUDA=emulated: --tiny

Digits by a convolutional network, an LSTM, and a GPT in mixed precision begin with equal weights
and see equal batches. The largest difference stands beside its limit; one beyond it is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[n]) for n in (1, 2))]

import models  # noqa: E402 - found on the path above
import numpy as np  # noqa: E402
from systems.graph_net import GraphNet, mean_loss  # noqa: E402

import thalweg as tf  # noqa: E402

DEVICES = ("/cpu:0", "/gpu:0")


@dataclass(frozen=True)
class Program:
    """A model in training by Adam, and how far the devices' losses may be apart."""

    title: str
    model: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    tiny: tuple[int, ...]
    limit: float
    mixed: bool = False
    tokens: int = 0  # different ones, where inputs are tokens


PROGRAMS = (
    Program("digits, convolutions", models.lenet, (64, 28, 28, 1), (2, 28, 28, 1), 2e-3),
    Program("LSTM 2x256", models.lstm, (16, 8, 256), (2, 2, 256), 2e-3),
    Program(
        "GPT, mixed precision",
        partial(models.decoder, layers=2, width=128, heads=2, vocabulary=96),
        (4, 100),
        (1, 20),
        2e-2,
        mixed=True,
        tokens=96,
    ),
)


def losses(program: Program, shape: tuple[int, ...], steps: int, device: str) -> list[float]:
    """The losses of some steps on a device."""
    rng = np.random.default_rng(1)
    logits = program.model(models.Shapes(), models.Extent(shape))
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.auto_mixed_precision = int(program.mixed)
    with tf.Graph().as_default(), tf.Session(config=config) as session, tf.device(device):
        declared = models.declarations(program.model, shape)
        variables = {
            name: tf.Variable(models.initial(name, *form), name=name.replace("/", "_"))
            for name, form in declared.items()
        }
        x = tf.placeholder(tf.int32 if program.tokens else tf.float32, shape)
        labels = tf.placeholder(tf.int32, logits[:-1])
        made = program.model(GraphNet(tf, variables, training=True), x)
        loss = mean_loss(tf, tf.cast(made, tf.float32), labels)
        train = tf.train.AdamOptimizer(1e-3).minimize(loss)
        session.run(tf.global_variables_initializer())
        result: list[float] = []
        for _ in range(steps):
            given = rng.standard_normal(shape, np.float32)
            if program.tokens:
                given = rng.integers(0, program.tokens, shape)
            answers = rng.integers(0, logits[-1], logits[:-1])
            result.append(float(session.run([loss, train], {x: given, labels: answers})[0]))
        return result


def report(program: Program, given: argparse.Namespace) -> bool:
    """Print a program's losses; whether they agree."""
    shape = program.tiny if given.tiny else program.shape
    cpu, gpu = (losses(program, shape, given.steps, device) for device in DEVICES)
    apart = max(abs(a - b) / abs(a) for a, b in zip(cpu, gpu, strict=True))
    print(f"{program.title}: at most {apart:.1e} apart (limit {program.limit})")
    for device, found in zip(DEVICES, (cpu, gpu), strict=True):
        print(f"  {device}  " + " ".join(f"{loss:8.4f}" for loss in found), flush=True)
    return apart <= program.limit


def main() -> None:
    """Print all of them; differences are an error."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--tiny", action="store_true", help="sizes for an emulated GPU")
    given = options.parse_args()
    agree = [report(program, given) for program in PROGRAMS]
    if not all(agree):
        raise SystemExit("The losses are not those of the CPU.")


if __name__ == "__main__":
    main()
