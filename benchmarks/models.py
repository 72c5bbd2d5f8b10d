"""The models of the benchmark, each described once, in a vocabulary that every system implements.

A model is a function of a `net` (the system's words: `conv`, `dense`, `lstm`, ...) and its input.
`weights(work)` walks the model with shapes alone and returns NumPy initial values by name, so all
systems start from the same numbers. Images are NHWC, kernels HWIO, sequences of the LSTM
time-major; a system that prefers another layout converts before the clock starts.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

Shape = tuple[int, ...]


def mlp(net: Any, x: Any) -> Any:
    """784-100-10."""
    return net.dense(net.dense(x, "hidden", 100, relu=True), "logits", 10)


def lstm(net: Any, x: Any) -> Any:
    """Two layers of 256 units over 64 steps of 256 features; 64 classes at every step."""
    return net.dense(net.lstm(x, "lstm", 256, layers=2), "logits", 64)


def lenet(net: Any, x: Any) -> Any:
    """Two 5x5 convolutions with pooling, one hidden layer of 512."""
    x = net.max_pool(net.conv(x, "conv1", 32, 5, padding=2), 2, 2)
    x = net.max_pool(net.conv(x, "conv2", 64, 5, padding=2), 2, 2)
    return classifier(net, net.flatten(x), (512,), 10)


def classifier(net: Any, x: Any, hidden: Sequence[int], classes: int) -> Any:
    """Hidden layers with ReLU, then the logits."""
    for i, units in enumerate(hidden):
        x = net.dense(x, f"hidden{i + 1}", units, relu=True)
    return net.dense(x, "logits", classes)


def alexnet(net: Any, x: Any) -> Any:
    """AlexNet in one column ("one weird trick"), 224x224, as in convnet-benchmarks."""
    x = net.max_pool(net.conv(x, "conv1", 64, 11, stride=4, padding=2), 3, 2)
    x = net.max_pool(net.conv(x, "conv2", 192, 5, padding=2), 3, 2)
    x = net.conv(x, "conv3", 384, 3, padding=1)
    x = net.conv(x, "conv4", 256, 3, padding=1)
    x = net.max_pool(net.conv(x, "conv5", 256, 3, padding=1), 3, 2)
    return classifier(net, net.flatten(x), (4096, 4096), 1000)


def overfeat(net: Any, x: Any) -> Any:
    """OverFeat, the fast model, 231x231, as in convnet-benchmarks."""
    x = net.max_pool(net.conv(x, "conv1", 96, 11, stride=4), 2, 2)
    x = net.max_pool(net.conv(x, "conv2", 256, 5), 2, 2)
    x = net.conv(x, "conv3", 512, 3, padding=1)
    x = net.conv(x, "conv4", 1024, 3, padding=1)
    x = net.max_pool(net.conv(x, "conv5", 1024, 3, padding=1), 2, 2)
    return classifier(net, net.flatten(x), (3072, 4096), 1000)


def oxfordnet(net: Any, x: Any) -> Any:
    """VGG model A, 224x224, as in convnet-benchmarks."""
    for block, depths in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512))):
        for layer, depth in enumerate(depths):
            x = net.conv(x, f"conv{block + 1}_{layer + 1}", depth, 3, padding=1)
        x = net.max_pool(x, 2, 2)
    return classifier(net, net.flatten(x), (4096, 4096), 1000)


# 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; projection of the pool. None: a pool between stages.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "pool3": None,
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "pool4": None,
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def inception(net: Any, x: Any, name: str, depths: Sequence[int]) -> Any:
    """Four branches side by side."""
    one, three_in, three, five_in, five, pool = depths
    branches = [
        net.conv(x, f"{name}_1x1", one, 1),
        net.conv(net.conv(x, f"{name}_3x3_in", three_in, 1), f"{name}_3x3", three, 3, padding=1),
        net.conv(net.conv(x, f"{name}_5x5_in", five_in, 1), f"{name}_5x5", five, 5, padding=2),
        net.conv(net.max_pool(x, 3, 1, same=True), f"{name}_pool", pool, 1),
    ]
    return net.concat(branches)


def googlenet(net: Any, x: Any) -> Any:
    """GoogleNet (Inception v1), 224x224: no batch norm, no auxiliary heads, no LRN, no dropout."""
    x = net.max_pool(net.conv(x, "conv1", 64, 7, stride=2, padding=3), 3, 2, same=True)
    x = net.conv(net.conv(x, "conv2_in", 64, 1), "conv2", 192, 3, padding=1)
    x = net.max_pool(x, 3, 2, same=True)
    for name, depths in INCEPTIONS.items():
        x = inception(net, x, name, depths) if depths else net.max_pool(x, 3, 2, same=True)
    return net.dense(net.mean(x), "logits", 1000)


def bottleneck(net: Any, x: Any, name: str, depth: int, stride: int, project: bool) -> Any:
    """1x1, 3x3 (which strides) and 1x1 around a shortcut."""

    def normed(x: Any, part: str, depth: int, size: int, stride: int = 1, relu: bool = True) -> Any:
        kind = {"stride": stride, "padding": size // 2, "bias": False, "relu": False}
        y = net.conv(x, f"{name}_{part}", depth, size, **kind)
        return net.batch_norm(y, f"{name}_{part}_norm", relu=relu)

    y = normed(normed(x, "a", depth, 1), "b", depth, 3, stride)
    y = normed(y, "c", 4 * depth, 1, relu=False)
    shortcut = normed(x, "shortcut", 4 * depth, 1, stride, relu=False) if project else x
    return net.add_relu(y, shortcut)


def resnet50(net: Any, x: Any) -> Any:
    """ResNet-50 (v1.5: the 3x3 convolution strides), 224x224, batch norm."""
    x = net.conv(x, "conv1", 64, 7, stride=2, padding=3, bias=False, relu=False)
    x = net.max_pool(net.batch_norm(x, "norm1", relu=True), 3, 2, same=True)
    for stage, (depth, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = bottleneck(net, x, f"stage{stage + 1}_{block + 1}", depth, stride, not block)
    return net.dense(net.mean(x), "logits", 1000)


def gpt(net: Any, ids: Any) -> Any:
    """A decoder of 6 layers: width 384, 6 heads, 256 positions, vocabulary 65, GELU (tanh)."""
    x = net.embed(ids, "tokens", 65, "positions", 256, 384)
    for i in range(6):
        qkv = net.dense(net.layer_norm(x, f"norm{i}a"), f"qkv{i}", 3 * 384)
        x = x + net.dense(net.causal_attention(qkv, 6), f"projection{i}", 384)
        hidden = net.gelu(net.dense(net.layer_norm(x, f"norm{i}b"), f"up{i}", 4 * 384))
        x = x + net.dense(hidden, f"down{i}", 384)
    return net.dense(net.layer_norm(x, "norm"), "logits", 65)


def decoder(net: Any, ids: Any, layers: int, width: int, heads: int, vocabulary: int) -> Any:
    """A decoder as GPT-2 has it: the table of tokens is that of the logits, too."""
    x = net.embed(ids, "tokens", vocabulary, "positions", int(ids.shape[1]), width)
    for i in range(layers):
        qkv = net.dense(net.layer_norm(x, f"norm{i}a"), f"qkv{i}", 3 * width)
        x = x + net.dense(net.causal_attention(qkv, heads), f"projection{i}", width)
        hidden = net.gelu(net.dense(net.layer_norm(x, f"norm{i}b"), f"up{i}", 4 * width))
        x = x + net.dense(hidden, f"down{i}", width)
    return net.tied_logits(net.layer_norm(x, "norm"), "tokens")


#: GPT-2 small, its vocabulary of 50,257 tokens padded to a multiple of 64.
gpt2 = partial(decoder, layers=12, width=768, heads=12, vocabulary=50304)


class Extent(tuple[int, ...]):
    """A shape that stands for a tensor: adding two of the same shape gives it again."""

    def __add__(self, other: Any) -> Extent:
        return self

    @property
    def shape(self) -> Extent:
        """Itself, as tensors have it."""
        return self


class Shapes:
    """The vocabulary on shapes alone: declares the weights that a model uses."""

    def __init__(self) -> None:
        self.declared: dict[str, tuple[Shape, float | None]] = {}

    def declare(self, name: str, shape: Shape, spread: float | None = None) -> None:
        """A weight: normal with this deviation; ones for a scale, zeros for the rest."""
        self.declared[name] = (shape, spread)

    def conv(
        self,
        x: Shape,
        name: str,
        depth: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        relu: bool = True,
    ) -> Extent:
        batch, *space, channels = x
        self.declare(
            f"{name}/kernel", (size, size, channels, depth), (2 / size**2 / channels) ** 0.5
        )
        if bias:
            self.declare(f"{name}/bias", (depth,))
        return Extent((batch, *((n + 2 * padding - size) // stride + 1 for n in space), depth))

    def max_pool(self, x: Shape, size: int, stride: int, same: bool = False) -> Extent:
        batch, *space, channels = x
        after = (-(-n // stride) if same else (n - size) // stride + 1 for n in space)
        return Extent((batch, *after, channels))

    def mean(self, x: Shape) -> Extent:
        return Extent((x[0], x[3]))

    def flatten(self, x: Shape) -> Extent:
        return Extent((x[0], int(np.prod(x[1:]))))

    def concat(self, xs: Sequence[Shape]) -> Extent:
        return Extent((*xs[0][:-1], sum(x[-1] for x in xs)))

    def add_relu(self, x: Extent, y: Extent) -> Extent:
        return x

    def dense(self, x: Shape, name: str, units: int, relu: bool = False) -> Extent:
        self.declare(f"{name}/kernel", (x[-1], units), ((2 if relu else 1) / x[-1]) ** 0.5)
        self.declare(f"{name}/bias", (units,))
        return Extent((*x[:-1], units))

    def batch_norm(self, x: Extent, name: str, relu: bool) -> Extent:
        for part in ("scale", "offset", "moving_mean", "moving_variance"):
            self.declare(f"{name}/{part}", x[-1:])
        return x

    def layer_norm(self, x: Extent, name: str) -> Extent:
        self.declare(f"{name}/scale", x[-1:])
        self.declare(f"{name}/offset", x[-1:])
        return x

    def lstm(self, x: Shape, name: str, units: int, layers: int) -> Extent:
        width = x[-1]
        for i in range(layers):
            shape = (width + units, 4 * units)
            self.declare(f"{name}{i}/kernel", shape, (1 / (width + units)) ** 0.5)
            self.declare(f"{name}{i}/bias", (4 * units,))
            width = units
        return Extent((*x[:-1], units))

    def embed(
        self, ids: Shape, tokens: str, rows: int, places: str, length: int, width: int
    ) -> Extent:
        self.declare(f"{tokens}/table", (rows, width), 0.1)
        self.declare(f"{places}/table", (length, width), 0.1)
        return Extent((*ids, width))

    def tied_logits(self, x: Shape, tokens: str) -> Extent:
        return Extent((*x[:-1], self.declared[f"{tokens}/table"][0][0]))

    def gelu(self, x: Extent) -> Extent:
        return x

    def causal_attention(self, qkv: Shape, heads: int) -> Extent:
        return Extent((*qkv[:-1], qkv[-1] // 3))


def declarations(model: Any, x: Shape) -> dict[str, tuple[Shape, float | None]]:
    """Shape and deviation of each weight of a model on an input of shape `x`, in order of use."""
    net = Shapes()
    model(net, Extent(x))
    return net.declared


def initial(name: str, shape: Shape, spread: float | None) -> np.ndarray:
    """The initial value of a weight: a function of its name and shape alone."""
    if spread is None:
        ones = name.endswith(("/scale", "/moving_variance"))
        return np.full(shape, float(ones), np.float32)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.standard_normal(shape, np.float32) * np.float32(spread)


def trainable(name: str) -> bool:
    """Whether the optimizer moves a weight (all but the moving averages of batch norm)."""
    return "/moving_" not in name


def chain(x: Any) -> Any:
    """Twenty elementwise ops, one after the other: written with operators, as users write them."""
    for _ in range(10):
        x = x * 0.99
        x = x + 0.01
    return x
