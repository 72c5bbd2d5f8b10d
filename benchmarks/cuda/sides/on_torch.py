"""PyTorch, compiled in a given mode: fused optimizer, channels-last images, flash attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import models
import torch
from rows import NULL, Row, row_of
from systems.on_torch import TorchNet, recurrent, tensor, weight
from torch.nn import functional as F

from sides.side import Side

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make(name: str, is_tiny: bool, mode: str) -> Side:
    """The step of a row, compiled in a mode; "eager" is not compiled at all."""
    compiled = (lambda f: f) if mode == "eager" else torch.compile(mode=mode, dynamic=False)
    if name == NULL:
        x, add = torch.ones((), device=DEVICE), compiled(lambda x: x + 1.0)
        return Side(lambda: float(add(x)))
    row = row_of(name, is_tiny)
    torch.backends.cuda.matmul.allow_tf32 = row.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = row.precision == "tf32"
    return _training_step(row, compiled)


def _training_step(row: Row, compiled: Callable[[Any], Any]) -> Side:
    # An LSTM's weights are taken out and changed: other systems begin with them, too.
    values = {name: value.copy() for name, value in row.weights.items()}
    names = [name.split("/")[0] for name in values if name.startswith("lstm") and "kernel" in name]
    lstm = recurrent(values, names).to(DEVICE, getattr(torch, row.weight_dtype)) if names else None
    weights: dict[str, Any] = {}
    for name, value in values.items():
        made = weight(name, value).detach().to(DEVICE, getattr(torch, row.dtype_of(name)))
        weights[name] = made.requires_grad_(models.trainable(name))
    x, labels = (tensor(part).to(DEVICE) for part in row.data)
    x = x.to(getattr(torch, row.weight_dtype)) if x.is_floating_point() else x
    every = [*weights.values(), *(lstm.parameters() if lstm else ())]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    trained = [each for each in every if each.requires_grad]
    optimizer = kinds[row.optimizer](trained, row.rate, fused=True)
    net = TorchNet(weights, lstm, training=True)

    @compiled
    def loss_of(x: Any, labels: Any) -> Any:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=row.precision == "mixed"):
            logits = row.model(net, x)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1))

    def step() -> float:
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, labels)
        loss.backward()
        optimizer.step()
        return float(loss)

    if DEVICE == "cpu":
        return Side(step)
    return Side(step, torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)
