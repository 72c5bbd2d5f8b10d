"""Works that move data in torch: a DataLoader with workers, safetensors files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flows
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from systems.step import Step


def make(kind: str) -> Step:
    """A step of a work that moves data."""
    makers: dict[str, Callable[[], Step]] = {
        "pipeline": pipeline,
        "pipeline-rows": partial(pipeline, lambda features: features / features.max()),
        "save": save,
        "save-synced": partial(save, synced=True),
        "restore": restore,
    }
    return makers[kind]()


class Records(Dataset[tuple[Tensor, Tensor]]):
    """The records, mapped one by one."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.change = change
        self.features, self.labels = map(torch.from_numpy, flows.records())

    def __len__(self) -> int:
        return flows.RECORDS

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.change(self.features[place]), self.labels[place]


def pipeline(change: Callable[[Tensor], Tensor] = lambda features: features * 2.0 + 1.0) -> Step:
    """A pass over the records; the workers stay between passes."""
    loader = DataLoader(
        Records(change),
        flows.BATCH,
        num_workers=flows.WORKERS,
        prefetch_factor=flows.AHEAD,
        persistent_workers=True,
    )

    def batches() -> Iterator[Any]:
        for features, labels in loader:
            yield features.numpy(), labels.numpy()

    return Step(lambda i: flows.digest(batches()))


def save(synced: bool = False) -> Step:
    """A safetensors file is written, and read back once, when the steps are checked."""
    from safetensors.torch import load_file, save_file

    tensors = {name: torch.from_numpy(value) for name, value in flows.tensors().items()}
    path = flows.folder() / "model.safetensors"

    def step(i: int) -> Any:
        save_file(tensors, path)
        if synced:
            flows.sync([path])
        return flows.sampled(load_file(path)[name].numpy() for name in tensors) if i < 2 else None

    return Step(step, settle=os.sync)


def restore() -> Step:
    """Tensors that are there get the values of a file, as a module's parameters do."""
    from safetensors.torch import load_file, save_file

    values = {name: torch.from_numpy(value) for name, value in flows.tensors().items()}
    path = flows.folder() / "model.safetensors"
    save_file(values, path)

    def step(i: int) -> Any:
        for name, value in load_file(path).items():
            values[name].copy_(value)
        if i > 1:
            return None
        return torch.stack([value[:: flows.EACH // 2] for value in values.values()]).numpy()

    def settle() -> None:
        os.sync()
        path.read_bytes()

    return Step(step, settle=settle)
