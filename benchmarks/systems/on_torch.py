"""PyTorch, eager and compiled: channels-last images, fused optimizers, no module overhead."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import models
import numpy as np
import torch
from models import trainable
from torch import Tensor
from torch.nn import functional as F
from works import Work

from systems import torch_flows, torch_loops
from systems.step import Step

Weights = dict[str, Tensor]


class TorchNet:
    """Words of the models as functions of torch; images are NCHW in channels-last memory."""

    def __init__(self, weights: Weights, lstm: torch.nn.LSTM | None, training: bool) -> None:
        self.weights, self.recurrent, self.training = weights, lstm, training

    def conv(
        self,
        x: Tensor,
        name: str,
        depth: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        relu: bool = True,
    ) -> Tensor:
        offset = self.weights[f"{name}/bias"] if bias else None
        y = F.conv2d(x, self.weights[f"{name}/kernel"], offset, stride, padding)
        return F.relu(y, inplace=True) if relu else y

    def max_pool(self, x: Tensor, size: int, stride: int, same: bool = False) -> Tensor:
        # The windows of "SAME": centred at stride 1, else beginning at 0 and running over the end.
        padding = size // 2 if same and stride == 1 else 0
        return F.max_pool2d(x, size, stride, padding, ceil_mode=same and stride > 1)

    def mean(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))

    def flatten(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)  # a view of channels-last memory

    def concat(self, xs: Sequence[Tensor]) -> Tensor:
        return torch.cat(xs, 1)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        return F.relu(x + y, inplace=True)

    def dense(self, x: Tensor, name: str, units: int, relu: bool = False) -> Tensor:
        y = F.linear(x, self.weights[f"{name}/kernel"], self.weights[f"{name}/bias"])
        return F.relu(y, inplace=True) if relu else y

    def batch_norm(self, x: Tensor, name: str, relu: bool) -> Tensor:
        parts = ("moving_mean", "moving_variance", "scale", "offset")
        given = [self.weights[f"{name}/{part}"] for part in parts]
        y = F.batch_norm(x, *given, training=self.training, momentum=0.1, eps=1e-3)
        return F.relu(y, inplace=True) if relu else y

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        scale, offset = self.weights[f"{name}/scale"], self.weights[f"{name}/offset"]
        return F.layer_norm(x, x.shape[-1:], scale, offset, 1e-5)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def embed(
        self, ids: Tensor, tokens: str, rows: int, places: str, length: int, width: int
    ) -> Tensor:
        return F.embedding(ids, self.weights[f"{tokens}/table"]) + self.weights[f"{places}/table"]

    def tied_logits(self, x: Tensor, tokens: str) -> Tensor:
        return F.linear(x, self.weights[f"{tokens}/table"])

    def causal_attention(self, qkv: Tensor, heads: int) -> Tensor:
        batch, length, width = qkv.shape
        parts = qkv.view(batch, length, 3, heads, width // 3 // heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width // 3)

    def lstm(self, x: Tensor, name: str, units: int, layers: int) -> Tensor:
        return self.recurrent(x)[0]


def start(threads: int) -> str:
    """Set the runtime up; returns the version."""
    torch.set_num_threads(threads)
    return f"PyTorch {torch.__version__}"


def make(work: Work, threads: int, compiled: bool = False) -> Step:
    """A step of a work, eager or compiled."""
    if work.moves_data:
        return torch_flows.make(work.kind)
    compile_ = partial(torch.compile, dynamic=False) if compiled else lambda function: function
    if work.kind.startswith("null"):
        x, add = torch.tensor(1.0), compile_(lambda x: x + 1.0)
        return Step(lambda i: add(x))
    batches = [tuple(map(tensor, batch)) for batch in work.batches()]
    if work.kind == "chain":
        return Step(cycle(torch.inference_mode()(compile_(models.chain)), batches))
    if work.kind == "word2vec":
        return Step(cycle(word2vec(work, compile_), batches))
    return Step(cycle(model_step(work, compile_), batches))


def start_compiled(threads: int) -> str:
    """Set the runtime up and load the compiler's own modules; returns the version."""
    version = start(threads)
    importlib.import_module("torch._inductor.compile_fx")
    torch.compile(lambda x: x + 1.0, backend="aot_eager")(torch.ones(2))
    torch.compiler.reset()
    return version


def make_compiled(work: Work, threads: int) -> Step:
    """A step of a work, compiled."""
    return make(work, threads, compiled=True)


def cycle(step: Callable[..., Any], batches: list[tuple[Tensor, ...]]) -> Callable[[int], Any]:
    """Step i takes the next batch."""
    return lambda i: step(*batches[i % len(batches)])


