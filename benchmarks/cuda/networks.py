"""Training steps on a GPU: Thalweg's, and PyTorch's compiled ones in the same run.

    python benchmarks/cuda/networks.py [--only alexnet ...] [--peers] [--kernels 12]

The images and labels of a step lie on the GPU. `first` is the time of the first call, which
compiles. A ratio is PyTorch's time by ours, next to the bar; with `--kernels` the kernels that take
longest are listed with what they reach of the GPU's peak.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (1, 2)]

import models  # noqa: E402 - found on the path above
import numpy as np  # noqa: E402


@dataclass(frozen=True)
class Network:
    """A network, trained by gradient descent."""

    model: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    classes: int
    bar: float
    dtype: str = "bfloat16"

    @property
    def batch(self) -> int:
        """The examples of a step."""
        return self.shape[0]

    def weights(self) -> dict[str, np.ndarray]:
        """The first values of all weights."""
        declared = models.declarations(self.model, self.shape)
        return {name: models.initial(name, *form) for name, form in declared.items()}

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """A batch."""
        rng = np.random.default_rng(1)
        x = rng.standard_normal(self.shape, np.float32)
        return x, rng.integers(0, self.classes, self.batch, np.int32)


NETWORKS = {
    "alexnet": Network(models.alexnet, (128, 224, 224, 3), 1000, 2.0),
    "overfeat": Network(models.overfeat, (128, 231, 231, 3), 1000, 1.4),
    "oxfordnet": Network(models.oxfordnet, (64, 224, 224, 3), 1000, 1.3),
    "googlenet": Network(models.googlenet, (128, 224, 224, 3), 1000, 1.8),
    "mlp": Network(models.mlp, (64, 784), 10, 2.0, "float32"),
}


def ours(network: Network) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A step by Thalweg, which returns the loss, and its plan."""
    from systems.graph_net import GraphNet, mean_loss

    import thalweg as tf

    graph = tf.Graph()
    with graph.as_default():
        kind = tf.as_dtype(network.dtype)

        def variable(value: np.ndarray, dtype: Any, trainable: bool) -> Any:
            given = tf.placeholder(tf.as_dtype(value.dtype), value.shape)
            feeds[given] = value
            return tf.Variable(tf.cast(given, dtype), trainable=trainable)

        feeds: dict[Any, np.ndarray] = {}
        x, labels = network.data()
        images, answers = variable(x, kind, False), variable(labels, tf.int32, False)
        variables = {
            name: variable(value, kind, models.trainable(name))
            for name, value in network.weights().items()
        }
        net = GraphNet(tf, variables, training=True)
        logits = network.model(net, images)
        loss = mean_loss(tf, tf.cast(logits, tf.float32), answers)
        train = tf.train.GradientDescentOptimizer(0.001).minimize(loss)
        session = tf.Session(graph=graph)
        session.run(tf.global_variables_initializer(), feeds)
        call = session.make_callable([loss, train])
    return lambda: call()[0], lambda: session.plan([loss, train])


def peer(network: Network, mode: str) -> Callable[[], Any]:
    """The same by PyTorch."""
    import torch
    from systems.on_torch import TorchNet, tensor, weight

    kind = getattr(torch, network.dtype)
    weights = {}
    for name, value in network.weights().items():
        made = weight(name, value).detach().to("cuda", kind)
        weights[name] = made.requires_grad_(models.trainable(name))
    x, labels = (tensor(part).cuda() for part in network.data())
    images, net = x.to(kind), TorchNet(weights, None, training=True)
    optimizer = torch.optim.SGD([w for w in weights.values() if w.requires_grad], 0.001, fused=True)

    @torch.compile(mode=mode)
    def loss_of(images: Any, labels: Any) -> Any:
        logits = network.model(net, images)
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(images, labels)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return float(loss)

    return step


def timed(step: Callable[[], Any], count: int) -> float:
    """The median time of a step, in milliseconds."""
    found: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return 1e3 * median(found)


def first(step: Callable[[], Any]) -> tuple[float, Any]:
    """The time of the first call, in seconds, and what it gave."""
    start = time.perf_counter()
    value = step()
    return time.perf_counter() - start, value


def measure(name: str, given: argparse.Namespace) -> str:
    """The line of a network."""
    network = NETWORKS[name]
    step, plan = ours(network)
    took, loss = first(step)
    theirs = peer(network, given.mode) if given.peers else None
    took_theirs, loss_theirs = first(theirs) if theirs is not None else (0.0, 0.0)
    for each in (step, theirs):
        if each is not None:
            timed(each, 5)
    one, two = [], []
    for _ in range(given.rounds):
        one.append(timed(step, given.steps))
        if theirs is not None:
            two.append(timed(theirs, given.steps))
    text = f"{name:10s} {min(one):8.3f} ms  first {took:5.1f} s  loss {float(loss):.4f}"
    if theirs is not None:
        ratio = min(two) / min(one)
        text += f" | PyTorch {min(two):8.3f} ms  first {took_theirs:5.1f} s  loss {loss_theirs:.4f}"
        text += f" | ratio {ratio:.2f} (bar {network.bar})"
    if given.kernels:
        text += "\n" + "\n".join(slowest(plan(), given.kernels))
    return text


def slowest(plan: Any, count: int) -> list[str]:
    """The kernels of a step that take longest, run one after the other."""
    profile = plan.profile(5)
    total = sum(row.median for row in profile.rows)
    lines = [f"    {len(profile.rows)} kernels, {1e6 * total:.0f} us one after the other"]
    for row in profile.rows[:count]:
        names = "+".join(op.split("/")[-1] for op in row.ops)[:60]
        rates = f"{row.flops_per_second / 1e12:6.1f} TFLOP/s {row.bytes_per_second / 1e9:6.0f} GB/s"
        lines.append(f"    {1e6 * row.median:8.1f} us {rates} {row.iterations:24s} {names}")
    return lines


def main() -> None:
    """Measure what is asked for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="*", default=list(NETWORKS))
    options.add_argument("--peers", action="store_true")
    options.add_argument("--mode", default="max-autotune-no-cudagraphs", help="of torch.compile")
    options.add_argument("--kernels", type=int, default=0)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    for name in given.only:
        try:
            print(measure(name, given), flush=True)
        except Exception as error:  # one that fails leaves the others to be measured
            print(f"{name:10s} FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
