"""The works with loops in torch: a loop in Python, and `torch.nn.LSTM` on packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

Weights = dict[str, Tensor]


def recurrence_loss(weights: Weights, module: None, x: Tensor) -> Tensor:
    """The mean square of h = tanh(decay h + x) over all steps."""
    decay, h = weights["decay"], torch.zeros_like(x[0])
    states: list[Tensor] = []
    for row in x.unbind():
        h = torch.tanh(torch.addcmul(row, decay, h))
        states.append(h)
    return torch.stack(states).square().mean()


def sequence_loss(
    weights: Weights, module: torch.nn.LSTM, x: Tensor, lengths: Tensor, labels: Tensor
) -> Tensor:
    """The mean loss of the steps that sequences of different lengths, longest first, have."""
    packed = pack_padded_sequence(x, lengths)
    outputs = module(packed)[0].data
    logits = F.linear(outputs, weights["logits/kernel"], weights["logits/bias"])
    return F.cross_entropy(logits, pack_padded_sequence(labels, lengths).data)


LOSSES: dict[str, Callable[..., Any]] = {"recurrence": recurrence_loss, "sequences": sequence_loss}