def tensor(value: np.ndarray) -> Tensor:
    """Data as torch likes it: channels last, labels of 64 bits."""
    if value.dtype == np.int32:
        return torch.from_numpy(value).long()
    return (
        torch.from_numpy(value).permute(0, 3, 1, 2) if value.ndim == 4 else torch.from_numpy(value)
    )


def weight(name: str, value: np.ndarray) -> Tensor:
    """A weight as torch likes it: OIHW in channels-last memory, matrices transposed."""
    result = torch.from_numpy(value)
    if name.endswith("/kernel") and value.ndim == 4:
        result = result.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    elif name.endswith("/kernel"):
        result = result.T.contiguous()
    return result.requires_grad_(trainable(name))


def recurrent(weights: dict[str, np.ndarray], names: Sequence[str]) -> torch.nn.LSTM:
    """`torch.nn.LSTM` with our weights: other order of gates, the forget bias added."""
    units = weights[f"{names[0]}/bias"].size // 4
    module = torch.nn.LSTM(units, units, len(names))
    with torch.no_grad():
        for layer, name in enumerate(names):
            kernel, bias = (weights.pop(f"{name}/{part}") for part in ("kernel", "bias"))
            bias[2 * units : 3 * units] += 1.0
            kernel, bias = (reordered(value) for value in (kernel, bias))
            getattr(module, f"weight_ih_l{layer}").copy_(kernel[:units].T)
            getattr(module, f"weight_hh_l{layer}").copy_(kernel[units:].T)
            getattr(module, f"bias_ih_l{layer}").copy_(bias)
            # A second bias would be trained twice as fast as the others' one.
            getattr(module, f"bias_hh_l{layer}").zero_().requires_grad_(False)
    return module


def reordered(value: np.ndarray) -> Tensor:
    """Gates i, j, f, o as torch's i, f, g, o."""
    i, j, f, o = np.split(value, 4, -1)
    return torch.from_numpy(np.concatenate([i, f, j, o], -1))


def model_step(work: Work, compile_: Callable[[Any], Any]) -> Callable[..., Tensor]:
    """Forward, or forward, backward and update, of a model."""
    values = work.weights()
    names = [name.split("/")[0] for name in values if name.startswith("lstm") and "ker" in name]
    lstm = recurrent(values, names) if names else None
    weights = {name: weight(name, values.pop(name)) for name in list(values)}
    every = [*weights.values(), *(lstm.parameters() if lstm else ())]
    trained = [w for w in every if w.requires_grad]
    if work.kind in torch_loops.LOSSES:
        loss_of_loop = partial(torch_loops.LOSSES[work.kind], weights, lstm)
        return training(work, loss_of_loop, trained)
    net = TorchNet(weights, lstm, work.trains)
    if not work.trains:
        return inference(compile_(lambda x: work.model(net, x)))

    def loss_of(x: Tensor, labels: Tensor) -> Tensor:
        logits = work.model(net, x)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))

    return training(work, compile_(loss_of), trained)


def inference(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The forward pass alone."""
    return torch.inference_mode()(forward)


def training(
    work: Work, loss_of: Callable[..., Tensor], weights: list[Tensor]
) -> Callable[..., Tensor]:
    """Forward, backward and the fused optimizer."""
    kind = torch.optim.Adam if work.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(weights, lr=work.rate, fused=True)

    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def word2vec(work: Work, compile_: Callable[[Any], Any]) -> Callable[..., Tensor]:
    """Sampled softmax on the rows in use; the update adds into those rows alone."""
    tables = {name: torch.from_numpy(value) for name, value in work.weights().items()}

    def loss_of(hidden: Tensor, rows: Tensor, bias: Tensor, counts: Tensor) -> Tensor:
        words = len(hidden)
        bias = bias - counts.log()
        true = (hidden * rows[:words]).sum(1) + bias[:words]
        others = hidden @ rows[words:].T + bias[words:]
        logits = torch.cat([true[:, None], others], 1)
        return (logits.logsumexp(1) - true).mean()

    loss_of = compile_(loss_of)

    def step(words: Tensor, targets: Tensor, sampled: Tensor, *expected: Tensor) -> Tensor:
        ids = torch.cat([targets, sampled])
        places = [("embedding", words), ("softmax", ids), ("bias", ids)]
        rows = [tables[name][at].requires_grad_() for name, at in places]
        loss = loss_of(*rows, torch.cat(expected))
        gradients = torch.autograd.grad(loss, rows)
        for (name, at), gradient in zip(places, gradients, strict=True):
            tables[name].index_add_(0, at, gradient, alpha=-work.rate)
        return loss.detach()

    return step
